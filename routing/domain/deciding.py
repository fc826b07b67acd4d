"""Which instance gets a request: a pure function of its key, of what is published and of what is in flight.

Every router that has the same configuration decides the same (but for what is in flight at it), so a decision can be
made again later, explained, and tried against another strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from routing.domain.keys import Boundary
from routing.domain.placement import Member, Ranking
from routing.domain.policies import RoutingPolicy, RoutingStrategy


class Outcome(StrEnum):
    """How an instance was found. PRIMARY to SATURATED are PREFIX_AWARE's, from best to worst for the cache."""

    PRIMARY = "Primary"  # the key's own instance
    SIBLING = "Sibling"  # another copy on the same machine: the first was at the threshold
    SPILL = "Spill"  # the next instance in the key's order that had room, or the one where fewest wait for an answer
    SATURATED = "Saturated"  # all at the threshold: the least busy one
    ALL_HOT = "AllHot"  # every beginning up to PrefixLength is everybody's: the least busy one
    NO_KEY = "NoKey"  # nothing to hash: the least busy one
    LEAST_BUSY = "LeastBusy"  # by LEAST_OUTSTANDING_REQUESTS
    RANDOM = "Random"
    NOBODY = "Nobody"  # no instance can take it


class Key(NamedTuple):
    """``digest`` places the request; it covers ``depth`` units of text. ``skipped``: beginnings passed over as hot."""

    digest: int
    depth: int = 0
    skipped: int = 0
    override: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What is published (equal in all routers) and what only this router knows.

    ``members`` may get requests, ``away`` of them not now (unhealthy, draining): they keep their keys and are skipped.
    ``in_flight`` and ``threshold`` are this router's: see ``local_threshold``. Made once for many requests: what is in
    flight is looked at when it is decided, everything else stays. ``able``: who can be asked.
    ``unanswered``: how many of those in flight have had no answer yet; ``unanswered_threshold`` of them send the next
    one elsewhere, 0 for no such bound.
    """

    policy: RoutingPolicy
    members: Sequence[Member]
    hot: frozenset[int] = frozenset()
    away: frozenset[str] = frozenset()
    in_flight: Mapping[str, int] | None = None
    threshold: int = 0
    unanswered: Mapping[str, int] | None = None
    unanswered_threshold: int = 0
    able: Ranking = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "able", Ranking(one for one in self.members if one.id not in self.away))


class Decision(NamedTuple):
    """``candidates`` in the order in which a retry goes on; the first is ``instance``."""

    instance: str
    outcome: Outcome
    key: Key | None = None
    candidates: tuple[str, ...] = ()


def key_of(policy: RoutingPolicy, found: Iterable[Boundary], hot: frozenset[int]) -> Key | None:
    """The key among a request's boundaries: the shallowest that is not hot, or the deepest when the depth is not
    adaptive. None when there is no boundary, a Key of depth 0 when all are hot."""
    skipped, last = 0, None
    for boundary in found:
        last = boundary
        if policy.extensions.adaptive_depth:
            if boundary.digest not in hot:
                return Key(boundary.digest, boundary.depth, skipped)
            skipped += 1
    if last is None:
        return None
    return Key(0, 0, skipped) if policy.extensions.adaptive_depth else Key(last.digest, last.depth)


def decide(situation: Situation, key: Callable[[], Key | None], draw: int) -> Decision:
    """``key`` is asked only when the strategy needs it, so other strategies never look into a request. ``draw`` is a
    uniformly random word of 64 bits; it decides RANDOM, and between equals."""
    if not situation.able.weights:
        return Decision("", Outcome.NOBODY)
    strategy = situation.policy.strategy
    if strategy is RoutingStrategy.RANDOM:
        # The rendezvous order of a random key is a weighted random order.
        ranked = situation.able.drawn(draw)
        return Decision(ranked[0], Outcome.RANDOM, None, ranked)
    if strategy is RoutingStrategy.LEAST_OUTSTANDING_REQUESTS:
        return _least_busy(situation, draw, Outcome.LEAST_BUSY)
    found = key()
    if found is None:
        return _least_busy(situation, draw, Outcome.NO_KEY)
    if not found.depth and not found.override:
        return _least_busy(situation, draw, Outcome.ALL_HOT, found)
    return _by_key(situation, found, draw)


def local_threshold(threshold: int, routers: int) -> int:
    """What one of ``routers`` allows an instance, so that all together keep near ``threshold`` unasked.

    Requests fall on routers by chance, so an even share alone would spill far too early: the slack is 1.5 standard
    deviations of the share. All routers together may exceed the threshold by the sum of the slacks.
    """
    if routers <= 1:
        return threshold
    share = threshold / routers
    return min(threshold, max(1, math.ceil(share + 1.5 * math.sqrt(share))))


def local_share(most: int, routers: int) -> int:
    """What one of ``routers`` allows of a bound that is low, and better too strict than too loose; 0 stays none."""
    return -(-most // max(1, routers))


def _by_key(situation: Situation, key: Key, draw: int) -> Decision:
    ranked = situation.able.of(key.digest)
    in_flight, threshold = situation.in_flight or {}, situation.threshold
    unanswered, most = situation.unanswered or {}, situation.unanswered_threshold
    first = ranked[0]
    if in_flight.get(first, 0) < threshold and not (most and unanswered.get(first, 0) >= most):
        return Decision(first, Outcome.PRIMARY, key, ranked)
    below = [one for one in ranked if in_flight.get(one, 0) < threshold]
    if not below:
        return _least_busy(situation, draw, Outcome.SATURATED, key)
    open_ones = [one for one in below if unanswered.get(one, 0) < most] if most else below
    if not open_ones:
        open_ones = [min(below, key=lambda one: unanswered.get(one, 0))]  # the first of them in the key's order
    homes = situation.able.homes
    home = homes.get(first)
    sibling = next((one for one in open_ones if home and homes.get(one) == home and one != first), "")
    chosen = sibling or open_ones[0]
    if chosen == first:
        return Decision(first, Outcome.PRIMARY, key, ranked)
    outcome = Outcome.SIBLING if sibling else Outcome.SPILL
    return Decision(chosen, outcome, key, (chosen, *(one for one in ranked if one != chosen)))


def _least_busy(situation: Situation, draw: int, outcome: Outcome, key: Key | None = None) -> Decision:
    """By requests in flight for each unit of weight; between equals the order is drawn, so that routers do not herd."""
    in_flight, weights = situation.in_flight, situation.able.weights
    ranked = situation.able.drawn(draw)
    if in_flight:
        ranked = tuple(sorted(ranked, key=lambda one: in_flight.get(one, 0) / weights[one]))
    return Decision(ranked[0], outcome, key, ranked)
