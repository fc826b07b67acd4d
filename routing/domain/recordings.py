"""What is kept of requests so that other strategies can be tried on them: keyed digests, sizes and times, no text.

A router keeps some of what it serves for a few seconds and tells it; the control plane reads it back, strictly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routing.domain.keys import CHUNK, Boundary

DEEPEST = 65_536  # units of text that are hashed for it: the greatest PrefixLength
MESSAGE_BYTES = 16 * 1024  # of one router and variant in two seconds; what is over is counted and passed
RECORDED_MINUTES = 60  # how long it is kept
MOST_MESSAGES = 1800  # of one variant, over all routers
_HEX = re.compile(r"(?:[0-9a-f]{16}){0,64}")
_NAME = re.compile(r"[\x20-\x7e]{0,64}")


def key_of_stream(endpoint: str, variant: str) -> str:
    """Where it is told, by the names that clients use."""
    return f"hearth:routing:recorded:{endpoint}:{variant}"


@dataclass(frozen=True, slots=True)
class Kept:
    """One request that was served. ``at`` in seconds since 1970; ``boundaries`` to DEEPEST units at most; ``own``: the
    digest of a key that the client named, 0 without. Tokens and times are None where nobody said them."""

    at: float
    boundaries: tuple[Boundary, ...]
    own: int
    outcome: str
    instance: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft: float | None = None
    seconds: float | None = None

    @property
    def depth(self) -> int:
        """Units of text that are covered."""
        return self.boundaries[-1].depth if self.boundaries else 0


@dataclass(frozen=True, slots=True)
class Recording:
    """Some of a variant's requests, oldest first; ``passed``: so many were served beside them and not kept."""

    requests: tuple[Kept, ...] = ()
    passed: int = 0

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return self.requests[-1].at - self.requests[0].at if self.requests else 0.0


def line_of(kept: Kept) -> list[Any]:
    """For JSON: boundaries stand at every CHUNK, so their digests and the depth of the last say all."""
    return [
        round(kept.at, 3),
        kept.depth,
        "".join(f"{one.digest:016x}" for one in kept.boundaries),
        f"{kept.own:016x}" if kept.own else "",
        kept.outcome,
        kept.instance,
        kept.prompt_tokens,
        kept.cached_tokens,
        kept.output_tokens,
        None if kept.ttft is None else round(kept.ttft, 6),
        None if kept.seconds is None else round(kept.seconds, 6),
    ]


def read_message(document: Mapping[str, Any]) -> Recording:
    """What one message says; what line_of() never made is passed over."""
    lines = document.get("requests")
    found = [one for line in lines if (one := _read(line)) is not None] if isinstance(lines, list) else []
    passed: Any = document.get("passed")
    return Recording(tuple(found), passed if _is_count(passed) else 0)


def joined(recordings: Iterable[Recording]) -> Recording:
    """Of several routers and messages, in the order of time."""
    some = list(recordings)
    return Recording(
        tuple(sorted((kept for one in some for kept in one.requests), key=lambda kept: kept.at)),
        sum(one.passed for one in some),
    )


def _read(line: object) -> Kept | None:
    if not isinstance(line, list) or len(line) != 11:
        return None
    at, depth, digests, own, outcome, instance, *numbers = line
    if not (_is_time(at) and isinstance(digests, str) and _HEX.fullmatch(digests) and _is_count(depth)):
        return None
    if not (isinstance(own, str) and len(own) in (0, 16) and _HEX.fullmatch(own)):
        return None
    if any(not isinstance(text, str) or not _NAME.fullmatch(text) for text in (outcome, instance)):
        return None
    count = len(digests) // 16
    if not (count - 1) * CHUNK < depth <= count * CHUNK:
        return None
    if not all(one is None or _is_count(one) for one in numbers[:3]):
        return None
    if not all(one is None or _is_time(one) for one in numbers[3:]):
        return None
    return Kept(float(at), _boundaries(digests, count, depth), int(own or "0", 16), outcome, instance, *numbers)


def _boundaries(digests: str, count: int, depth: int) -> tuple[Boundary, ...]:
    return tuple(
        Boundary(min((number + 1) * CHUNK, depth), int(digests[16 * number : 16 * number + 16], 16))
        for number in range(count)
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**40


def universal(requests: Sequence[Kept], part: float) -> int:
    """The depth to which at least ``part`` of the requests begin alike; 0 when there is none."""
    deepest = 0
    for depth, share in shares_by_depth(requests):
        if share < part:
            break
        deepest = depth
    return deepest


def shares_by_depth(requests: Sequence[Kept]) -> list[tuple[int, float]]:
    """For each CHUNK of depth the share of all requests that the most frequent beginning of that length has."""
    found: list[tuple[int, float]] = []
    for level in range(DEEPEST // CHUNK):
        counts: dict[int, int] = {}
        for one in requests:
            if len(one.boundaries) > level and one.boundaries[level].depth == (level + 1) * CHUNK:
                digest = one.boundaries[level].digest
                counts[digest] = counts.get(digest, 0) + 1
        if not counts:
            break
        found.append(((level + 1) * CHUNK, max(counts.values()) / len(requests)))
    return found


def overlap(requests: Sequence[Kept]) -> float | None:
    """The part of the text whose beginning had been sent before, by anybody: what one endless cache would hold. None
    without any text."""
    met: set[int] = set()
    repeated = whole = 0
    for one in requests:
        whole += one.depth
        full = [boundary for boundary in one.boundaries if boundary.depth % CHUNK == 0]
        for boundary in full:
            if boundary.digest not in met:
                break
            repeated += CHUNK
        met.update(boundary.digest for boundary in full)
    return repeated / whole if whole else None
