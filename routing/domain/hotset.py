"""Which beginnings everybody sends: small counters in each router, merged by the control plane into one published set.

A beginning that more than a fair part of the traffic shares (a system prompt) says nothing about where a request
belongs, and as a key it would melt one instance. Routers count the boundaries that they met; the counts of all of them,
aged, make the hot set; a request's key is then its shallowest beginning outside of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

CAPACITY = 4096  # digests that a router holds at most
ALL_OF_FIRST, MANY = 64, 4096  # requests between two publications: all of the first are counted, one in eight up to
ONE_IN, ONE_IN_MANY = 8, 64  # many, and one in 64 of those beyond: a thousand samples tell as much as ten thousand
FEWEST = 10  # that make anything hot
HEAVIEST = 256  # digests that it tells of, and that the sums keep
ROOM_FOR_ALL = 0.25  # of a sketch's capacity: as long as less is held, whole requests are taken, however new


class Sketch:
    """The heaviest of many digests in constant memory, at constant cost for each (Misra and Gries).

    A digest is never counted too high, and too low by at most what was added over ``capacity`` and by its depth. One
    thread.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._roomy = int(capacity * ROOM_FOR_ALL)
        self.requests = 0
        self._seen = 0
        self._counts: dict[int, int] = {}

    def samples(self) -> bool:
        """Whether the next request is to be added: all at first, so that little traffic tells something, then some."""
        self._seen = seen = self._seen + 1
        return seen <= ALL_OF_FIRST or seen % (ONE_IN if seen <= MANY else ONE_IN_MANY) == 0

    def add(self, digests: Iterable[int], hot: Collection[int] = ()) -> None:
        """One request's boundaries, from the shallowest on: all of them while there is room, so that a long beginning
        that everybody shares is known at once and not a piece for each request (of eight routers each has few). Then no
        more than could be heavy: none behind one that is new and not ``hot``, as a beginning is never heavier than its
        own beginning."""
        self.requests += 1
        for digest in digests:
            before = self._counts.get(digest, 0)
            self._counts[digest] = before + 1
            if not before and digest not in hot and len(self._counts) > self._roomy:
                break
        if len(self._counts) > self.capacity:
            self._counts = {digest: count - 1 for digest, count in self._counts.items() if count > 1}

    def take(self) -> Counted:
        """What was counted since the last call, the heaviest of it."""
        taken = Counted(self.requests, _heaviest(self._counts))
        self.requests, self._seen, self._counts = 0, 0, {}
        return taken


@dataclass(frozen=True, slots=True)
class Counted:
    """Requests, and for the heaviest digests how many of them began with it. Sums may be fractions once aged."""

    requests: float = 0.0
    counts: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HotSet:
    """``version`` rises with every change of ``digests``, never without one."""

    version: int = 0
    digests: frozenset[int] = frozenset()


def merged(counted: Iterable[Counted]) -> Counted:
    """The sum over routers, of the heaviest."""
    requests, counts = 0.0, dict[int, float]()
    for one in counted:
        requests += one.requests
        for digest, count in one.counts.items():
            counts[digest] = counts.get(digest, 0.0) + count
    return Counted(requests, _heaviest(counts))


def aged(before: Counted, now: Counted, keep: float = 0.8) -> Counted:
    """The running sum after one more period: what was there counts ``keep`` of what it did."""
    counts = {digest: count * keep for digest, count in before.counts.items()}
    for digest, count in now.counts.items():
        counts[digest] = counts.get(digest, 0.0) + count
    return Counted(before.requests * keep + now.requests, _heaviest(counts))


def hot_set(before: HotSet, counted: Counted, instances: int, hot_fraction: float) -> HotSet:
    """The hot set that follows ``before``.

    Hot is what more than ``hot_fraction / instances`` of the requests began with, and no fewer than FEWEST; what is hot
    already stays so down to half of that, so that a share near the limit does not move keys to and fro. Without enough
    requests to tell, or with fewer than two instances to spread them over, nothing changes.
    """
    if counted.requests < FEWEST or instances < 2:
        return before
    limit = max(hot_fraction / instances * counted.requests, FEWEST - 0.5)
    digests = frozenset(
        digest for digest, count in counted.counts.items() if count > (limit / 2 if digest in before.digests else limit)
    )
    return before if digests == before.digests else HotSet(before.version + 1, digests)


def _heaviest(counts: Mapping[int, float]) -> dict[int, float]:
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:HEAVIEST])
