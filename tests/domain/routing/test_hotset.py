"""The hot set: what everybody sends is found, nothing else is, and it does not move to and fro."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routing.domain.hotset import FEWEST, HEAVIEST, Counted, HotSet, Sketch, aged, hot_set, merged


def counted(requests: float, **counts: float) -> Counted:
    return Counted(requests, {int(name[1:]): count for name, count in counts.items()})


def test_it_finds_the_beginning_that_everybody_sends() -> None:
    sketch = Sketch()
    for number in range(1000):
        sketch.add([1, 1000 + number])
    hot = hot_set(HotSet(), sketch.take(), instances=7, hot_fraction=0.25)
    assert hot == HotSet(1, frozenset({1}))


def test_a_deep_one_is_found_in_one_period() -> None:
    """Eight thousand characters that everybody sends are no burden for eight periods."""
    sketch = Sketch()
    for number in range(100):
        sketch.add([*range(8), 1000 + number])
    assert hot_set(HotSet(), sketch.take(), 7, 0.25).digests == set(range(8))


def test_a_deep_one_is_found_by_routers_that_have_two_requests_each() -> None:
    """Of eight each sees an eighth, and begins afresh whenever it told."""
    told = []
    for router in range(8):
        sketch = Sketch()
        for number in range(2):
            sketch.add([*range(64), 1000 + 2 * router + number])
        told.append(sketch.take())
    assert hot_set(HotSet(), merged(told), 7, 0.25).digests == set(range(64))


def test_once_it_holds_much_it_takes_no_boundary_behind_one_that_is_new() -> None:
    asked: list[int] = []

    def deep() -> object:
        for digest in range(64):
            asked.append(digest)
            yield digest

    sketch = Sketch(capacity=400)
    sketch.add(range(1000, 1100))
    sketch.add(deep())  # type: ignore[arg-type]
    sketch.add(deep())  # type: ignore[arg-type]
    assert asked == [0, 0, 1]
    sketch.take()
    sketch.add(range(1000, 1101))
    sketch.add(deep(), hot={0, 1})  # type: ignore[arg-type]
    assert asked[3:] == [0, 1, 2], "behind what is hot already it looks on, however few requests there are"


def test_it_samples_all_of_little_and_some_of_much() -> None:
    sketch = Sketch()
    assert all(sketch.samples() for _ in range(64))
    assert sum(sketch.samples() for _ in range(800)) == 100
    assert sum(sketch.samples() for _ in range(4096 - 864)) == 404
    assert sum(sketch.samples() for _ in range(6400)) == 100
    sketch.take()
    assert sketch.samples()


def test_a_million_different_beginnings_take_no_more_memory_and_hide_nothing() -> None:
    sketch, draws = Sketch(capacity=512), random.Random(5)
    for number in range(100_000):
        sketch.add([7 if number % 10 == 0 else draws.getrandbits(60)])
        assert len(sketch._counts) <= 513
    taken = sketch.take()
    assert len(taken.counts) <= HEAVIEST and taken.requests == 100_000
    assert 9_700 < taken.counts[7] <= 10_000
    assert hot_set(HotSet(), taken, instances=100, hot_fraction=0.25).digests == {7}, "and nobody is hot by mistake"


@given(st.lists(st.integers(0, 40), max_size=300), st.integers(2, 30))
def test_it_counts_nothing_too_high_and_little_too_low(requests: list[int], capacity: int) -> None:
    sketch = Sketch(capacity)
    for one in requests:
        sketch.add([one])
    true = Counter(requests)
    taken = sketch.take()
    assert taken.requests == len(requests)
    for digest, count in true.items():
        assert count - len(requests) / capacity <= taken.counts.get(digest, 0) <= count


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=100))
def test_a_beginning_is_never_lighter_than_what_follows_it(paths: list[list[int]]) -> None:
    sketch = Sketch()
    for path in paths:
        sketch.add([hash(tuple(path[: depth + 1])) for depth in range(len(path))])
    taken = sketch.take().counts
    for path in paths:
        counts = [taken.get(hash(tuple(path[: depth + 1])), 0) for depth in range(len(path))]
        assert counts == sorted(counts, reverse=True)


def test_it_begins_afresh_once_it_told() -> None:
    sketch = Sketch()
    sketch.add([1])
    sketch.take()
    assert sketch.take() == Counted(0, {})


def test_routers_add_up() -> None:
    assert merged([counted(10, d1=5, d2=1), counted(30, d1=10, d3=4)]) == counted(40, d1=15, d2=1, d3=4)
    assert merged([]) == Counted()


def test_what_was_popular_is_forgotten_little_by_little() -> None:
    running = counted(1000, d1=1000)
    hot = hot_set(HotSet(), running, 7, 0.25)
    periods = 0
    while 1 in hot.digests:
        running = aged(running, counted(1000, d2=1))
        hot = hot_set(hot, running, 7, 0.25)
        periods += 1
    assert 3 < periods < 30 and hot.version == 2
    assert aged(counted(10, d1=10), Counted()) == counted(8, d1=8), "no traffic ages too"


def test_a_share_near_the_limit_does_not_move_keys_to_and_fro() -> None:
    hot = hot_set(HotSet(), counted(1000, d1=40), 7, 0.25)
    assert hot.digests == {1}
    for count in (36, 34, 30, 20):
        assert hot_set(hot, counted(1000, d1=count), 7, 0.25) is hot
    assert hot_set(hot, counted(1000, d1=17), 7, 0.25) == HotSet(2, frozenset())
    assert not hot_set(HotSet(), counted(1000, d1=35), 7, 0.25).digests, "and none gets hot below it"


def test_a_few_requests_tell_nothing_however_alike_they_are() -> None:
    assert not hot_set(HotSet(), counted(FEWEST - 1, d1=FEWEST - 1), 7, 0.25).digests
    assert not hot_set(HotSet(), counted(50, d1=FEWEST - 1), 7, 0.25).digests, "somebody talks a lot"
    assert hot_set(HotSet(), counted(FEWEST, d1=FEWEST), 7, 0.25).digests == {1}


def test_nothing_changes_while_little_is_known_or_nothing_is_to_be_spread() -> None:
    before = HotSet(4, frozenset({9}))
    assert hot_set(before, counted(FEWEST - 1, d1=5), 7, 0.25) is before
    assert hot_set(before, counted(5000, d1=4000), 1, 0.25) is before
    assert hot_set(before, counted(0), 7, 0.25) is before


def test_it_is_hotter_with_more_instances() -> None:
    """Two percent of the traffic is no burden for seven instances and too much for twenty."""
    assert not hot_set(HotSet(), counted(1000, d1=20), 7, 0.25).digests
    assert hot_set(HotSet(), counted(1000, d1=20), 20, 0.25).digests == {1}
