"""Quantiles within the accuracy that is stated, whoever adds and merges in which order."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.figures import Figures
from routing.domain.sketches import ACCURACY, LARGEST, SMALLEST, Sketch, bucket_of

SECONDS = st.floats(min_value=0, max_value=LARGEST, allow_nan=False)


def sketch(values: list[float]) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


@given(st.lists(SECONDS, min_size=1, max_size=200), st.floats(min_value=0, max_value=1))
def test_a_quantile_is_within_its_accuracy_of_the_sample(values: list[float], part: float) -> None:
    exact = sorted(values)[max(1, math.ceil(part * len(values) - 1e-9)) - 1]
    found = sketch(values).quantile(part)
    assert found is not None and abs(found - exact) <= exact * ACCURACY * 1.000001 + SMALLEST


@given(st.lists(SECONDS, max_size=50), st.lists(SECONDS, max_size=50))
def test_merging_is_adding_and_order_means_nothing(one: list[float], other: list[float]) -> None:
    left, right = sketch(one), sketch(other)
    left.merge(sketch(other))
    right.merge(sketch(one))
    assert left.buckets == right.buckets == sketch(one + other).buckets and left.count == len(one + other)


@given(st.lists(SECONDS, max_size=50))
def test_it_is_stored_and_read_back(values: list[float]) -> None:
    made = sketch(values)
    assert Sketch.from_json(json.loads(json.dumps(made.to_json()))).buckets == made.buckets


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 1e-9, SMALLEST])
def test_what_is_hardly_a_duration_is_zero(value: float) -> None:
    assert sketch([value]).quantile(0.5) == 0.0


@pytest.mark.parametrize("value", [LARGEST, 1e9, float("inf")])
def test_what_is_longer_than_any_is_the_longest(value: float) -> None:
    found = sketch([value]).quantile(1)
    assert found == pytest.approx(LARGEST, rel=0.03) and bucket_of(value) == bucket_of(LARGEST)


def test_nothing_has_no_quantile() -> None:
    assert Sketch().quantile(0.5) is None


def test_it_needs_little_memory_for_a_million_durations() -> None:
    draws = random.Random(1)
    made = sketch([10 ** draws.uniform(-7, 6) for _ in range(20_000)])
    assert len(made.buckets) < 1400


@pytest.mark.parametrize("stored", [[], "x", None, {"a": 1}, {"1": -1}, {"1": 1.5}, {"1": True}, {"99999999": 1}])
def test_it_refuses_what_was_never_a_sketch(stored: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Sketch.from_json(stored)


def figures(**fields: Any) -> Figures:
    made = Figures(**{name: value for name, value in fields.items() if name != "ttft"})
    for outcome, seconds in fields.get("ttft", ()):
        made.first_byte(outcome, seconds)
    return made


def test_figures_of_routers_add_up_and_maxima_do_not() -> None:
    one = figures(requests=3, most_in_flight=4, told=2, prompt_tokens=100, cached_tokens=25, ttft=[("Primary", 0.1)])
    other = figures(requests=5, most_in_flight=2, told=1, prompt_tokens=100, cached_tokens=75, ttft=[("Spill", 0.4)])
    one.outcomes["Primary"], other.outcomes["Primary"], other.outcomes["Spill"] = 3, 4, 1
    one.merge(other)
    assert (one.requests, one.most_in_flight, one.hit_rate) == (8, 4, 0.5)
    assert one.outcomes == {"Primary": 7, "Spill": 1} and one.all_ttft.count == 2
    assert one.ttft["Spill"].quantile(0.5) == pytest.approx(0.4, rel=ACCURACY)


def test_figures_are_stored_and_read_back_and_hold_nothing_that_is_empty() -> None:
    made = figures(requests=3, told=1, prompt_tokens=7, cached_tokens=0, ttft=[("Primary", 0.2)])
    made.instances["pod-1"] = 3
    made.overhead.add(5e-5)
    stored = json.loads(json.dumps(made.to_json()))
    assert Figures.from_json(stored) == made or Figures.from_json(stored).to_json() == made.to_json()
    assert Figures().to_json() == {} and "waited" not in stored and "queued" not in stored


@pytest.mark.parametrize("told", [figures(), figures(told=0, prompt_tokens=10), figures(told=1, prompt_tokens=0)])
def test_a_hit_rate_that_nobody_told_is_unknown_and_not_zero(told: Figures) -> None:
    assert told.hit_rate is None


def test_a_hit_rate_of_nothing_is_zero() -> None:
    assert figures(told=1, prompt_tokens=10, cached_tokens=0).hit_rate == 0.0


@pytest.mark.parametrize(
    "stored",
    [
        [], None, {"requests": -1}, {"requests": "3"}, {"requests": 1e3}, {"outcomes": []}, {"outcomes": {"a": -1}},
        {"instances": {"x" * 65: 1}}, {"ttft": {"Primary": []}}, {"overhead": 3}, {"requests": 2**60},
        {"instances": {str(number): 1 for number in range(3000)}},
    ],
)  # fmt: skip
def test_it_refuses_what_were_never_figures(stored: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Figures.from_json(stored)
