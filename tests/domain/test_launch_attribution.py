"""Which phase moved, since when, and what was changed before: a step, a drift, an outlier, too few, two changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest

from caches.domain.launches.attribution import LOOK_BACK, MOST_CHANGES, Change, Point, moves, suspects
from caches.domain.launches.comparison import Sample
from caches.domain.launches.shifts import Break, Shift, breaks
from caches.domain.launches.words import PHASES, Phase
from tests.domain.launches import T0

Made = Callable[[Random], list[float]]


def gauss(middle: float, width: float, count: int) -> Made:
    return lambda random: [random.gauss(middle, width) for _ in range(count)]


def then(*parts: Made) -> Made:
    return lambda random: [one for part in parts for one in part(random)]


def same(value: float, count: int) -> Made:
    return lambda _: [value] * count


def slope(count: int) -> Made:
    return lambda random: [40 + number / 2 + random.gauss(0, 6) for number in range(count)]


def tail(count: int, share: float) -> Made:
    return lambda random: [300.0 if random.random() < share else random.gauss(60, 5) for _ in range(count)]


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (then(gauss(60, 8, 60), gauss(90, 8, 60)), [(Shift.STEP, 60)]),
        (then(gauss(90, 8, 60), gauss(60, 8, 60)), [(Shift.STEP, 60)]),
        (then(gauss(60, 5, 100), tail(100, 0.4)), [(Shift.STEP, 100)]),
        (then(same(10, 20), same(90, 20)), [(Shift.STEP, 20)]),
        (then(gauss(60, 6, 50), gauss(100, 6, 50), gauss(60, 6, 50)), [(Shift.STEP, 50), (Shift.STEP, 100)]),
        (then(gauss(60, 6, 50), gauss(100, 6, 50), gauss(150, 6, 50)), [(Shift.STEP, 50), (Shift.STEP, 100)]),
        (slope(120), [(Shift.DRIFT, None)]),
        (then(gauss(60, 6, 50), same(5000, 1), gauss(60, 6, 50)), []),
        (then(gauss(60, 6, 50), same(5000, 2), gauss(60, 6, 50)), []),
        (then(same(10, 19), same(90, 19)), []),
        (then(same(10, 15), same(90, 24)), []),
        (then(same(10, 60), same(10.9, 60)), []),
        (then(same(100, 60), same(110, 60)), []),
        (same(10, 80), []),
        (same(0, 80), []),
        (gauss(60, 20, 300), []),
        (tail(400, 0.05), []),
        (same(1, 1), []),
        (same(1, 0), []),
    ],
    ids=[
        "step up", "step down", "only the tail", "the fewest that are enough", "there and back", "two steps up",
        "drift", "outlier", "two outliers", "too few", "too few before", "less than a second", "less than a fifth",
        "steady", "nothing at all", "noise", "a steady tail", "one", "none",
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_it_finds_what_changed_and_nothing_else(made: Made, found: list[tuple[Shift, int | None]], seed: int) -> None:
    was = breaks(made(Random(seed)))
    assert [one.shift for one in was] == [shift for shift, _ in found]
    for one, (_, place) in zip(was, found, strict=True):
        assert place is None or abs(one.begins - place) <= 12


def test_chance_is_seldom_taken_for_a_change() -> None:
    """Of 200 series in which nothing changes, two at most."""
    series = ([random.lognormvariate(4, 0.6) for _ in range(120)] for random in map(Random, range(200)))
    assert sum(bool(breaks(one)) for one in series) <= 2


def test_a_drift_has_one_beginning_and_one_end() -> None:
    (found,) = breaks(slope(160)(Random(4)))
    assert found.since == 0 and found.begins < found.at < found.until == 160
    assert breaks([1.0] * 30 + [9.0] * 30) == [Break(Shift.STEP, 0, 30, 30, 60)]


def point(minute: float, seconds: float, missed: bool | None = None, **phases: float | None) -> Point:
    known = [phases.get(phase.name) for phase in PHASES]
    unknown = seconds - sum(one for one in known if one is not None)
    return Point(T0 + timedelta(minutes=minute), Sample(seconds, tuple(known), unknown), missed)


def night(before: Callable[[int], Point], after: Callable[[int], Point], count: int = 40) -> list[Point]:
    return [before(number) for number in range(count)] + [after(number) for number in range(count, 2 * count)]


def test_it_names_the_phase_since_when_and_that_the_cache_was_missed() -> None:
    points = night(
        lambda n: point(n, 40 + n % 5, missed=False, WEIGHTS_FETCH=1.0, WEIGHTS_LOAD=30.0 + n % 5),
        lambda n: point(n, 160 + n % 5, missed=n % 4 > 0, WEIGHTS_FETCH=121.0, WEIGHTS_LOAD=30.0 + n % 5),
    )
    (found,) = moves(reversed(points))
    assert (found.shift, found.phase, found.slower, found.known) == (Shift.STEP, Phase.WEIGHTS_FETCH, True, True)
    assert (found.last_before, found.first_after) == (points[39].at, points[40].at)
    assert [share.phase for share in found.shares] == [Phase.WEIGHTS_FETCH]
    assert found.shares[0].change == pytest.approx(120)
    assert (found.missed_before, found.missed_after) == ((0, 40), (30, 40))
    assert found.p95.change == pytest.approx(120, abs=1)


def test_it_finds_the_phase_of_the_slow_ones_where_only_they_moved() -> None:
    points = night(
        lambda n: point(n, 40.0 + n % 3, WEIGHTS_FETCH=1.0, WEIGHTS_LOAD=30.0),
        lambda n: point(n, *((300.0,) if n % 4 == 0 else (40.0 + n % 3,)), WEIGHTS_FETCH=1.0,
                        WEIGHTS_LOAD=290.0 if n % 4 == 0 else 30.0),
        count=80,
    )  # fmt: skip
    (found,) = moves(points)
    assert found.phase is Phase.WEIGHTS_LOAD
    assert found.median.change == pytest.approx(0, abs=1) and found.p95.change == pytest.approx(258, abs=2)


def test_an_improvement_has_its_phase_too() -> None:
    points = night(
        lambda n: point(n, 200 + n % 5, IMAGE_PULL=150.0, WEIGHTS_LOAD=30.0),
        lambda n: point(n, 52 + n % 5, IMAGE_PULL=0.0, WEIGHTS_LOAD=32.0),
    )
    (found,) = moves(points)
    assert (found.slower, found.phase) == (False, Phase.IMAGE_PULL)
    assert Phase.WEIGHTS_LOAD not in [share.phase for share in found.shares], "it went the other way"


def test_what_nobody_measured_is_said_to_be_that() -> None:
    (found,) = moves(night(lambda n: point(n, 40.0, WEIGHTS_LOAD=30.0), lambda n: point(n, 140.0, WEIGHTS_LOAD=30.0)))
    assert (found.phase, found.known) == (None, False)
    assert found.shares[0].change == pytest.approx(100)


def test_a_phase_that_one_side_alone_measured_is_not_blamed() -> None:
    (found,) = moves(night(lambda n: point(n, 40.0), lambda n: point(n, 140.0, WEIGHTS_FETCH=120.0)))
    assert Phase.WEIGHTS_FETCH not in [share.phase for share in found.shares]


def test_two_changes_have_a_phase_each() -> None:
    third = [point(n, 260 + n % 5, WEIGHTS_FETCH=121.0, WEIGHTS_LOAD=130.0) for n in range(80, 120)]
    points = night(
        lambda n: point(n, 40 + n % 5, WEIGHTS_FETCH=1.0, WEIGHTS_LOAD=30.0),
        lambda n: point(n, 160 + n % 5, WEIGHTS_FETCH=121.0, WEIGHTS_LOAD=30.0),
    )
    assert [one.phase for one in moves([*points, *third])] == [Phase.WEIGHTS_FETCH, Phase.WEIGHTS_LOAD]


def test_too_few_launches_have_not_moved() -> None:
    assert moves([]) == []
    assert moves(night(lambda n: point(n, 40.0), lambda n: point(n, 900.0), count=19)) == []


def change(minute: float, key: str = "") -> Change:
    return Change(T0 + timedelta(minutes=minute), key or f"at {minute:g}")


def test_what_was_changed_before_is_named_and_what_came_after_is_not() -> None:
    (found,) = moves(night(lambda n: point(n, 40.0), lambda n: point(n, 140.0)))
    look_back = LOOK_BACK.total_seconds() / 60
    asked = [change(39.5), change(10), change(40.5), change(40 - look_back - 1), change(40), change(40 - look_back)]
    assert [one.key for one in suspects(found, asked)] == ["at 40", "at 39.5", "at 10", f"at {40 - look_back:g}"]


def test_the_same_again_and_again_pushes_out_nothing() -> None:
    (found,) = moves(night(lambda n: point(n, 40.0), lambda n: point(n, 140.0)))
    kills = [Change(T0 + timedelta(minutes=20 + n), f"kill {n}", "kill") for n in range(12)]
    asked = [change(5), Change(T0 + timedelta(minutes=10), "kill before", "kill"), change(15), *kills, change(36)]
    told = [(one.key, one.times) for one in suspects(found, asked)]
    assert told == [("at 36", 1), ("kill 11", 12), ("at 15", 1), ("kill before", 1), ("at 5", 1)]


def test_a_change_in_a_long_silence_is_found_and_they_are_few() -> None:
    quiet = timedelta(days=3)
    late = [Point(T0 + quiet + timedelta(minutes=n), Sample(140.0)) for n in range(30)]
    (found,) = moves([*(point(n, 40.0) for n in range(30)), *late])
    assert [one.key for one in suspects(found, [change(60 * 24), change(5)])] == ["at 1440"]
    assert len(suspects(found, [change(60 + n) for n in range(40)])) == MOST_CHANGES
