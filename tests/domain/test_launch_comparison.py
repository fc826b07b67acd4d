"""Two selections side by side: what differs is said with how sure it is, and where there is too little that is said."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from caches.domain.launches.comparison import Sample, compare
from caches.domain.launches.resampling import ENOUGH, Difference, Verdict, difference, share_interval
from caches.domain.launches.words import PHASES, Phase


def spread(middle: float, width: float, count: int, seed: int = 1) -> list[float]:
    random = Random(seed)
    return [max(0.0, random.gauss(middle, width)) for _ in range(count)]


def sample(seconds: float, **phases: float | None) -> Sample:
    return Sample(seconds, tuple(phases.get(phase.name) for phase in PHASES), unknown=None)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (spread(60, 5, 40), spread(90, 5, 40), Verdict.SLOWER),
        (spread(90, 5, 40), spread(60, 5, 40), Verdict.FASTER),
        (spread(60, 20, 40, 2), spread(60, 20, 40, 3), Verdict.SAME),
        ([60.0] * 20, [60.0] * 20, Verdict.SAME),
        ([60.0] * 20, [61.0] * 20, Verdict.SLOWER),
        ([60.0] * 19, [900.0] * 20, Verdict.NOT_ENOUGH),
        ([60.0] * 20, [900.0] * 19, Verdict.NOT_ENOUGH),
        ([], [900.0] * 30, Verdict.NOT_ENOUGH),
        ([0.0] * 20, [0.0] * 20, Verdict.SAME),
    ],
)
def test_it_says_of_medians_what_the_launches_show(first: list[float], second: list[float], verdict: Verdict) -> None:
    found = difference(first, second, 0.5, seed=3)
    assert found.verdict is verdict
    if verdict is not Verdict.NOT_ENOUGH:
        assert found.change is not None and found.low is not None and found.high is not None
        assert found.low <= found.change <= found.high


def test_few_launches_have_their_quantiles_and_no_interval() -> None:
    assert difference([10.0, 20.0, 30.0], [40.0], 0.5, seed=1) == Difference(20.0, 40.0)
    assert difference([], [], 0.5, seed=1) == Difference(None, None)


def test_the_order_of_launches_says_nothing_and_a_seed_gives_the_same_again() -> None:
    first, second = spread(60, 10, 50), spread(70, 10, 50, 2)
    once = difference(first, second, 0.95, seed=5)
    assert difference(sorted(first), second[::-1], 0.95, seed=5) == once
    assert difference(first, second, 0.95, seed=6) != once


def interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Of the median: beside launches that took no time the difference is the median itself."""
    found = difference([0.0] * ENOUGH, values, 0.5, seed=seed)
    assert found.low is not None and found.high is not None
    return found.low, found.high


def test_its_interval_is_the_one_that_resampling_gives() -> None:
    """Against the bootstrap as it is usually done: every launch drawn again, 4,000 times."""
    values, random = spread(60, 15, 60), Random(9)
    medians = sorted(sorted(random.choices(values, k=60))[29] for _ in range(4000))
    found = interval(values, seed=2)
    ordered = sorted(values)
    for ours, theirs in zip(found, (medians[100], medians[3900]), strict=True):
        assert abs(ordered.index(ours) - ordered.index(theirs)) <= 1, "the same launch, or the one beside it"


def test_its_interval_holds_the_truth_as_often_as_it_says() -> None:
    """100 samples of 60 from a distribution whose median is 60: about 95 of 100 intervals hold it."""
    held = 0
    for seed in range(100):
        low, high = interval(spread(60, 15, 60, seed), seed)
        held += low <= 60 <= high
    assert 0.89 <= held / 100 <= 1


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0.0, 0.28), (10, 10, 0.72, 1.0), (5, 10, 0.24, 0.76), (950, 1000, 0.93, 0.96), (1, 1, 0.2, 1.0)],
)
def test_a_share_of_few_is_hardly_known(hits: int, of: int, low: float, high: float) -> None:
    assert share_interval(hits, of) == pytest.approx((low, high), abs=0.01)


def test_a_share_of_nothing_is_unknown_and_one_of_too_many_is_none() -> None:
    assert share_interval(0, 0) is None
    with pytest.raises(ValueError, match="3 of 2"):
        share_interval(3, 2)


def test_it_names_the_phase_that_makes_the_difference() -> None:
    first = [sample(one, WEIGHTS_LOAD=one / 2, HEALTH_CHECKS=5.0) for one in spread(60, 4, 40)]
    second = [
        sample(one + 30, WEIGHTS_LOAD=one / 2, WEIGHTS_FETCH=30.0, HEALTH_CHECKS=5.0) for one in spread(60, 4, 40)
    ]
    alike = compare(first, second)
    assert alike.whole.p95.verdict is Verdict.SLOWER
    assert alike.moved is None, "the first side never measured the fetch: nobody knows that it grew"
    fetched = [sample(one.ready_seconds, WEIGHTS_FETCH=0.5, WEIGHTS_LOAD=one.phases[4]) for one in first]
    found = compare(fetched, second)
    assert found.moved is not None and found.moved.phase is Phase.WEIGHTS_FETCH
    assert found.moved.p95.change == pytest.approx(29.5)
    load = next(one for one in found.phases if one.phase is Phase.WEIGHTS_LOAD)
    assert load.p95.verdict is Verdict.SAME
    assert [one.phase for one in found.phases] == [Phase.WEIGHTS_FETCH, Phase.WEIGHTS_LOAD, Phase.HEALTH_CHECKS]


def test_a_phase_that_went_the_other_way_is_not_named() -> None:
    first = [sample(one, WEIGHTS_FETCH=40.0, WEIGHTS_LOAD=10.0) for one in spread(60, 4, 40)]
    second = [sample(one + 20, WEIGHTS_FETCH=1.0, WEIGHTS_LOAD=69.0) for one in spread(60, 4, 40)]
    found = compare(first, second)
    assert found.moved is not None and found.moved.phase is Phase.WEIGHTS_LOAD


def test_phases_are_counted_for_themselves() -> None:
    first = [sample(60.0, WEIGHTS_LOAD=30.0 if number < 12 else None) for number in range(40)]
    second = [sample(60.0, WEIGHTS_LOAD=30.0) for _ in range(40)]
    (whole, load) = compare(first, second).effects
    assert (whole.counts, whole.enough) == ((40, 40), True)
    assert (load.counts, load.enough, load.median.verdict) == ((12, 40), False, Verdict.NOT_ENOUGH)


def test_two_empty_selections_are_compared() -> None:
    found = compare([], [])
    assert (found.phases, found.whole.counts, found.moved) == ((), (0, 0), None)
    assert found.whole.median == Difference(None, None)
