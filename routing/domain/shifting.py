"""Which share of an endpoint's requests each variant gets, and when another one takes effect. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

MOST_VARIANTS = 20
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
LARGEST = 1e6
NOTHING = 1e-9  # of a share: what division leaves over


@dataclass(frozen=True, slots=True)
class WantedVariant:
    """``source``: the endpoint whose instances serve it; None: its own endpoint's. ``weight`` over the sum of all is
    its share of the requests that name no variant; one that is named is served whatever its weight."""

    name: str
    weight: float
    source: UUID | None = None


@dataclass(frozen=True, slots=True)
class Shift:
    """``weights`` now. ``waits_for``: variants that would get more and have no ready instance yet; while there is one,
    everything stays as it was."""

    weights: Mapping[str, float]
    waits_for: tuple[str, ...] = ()


def wrong_with(wanted: Sequence[WantedVariant], default: str) -> list[tuple[str, str]]:
    """(field, detail) of everything that is."""
    found = []
    for number, one in enumerate(wanted):
        if not _NAME.fullmatch(one.name):
            found.append((f"variants.{number}.name", "letters A-Z, digits and . _ -, at most 63 of them"))
        if not math.isfinite(one.weight) or not 0 <= one.weight <= LARGEST:
            found.append((f"variants.{number}.weight", f"from 0 to {LARGEST:g}"))
    names = [one.name for one in wanted]
    if len(set(names)) < len(names):
        found.append(("variants", "each name is there once"))
    if default not in names:
        found.append(("variants", f"{default} is always among them; its weight may be 0"))
    if len(wanted) > MOST_VARIANTS:
        found.append(("variants", f"at most {MOST_VARIANTS}"))
    if not found and not any(one.weight > 0 for one in wanted):
        found.append(("variants", "one of them has a weight above 0, or nobody gets the requests"))
    return found


def shifted(now: Mapping[str, float], wanted: Mapping[str, float], ready: Mapping[str, int]) -> Shift:
    """From the weights ``now`` to those ``wanted``, all at once, once every variant whose share grows has a ready
    instance: shifting away from one that is broken waits for nobody but those that take over."""
    before, after = _shares(now), _shares(wanted)
    growing = [name for name, share in after.items() if share > before.get(name, 0.0) + NOTHING]
    lacking = tuple(sorted(name for name in growing if not ready.get(name)))
    return Shift(dict(now), lacking) if lacking else Shift(dict(wanted))


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total if total else 0.0 for name, weight in weights.items()}
