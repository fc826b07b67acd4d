"""What is counted of one variant's requests, in a router and in a window: numbers and names of instances, no text.

Sums over routers and over time are the same operation, so a window of an hour is as exact as one of ten seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.domain.engine_figures import EngineFigures
from routing.domain.sketches import MOST as MOST_COUNT
from routing.domain.sketches import Sketch
from routing.domain.tallies import Tally

NAMED = ("outcomes", "instances", "answers", "failures", "refusals")
NUMBERS = ("requests", "told", "prompt_tokens", "cached_tokens", "disconnected", "truncated", "queued")
MOST = ("most_in_flight", "most_queued")
LONGEST_NAME, NAMES = 64, 2000
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ENOUGH = {"p50": 1, "p95": 20, "p99": 100}  # samples, from which on a percentile is not simply the greatest
LEAST_DUE = 50  # requests due to an instance, below which nothing is said of its share
LEAST_KEYS = 5  # keys due to it, where it is keys that are placed
CHANCE = 3.0  # standard deviations of drawing by chance: of 370 fair shares one lies outside


@dataclass(slots=True)
class Figures:
    """``told``: answers that said what came from the engine's cache, ``cached_tokens`` of ``prompt_tokens``.

    ``ttft`` by outcome: from the whole request to the first byte of the answer's body. ``overhead``: until it was sent
    on, without waiting in the queue and connecting; none of a request whose first instance was not reached. ``waited``:
    in the queue. Seconds. ``answers`` by class (2xx), ``failures`` of instances by kind. ``engines``: what they said of
    themselves, by instance.
    """

    requests: int = 0
    told: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    disconnected: int = 0
    truncated: int = 0
    queued: int = 0
    most_in_flight: int = 0
    most_queued: int = 0
    outcomes: Tally[str] = field(default_factory=Tally)
    instances: Tally[str] = field(default_factory=Tally)
    answers: Tally[str] = field(default_factory=Tally)
    failures: Tally[str] = field(default_factory=Tally)
    refusals: Tally[str] = field(default_factory=Tally)
    ttft: dict[str, Sketch] = field(default_factory=dict)
    overhead: Sketch = field(default_factory=Sketch)
    waited: Sketch = field(default_factory=Sketch)
    engines: dict[str, EngineFigures] = field(default_factory=dict)

    def engine(self, uid: str) -> EngineFigures:
        if (found := self.engines.get(uid)) is None:
            found = self.engines[uid] = EngineFigures()
        return found

    def first_byte(self, outcome: str, seconds: float) -> None:
        if (sketch := self.ttft.get(outcome)) is None:
            sketch = self.ttft[outcome] = Sketch()
        sketch.add(seconds)

    def take(self) -> Figures:
        """What was counted since the last call. This object goes on from nothing: whoever holds it counts on in it."""
        taken, fresh = Figures(), Figures()
        for name in self.__slots__:
            setattr(taken, name, getattr(self, name))
            setattr(self, name, getattr(fresh, name))
        return taken

    def merge(self, other: Figures) -> None:
        """Take in what another router, or another time, counted."""
        for name in NUMBERS:
            setattr(self, name, min(getattr(self, name) + getattr(other, name), MOST_COUNT))
        for name in MOST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in NAMED:
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = min(mine[key] + count, MOST_COUNT)
        for outcome, sketch in other.ttft.items():
            self.ttft.setdefault(outcome, Sketch()).merge(sketch)
        self.overhead.merge(other.overhead)
        self.waited.merge(other.waited)
        for uid, said in other.engines.items():
            self.engine(uid).merge(said)

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        made: dict[str, Any] = {name: value for name in (*NUMBERS, *MOST) if (value := getattr(self, name))}
        made |= {name: dict(value) for name in NAMED if (value := getattr(self, name))}
        if self.ttft:
            made["ttft"] = {outcome: sketch.to_json() for outcome, sketch in self.ttft.items()}
        for name, sketch in (("overhead", self.overhead), ("waited", self.waited)):
            if sketch.buckets:
                made[name] = sketch.to_json()
        if self.engines:
            made["engines"] = {uid: said.to_json() for uid, said in self.engines.items()}
        return made

    @classmethod
    def from_json(cls, stored: object) -> Figures:
        """Raises ValueError or TypeError for what to_json() never made; what is not there is nothing."""
        if not isinstance(stored, Mapping):
            raise TypeError("figures are an object")
        made = cls()
        for name in (*NUMBERS, *MOST):
            setattr(made, name, _whole(stored.get(name, 0)))
        for name in NAMED:
            getattr(made, name).update(_counts(stored.get(name, {})))
        for outcome, sketch in _named(stored.get("ttft", {})).items():
            made.ttft[outcome] = Sketch.from_json(sketch)
        made.overhead = Sketch.from_json(stored.get("overhead", {}))
        made.waited = Sketch.from_json(stored.get("waited", {}))
        for uid, said in _named(stored.get("engines", {})).items():
            made.engines[uid] = EngineFigures.from_json(said)
        return made

    @property
    def all_ttft(self) -> Sketch:
        """Over all outcomes."""
        whole = Sketch()
        for sketch in self.ttft.values():
            whole.merge(sketch)
        return whole

    @property
    def hit_rate(self) -> float | None:
        """Of the prompts whose answers said so; None when none did."""
        return self.cached_tokens / self.prompt_tokens if self.told and self.prompt_tokens else None


def told(name: str, count: int, value: float | None) -> float | None:
    """The percentile ``name`` of ``count`` samples; None of too few to tell it from the greatest (ENOUGH)."""
    return value if count >= ENOUGH[name] else None


def fair_band(due: float, requests: int, heaviest: float = 0.0) -> tuple[float, float]:
    """The shares of ``requests`` between which an instance is neither idle nor hot, where ``due`` would be its even
    share: that one, less 7 and more 8 percent of it, as the managed feature was measured with (13.3 to 15.4 % of
    seven), and on either side what drawing that many requests by chance makes of it (CHANCE).

    ``heaviest``: the part of the requests that one key has at most, where keys are placed and not requests. Chance then
    draws as if all keys were as heavy as that one: never less often than it does."""
    noise = CHANCE * math.sqrt(max(due * (1 - due), 0.0) * max(1 / requests, heaviest)) if requests else 0.0
    return max(0.0, 0.931 * due - noise), min(1.0, 1.078 * due + noise)


def is_fair(share: float, due: float, requests: int, heaviest: float = 0.0) -> bool | None:
    """None where too few of the ``requests``, or too few keys, were due to it to tell."""
    if requests * due < LEAST_DUE or due < LEAST_KEYS * heaviest:
        return None
    low, high = fair_band(due, requests, heaviest)
    return low <= share <= high


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError("no count")
    return value


def _named(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or len(value) > NAMES:
        raise ValueError("no named figures")
    if any(not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable() for name in value):
        raise ValueError("no name of a figure")
    return dict(value)


def _counts(value: object) -> dict[str, int]:
    return {name: _whole(count) for name, count in _named(value).items()}
