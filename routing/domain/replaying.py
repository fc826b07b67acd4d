"""Recorded requests against a strategy, in virtual time, through the very functions that routers decide with.

A recording holds keyed digests and lengths, no text. What is computed answers "what if": hit rate, balance and time to
the first token under another strategy, membership or number of routers, by the engine model.
"""

from __future__ import annotations

import heapq
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
    """What one router knows alone; ``pending`` in tokens."""

    situation: Situation
    in_flight: dict[str, int]
    unanswered: dict[str, int]
    pending: dict[str, int]
    places: Places | None
    sketch: Sketch = field(default_factory=Sketch)


class Replay:
    """One run. ``routers`` share the requests at random, each with its own counters, as if nothing stood before them.

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
    ) -> None:
        self._policy, self._members = policy, tuple(members)
        self._engines = {one.id: EngineModel(shape or EngineShape()) for one in members}
        parameters = policy.prefix_aware
        self._limit = parameters.prefix_length if parameters else 0
        self._threshold = local_threshold(parameters.concurrency_threshold, routers) if parameters else 0
        self._draws = random.Random(seed)
        self._hot, self._counted, self._published_at = HotSet(), Counted(), 0.0
        self._most_unanswered = local_share(policy.extensions.unanswered_threshold, routers)
        self._alone = routers <= 1
        self._routers = [self._router() for _ in range(routers)]
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
        """What happened until now: answers began and ended, hot sets were published."""
        while self._begins and self._begins[0][0] <= now:
            _, router, member, tokens = heapq.heappop(self._begins)
            self._routers[router].unanswered[member] -= 1
            self._routers[router].pending[member] -= tokens
        while self._ends and self._ends[0][0] <= now:
            _, router, member = heapq.heappop(self._ends)
            self._routers[router].in_flight[member] -= 1
            self._total[member] -= 1
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

    def _router(self) -> Router:
        in_flight, unanswered, pending = dict[str, int](), dict[str, int](), dict[str, int]()
        avoids = self._policy.strategy is RoutingStrategy.PREFIX_AWARE and self._policy.extensions.avoid_waits
        places = Places() if avoids else None
        situation = self._situation(in_flight, unanswered, pending, places)
        return Router(situation, in_flight, unanswered, pending, places)

    def _situation(
        self, in_flight: dict[str, int], unanswered: dict[str, int], pending: dict[str, int], places: Places | None
    ) -> Situation:
        return Situation(
            self._policy, self._members, self._hot.digests, frozenset(), in_flight, self._threshold, unanswered,
            self._most_unanswered, pending if places is not None else None, places, self._alone,
        )  # fmt: skip
