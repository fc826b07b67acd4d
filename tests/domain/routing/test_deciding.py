"""Decisions: which instance, why, and who comes next; replicas agree; nobody is chosen who should not be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.deciding import Decision, Key, Outcome, Situation, decide, key_of, local_share, local_threshold
from routing.domain.extensions import RoutingExtensions
from routing.domain.keys import Boundary
from routing.domain.placement import Member, order
from routing.domain.policies import PrefixAwareRoutingConfig, RoutingPolicy, RoutingStrategy

MEMBERS = tuple(Member(f"pod-{number}") for number in range(7))
PREFIX = RoutingPolicy(RoutingStrategy.PREFIX_AWARE, PrefixAwareRoutingConfig(4096, 4))
LEAST = RoutingPolicy(RoutingStrategy.LEAST_OUTSTANDING_REQUESTS)
RANDOM = RoutingPolicy()
KEY = Key(0xFEED, 1024)
RANKED = [one.id for one in order(KEY.digest, MEMBERS)]
FOUND = [Boundary(1024, 1), Boundary(2048, 2), Boundary(4096, 3)]


def at(policy: RoutingPolicy = PREFIX, busy: dict[str, int] | None = None, **fields: object) -> Situation:
    return Situation(policy, **{"members": MEMBERS, "in_flight": busy or {}, "threshold": 4, **fields})  # type: ignore[arg-type]


def chosen(situation: Situation, key: Key | None = KEY, draw: int = 1) -> Decision:
    return decide(situation, lambda: key, draw)


def test_a_key_goes_home_and_who_follows_is_known() -> None:
    assert chosen(at()) == Decision(RANKED[0], Outcome.PRIMARY, KEY, tuple(RANKED))


def test_at_the_threshold_it_goes_to_its_second_home_and_below_it_does_not() -> None:
    first, second, third = RANKED[:3]
    assert chosen(at(busy={first: 3})).outcome is Outcome.PRIMARY
    spilled = chosen(at(busy={first: 4}))
    assert (spilled.instance, spilled.outcome) == (second, Outcome.SPILL)
    assert spilled.candidates == (second, first, *RANKED[2:])
    assert chosen(at(busy={first: 9, second: 4})).instance == third


def test_a_copy_on_the_same_machine_comes_before_another_machine() -> None:
    homes = {RANKED[0]: "m1", RANKED[4]: "m1", RANKED[2]: "m2"}
    members = tuple(Member(one.id, 1.0, homes.get(one.id, "")) for one in MEMBERS)
    decision = chosen(at(busy={RANKED[0]: 4}, members=members))
    assert (decision.instance, decision.outcome) == (RANKED[4], Outcome.SIBLING)
    full = chosen(at(busy={RANKED[0]: 4, RANKED[4]: 4}, members=members))
    assert (full.instance, full.outcome) == (RANKED[1], Outcome.SPILL)


def test_when_all_are_at_the_threshold_the_least_busy_one_gets_it() -> None:
    busy = {one.id: 10 for one in MEMBERS} | {RANKED[5]: 6}
    decision = chosen(at(busy=busy))
    assert (decision.instance, decision.outcome) == (RANKED[5], Outcome.SATURATED)
    assert set(decision.candidates) == set(RANKED)


UNANSWERED: dict[str, tuple[dict[str, int], dict[str, int], str, Outcome]] = {
    "below the bound": ({}, {RANKED[0]: 1}, RANKED[0], Outcome.PRIMARY),
    "at the bound": ({}, {RANKED[0]: 2}, RANKED[1], Outcome.RELIEF),
    "the second too": ({}, {RANKED[0]: 2, RANKED[1]: 5}, RANKED[2], Outcome.RELIEF),
    "the second at the threshold": ({RANKED[1]: 4}, {RANKED[0]: 2}, RANKED[2], Outcome.RELIEF),
    "all: where fewest wait": ({}, dict.fromkeys(RANKED, 4) | {RANKED[3]: 3}, RANKED[3], Outcome.RELIEF),
    "all alike: its own": ({}, dict.fromkeys(RANKED, 4), RANKED[0], Outcome.PRIMARY),
    "all, and fewest at the threshold": (
        {RANKED[3]: 4}, dict.fromkeys(RANKED, 4) | {RANKED[3]: 3, RANKED[5]: 3}, RANKED[5], Outcome.RELIEF,
    ),
    "all at the threshold": (
        dict.fromkeys(RANKED, 4) | {RANKED[6]: 3}, {RANKED[6]: 9}, RANKED[6], Outcome.SPILL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNANSWERED)
def test_who_lets_many_wait_for_an_answer_is_passed_over(case: str) -> None:
    busy, unanswered, instance, outcome = UNANSWERED[case]
    decision = chosen(at(busy=busy, unanswered=unanswered, unanswered_threshold=2))
    assert (decision.instance, decision.outcome) == (instance, outcome)
    assert decision.candidates[0] == instance and sorted(decision.candidates) == sorted(RANKED)
    without = chosen(at(unanswered=unanswered))
    assert (without.instance, without.outcome) == (RANKED[0], Outcome.PRIMARY), "without a bound nobody looks"


def test_a_copy_on_the_same_machine_comes_first_also_for_those_that_would_wait() -> None:
    homes = {RANKED[0]: "m1", RANKED[4]: "m1"}
    members = tuple(Member(one.id, 1.0, homes.get(one.id, "")) for one in MEMBERS)
    at_two = at(members=members, unanswered={RANKED[0]: 2}, unanswered_threshold=2)
    assert (chosen(at_two).instance, chosen(at_two).outcome) == (RANKED[4], Outcome.SIBLING)


@pytest.mark.parametrize(("key", "outcome"), [(None, Outcome.NO_KEY), (Key(0, 0, 3), Outcome.ALL_HOT)])
def test_without_a_key_the_least_busy_one_gets_it(key: Key | None, outcome: Outcome) -> None:
    busy = {one.id: 2 for one in MEMBERS} | {"pod-3": 1}
    decision = chosen(at(busy=busy), key)
    assert (decision.instance, decision.outcome) == ("pod-3", outcome)


def test_a_client_s_own_key_counts_without_any_depth() -> None:
    assert chosen(at(), Key(KEY.digest, override=True)).outcome is Outcome.PRIMARY


@pytest.mark.parametrize("policy", [PREFIX, LEAST, RANDOM])
def test_who_is_away_gets_nothing_and_keeps_what_is_its_own(policy: RoutingPolicy) -> None:
    away = frozenset(RANKED[:3])
    for draw in range(50):
        decision = chosen(at(policy, away=away), draw=draw)
        assert not set(decision.candidates) & away
    assert chosen(at()).instance == RANKED[0], "back at once when it is back"


@pytest.mark.parametrize("policy", [PREFIX, LEAST, RANDOM])
@pytest.mark.parametrize(
    "nobody",
    [{"members": ()}, {"away": frozenset(RANKED)}, {"members": (Member("a", 0.0),)}],
    ids=["none", "all away", "no weight"],
)
def test_it_says_when_there_is_nobody(policy: RoutingPolicy, nobody: dict[str, Any]) -> None:
    assert chosen(at(policy, **nobody)) == Decision("", Outcome.NOBODY)


@pytest.mark.parametrize("policy", [LEAST, RANDOM])
def test_other_strategies_never_look_into_a_request(policy: RoutingPolicy) -> None:
    def look() -> Key:
        raise AssertionError("it looked")

    assert decide(at(policy), look, 5).instance


def test_random_is_even_and_by_weight() -> None:
    draws = random.Random(3)
    drawn = Counter(chosen(at(RANDOM), draw=draws.getrandbits(64)).instance for _ in range(14_000))
    assert all(1800 < drawn[one.id] < 2200 for one in MEMBERS)
    weighed = (Member("a", 3.0), Member("b", 1.0))
    drawn = Counter(chosen(at(RANDOM, members=weighed), draw=draws.getrandbits(64)).instance for _ in range(4000))
    assert 2850 < drawn["a"] < 3150


def test_the_least_busy_is_so_for_its_weight_and_equals_are_drawn() -> None:
    weighed = (Member("big", 4.0), Member("small", 1.0))
    assert chosen(at(LEAST, {"big": 7, "small": 2}, members=weighed)).instance == "big"
    assert chosen(at(LEAST, {"big": 9, "small": 2}, members=weighed)).instance == "small"
    drawn = {chosen(at(LEAST), draw=draw).instance for draw in range(100)}
    assert drawn == set(RANKED), "routers that know nothing yet do not all go to one"


@given(
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.sampled_from(RANKED), st.integers(0, 8)),
    st.frozensets(st.sampled_from(RANKED), max_size=6),
    st.sampled_from([PREFIX, LEAST, RANDOM]),
    st.integers(0, 2**64 - 1),
)
def test_replicas_agree_and_candidates_are_complete(
    digest: int, busy: dict[str, int], away: frozenset[str], policy: RoutingPolicy, draw: int
) -> None:
    shuffled = tuple(sorted(MEMBERS, key=lambda one: hash((one.id, draw))))
    one = chosen(at(policy, busy, away=away), Key(digest, 1024), draw)
    other = chosen(at(policy, dict(reversed(busy.items())), away=away, members=shuffled), Key(digest, 1024), draw)
    assert one == other
    assert one.candidates[0] == one.instance and sorted(one.candidates) == sorted(set(RANKED) - away)


@given(st.dictionaries(st.sampled_from(RANKED), st.integers(0, 6)), st.integers(0, 2**64 - 1))
def test_nobody_at_the_threshold_is_chosen_while_another_has_room(busy: dict[str, int], digest: int) -> None:
    decision = chosen(at(busy=busy), Key(digest, 1024))
    full = all(busy.get(one, 0) >= 4 for one in RANKED)
    assert (decision.outcome is Outcome.SATURATED) is full
    assert full or busy.get(decision.instance, 0) < 4


KEYS: dict[str, tuple[RoutingExtensions, list[Boundary], set[int], Key | None]] = {
    "the shallowest": (RoutingExtensions(), FOUND, set(), Key(1, 1024)),
    "behind what is hot": (RoutingExtensions(), FOUND, {1, 2}, Key(3, 4096, 2)),
    "hot only further down": (RoutingExtensions(), FOUND, {3}, Key(1, 1024)),
    "all hot": (RoutingExtensions(), FOUND, {1, 2, 3}, Key(0, 0, 3)),
    "nothing": (RoutingExtensions(), [], {1}, None),
    "exactly PrefixLength": (RoutingExtensions(adaptive_depth=False), FOUND, {1, 2, 3}, Key(3, 4096)),
    "all there is": (RoutingExtensions(adaptive_depth=False), FOUND[:1], set(), Key(1, 1024)),
    "nothing, exactly": (RoutingExtensions(adaptive_depth=False), [], set(), None),
}


@pytest.mark.parametrize("case", KEYS)
def test_the_key_is_the_shallowest_beginning_that_is_not_everybody_s(case: str) -> None:
    extensions, found, hot, expected = KEYS[case]
    policy = RoutingPolicy(RoutingStrategy.PREFIX_AWARE, PREFIX.prefix_aware, extensions)
    assert key_of(policy, found, frozenset(hot)) == expected


def test_it_asks_for_no_deeper_boundary_than_it_needs() -> None:
    asked: list[int] = []

    def counted() -> Boundary:
        asked.append(1)
        return Boundary(1024 * len(asked), len(asked))

    assert key_of(PREFIX, iter(counted, None), frozenset({1})) == Key(2, 2048, 1)
    assert len(asked) == 2


LOCAL: list[tuple[int, int, Callable[[int], bool]]] = [
    (16, 0, lambda local: local == 16),
    (16, 1, lambda local: local == 16),
    (16, 4, lambda local: local == 7),
    (1, 8, lambda local: local == 1),
    (1024, 8, lambda local: 128 < local < 150),
]


@pytest.mark.parametrize(("threshold", "routers", "holds"), LOCAL)
def test_a_router_allows_its_share_and_some_slack(threshold: int, routers: int, holds: Callable[[int], bool]) -> None:
    assert holds(local_threshold(threshold, routers))


@given(st.integers(1, 1024), st.integers(1, 64))
def test_more_routers_never_allow_more_each(threshold: int, routers: int) -> None:
    assert 1 <= local_threshold(threshold, routers + 1) <= local_threshold(threshold, routers) <= threshold


@given(st.integers(1, 1024), st.integers(1, 64), st.integers(1, 64))
def test_those_that_know_of_each_other_count_together(threshold: int, routers: int, known: int) -> None:
    allowed = local_threshold(threshold, routers, known)
    assert local_threshold(threshold, routers, 1) == local_threshold(threshold, routers)
    assert local_threshold(threshold, routers) <= allowed <= local_threshold(threshold, routers, known + 1) <= threshold
    assert known < routers or allowed == threshold, "where all are known it holds exactly"


@given(st.integers(0, 1024), st.integers(1, 64), st.integers(1, 80))
def test_a_low_bound_is_shared_by_how_many_are_known(most: int, routers: int, known: int) -> None:
    allowed = local_share(most, routers, known)
    assert local_share(most, routers) <= allowed <= most and (known < routers or allowed == most)
    assert allowed * routers >= most * known or known >= routers


def test_who_hears_others_gives_the_least_busy_of_two_so_that_not_all_choose_the_same() -> None:
    """All were told of the same idle one."""
    busy = {one.id: 3 for one in MEMBERS} | {"pod-3": 1}
    went = Counter(chosen(at(busy=busy, hears=True), None, draw * 0x9E3779B97F4A7C15).instance for draw in range(700))
    assert 120 < went["pod-3"] < 280, "of two in seven it is one"
    assert all(went[one.id] > 30 for one in MEMBERS)
    two = chosen(at(busy=busy, hears=True, members=MEMBERS[2:4]), None)
    assert two.instance == "pod-3" and sorted(two.candidates) == ["pod-2", "pod-3"]
    assert {chosen(at(busy=busy), None, draw).instance for draw in range(50)} == {"pod-3"}, "who knows all takes it"
    assert sorted(chosen(at(busy=busy, hears=True), None).candidates) == sorted(one.id for one in MEMBERS)
