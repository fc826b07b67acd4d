"""What a router says in one message, read strictly: a broker is a place where others may write. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.domain.figures import Figures
from routing.domain.hotset import HEAVIEST, Counted

_DIGEST = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[0-9a-f]{32}")
MOST_VARIANTS, MOST_INSTANCES = 2000, 5000


class NotTold(ValueError):
    """No message of a router."""


@dataclass(frozen=True, slots=True)
class ToldOf:
    """Of one variant, by the names that clients use."""

    endpoint: str
    variant: str
    figures: Figures
    counted: Counted


@dataclass(frozen=True, slots=True)
class Told:
    """``number`` rises with every message of one router. ``in_flight`` by instance uid; ``ejected``: those that it
    leaves out for their failures; ``firsts``: when those that were new to it first answered with success, in seconds
    since the epoch."""

    router: str
    host: str
    address: str
    started_at: float
    number: int
    config_version: int
    in_flight: Mapping[str, int]
    variants: tuple[ToldOf, ...]
    ejected: tuple[str, ...] = ()
    firsts: Mapping[str, float] = field(default_factory=dict)


def read_told(document: Mapping[str, Any]) -> Told:
    """Raises NotTold."""
    try:
        return Told(
            router=matched(document["router"], _NAME),
            host=_shown(document.get("host", ""), 255),
            address=_shown(document.get("address", ""), 300),
            started_at=float(document["started_at"]),
            number=whole(document["number"]),
            config_version=_version(document.get("config_version", 0)),
            in_flight=_in_flight(document.get("in_flight", {})),
            variants=tuple(_of(one) for one in _some(document.get("variants", []))),
            ejected=_uids(document.get("ejected", [])),
            firsts=_firsts(document.get("firsts", {})),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise NotTold(f"{type(error).__name__} at {str(error)[:60]!r}") from None


def _of(one: Mapping[str, Any]) -> ToldOf:
    figures = Figures.from_json(one.get("figures", {}))
    counted = one.get("counted", {})
    counts = {int(matched(digest, _DIGEST), 16): whole(count) for digest, count in counted.get("counts", {}).items()}
    if len(counts) > HEAVIEST:
        raise ValueError("too many beginnings")
    return ToldOf(
        str(one["endpoint"])[:400],
        str(one["variant"])[:63],
        figures,
        Counted(whole(counted.get("requests", 0)), counts),
    )


def _some(found: object) -> list[Any]:
    if not isinstance(found, list) or len(found) > MOST_VARIANTS:
        raise ValueError("no list of variants")
    return found


def _in_flight(found: Mapping[str, Any]) -> dict[str, int]:
    if len(found) > MOST_INSTANCES:
        raise ValueError("too many instances")
    return {_shown(uid, 64): whole(count) for uid, count in found.items()}


def _uids(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or len(found) > MOST_INSTANCES:
        raise ValueError("no list of instances")
    return tuple(_shown(uid, 64) for uid in found)


def _firsts(found: Mapping[str, Any]) -> dict[str, float]:
    if len(found) > MOST_INSTANCES:
        raise ValueError("too many instances")
    return {_shown(uid, 64): _seconds(at) for uid, at in found.items()}


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("no time")
    return float(value)


def whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError("no count")
    return value


def _shown(value: object, longest: int) -> str:
    # What no database stores as text (half a character, a NUL) would keep every later message from being stored.
    text = str(value)[:longest]
    if not text.isprintable():
        raise ValueError("no text")
    return text


def _version(value: object) -> int:
    # The next version is above all that routers have, so no message may use up the numbers that Redis can compare.
    number = whole(value)
    if number >= 2**48:
        raise ValueError("no version")
    return number


def matched(value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError("no name")
    return value
