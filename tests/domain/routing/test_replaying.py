"""The engine in virtual time, and whole strategies against recorded requests: what the design promises of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import Any

import pytest

from routing.domain.deciding import Outcome
from routing.domain.engine_model import EngineModel, EngineShape
from routing.domain.keys import Audience, boundaries
from routing.domain.placement import Member
from routing.domain.policies import RoutingPolicy, read_policy
from routing.domain.replaying import Recorded, Replay, Replayed

SHAPE = EngineShape(cache_blocks=4, block_tokens=100, prefill_rate=1000, decode_rate=10)
SEVEN = [Member(f"pod-{number}") for number in range(7)]
RANDOM = read_policy({})
LEAST = read_policy({"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"})


def prefix(length: int = 8192, threshold: int = 16, **extensions: object) -> RoutingPolicy:
    return read_policy({
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": length, "ConcurrencyThreshold": threshold},
        "RoutingExtensions": extensions,
    })  # fmt: skip


def test_an_engine_computes_what_it_does_not_hold() -> None:
    engine = EngineModel(SHAPE)
    first = engine.serve(0.0, [1, 2, 3], 350, 20)
    assert (first.hit_tokens, first.ttft_seconds, first.ends_at) == (0, 0.35, 2.35)
    again = engine.serve(10.0, [1, 2, 9], 350, 20)
    assert again.hit_tokens == 200 and again.ttft_seconds == pytest.approx(0.15)


def test_an_engine_computes_one_prompt_after_the_other() -> None:
    engine = EngineModel(SHAPE)
    engine.serve(0.0, [1], 100, 0)
    assert engine.serve(0.0, [2], 100, 0).ttft_seconds == pytest.approx(0.2)


def test_an_engine_forgets_ends_before_beginnings() -> None:
    engine = EngineModel(SHAPE)
    engine.serve(0.0, [1, 2, 3, 4], 400, 0)
    engine.serve(1.0, [5], 100, 0)
    assert engine.serve(2.0, [1, 2, 3, 4], 400, 0).hit_tokens == 300


def test_an_engine_always_computes_the_last_token() -> None:
    engine = EngineModel(SHAPE)
    engine.serve(0.0, [1], 100, 0)
    assert engine.serve(1.0, [1], 100, 0).hit_tokens == 99
    assert engine.serve(2.0, [], 0, 0).hit_tokens == 0


def requests(groups: int, count: int, *, system: int = 1, seed: int = 5, rate: float = 6.0) -> list[Recorded]:
    """Talks over ``groups`` documents behind a system prompt of ``system`` blocks that everybody sends."""
    draws, now, made = random.Random(seed), 0.0, []
    for number in range(count):
        now += draws.expovariate(rate)
        group = draws.randrange(groups) if groups else 10_000 + number
        ids = [*range(system), *(1000 * (group + 1) + depth for depth in range(8)), 10**9 + number]
        made.append(recorded(now, ids))
    return made


def recorded(at: float, ids: Sequence[int]) -> Recorded:
    text = "".join(f"{one:<2048}" for one in ids)
    found = tuple(boundaries(b"a secret", Audience("e", "v"), [text], 8192))
    chained = tuple(accumulate(ids, lambda before, now: hash((before, now))))
    return Recorded(at, found, chained, 512 * len(ids), 100)


def ran(policy: RoutingPolicy, of: Sequence[Recorded], routers: int = 1, **options: Any) -> Replayed:
    return Replay(policy, SEVEN, routers=routers, shape=EngineShape(cache_blocks=600), **options).run(of)


TALKS = requests(300, 2500)


def test_prefix_aware_finds_what_random_does_not() -> None:
    blind, least, aware = ran(RANDOM, TALKS), ran(LEAST, TALKS), ran(prefix(), TALKS)
    assert aware.hit_rate > 2 * max(blind.hit_rate, least.hit_rate)
    assert fmean(aware.ttft) < fmean(blind.ttft) and aware.ttft_at(0.99) <= blind.ttft_at(0.99)
    assert all(0.10 < share < 0.19 for share in aware.shares.values())
    assert sum(aware.outcomes.values()) == aware.requests == 2500


def test_more_routers_find_no_less() -> None:
    one, four, eight = (ran(prefix(), TALKS, routers).hit_rate for routers in (1, 4, 8))
    assert abs(one - four) < 0.015 and abs(one - eight) < 0.015


def test_a_fixed_length_inside_the_system_prompt_is_the_trap_and_the_adaptive_depth_is_out_of_it() -> None:
    trapped, adaptive = ran(prefix(1024, 32, adaptive_depth=False), TALKS), ran(prefix(8192, 32), TALKS)
    assert fmean(trapped.ttft) > fmean(ran(RANDOM, TALKS).ttft)
    assert fmean(adaptive.ttft) < fmean(trapped.ttft) / 3


def test_all_different_requests_cost_nothing() -> None:
    different = requests(0, 1500)
    assert fmean(ran(prefix(), different).ttft) < 1.1 * fmean(ran(RANDOM, different).ttft)


def test_one_prompt_of_forty_percent_melts_nobody() -> None:
    draws = random.Random(8)
    hot = [
        recorded(one.at, [0, 1, 2, 3, 10**9 + number]) if draws.random() < 0.4 else one
        for number, one in enumerate(TALKS)
    ]
    shares = ran(prefix(), hot).shares.values()
    assert max(shares) < 0.2


def test_the_threshold_holds_exactly_for_one_router_and_nearly_for_many() -> None:
    busy = requests(40, 1500, rate=14.0)
    for threshold in (4, 8):
        exact, near = ran(prefix(threshold=threshold), busy), ran(prefix(threshold=threshold), busy, routers=4)
        if Outcome.SATURATED not in exact.outcomes:
            assert exact.most_in_flight <= threshold
        assert near.most_in_flight <= 3 * max(threshold, exact.most_in_flight)
        assert exact.outcomes.get(Outcome.SPILL, 0) > 0


def test_routers_that_tell_one_another_wait_less_and_keep_the_threshold_better() -> None:
    busy = requests(0, 1500, rate=14.0)
    one, told, untold = ran(prefix(), busy), ran(prefix(), busy, 8), ran(prefix(), busy, 8, told=False)
    assert fmean(one.ttft) <= fmean(told.ttft) < fmean(untold.ttft)
    few = requests(40, 1500, rate=14.0)
    together, apart = ran(prefix(threshold=4), few, 8), ran(prefix(threshold=4), few, 8, told=False)
    assert together.most_in_flight < apart.most_in_flight


def test_least_outstanding_requests_goes_by_what_each_router_has_itself() -> None:
    """All would choose the one that all were told is least busy."""
    assert ran(LEAST, TALKS[:500], 4) == ran(LEAST, TALKS[:500], 4, told=False)


def test_routers_that_hear_at_once_decide_as_one_that_knows_all() -> None:
    """Keys that clients name: neither chance nor the hot set has a part in it."""
    some = [replace(one, at=number * 0.06, own=1 + number % 37) for number, one in enumerate(TALKS[:300])]
    one, four = ran(prefix(), some), ran(prefix(), some, 4, every=1e-5)
    assert (four.shares, four.outcomes, four.ttft) == (one.shares, one.outcomes, one.ttft)
    assert one.outcomes[Outcome.MOVED] and ran(prefix(), some, 4, told=False).outcomes != one.outcomes


def test_what_a_router_knows_is_its_own_and_what_it_heard_and_nothing_is_left_at_the_end() -> None:
    replay = Replay(prefix(), SEVEN, routers=3, shape=EngineShape(cache_blocks=600))
    replay.run(TALKS[:300])
    replay._pass(replay.ends_at + 1000.0)
    for router in replay._routers:
        assert not any(count for counts in (*router.counts, *router.others) for count in counts.values())


def test_the_same_run_gives_the_same_figures() -> None:
    assert ran(prefix(), TALKS[:500], 4) == ran(prefix(), TALKS[:500], 4)


def test_nothing_recorded_gives_nothing() -> None:
    empty = ran(prefix(), [])
    assert (empty.requests, empty.hit_rate, empty.ttft_at(0.99)) == (0, 0, 0)


@pytest.mark.parametrize("routers", [1, 4])
def test_a_bound_of_unanswered_requests_makes_the_longest_waits_short(routers: int) -> None:
    """Few groups, and engines that have room to compute a beginning twice."""
    asked = requests(40, 1500, rate=10.0)
    blind, plain = ran(RANDOM, asked), ran(prefix(avoid_waits=False), asked, routers)
    bounded = ran(prefix(threshold=64, unanswered_threshold=2), asked, routers)
    assert bounded.ttft_at(0.99) < min(blind.ttft_at(0.99), plain.ttft_at(0.99))
    assert fmean(bounded.ttft) < fmean(blind.ttft) and bounded.hit_rate > blind.hit_rate


def test_as_it_comes_nobody_waits_longer_than_under_random_and_the_cache_is_still_found() -> None:
    asked = requests(40, 1500, rate=10.0)
    blind, waits, aware = ran(RANDOM, asked), ran(prefix(avoid_waits=False), asked), ran(prefix(), asked)
    assert aware.ttft_at(0.99) < blind.ttft_at(0.99) < waits.ttft_at(0.99)
    assert fmean(aware.ttft) < min(fmean(blind.ttft), fmean(waits.ttft))
    assert aware.hit_rate > waits.hit_rate - 0.02 > blind.hit_rate
    assert aware.outcomes[Outcome.RELIEF] and aware.outcomes[Outcome.MOVED] and Outcome.RELIEF not in waits.outcomes


def test_what_waits_counts_under_prefix_aware_alone() -> None:
    off = read_policy({"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS", "RoutingExtensions": {"avoid_waits": False}})
    assert ran(LEAST, TALKS[:500]) == ran(off, TALKS[:500])
