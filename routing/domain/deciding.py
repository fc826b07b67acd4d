"""Which instance gets a request: a pure function of its key, of what is published and of what is in flight.

Every router that has the same configuration decides the same (but for what is in flight at it), so a decision can be
made again later, explained, and tried against another strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple

from routing.domain.keys import Boundary
from routing.domain.placement import Member, Ranking
from routing.domain.places import Places
from routing.domain.policies import RoutingPolicy, RoutingStrategy

# An instance is passed over when the bytes that wait there for the beginning of their answer are more than OWN_SIZES of
# the request's own and TIMES_MEAN of what waits at an instance on average: a queue at one is left, one at all is not.
# Of few instances one is much of the average itself: halfway from the average to all that waits is the most then.
# A key that is new belongs to nobody's cache yet, and passes over whoever has more than NEW_MEAN of that average. Of
# several routers that do not hear one another each sees its own part: what it sees stands for more, and what is new to
# it may be known elsewhere. Measured: docs/benchmarks.md.
OWN_SIZES, OWN_SIZES_OF_PART, TIMES_MEAN, NEW_MEAN = 2.5, 0.5, 3.0, 0.5


class Outcome(StrEnum):
    """How an instance was found. PRIMARY to SATURATED are PREFIX_AWARE's, from best to worst for the cache."""

    PRIMARY = "Primary"  # the key's own instance
    MOVED = "Moved"  # where the key went last: then too much waited at its own
    SIBLING = "Sibling"  # another copy on the same machine: the first was at the threshold, or too much waited there
    RELIEF = "Relief"  # another instance: too much waits for the beginning of its answer where the key is or belongs
    SPILL = "Spill"  # the next instance in the key's order below the threshold
    SATURATED = "Saturated"  # all at the threshold: the least busy one
    ALL_HOT = "AllHot"  # every beginning up to PrefixLength is everybody's: the least busy one
    NO_KEY = "NoKey"  # nothing to hash: the least busy one
    LEAST_BUSY = "LeastBusy"  # by LEAST_OUTSTANDING_REQUESTS
    RANDOM = "Random"
    NOBODY = "Nobody"  # no instance can take it


# A name in an Enum is looked up for a tenth of a microsecond, and several are asked of every request.
_PRIMARY, _MOVED, _RELIEF = Outcome.PRIMARY, Outcome.MOVED, Outcome.RELIEF
_BY_CHANCE, _BY_LOAD = RoutingStrategy.RANDOM, RoutingStrategy.LEAST_OUTSTANDING_REQUESTS
_STAYS = (_PRIMARY, _MOVED, _RELIEF)
SPILLED = (Outcome.SIBLING, Outcome.SPILL)
KEYED = (*_STAYS, *SPILLED, Outcome.SATURATED)  # a key led there, or would have


class Key(NamedTuple):
    """``digest`` places the request; it covers ``depth`` units of text. ``skipped``: beginnings passed over as hot."""

    digest: int
    depth: int = 0
    skipped: int = 0
    override: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What is published (equal in all routers) and what this router knows.

    ``members`` may get requests, ``away`` of them not now (unhealthy, draining): they keep their keys and are skipped.
    ``in_flight`` and ``threshold`` are this router's and of those that it hears: see ``local_threshold``. Made once for
    many requests: what is in flight is looked at when it is decided, everything else stays. ``able``: who can be asked.
    ``times``: how often the average may wait at an instance, by its weight.
    ``unanswered``: how many of those in flight have had no answer yet; ``unanswered_threshold`` of them send the next
    one elsewhere, 0 for no such bound. ``pending``: how many bytes (or tokens: only their ratio counts) those are;
    None where that does not count. ``places``: where keys went last; whoever decides tells it, see ``placed``.
    ``alone``: there is no router that is not heard, so what is known here is all there is. ``hears``: a part of it is
    other routers', and a moment old.
    """

    policy: RoutingPolicy
    members: Sequence[Member]
    hot: frozenset[int] = frozenset()
    away: frozenset[str] = frozenset()
    in_flight: Mapping[str, int] | None = None
    threshold: int = 0
    unanswered: Mapping[str, int] | None = None
    unanswered_threshold: int = 0
    pending: Mapping[str, int] | None = None
    places: Places | None = None
    alone: bool = True
    hears: bool = False
    able: Ranking = field(init=False, repr=False, compare=False)
    times: Mapping[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        able = Ranking(one for one in self.members if one.id not in self.away)
        object.__setattr__(self, "able", able)
        times = {weight: min(TIMES_MEAN, (able.whole / weight + 1) / 2) for weight in able.weights.values()}
        object.__setattr__(self, "times", times)


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


def decide(situation: Situation, key: Callable[[], Key | None], draw: int, size: int = 0) -> Decision:
    """``key`` is asked only when the strategy needs it, so other strategies never look into a request. ``draw`` is a
    uniformly random word of 64 bits; it decides RANDOM, and between equals. ``size`` in the unit of ``pending``."""
    if not situation.able.weights:
        return Decision("", Outcome.NOBODY)
    strategy = situation.policy.strategy
    if strategy is _BY_CHANCE:
        # The rendezvous order of a random key is a weighted random order.
        ranked = situation.able.drawn(draw)
        return Decision(ranked[0], Outcome.RANDOM, None, ranked)
    if strategy is _BY_LOAD:
        return _least_busy(situation, draw, Outcome.LEAST_BUSY)
    found = key()
    if found is None:
        return _least_busy(situation, draw, Outcome.NO_KEY)
    if not found.depth and not found.override:
        return _least_busy(situation, draw, Outcome.ALL_HOT, found)
    return _by_key(situation, found, draw, size)


def placed(situation: Situation, decision: Decision) -> None:
    """Have the next request with this key know where this one went, where that counts: who is at the threshold has its
    keys back as soon as it is not."""
    chosen, outcome, key, _ = decision
    places = situation.places
    if places is None or key is None:
        return
    if outcome is _PRIMARY:
        places.put(key.digest, chosen, chosen)
    elif outcome is _MOVED or outcome is _RELIEF:
        places.put(key.digest, _home(situation, key), chosen)


def _home(situation: Situation, key: Key) -> str:
    return situation.able.of(key.digest)[0]


def local_threshold(threshold: int, routers: int, known: int = 1) -> int:
    """What ``known`` of ``routers``, which count together, allow an instance, so that all together keep near
    ``threshold`` unasked.

    Requests fall on routers by chance, so an even share alone would spill far too early: the slack is 1.5 standard
    deviations of the share. All routers together may exceed the threshold by the sum of the slacks.
    """
    if known >= routers:
        return threshold
    share = threshold * known / routers
    return min(threshold, max(1, math.ceil(share + 1.5 * math.sqrt(share))))


def local_share(most: int, routers: int, known: int = 1) -> int:
    """What ``known`` of ``routers`` allow of a bound that is low: better too strict than too loose; 0 stays none."""
    return -(-most * known // max(known, routers))


def _by_key(situation: Situation, key: Key, draw: int, size: int) -> Decision:
    ranked = situation.able.of(key.digest)
    home = ranked[0]
    held = situation.places.of(key.digest, home) if situation.places is not None else ""
    if held and held not in situation.able.weights:
        held = ""  # it is away; what belongs to it comes back to it, what went there for a while need not
    first = held or home
    in_flight, pending, most = situation.in_flight or {}, situation.pending, situation.unanswered_threshold
    waits = pending.get(first, 0) if pending else 0
    mean = _mean(situation, pending) if pending and waits else 0.0
    if (
        in_flight.get(first, 0) < situation.threshold
        and (not waits or waits <= _bound(situation, mean, situation.able.weights[first], held, size))
        and not (most and (situation.unanswered or {}).get(first, 0) >= most)
    ):
        if first == home:
            return Decision(home, _PRIMARY, key, ranked)
        return _decision(first, _MOVED, key, ranked)
    below = [one for one in ranked if in_flight.get(one, 0) < situation.threshold]
    if not below:
        return _least_busy(situation, draw, Outcome.SATURATED, key)
    open_ones = _within_count(situation, below)
    bearable = _bearable(situation, open_ones, mean, held, size)
    if first in bearable:
        return _decision(first, _PRIMARY if first == home else _MOVED, key, ranked)
    homes = situation.able.homes
    machine = homes.get(first)
    sibling = next((one for one in bearable if homes.get(one) == machine), "") if machine else ""
    # Nobody else holds anything of a key that was here before, so where least waits; a new one to the first in order.
    # Past the threshold the order counts, so that a second home is the same every time.
    relieved = first in below
    by_wait = not bearable or (held and pending and relieved)
    chosen = sibling or (_least_waiting(situation, open_ones) if by_wait else bearable[0])
    if chosen in (home, first):
        return _decision(chosen, _PRIMARY if chosen == home else _MOVED, key, ranked)
    outcome = Outcome.SIBLING if sibling else _RELIEF if relieved else Outcome.SPILL
    return _decision(chosen, outcome, key, ranked)


def _within_count(situation: Situation, below: list[str]) -> list[str]:
    """Where fewer than ``unanswered_threshold`` wait for an answer; where fewest do if that is nowhere."""
    most, unanswered = situation.unanswered_threshold, situation.unanswered or {}
    if not most:
        return below
    return [one for one in below if unanswered.get(one, 0) < most] or [
        min(below, key=lambda one: unanswered.get(one, 0))  # the first of them in the key's order
    ]


def _mean(situation: Situation, pending: Mapping[str, int]) -> float:
    """What waits for each unit of weight. What waits at who is away says nothing of where it could go instead."""
    able = situation.able
    return sum(map(pending.get, able.weights, repeat(0))) / able.whole


def _bound(situation: Situation, mean: float, weight: float, held: str, size: int) -> float:
    """What may wait at an instance of this weight, where ``mean`` waits for each unit of weight."""
    if not situation.alone:
        return (OWN_SIZES_OF_PART * size + situation.times[weight] * mean) * weight
    return (OWN_SIZES * size + situation.times[weight] * mean if held else NEW_MEAN * mean) * weight


def _bearable(situation: Situation, among: list[str], mean: float, held: str, size: int) -> list[str]:
    """Where not too much waits, in the order of ``among``. ``mean`` 0 for one that nobody asked for yet."""
    pending, weights = situation.pending, situation.able.weights
    if not pending:
        return among
    mean = mean or _mean(situation, pending)
    bounds = {weight: _bound(situation, mean, weight, held, size) for weight in situation.times}
    return [one for one in among if pending.get(one, 0) <= bounds[weights[one]]]


def _least_waiting(situation: Situation, among: list[str]) -> str:
    """The first of ``among`` at which least waits for its weight."""
    pending, weights = situation.pending or {}, situation.able.weights
    return min(among, key=lambda one: pending.get(one, 0) / weights[one])


def _decision(instance: str, outcome: Outcome, key: Key, ranked: tuple[str, ...]) -> Decision:
    if instance != ranked[0]:
        ranked = (instance, *[one for one in ranked if one != instance])
    return Decision(instance, outcome, key, ranked)


def _least_busy(situation: Situation, draw: int, outcome: Outcome, key: Key | None = None) -> Decision:
    """By requests in flight for each unit of weight; between equals the order is drawn, so that routers do not herd.

    Under PREFIX_AWARE what waits comes first where that counts: what is being answered makes nobody wait."""
    in_flight, weights, pending = situation.in_flight or {}, situation.able.weights, situation.pending
    ranked, rest = situation.able.drawn(draw), tuple[str, ...]()
    if situation.hears:
        # Whoever all were told is idle would get what comes to all of them: of two drawn ones the less busy does.
        ranked, rest = ranked[:2], ranked[2:]
    if pending and outcome in (Outcome.ALL_HOT, Outcome.NO_KEY):
        ranked = tuple(
            sorted(ranked, key=lambda one: (pending.get(one, 0) / weights[one], in_flight.get(one, 0) / weights[one]))
        )
    elif in_flight:
        ranked = tuple(sorted(ranked, key=lambda one: in_flight.get(one, 0) / weights[one]))
    ranked += rest
    return Decision(ranked[0], outcome, key, ranked)
