"""Models of the rules by which other routers say that they choose, for runs on the same requests in virtual time.

Each is what its documentation and its own reports tell of the rule, as a small function of a request and of what one
router has in flight; nothing of those routers runs here (tests.bench.routing runs them). Where a rule hashes onto a
ring, instances stand in rendezvous order instead, which is more even than a ring: the model flatters it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from routing.domain.deciding import Decision, Outcome
from routing.domain.keys import CHUNK
from routing.domain.placement import Member, Ranking
from routing.domain.policies import read_policy
from routing.domain.replaying import Recorded, Replay, Router

Rule = Callable[[Recorded, Mapping[str, int], int], str]  # request, in flight at this router, a random word


class ByRule(Replay):
    """A replay whose routers decide by a peer's rule; each of them has state of its own."""

    def __init__(self, rule: Callable[[Ranking], Rule], members: Sequence[Member], routers: int = 1) -> None:
        super().__init__(read_policy({}), members, routers=routers, told=False)
        self._ranking = Ranking(members)
        self._rules = {id(one): rule(self._ranking) for one in self._routers}

    def _decided(self, router: Router, request: Recorded, draw: int) -> Decision:
        return Decision(self._rules[id(router)](request, router.in_flight, draw), Outcome.PRIMARY)


def fewest(ranking: Ranking, in_flight: Mapping[str, int], draw: int) -> str:
    return min(ranking.drawn(draw), key=lambda one: in_flight.get(one, 0))


def cache_aware(ranking: Ranking, *, match: float = 0.3, spread: int = 64, times: float = 1.5) -> Rule:
    """sglang-router's ``cache_aware`` with the values of its command line: a tree of what was sent where. Out of
    balance (both bounds) the shortest queue for everyone; otherwise whoever had the longest known beginning last,
    when it is more than ``match`` of the text, else who has fewest. Its tree holds more than the trace has."""
    last: dict[int, str] = {}

    def rule(request: Recorded, in_flight: Mapping[str, int], draw: int) -> str:
        counts = [in_flight.get(one, 0) for one in ranking.weights]
        known = 0
        for block in request.blocks:
            if block not in last:
                break
            known += 1
        if max(counts) - min(counts) > spread and max(counts) > times * min(counts):
            chosen = fewest(ranking, in_flight, draw)
        elif request.blocks and known / len(request.blocks) > match:
            chosen = last[request.blocks[known - 1]]
        else:
            chosen = fewest(ranking, in_flight, draw)
        last.update(dict.fromkeys(request.blocks, chosen))
        return chosen

    return rule


def whole_body(ranking: Ranking) -> Rule:
    """vllm-router's ``consistent_hash`` for a request that names no session: the whole body is the key, and load does
    not count. (On chats without a session its key was found to be constant: everything on one instance.)"""
    return lambda request, in_flight, draw: ranking.drawn(_mixed(request))[0]


def prefix_hash(ranking: Ranking, *, factor: float = 1.25) -> Rule:
    """smg's ``prefix_hash``: the first 256 tokens are the key; above ``factor`` of the mean load the least loaded of
    those below it."""

    def rule(request: Recorded, in_flight: Mapping[str, int], draw: int) -> str:
        first = ranking.of(_at(request, CHUNK))[0]
        bound = factor * (sum(in_flight.values()) + 1) / len(ranking.weights)
        return first if in_flight.get(first, 0) <= bound else fewest(ranking, in_flight, draw)

    return rule


def bounded_loads(ranking: Ranking, *, kilobytes: int = 2, factor: float = 1.25) -> Rule:
    """HAProxy's hash of a body's beginning with ``hash-balance-factor``: the next in order below ``factor`` of the mean
    load (in flight, with the request itself)."""

    def rule(request: Recorded, in_flight: Mapping[str, int], draw: int) -> str:
        bound = math.ceil(factor * (sum(in_flight.values()) + 1) / len(ranking.weights))
        ranked = ranking.of(_at(request, CHUNK * kilobytes))
        return next((one for one in ranked if in_flight.get(one, 0) < bound), ranked[0])

    return rule


def _at(request: Recorded, depth: int) -> int:
    """The digest of so much text, or of all there is."""
    return [one.digest for one in request.boundaries if one.depth <= depth][-1]


def _mixed(request: Recorded) -> int:
    return hash((request.blocks, request.tokens)) & (1 << 64) - 1
