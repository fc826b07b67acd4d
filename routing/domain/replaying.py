"""Recorded requests against a strategy, in virtual time, through the very functions that routers decide with.

A recording holds keyed digests and lengths, no text. What is computed answers "what if": hit rate, balance and time to
the first token under another strategy, membership or number of routers, by the engine model.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from routing.domain.deciding import (
    Decision,
    Key,
    Outcome,
    Situation,
    decide,
    key_of,
    local_share,
    local_threshold,
    placed,
)
from routing.domain.engine_model import EngineModel, EngineShape, Served
from routing.domain.hotset import Counted, HotSet, Sketch, aged, hot_set, merged
from routing.domain.keys import Boundary
from routing.domain.placement import Member
from routing.domain.places import Places
from routing.domain.policies import RoutingPolicy, RoutingStrategy
from routing.domain.together import NOTHING, SAY_SECONDS, Part, Went, exchange, own

HOT_SET_SECONDS, AT_FIRST_SECONDS, YOUNG_SECONDS = 10.0, 1.0, 60.0  # how often the control plane publishes one


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it was recorded. ``at`` in seconds from the first; ``blocks`` as EngineModel.serve takes them;
    ``own``: the digest of a key that the client named, 0 without."""

    at: float
    boundaries: tuple[Boundary, ...]
    blocks: tuple[int, ...]
    tokens: int
    output_tokens: int
    own: int = 0


@dataclass(frozen=True, slots=True)
class Replayed:
    """``shares`` of the requests by member; ``ttft`` sorted, in seconds; ``most_in_flight`` on any one member."""

    requests: int
    tokens: int
    hit_tokens: int
    shares: dict[str, float]
    outcomes: dict[Outcome, int]
    ttft: tuple[float, ...]
    most_in_flight: int

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    def ttft_at(self, part: float) -> float:
        """A percentile; ``part`` between 0 and 1."""
        return self.ttft[min(len(self.ttft) - 1, int(part * len(self.ttft)))] if self.ttft else 0.0


@dataclass(slots=True)
class Router:
    """What one router knows: ``pending`` in tokens. Its counts are its own and ``others``, what it ``heard`` of each;
    ``said`` is what they may hear of it, unless that ``changed``. ``news``, ``placed``: how far it listened to what
    others have on their way, and to where keys went."""

    situation: Situation
    in_flight: dict[str, int]
    unanswered: dict[str, int]
    pending: dict[str, int]
    places: Places | None
    sketch: Sketch = field(default_factory=Sketch)
    others: tuple[dict[str, int], ...] = field(default_factory=lambda: ({}, {}, {}))
    heard: list[Part] = field(default_factory=list)
    said: Part = NOTHING
    changed: bool = False
    news: int = 0
    placed: int = 0

    @property
    def counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        return self.in_flight, self.unanswered, self.pending


class Replay:
    """One run. ``routers`` share the requests at random, as if nothing stood before them. Where they are ``told`` they
    tell one another in turn, each every ``every`` seconds, and hear then what was said before: what is decided between
    two turns, as at one and the same moment, is decided without knowing of each other. Otherwise each has its part.

    A policy is tried with the boundaries that were recorded, so its PrefixLength should be a multiple of 1,024, and no
    greater than the one that was in force.
    """

    def __init__(
        self,
        policy: RoutingPolicy,
        members: Sequence[Member],
        *,
        routers: int = 1,
        shape: EngineShape | None = None,
        seed: int = 1,
        told: bool = True,
        every: float = SAY_SECONDS,
    ) -> None:
        self._policy, self._members = policy, tuple(members)
        self._engines = {one.id: EngineModel(shape or EngineShape()) for one in members}
        parameters = policy.prefix_aware
        self._limit = parameters.prefix_length if parameters else 0
        self._told = told and routers > 1 and policy.strategy is RoutingStrategy.PREFIX_AWARE
        known = routers if self._told else 1
        self._threshold = local_threshold(parameters.concurrency_threshold, routers, known) if parameters else 0
        self._draws = random.Random(seed)
        self._hot, self._counted, self._published_at = HotSet(), Counted(), 0.0
        self._most_unanswered = local_share(policy.extensions.unanswered_threshold, routers, known)
        self._alone = known >= routers
        self._step, self._turns, self._silent = every / routers, 1, 0  # turns in a row in which nobody had news
        self._went, self._news = list[Went](), 0
        self._routers = [self._router(routers) for _ in range(routers)]
        self._ends: list[tuple[float, int, str]] = []
        self._begins: list[tuple[float, int, str, int]] = []
        self._total: Counter[str] = Counter()
        self._most = 0
        self.ends_at = 0.0  # of the last request that was placed

    def run(self, requests: Iterable[Recorded]) -> Replayed:
        """``requests`` in the order of ``at``."""
        served: list[Served] = []
        placed, outcomes = Counter[str](), Counter[Outcome]()
        for request in requests:
            self._pass(request.at)
            member, outcome = self._place(request)
            placed[member] += 1
            outcomes[outcome] += 1
            served.append(
                self._engines[member].serve(request.at, request.blocks, request.tokens, request.output_tokens)
            )
            self.ends_at = served[-1].ends_at
            heapq.heappush(self._ends, (self.ends_at, self._chosen, member))
            begins_at = request.at + served[-1].ttft_seconds
            heapq.heappush(self._begins, (begins_at, self._chosen, member, request.tokens))
        count = len(served)
        return Replayed(
            count,
            sum(one.tokens for one in served),
            sum(one.hit_tokens for one in served),
            {one.id: placed[one.id] / count if count else 0.0 for one in self._members},
            dict(outcomes),
            tuple(sorted(one.ttft_seconds for one in served)),
            self._most,
        )

    def _place(self, request: Recorded) -> tuple[str, Outcome]:
        self._chosen = self._draws.randrange(len(self._routers))
        router = self._routers[self._chosen]
        decision = self._decided(router, request, self._draws.getrandbits(64))
        for counts in (router.in_flight, router.unanswered):
            counts[decision.instance] = counts.get(decision.instance, 0) + 1
        router.pending[decision.instance] = router.pending.get(decision.instance, 0) + request.tokens
        router.changed, self._silent = True, 0
        self._total[decision.instance] += 1
        self._most = max(self._most, self._total[decision.instance])
        return decision.instance, decision.outcome

    def _decided(self, router: Router, request: Recorded, draw: int) -> Decision:
        found = [one for one in request.boundaries if one.depth <= self._limit]
        own = self._own(request)
        if found and own is None and router.sketch.samples():
            router.sketch.add((one.digest for one in found), self._hot.digests)
        key = own or key_of(self._policy, found, self._hot.digests)
        decision = decide(router.situation, lambda: key, draw, request.tokens)
        placed(router.situation, decision)
        return decision

    def _own(self, request: Recorded) -> Key | None:
        named = self._policy.extensions.body_key or self._policy.extensions.key_header
        return Key(request.own, override=True) if request.own and named else None

    def _pass(self, now: float) -> None:
        """What happened until now: answers began and ended, routers took turns, hot sets were published."""
        if self._told:
            self._take_turns(now)
        self._settle(now)
        self._publish(now)

    def _turn(self, router: Router) -> bool:
        """It says what it has on its way and where keys went, and hears all that was said. Whether any of it is new."""
        before = len(self._went), router.placed, router.news
        if router.places is not None:
            self._went += router.places.untold()
            for digest, home, chosen in self._went[router.placed :]:
                router.places.hear(digest, home, chosen)
            router.placed = len(self._went)
        if router.changed:
            router.changed, self._news = False, self._news + 1
            router.said = Part(*map(own, router.counts, router.others))
        if router.news != self._news:
            for number, one in enumerate(self._routers):
                if one is not router and router.heard[number] is not one.said:
                    for into in (router.counts, router.others):
                        for counts, *each in zip(into, router.heard[number], one.said, strict=True):
                            exchange(counts, *each)
                    router.heard[number] = one.said
            router.news = self._news
        return before != (len(self._went), router.placed, router.news)

    def _take_turns(self, now: float) -> None:
        """Those until now; where all have heard all the next is after something ended or began."""
        while (at := self._turns * self._step) <= now:
            if self._silent >= len(self._routers):
                happens = min([now, *(heap[0][0] for heap in (self._begins, self._ends) if heap)])
                self._turns, self._silent = max(self._turns, math.floor(happens / self._step) + 1), 0
                continue
            self._settle(at)
            self._silent = 0 if self._turn(self._routers[self._turns % len(self._routers)]) else self._silent + 1
            self._turns += 1

    def _settle(self, now: float) -> None:
        while self._begins and self._begins[0][0] <= now:
            _, router, member, tokens = heapq.heappop(self._begins)
            self._routers[router].unanswered[member] -= 1
            self._routers[router].pending[member] -= tokens
            self._routers[router].changed = True
        while self._ends and self._ends[0][0] <= now:
            _, router, member = heapq.heappop(self._ends)
            self._routers[router].in_flight[member] -= 1
            self._routers[router].changed = True
            self._total[member] -= 1

    def _publish(self, now: float) -> None:
        while now - self._published_at >= (
            period := AT_FIRST_SECONDS if self._published_at < YOUNG_SECONDS else HOT_SET_SECONDS
        ):
            self._published_at += period
            self._counted = aged(self._counted, merged(router.sketch.take() for router in self._routers))
            before, fraction = self._hot.version, self._policy.extensions.hot_fraction
            self._hot = hot_set(self._hot, self._counted, len(self._members), fraction)
            if self._hot.version != before:
                for one in self._routers:
                    one.situation = self._situation(one.in_flight, one.unanswered, one.pending, one.places)

    def _router(self, routers: int) -> Router:
        in_flight, unanswered, pending = dict[str, int](), dict[str, int](), dict[str, int]()
        avoids = self._policy.strategy is RoutingStrategy.PREFIX_AWARE and self._policy.extensions.avoid_waits
        places = Places() if avoids else None
        if places is not None and self._told:
            places.untold()  # from now on
        situation = self._situation(in_flight, unanswered, pending, places)
        return Router(situation, in_flight, unanswered, pending, places, heard=[NOTHING] * routers)

    def _situation(
        self, in_flight: dict[str, int], unanswered: dict[str, int], pending: dict[str, int], places: Places | None
    ) -> Situation:
        return Situation(
            self._policy, self._members, self._hot.digests, frozenset(), in_flight, self._threshold, unanswered,
            self._most_unanswered, pending if places is not None else None, places, self._alone, self._told,
        )  # fmt: skip
