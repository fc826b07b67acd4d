"""Hearth's own parameters of a policy: each with what it is where nobody says, its limits, and what people are told.

Whoever reads documents, REST and the form take all of that from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

HEADER_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Parameter:
    """``kind`` is bool, int, float or str; ``least`` and ``most`` are of numbers. ``said``: for people."""

    name: str
    default: Any
    said: str
    least: Any = 0
    most: Any = 0

    @property
    def kind(self) -> type:
        return type(self.default)

    @property
    def wanted(self) -> str:
        """What a value is to be, for people."""
        if self.kind is int:
            return whole_number(self.least, self.most)
        if self.kind is float:
            return f"from {self.least:g} to {self.most:g}"
        return "the name of a header, or empty" if self.kind is str else "true or false"


def whole_number(least: int, most: int) -> str:
    return f"a whole number from {least} to {most}"


def _parameter(default: Any, said: str, least: Any = 0, most: Any = 0) -> Any:
    return field(default=default, metadata={"said": said, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class RoutingExtensions:
    """Each has a default that needs no thought."""

    adaptive_depth: bool = _parameter(  # see hotset
        True, "Pass over beginnings that everybody sends. Off: exactly the prefix length, always."
    )
    strict_text: bool = _parameter(False, "Hash message text alone, without roles and tools.")
    key_header: str = _parameter(
        "", "A request header whose value is the key where it is there, for example x-session-id."
    )
    body_key: bool = _parameter(True, "OpenAI's prompt_cache_key of a body is the key where it is there.")
    hot_fraction: float = _parameter(
        0.25, "A beginning is everybody's above this share of the requests, divided by the instances.", 0.05, 1
    )
    inspect_bodies: bool = _parameter(
        True, "Off: requests are never looked into; PREFIX_AWARE then needs a key header."
    )
    queue_when_saturated: bool = _parameter(
        False, "When all instances are at the threshold, wait for room instead of going to the least busy one."
    )
    record_keys: bool = _parameter(
        False,
        "Keyed digests and sizes of requests, no text, are kept for an hour, so that another strategy can be tried on "
        "them before it is in force. Requests are looked into for that whatever the strategy.",
    )
    body_bytes: int = _parameter(
        64 * 1024 * 1024,
        "Greater bodies are refused with 413: some engines never finish with a very long prompt. A router may have "
        "been started with a smaller limit (--body-bytes; 512 KiB in make run): the smaller counts.",
        1024,
        64 * 1024 * 1024,
    )
    first_byte_seconds: int = _parameter(
        600,
        "An instance that has not begun to answer by then is left, and the client gets 504. An answer that is not "
        "streamed begins when it is whole.",
        1,
        3600,
    )
    unanswered_threshold: int = _parameter(
        0,
        "PREFIX_AWARE sends a request elsewhere also when so many wait at an instance for the beginning of their "
        "answer. Shortens the longest waits, for some hits; 0: no such bound.",
        0,
        1024,
    )
    avoid_waits: bool = _parameter(  # see deciding.TIMES_MEAN
        True,
        "PREFIX_AWARE goes elsewhere while clearly more waits at an instance for the beginning of its answer than "
        "elsewhere, and the key stays where it went. Off: it waits for the cache however long that takes.",
    )
    queue_requests: int = _parameter(
        256,
        "So many wait at each router process while there is no instance for them, as while one starts from zero. One "
        "more gets 429 and is told when to come back; 0: nobody waits, all get 503 at once.",
        0,
        4096,
    )
    queue_seconds: int = _parameter(
        30,
        "How long each of them waits before it gets 503. Longer than an instance takes to start, and shorter than "
        "clients and what stands before the router have patience. Counts for requests that come from now on.",
        1,
        600,
    )


PARAMETERS: Mapping[str, Parameter] = {
    one.name: Parameter(one.name, one.default, **one.metadata) for one in fields(RoutingExtensions)
}
