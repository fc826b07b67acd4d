"""Who lets clearly more wait than others is passed over, and what goes elsewhere for that stays there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.deciding import NEW_MEAN, OWN_SIZES, TIMES_MEAN, Decision, Key, Outcome, decide, placed
from routing.domain.placement import Member
from routing.domain.places import Places
from routing.domain.policies import read_policy
from tests.domain.routing.test_deciding import KEY, LEAST, MEMBERS, RANKED, at, chosen

HOME, SECOND, THIRD = RANKED[:3]


def known(instance: str = HOME) -> Places:
    places = Places()
    places.put(KEY.digest, HOME, instance)
    return places


def asked(pending: dict[str, int], places: Places | None = None, size: int = 100, **fields: Any) -> Decision:
    situation = at(pending=pending, places=places if places is not None else Places(), **fields)
    return decide(situation, lambda: KEY, 1, size)


# The mean is over seven instances: 700 at one is 100 on average.
CASES: dict[str, tuple[dict[str, int], Places, str, Outcome]] = {
    "nothing waits": ({}, known(), HOME, Outcome.PRIMARY),
    "twice its own size waits": ({HOME: 250}, known(), HOME, Outcome.PRIMARY),
    "a queue at its own": ({HOME: 500}, known(), SECOND, Outcome.RELIEF),
    "a queue everywhere": (dict.fromkeys(RANKED, 900), known(), HOME, Outcome.PRIMARY),
    "a long one among long ones": (dict.fromkeys(RANKED, 900) | {HOME: 9000}, known(), SECOND, Outcome.RELIEF),
    "where least waits": ({**dict.fromkeys(RANKED, 90), HOME: 9000, RANKED[4]: 5}, known(), RANKED[4], Outcome.RELIEF),
    "it stays where it went": ({}, known(SECOND), SECOND, Outcome.MOVED),
    "and goes on from there": ({SECOND: 500}, known(SECOND), HOME, Outcome.PRIMARY),
    "and elsewhere than both": ({SECOND: 500, HOME: 1}, known(SECOND), THIRD, Outcome.RELIEF),
    "a new one where nothing waits": ({HOME: 1}, Places(), SECOND, Outcome.RELIEF),
    "a new one in its order": ({HOME: 90, SECOND: 90, RANKED[6]: 0}, Places(), THIRD, Outcome.RELIEF),
    "a new one, all alike": (dict.fromkeys(RANKED, 50), Places(), HOME, Outcome.PRIMARY),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_passed_over_for_what_waits_and_not_when_it_waits_everywhere(case: str) -> None:
    pending, places, instance, outcome = CASES[case]
    decision = asked(pending, places)
    assert (decision.instance, decision.outcome) == (instance, outcome)
    assert decision.candidates[0] == instance and sorted(decision.candidates) == sorted(RANKED)


@pytest.mark.parametrize(("count", "waits"), [(2, 1001), (3, 751), (5, 626)])
def test_few_instances_are_left_too_for_what_waits_there(count: int, waits: int) -> None:
    """One of few is much of the average itself: three times that were all that waits anywhere, and never too much."""
    members = tuple(one for one in MEMBERS if one.id in RANKED[:count])
    for many in (waits, 1_000_000):
        left = asked({HOME: many}, known(), members=members)
        assert (left.instance, left.outcome) == (SECOND, Outcome.RELIEF)
    for pending in ({HOME: waits - 2}, dict.fromkeys(RANKED[:count], 1_000_000)):
        assert asked(pending, known(), members=members).outcome is Outcome.PRIMARY
    assert asked({HOME: 1_000_000}, known(), members=members, alone=False).outcome is Outcome.RELIEF
    alone = asked({HOME: 1_000_000}, known(), members=(Member(HOME),))
    assert alone.outcome is Outcome.PRIMARY, "there is nowhere else"


def test_the_greater_of_two_is_left_too_for_what_waits_there() -> None:
    members = (Member(HOME, 10.0), Member(SECOND, 1.0))
    assert asked({HOME: 100_000}, known(), members=members).instance == SECOND
    assert asked({HOME: 100_000, SECOND: 10_000}, known(), members=members).instance == HOME


@pytest.mark.parametrize("gone", [False, True], ids=["away", "gone"])
def test_what_waits_at_one_that_hangs_keeps_nobody_from_being_relieved(gone: bool) -> None:
    hung = RANKED[6]
    pending = {hung: 10_000, HOME: 900}
    fields: dict[str, Any] = {"members": tuple(one for one in MEMBERS if one.id != hung)} if gone else {}
    decision = asked(pending, known(), **fields or {"away": frozenset({hung})})
    assert (decision.instance, decision.outcome) == (SECOND, Outcome.RELIEF)


def test_a_long_request_waits_for_its_cache_where_a_short_one_does_not() -> None:
    assert asked({HOME: 1000}, known(), 1000).outcome is Outcome.PRIMARY
    assert asked({HOME: 1000}, known(), 100).outcome is Outcome.RELIEF


def test_one_of_several_routers_moves_nothing_that_another_may_know() -> None:
    assert asked({HOME: 49}, alone=False).outcome is Outcome.PRIMARY
    assert (one := asked({HOME: 200}, alone=False)).instance == SECOND and one.outcome is Outcome.RELIEF


def test_what_is_away_or_at_the_threshold_is_no_way_out() -> None:
    assert asked({HOME: 900}, known(), away=frozenset({SECOND})).instance == THIRD
    assert asked({HOME: 900}, known(), busy={SECOND: 4}).instance == THIRD
    back = asked({}, known(SECOND), away=frozenset({SECOND}))
    assert (back.instance, back.outcome) == (HOME, Outcome.PRIMARY)
    full = asked({HOME: 900}, known(), busy=dict.fromkeys(RANKED, 4))
    assert full.outcome is Outcome.SATURATED
    second = asked({SECOND: 9, RANKED[5]: 1}, known(), busy={HOME: 4})
    assert (second.instance, second.outcome) == (SECOND, Outcome.SPILL), "the same second home, whatever waits there"
    spilled = asked({}, known(SECOND), busy={SECOND: 4})
    assert (spilled.instance, spilled.outcome) == (HOME, Outcome.PRIMARY)


def test_another_copy_on_the_same_machine_is_the_first_way_out() -> None:
    members = tuple(Member(one.id, 1.0, "m1" if one.id in (HOME, RANKED[5]) else "") for one in MEMBERS)
    decision = asked({HOME: 900}, known(), members=members)
    assert (decision.instance, decision.outcome) == (RANKED[5], Outcome.SIBLING)


def test_an_instance_of_twice_the_weight_may_have_twice_as_much_waiting() -> None:
    members = (Member("big", 2.0), Member("small", 1.0))
    places = Places()
    key = next(Key(digest, 1) for digest in range(99) if chosen(at(members=members), Key(digest, 1)).instance == "big")
    places.put(key.digest, "big", "big")
    situation = at(members=members, places=places, pending={"big": 280, "small": 0})
    assert decide(situation, lambda: key, 1, 100).outcome is Outcome.PRIMARY


@pytest.mark.parametrize("key", [None, Key(0, 0, 3)], ids=["no key", "all hot"])
def test_without_a_key_it_goes_where_least_waits_however_much_is_being_answered(key: Key | None) -> None:
    pending = {one.id: 10 for one in MEMBERS} | {"pod-3": 1}
    decision = chosen(at(busy={"pod-3": 3}, pending=pending, places=Places()), key)
    assert decision.instance == "pod-3"
    # Another strategy's contract is the number of requests, whatever waits.
    assert chosen(at(LEAST, {"pod-3": 3}, pending=pending), key).instance != "pod-3"


def test_only_what_went_for_relief_is_told_to_the_next_one() -> None:
    relieved, spilled = Places(), Places()
    told: list[tuple[Places, dict[str, Any]]] = [
        (relieved, {"pending": {HOME: 9}}), (spilled, {"busy": {HOME: 4}, "pending": {}}),
    ]  # fmt: skip
    for places, fields in told:
        situation = at(places=places, **fields)
        placed(situation, decide(situation, lambda: KEY, 1, 5))
    assert relieved.of(KEY.digest, HOME) == SECOND and len(spilled) == 0
    for key in (None, Key(0, 0, 3)):
        situation = at(places=(places := Places()), pending={})
        placed(situation, chosen(situation, key))
        assert len(places) == 0
    placed(at(pending={}), chosen(at(pending={})))


@given(
    st.dictionaries(st.sampled_from(RANKED), st.integers(0, 5000)),
    st.dictionaries(st.sampled_from(RANKED), st.integers(0, 6)),
    st.integers(0, 2000),
    st.sampled_from(["", *RANKED]),
)
def test_nobody_is_chosen_at_whom_too_much_waits_while_another_is_free(
    pending: dict[str, int], busy: dict[str, int], size: int, went: str
) -> None:
    """And two that know the same decide the same."""
    places = known(went) if went else Places()
    decision = asked(pending, places, size, busy=busy)
    assert decision == asked(dict(reversed(pending.items())), places, size, busy=busy)
    free = [one for one in RANKED if busy.get(one, 0) < 4]
    mean = sum(pending.values()) / len(RANKED)
    bound = OWN_SIZES * size + TIMES_MEAN * mean if went else NEW_MEAN * mean
    if free and min(pending.get(one, 0) for one in free) <= bound:
        assert pending.get(decision.instance, 0) <= bound and decision.instance in free


def test_it_is_on_unless_a_policy_says_otherwise() -> None:
    document = {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": 8},
    }
    assert read_policy(document).extensions.avoid_waits
    assert not read_policy({**document, "RoutingExtensions": {"avoid_waits": False}}).extensions.avoid_waits
