"""Quantiles that can be merged: exact counts, one percent of the value."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.sketch import ACCURACY, SMALLEST, Sketch, exact_quantile, nearest_rank

durations = st.lists(st.floats(0, 3_000_000, allow_nan=False), min_size=1, max_size=60)
quantiles = st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 1.0])


@given(durations, quantiles)
def test_a_quantile_is_within_one_percent_of_the_sample_it_stands_for(values: list[float], q: float) -> None:
    exact, read = exact_quantile(values, q), Sketch.of(values).quantile(q)
    assert exact is not None and read is not None
    assert abs(read - exact) <= max(ACCURACY * exact * (1 + 1e-9), SMALLEST)


@given(durations, durations, st.randoms(use_true_random=False))
def test_merged_parts_are_the_whole(one: list[float], other: list[float], chance: random.Random) -> None:
    merged = Sketch.of(one)
    merged.merge(Sketch.from_bytes(Sketch.of(other).to_bytes()))
    both = one + other
    chance.shuffle(both)
    assert merged == Sketch.of(both)
    assert merged.count == len(both)


def test_it_shows_the_tail_that_an_average_hides() -> None:
    launches = [20.0] * 95 + [900.0] * 5
    sketch = Sketch.of(launches)
    p50, p95, p99 = sketch.quantiles(0.5, 0.95, 0.99)
    assert p50 == pytest.approx(20, rel=ACCURACY)
    assert p95 == pytest.approx(20, rel=ACCURACY)
    assert p99 == pytest.approx(900, rel=ACCURACY)
    assert sum(launches) / len(launches) == 64  # what nobody ever waited


def test_nothing_has_no_quantile() -> None:
    assert Sketch().quantiles(0.5, 0.99) == [None, None]
    assert exact_quantile([], 0.5) is None
    assert Sketch().count == 0


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="no duration"):
        Sketch().add(wrong)


@pytest.mark.parametrize("wrong", [0.0, 1.1, -1.0])
def test_what_is_no_quantile_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        Sketch.of([1.0]).quantile(wrong)


@pytest.mark.parametrize(
    ("q", "total", "rank"), [(0.5, 1, 1), (0.5, 2, 1), (0.5, 3, 2), (0.95, 20, 19), (0.95, 100, 95), (1.0, 7, 7)]
)
def test_a_quantile_is_a_sample_and_no_point_between_two(q: float, total: int, rank: int) -> None:
    assert nearest_rank(q, total) == rank


def test_its_ranges_hold_every_duration() -> None:
    values = [0.0, 0.0005, 0.001, 1.0, 59.9, 86400.0]
    ranges = Sketch.of(values).ranges()
    assert sum(count for _, _, count in ranges) == len(values)
    for value in values:
        assert any(low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9) for low, high, _ in ranges), value
