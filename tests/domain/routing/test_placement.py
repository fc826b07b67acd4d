"""Rendezvous: the same everywhere, fair by weight, and nothing moves that need not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.placement import REMEMBERED, Member, Ranking, moved, order

DRAWS = random.Random(7)
KEYS = [DRAWS.getrandbits(64) for _ in range(20_000)]


def members(count: int, weight: float = 1.0) -> list[Member]:
    return [Member(f"0190a1b2-pod-{number}", weight) for number in range(count)]


def shares(of: list[Member]) -> dict[str, float]:
    firsts = [order(key, of)[0].id for key in KEYS]
    return {one.id: firsts.count(one.id) / len(firsts) for one in of}


@given(st.integers(0, 2**64 - 1), st.permutations(members(6)))
def test_it_does_not_depend_on_the_order_in_which_members_are_known(key: int, shuffled: list[Member]) -> None:
    assert order(key, shuffled) == order(key, members(6))


@pytest.mark.parametrize("count", [2, 7, 16])
def test_it_spreads_keys_evenly(count: int) -> None:
    for share in shares(members(count)).values():
        # Four standard deviations of a fair draw of 20,000.
        assert abs(share - 1 / count) < 4 * (1 / count / len(KEYS)) ** 0.5


def test_it_gives_twice_the_keys_to_twice_the_weight() -> None:
    light, heavy = Member("light", 1), Member("heavy", 2)
    assert abs(shares([light, heavy])["heavy"] - 2 / 3) < 0.015


@pytest.mark.parametrize("count", [1, 7, 20])
def test_only_the_share_of_a_new_member_moves_and_only_to_it(count: int) -> None:
    before, after = members(count), members(count + 1)
    new = after[-1].id
    for key in KEYS[:3000]:
        was, now = order(key, before), order(key, after)
        assert [one.id for one in now if one.id != new] == [one.id for one in was], "the others keep their order"
    assert abs(moved(before, after, KEYS) - 1 / (count + 1)) < 0.015


def test_who_leaves_gives_its_keys_to_all_the_others() -> None:
    before = members(7)
    after = before[1:]
    heirs = [order(key, after)[0].id for key in KEYS if order(key, before)[0] == before[0]]
    counts = [heirs.count(one.id) / len(heirs) for one in after]
    assert len(heirs) > 2000 and all(0.12 < count < 0.22 for count in counts)
    assert moved(before, after, KEYS) == pytest.approx(len(heirs) / len(KEYS))


def test_a_changed_weight_moves_keys_to_the_heavier_one_only() -> None:
    before = members(5)
    after = [Member(before[0].id, 3.0), *before[1:]]
    for key in KEYS[:3000]:
        was, now = order(key, before)[0].id, order(key, after)[0].id
        assert now in (was, before[0].id)


def test_nothing_belongs_to_who_has_no_weight() -> None:
    assert order(1, [Member("a", 0), Member("b", -1), Member("c")]) == [Member("c")]
    assert order(1, []) == [] and order(1, [Member("a", 0)]) == []


def test_nothing_moves_where_nothing_is() -> None:
    assert moved([], [], KEYS[:10]) == 0 and moved(members(3), members(3), KEYS[:10]) == 0
    assert moved(members(3), members(4), []) == 0
    assert moved([], members(1), KEYS[:10]) == 1


def test_it_is_the_same_place_as_ever() -> None:
    """Two releases that route side by side agree."""
    assert [one.id[-1] for one in order(0x0123456789ABCDEF, members(7))] == list("2015463")
    assert [order(key, members(7))[0].id[-1] for key in KEYS[:12]] == list("052325403310")


def test_keys_that_differ_in_one_bit_have_nothing_in_common() -> None:
    of = members(8)
    firsts = {bit: order(1 << bit, of)[0].id for bit in range(64)}
    counts = [list(firsts.values()).count(one.id) for one in of]
    assert max(counts) < 20


MIXED = st.lists(st.builds(Member, st.sampled_from("abcdefgh"), st.sampled_from([0.0, 1.0, 1.0, 2.5])), max_size=8)


@given(MIXED | st.just(members(7)), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_a_ranking_is_the_order_however_often_it_is_asked(of: list[Member], keys: list[int]) -> None:
    of = list({one.id: one for one in of}.values())
    ranking = Ranking(of)
    for key in keys * 2:
        expected = tuple(one.id for one in order(key, of))
        assert ranking.of(key) == ranking.drawn(key) == expected


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_ranking_remembers_little_however_many_keys_come(count: int) -> None:
    ranking = Ranking(members(count))
    most = 0
    for key in range(REMEMBERED // count * 2 if count > 1 else 70_000):
        ranking.of(key)
        most = max(most, len(ranking._known))
    assert most * count <= max(REMEMBERED, 64 * count) and most >= 32
