"""What passes between a pod that needs an artifact and the node's agent: lines of JSON over a Unix socket in the store.

The pod sends one line, ``{"digest": "sha256:…", "who": "namespace/pod"}``. The agent answers with a line for each
change of progress and a last one that has ``end``. Shared by both sides, so it imports nothing of either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

SOCKET = "agent.sock"  # in the store's folder
MAX_LINE = 8192
ANSWER_SECONDS = 5.0  # a live agent says something within this time


class End(StrEnum):
    """How asking ended. After anything but READY the pod helps itself."""

    READY = "Ready"
    NO_ROOM = "NoRoom"
    PAUSED = "Paused"
    LEAVING = "Leaving"  # it is being evicted
    UNKNOWN = "Unknown"  # nobody published such an artifact
    FAILED = "Failed"
    STOPPING = "Stopping"  # the agent ends


class Found(StrEnum):
    """What a pod found on its node: measured, not wished."""

    HIT = "hit"
    MISS = "miss"
    PARTIAL = "partial"  # some bytes were there, or already on their way
    LOCAL = "local"  # the store could not take it: fetched into the pod


@dataclass(frozen=True, slots=True)
class Progress:
    """Sizes in bytes, ``rate`` in bytes per second, ``eta`` in seconds; None is unknown."""

    state: str
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float | None = None
    eta: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The last word. ``bytes`` were read from ``source`` for this in ``seconds``."""

    end: End
    found: Found = Found.MISS
    bytes: int = 0
    seconds: float = 0.0
    source: str = ""
    message: str = ""


def line_of(message: Progress | Answer) -> bytes:
    return json.dumps(asdict(message)).encode() + b"\n"


def read_line(data: bytes) -> Progress | Answer:
    """The inverse of ``line_of``; ValueError for anything else."""
    fields = _object(data)
    try:
        if "end" in fields:
            return Answer(**{**fields, "end": End(fields["end"]), "found": Found(fields["found"])})
        return Progress(**fields)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not an answer: {error}") from None


def question(digest: str, who: str) -> bytes:
    return json.dumps({"digest": digest, "who": who[:500]}).encode() + b"\n"


def read_question(data: bytes) -> tuple[str, str]:
    """(digest, who); ValueError for anything else."""
    fields = _object(data)
    digest, who = fields.get("digest"), fields.get("who", "")
    if not isinstance(digest, str) or not isinstance(who, str):
        raise ValueError("digest and who must be texts")
    return digest, who[:500]


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a line of JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    return fields
