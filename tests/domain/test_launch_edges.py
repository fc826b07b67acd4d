"""Launches at the edges of what is counted and judged: none, one, equal, never ready, and a future that is late."""

from __future__ import annotations

from datetime import timedelta

import pytest

from caches.domain.launches.attribution import Change, Point, earliest, moves, suspects
from caches.domain.launches.bursts import FEWEST, Added, scale_out
from caches.domain.launches.comparison import Sample, compare
from caches.domain.launches.resampling import ENOUGH, Difference, Verdict, difference, share_interval
from caches.domain.launches.trials import KINDS, MOST_RUNS, Measured, order_of, results_of
from caches.domain.launches.words import PHASES, EventClass, Phase
from caches.domain.launches.worth import Basis, Cost, Worth, judge
from tests.domain.launches import T0, after

COLD = EventClass.COLD_POD


def points(count: int, seconds: float, *, at: float = 0, missed: bool | None = None) -> list[Point]:
    return [Point(after(at + number), Sample(seconds), missed) for number in range(count)]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (ENOUGH, ENOUGH, Verdict.SLOWER),
        (ENOUGH - 1, ENOUGH, Verdict.NOT_ENOUGH),
        (ENOUGH, ENOUGH - 1, Verdict.NOT_ENOUGH),
        (0, ENOUGH, Verdict.NOT_ENOUGH),
        (ENOUGH, 0, Verdict.NOT_ENOUGH),
        (0, 0, Verdict.NOT_ENOUGH),
    ],
)
def test_too_few_on_either_side_is_no_verdict(first: int, second: int, verdict: Verdict) -> None:
    found = difference([10.0] * first, [20.0] * second, 0.5, seed=1)
    assert found.verdict is verdict
    assert (found.first, found.second) == (10.0 if first else None, 20.0 if second else None)
    assert (found.change is None) == (verdict is Verdict.NOT_ENOUGH), "no number without its interval"


def test_a_phase_that_one_side_never_measured_is_compared_with_nothing() -> None:
    """Logs were not read before: that the load is there now is no regression of the load."""
    loads = [None] * 4 + [9.0] + [None] * 2
    found = compare([Sample(30.0)] * ENOUGH, [Sample(60.0, tuple(loads))] * ENOUGH)
    [load] = found.phases
    assert (load.phase, load.counts, load.enough) == (Phase.WEIGHTS_LOAD, (0, ENOUGH), False)
    assert found.whole.p95.verdict is Verdict.SLOWER and found.moved is None


def test_a_phase_against_the_direction_of_the_whole_is_not_what_moved() -> None:
    def samples(pull: float, load: float) -> list[Sample]:
        return [Sample(pull + load, (None, pull, None, None, load, None, None))] * ENOUGH

    found = compare(samples(100, 10), samples(20, 40))
    assert found.whole.p95.verdict is Verdict.FASTER
    assert found.moved is not None and found.moved.phase is Phase.IMAGE_PULL
    assert Sample(1.0).phase(PHASES[-1]) is None, "what is not there was not measured"


@pytest.mark.parametrize(("hits", "of"), [(-1, 5), (6, 5), (1, 0)])
def test_what_is_no_share_is_refused(hits: int, of: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        share_interval(hits, of)


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (1, 1), (0, 10**9), (10**9, 10**9), (5, 10)])
def test_the_interval_of_a_share_holds_it_and_stays_a_share(hits: int, of: int) -> None:
    found = share_interval(hits, of)
    assert found is not None and 0 <= found[0] <= hits / of <= found[1] <= 1 and found[0] < found[1]


def test_equal_durations_have_an_interval_of_no_width() -> None:
    assert difference([7.0] * ENOUGH, [9.0] * ENOUGH, 0.95, seed=3) == Difference(7.0, 9.0, 2.0, 2.0, 2.0)
    assert difference([7.0] * ENOUGH, [9.0] * (ENOUGH - 1), 0.95, seed=3) == Difference(7.0, 9.0)


def test_moves_hang_on_no_order_and_on_no_equal_times() -> None:
    """Whole seconds: many launches have one time."""
    same = [Point(T0, Sample(seconds)) for seconds in [10.0] * 30 + [90.0] * 30]
    assert moves(same) == moves(same[::-1])
    step = [*points(30, 10), *points(30, 90, at=100)]
    [found] = moves(step[::-1])
    assert (found.last_before, found.first_after, found.slower, found.phase) == (after(29), after(100), True, None)
    assert (found.missed_before, found.known) == ((0, 0), False)


def test_a_change_at_the_very_moments_is_suspected_and_nothing_beyond() -> None:
    [found] = moves([*points(30, 10), *points(30, 90, at=100)])
    tick = timedelta(microseconds=1)
    times = [earliest(found) - tick, earliest(found), found.first_after, found.first_after + tick]
    assert [one.key for one in suspects(found, [Change(at, str(number)) for number, at in enumerate(times)])] == [
        "2", "1",
    ]  # fmt: skip


def test_capacity_that_was_ready_before_it_began_took_no_time() -> None:
    """A clock that is behind: no negative durations."""
    found = scale_out([Added("default/chat", after(5), after(-60), None, None)] * FEWEST)
    assert (found.half_seconds, found.all_seconds, found.known, found.measured) == (0.0, 0.0, 0, 0)


def test_a_trial_says_nothing_of_launches_that_nobody_saw() -> None:
    unseen = [Measured(COLD, EventClass.UNKNOWN, "Unknown", None, None)] * 3
    [found] = results_of(unseen, 10.0)
    assert (found.runs, found.seconds, found.median, found.within, found.idle_seconds) == (3, (), None, 0, 0.0)
    assert found.within_interval is not None and found.within_interval[1] < 1, "none of three was good enough"
    assert results_of([], 10.0) == []
    [one] = results_of([Measured(COLD, COLD, "Hit", 10.0, 12.0)], 10.0)
    assert (one.within, one.idle_seconds) == (1, 0.0), "as long as the target is within it, and nothing is negative"


@pytest.mark.parametrize("runs", [0, -1, MOST_RUNS + 1])
def test_a_trial_of_no_runs_or_too_many_has_no_order(runs: int) -> None:
    with pytest.raises(ValueError, match="is no number of runs"):
        order_of(runs, 1)
    assert sorted(order_of(MOST_RUNS, 1)) == sorted([*KINDS] * MOST_RUNS)


def test_a_model_that_nobody_launched_is_judged_by_nothing() -> None:
    for pinned in (None, T0):
        found = judge([], pinned_at=pinned, cost=Cost())
        assert (found.basis, found.worth) == (Basis.NONE, Worth.UNKNOWN)
        assert (found.hit_share, found.saved_seconds, found.break_even, found.fetch_seconds) == (None,) * 4


def test_a_launch_at_the_moment_of_the_pin_is_one_with_a_cache() -> None:
    found = judge(points(1, 10, missed=False), pinned_at=T0, cost=Cost())
    assert (found.with_cache, found.without, found.basis) == ((10,), (), Basis.NONE)


@pytest.mark.parametrize(
    ("cost", "break_even"),
    [
        (Cost(), None),  # nobody measured a transfer
        (Cost(transfers=2, moved_seconds=0.0), 1),
        (Cost(transfers=2, moved_seconds=180.0), 1),
        (Cost(transfers=2, moved_seconds=180.1), 2),
    ],
)
def test_a_copy_is_paid_for_by_whole_hits(cost: Cost, break_even: int | None) -> None:
    before, hits = points(ENOUGH, 100, at=-1000), points(ENOUGH, 10, missed=False)
    found = judge([*before, *hits], pinned_at=T0, cost=cost)
    assert (found.break_even, found.hit_saving_seconds, found.worth) == (break_even, 90, Worth.YES)


def test_hits_that_take_as_long_save_nothing_and_break_even_never() -> None:
    found = judge(
        [*points(ENOUGH, 10, at=-1000), *points(ENOUGH, 10, missed=False)],
        pinned_at=T0, cost=Cost(transfers=1, moved_seconds=9.0),
    )  # fmt: skip
    assert (found.worth, found.hit_saving_seconds, found.break_even) == (Worth.NO, 0, None)
