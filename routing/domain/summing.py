"""One page of numbers for several processes that do the same work. Pure.

Counters add up and never fall: what a process had counted when it ended stays in the sum. What says how things are now
adds up over those that are there, or is what the least of them says where a sum would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Gauge = Callable[[float, float], float]
# Of a router: a configuration is in force, and Redis is followed, once that is so in all of its processes; a set that
# all of them have is as large as in one.
ROUTER_GAUGES: Mapping[str, Gauge] = {
    "hearth_routing_config_version": min,
    "hearth_routing_following": min,
    "hearth_routing_hot_set_size": max,
    "hearth_routing_routers": max,
    "hearth_routing_routers_known": min,
}


@dataclass(slots=True)
class _Page:
    """As one process said it: ``samples`` by name and labels as they were written."""

    about: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    samples: dict[str, float] = field(default_factory=dict)


class Tally:
    """The pages of several processes. ``gauges``: how two values of a gauge become one, where they are not added."""

    def __init__(self, gauges: Mapping[str, Gauge] = ROUTER_GAUGES) -> None:
        self._gauges = gauges
        self._said: dict[int, _Page] = {}
        self._ended = _Page()

    def hear(self, process: int, text: str) -> None:
        """What a process says now; it counts until the next time, also while it is silent."""
        self._said[process] = _read(text)

    def end(self, process: int) -> None:
        """It is no more: what it had counted stays, what was so is no longer."""
        if (page := self._said.pop(process, None)) is None:
            return
        self._ended.about |= page.about
        self._ended.kinds |= page.kinds
        for key, value in page.samples.items():
            if page.kinds.get(_name(key)) == "counter":
                self._ended.samples[key] = self._ended.samples.get(key, 0.0) + value

    def text(self) -> str:
        """All of them as one, sorted within each name; "" before the first was heard."""
        about, kinds, sums = dict(self._ended.about), dict(self._ended.kinds), dict(self._ended.samples)
        for page in self._said.values():
            about |= page.about
            kinds |= page.kinds
            for key, value in page.samples.items():
                how = self._gauges.get(_name(key), float.__add__)
                sums[key] = how(sums[key], value) if key in sums else value
        by_name: dict[str, list[str]] = {name: [] for name in about}
        for key in sorted(sums):
            by_name.setdefault(_name(key), []).append(f"{key} {_written(sums[key])}")
        lines = [line for name, samples in by_name.items() for line in (*about.get(name, ()), *samples)]
        return "\n".join(lines) + "\n" if lines else ""


def _read(text: str) -> _Page:
    page = _Page()
    for line in text.split("\n")[:-1]:
        if line.startswith("#"):
            _, kind, name, rest = line.split(" ", 3)
            page.about.setdefault(name, []).append(line)
            if kind == "TYPE":
                page.kinds[name] = rest
        else:
            key, _, value = line.rpartition(" ")
            page.samples[key] = float(value)
    return page


def _name(key: str) -> str:
    return key.partition("{")[0]


def _written(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
