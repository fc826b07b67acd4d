"""What the vendor's schema lacks, in annotations ``hearth.dev/…``: gate, hold, connection, credentials of the
pod, and the request that warms it up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caches.domain.endpoints.reading import Ignored, Part, Problems
from caches.domain.endpoints.warm_up import WarmUp, read_warm_up
from caches.domain.gating import GateType

PREFIX = "hearth.dev/"
DEFAULT_HOLD_SECONDS = 3600
LONGEST_HOLD_SECONDS = 30 * 86400
_RANGES = {GateType.COUNT: (1, 100_000), GateType.PERCENT: (1, 100), GateType.TIMEOUT: (1, 7 * 86400)}
KNOWN = {"gate", "hold-seconds", "connection", "source-secret", "warm-up", "warm-up-seconds"}


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """When a Deployment may be made. ``value``: nodes for Count, percent for Percent, seconds for Timeout."""

    type: GateType = GateType.ALL
    value: int = 100


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """``connection`` "" is chosen by type and bucket; ``source_secret`` is a Secret of the endpoint's own namespace."""

    gate: GatePolicy = GatePolicy()
    hold_seconds: int = DEFAULT_HOLD_SECONDS
    connection: str = ""
    source_secret: str = ""
    warm_up: WarmUp | None = None


def read_options(annotations: Mapping[str, Any], problems: Problems) -> tuple[EndpointOptions, tuple[Ignored, ...]]:
    """The options and which annotations of ours are none; annotations of others are nobody's business."""
    ours = {name.removeprefix(PREFIX): value for name, value in annotations.items() if name.startswith(PREFIX)}
    part = Part("metadata.annotations", annotations, problems)
    hold = DEFAULT_HOLD_SECONDS
    if text := part.matched(f"{PREFIX}hold-seconds", "[0-9]{1,9}", "a number of seconds"):
        hold = int(text)
        if hold > LONGEST_HOLD_SECONDS:
            detail = f"An old version is held for {LONGEST_HOLD_SECONDS} seconds at most."
            part.refuse(f"{PREFIX}hold-seconds", "field-range", detail)
            hold = DEFAULT_HOLD_SECONDS
    options = EndpointOptions(
        gate=_gate(part),
        hold_seconds=hold,
        connection=part.matched(f"{PREFIX}connection", "[-a-zA-Z0-9_]{1,63}", "the name of a source connection"),
        source_secret=part.matched(
            f"{PREFIX}source-secret", r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a Secret of this namespace"
        ),
        warm_up=read_warm_up(part, PREFIX),
    )
    unknown = sorted(ours.keys() - KNOWN)
    return options, tuple(
        Ignored(f"metadata.annotations.{PREFIX}{name}"[:200], "Hearth knows no such annotation") for name in unknown
    )


def _gate(part: Part) -> GatePolicy:
    name = f"{PREFIX}gate"
    text = part.text(name, "All")
    found = re.fullmatch(r"(All)|(Count|Percent|Timeout):([0-9]{1,9})", text, re.ASCII)
    if found is None:
        part.refuse(name, "gate", "The gate is All, Count:NODES, Percent:PERCENT or Timeout:SECONDS.")
        return GatePolicy()
    if found[1]:
        return GatePolicy()
    policy = GatePolicy(GateType(found[2]), int(found[3]))
    lowest, highest = _RANGES[policy.type]
    if not lowest <= policy.value <= highest:
        part.refuse(name, "gate", f"The value of {policy.type} must be between {lowest} and {highest}.")
        return GatePolicy()
    return policy
