"""What moved is said of the median and of the p95, and of neither more than is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from caches.domain.launches.attribution import Move, Point, moves
from caches.domain.launches.comparison import Sample
from caches.domain.launches.resampling import ENOUGH, Difference
from caches.domain.launches.shifts import Shift
from caches.domain.launches.words import EventClass
from caches.launch_words import move_sentence, too_few_sentence
from caches.selectors.launches.attribution import Attributed
from tests.domain.launches import T0

SURE = Difference(16.0, 48.0, 32.0, 30.0, 34.0)
MORE = Difference(20.0, 120.0, 100.0, 90.0, 110.0)
LESS = Difference(100.0, 90.0, -10.0, -12.0, -8.0)
CHANCE = Difference(60.0, 110.0, 50.0, -5.0, 80.0)
FEW = Difference(20.0, 120.0)


def told(median: Difference, p95: Difference, shift: Shift = Shift.STEP) -> str:
    move = Move(shift, T0, T0, (ENOUGH, ENOUGH), median, p95, (), (0, 0), (0, 0))
    return sentence(move).removeprefix("Cold pod on warm node: ")


def sentence(move: Move) -> str:
    return move_sentence(Attributed(EventClass.COLD_POD, move, ()))


@pytest.mark.parametrize(
    ("median", "p95", "found"),
    [
        (SURE, MORE, "the p95 went from 20 s to 2 min, the median from 16 s to 48 s"),
        (MORE, SURE, "the median went from 20 s to 2 min, the p95 from 16 s to 48 s"),
        (SURE, LESS, "the median went from 16 s to 48 s, the p95 from 1 min 40 s to 1 min 30 s"),
        (
            SURE, CHANCE,
            "the median went from 16 s to 48 s, and that the p95 moved is not sure (1 min before, 1 min 50 s after)",
        ),
        (
            CHANCE, SURE,
            "the p95 went from 16 s to 48 s, and that the median moved is not sure (1 min before, 1 min 50 s after)",
        ),
        (SURE, FEW, "the median went from 16 s to 48 s"),
    ],
)  # fmt: skip
def test_both_quantiles_are_said_as_surely_as_they_are_known(median: Difference, p95: Difference, found: str) -> None:
    assert told(median, p95) == f"{found}; no phase stands out."


def test_a_drift_goes_on() -> None:
    assert told(SURE, MORE, Shift.DRIFT).startswith("the p95 drifted from 20 s to 2 min, the median from 16 s to 48 s")


def points(seconds: Sequence[float]) -> list[Point]:
    return [Point(T0 + timedelta(minutes=number), Sample(one)) for number, one in enumerate(seconds)]


@pytest.mark.parametrize("count", [ENOUGH, 3 * ENOUGH])
def test_the_p95_of_a_class_is_said_of_everything_that_moved(count: int) -> None:
    before, after = [16.0] * count, [48.0] * count
    before[-2:], after[-2:] = [20.0] * 2, [60.0] * 2
    (move,) = moves(points([*before, *after]))
    assert "the median" in sentence(move) and "the p95" in sentence(move)
    assert "p95" not in sentence(replace(move, p95=FEW)), "none of fewer than 20 launches"


@pytest.mark.parametrize(
    ("sides", "found"),
    [
        ({"with": 16.0}, "one launch with, ready after 16 s."),
        (
            {"with": 16.0, "without": 48.0},
            "one launch with, ready after 16 s, and one launch without, ready after 48 s.",
        ),
    ],
)
def test_single_launches_are_told_in_words(sides: dict[str, float], found: str) -> None:
    assert too_few_sentence(sides) == f"Too few launches to draw: {found}"
