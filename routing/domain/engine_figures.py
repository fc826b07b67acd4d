"""What engines said of themselves, added up over time: queue, occupancy, how often they were busy, cache hits.

Sums over routers and over windows are the same operation, as with the figures of requests. What an engine does not say
is counted nowhere, so that a mean is over those times at which it was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.domain.dialects import EngineReading

MOST = 2**53 - 1
LONGEST_KIND = 40


@dataclass(slots=True)
class Gauge:
    """``total`` of ``count`` values, of which the greatest is ``most``."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def greatest(self) -> float | None:
        return self.most if self.count else None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.merge(Gauge(1, value, value))

    def merge(self, other: Gauge) -> None:
        self.count = min(self.count + other.count, MOST)
        self.total = min(self.total + other.total, float(MOST))
        self.most = max(self.most, other.most)

    def to_json(self) -> list[float]:
        return [self.count, round(self.total, 6), round(self.most, 6)]

    @classmethod
    def from_json(cls, stored: object) -> Gauge:
        """Raises ValueError or TypeError for what to_json() never made."""
        if not isinstance(stored, list) or len(stored) != 3:
            raise TypeError("a gauge is three numbers")
        count, total, most = stored
        for value in (total, most):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
                raise ValueError("no gauge")
        return cls(_whole(count), float(total), float(most))


@dataclass(slots=True)
class EngineFigures:
    """``kind``: the dialect that it speaks, "" while unknown; ``stand_in``: it only keeps time. ``asked`` so often, of
    which ``silent`` were not answered. ``busy``: answers with something running. ``running``, ``waiting``: requests.
    ``usage``: of its cache, 0 to 1. ``hit`` of ``queried`` prompt tokens came from it meanwhile."""

    kind: str = ""
    stand_in: bool = False
    caching: bool | None = None
    asked: int = 0
    silent: int = 0
    busy: int = 0
    queried: int = 0
    hit: int = 0
    running: Gauge = field(default_factory=Gauge)
    waiting: Gauge = field(default_factory=Gauge)
    usage: Gauge = field(default_factory=Gauge)

    def read(self, reading: EngineReading, before: EngineReading | None) -> None:
        """One answer. ``before``: the one before it, whose counters are taken off; a restart counts from nothing."""
        self.asked += 1
        self.kind = reading.dialect.value if reading.dialect else ""
        self.stand_in, self.caching = reading.stand_in, reading.prefix_caching
        self.running.add(reading.running)
        self.waiting.add(reading.waiting)
        self.usage.add(reading.kv_usage)
        self.busy += bool(reading.running)
        if before is None or None in (reading.queried_tokens, reading.hit_tokens, before.queried_tokens):
            return
        queried = (reading.queried_tokens or 0) - (before.queried_tokens or 0)
        hit = (reading.hit_tokens or 0) - (before.hit_tokens or 0)
        if 0 <= hit <= queried:
            self.queried = min(self.queried + queried, MOST)
            self.hit = min(self.hit + hit, MOST)

    def unheard(self) -> None:
        self.asked += 1
        self.silent += 1

    def merge(self, other: EngineFigures) -> None:
        """Take in what was said at another time, or to another router; ``other`` is the later of the two."""
        if other.asked > other.silent:
            self.kind, self.stand_in, self.caching = other.kind, other.stand_in, other.caching
        for name in ("asked", "silent", "busy", "queried", "hit"):
            setattr(self, name, min(getattr(self, name) + getattr(other, name), MOST))
        for name in ("running", "waiting", "usage"):
            getattr(self, name).merge(getattr(other, name))

    @property
    def utilisation(self) -> float | None:
        """The part of the answers with something running; None where none said so."""
        return self.busy / self.running.count if self.running.count else None

    @property
    def hit_rate(self) -> float | None:
        return self.hit / self.queried if self.queried else None

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        made: dict[str, Any] = {name: value for name in _NUMBERS if (value := getattr(self, name))}
        made |= {name: value.to_json() for name in _GAUGES if (value := getattr(self, name)).count}
        made |= {"kind": self.kind} if self.kind else {}
        made |= {"stand_in": True} if self.stand_in else {}
        return made | ({"caching": self.caching} if self.caching is not None else {})

    @classmethod
    def from_json(cls, stored: object) -> EngineFigures:
        """Raises ValueError or TypeError for what to_json() never made."""
        if not isinstance(stored, Mapping):
            raise TypeError("an engine's figures are an object")
        kind, caching = stored.get("kind", ""), stored.get("caching")
        if not isinstance(kind, str) or len(kind) > LONGEST_KIND or not kind.isprintable():
            raise ValueError("no kind of an engine")
        made = cls(kind, stored.get("stand_in") is True, caching if isinstance(caching, bool) else None)
        for name in _NUMBERS:
            setattr(made, name, _whole(stored.get(name, 0)))
        for name in _GAUGES:
            if name in stored:
                setattr(made, name, Gauge.from_json(stored[name]))
        return made


_NUMBERS = ("asked", "silent", "busy", "queried", "hit")
_GAUGES = ("running", "waiting", "usage")


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError("no count")
    return value
