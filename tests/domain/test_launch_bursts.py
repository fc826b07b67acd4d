"""Scaling out: what belongs together, what it found, and when the added capacity serves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caches.domain.launches.bursts import WITHIN, Added, scale_out
from tests.domain.launches import after

APART = WITHIN.total_seconds()


def added(
    began: float,
    ready: float | None = None,
    *,
    hit: bool | None = None,
    endpoint: str = "chat",
    lacked: bool | None = None,
) -> Added:
    return Added(endpoint, after(began), after(ready) if ready is not None else None, hit, lacked)


@pytest.mark.parametrize(
    ("began", "sizes"),
    [
        ([], []),
        ([0, 1], []),
        ([0, 1, 2], [3]),
        ([0, APART / 2, APART], [3]),
        ([0, APART / 2, APART + 1], []),
        # Commands one after the other, each within a burst's time of the one before.
        ([0, 0, 0, 20, 20, 20, 40, 40, 40, 60, 60, 60], [6, 6]),
        ([0, 0, 0, 90, 90, 90, 180, 180, 180], [3, 3, 3]),
        ([number * 25 for number in range(40)], []),
        ([0, 1, 2, 1000, 1001, 1002, 1003], [3, 4]),
        ([0, 1, 1000, 1001, 1002], [3]),
    ],
)
def test_launches_that_come_together_are_one_burst(began: list[float], sizes: list[int]) -> None:
    found = scale_out([added(at) for at in reversed(began)])
    assert [len(one.launches) for one in found.bursts] == sizes
    assert found.added == len(began)


def test_endpoints_burst_for_themselves_and_what_has_none_does_not() -> None:
    mixed = [added(at, endpoint=name) for at in range(4) for name in ("chat", "code", "")]
    assert [one.endpoint for one in scale_out(mixed).bursts] == ["chat", "code"]
    assert scale_out([added(0, endpoint="a"), added(1, endpoint="b"), added(2, endpoint="c")]).bursts == ()


def test_endpoints_of_one_name_in_two_clusters_are_two() -> None:
    two = [replace(added(at), cluster=name) for at in (0, 1) for name in ("east", "west")]
    assert scale_out(two).bursts == ()
    assert [len(one.launches) for one in scale_out([*two, added(2)]).bursts] == []
    assert [len(one.launches) for one in scale_out([*two, replace(added(2), cluster="west")]).bursts] == [3]


def test_what_is_starting_may_serve_yet() -> None:
    (burst,) = scale_out([added(0, 30), added(1), replace(added(2), starting=True)]).bursts
    assert (burst.starting, burst.serving, burst.seconds_until(1.0)) == (1, 1, None)


def test_the_time_until_capacity_serves_runs_from_the_first_launch() -> None:
    (burst,) = scale_out([added(0, 30), added(10, 50), added(20, 200), added(30, 300)]).bursts
    assert (burst.seconds_until(0.5), burst.seconds_until(1.0), burst.serving) == (50, 300, 4)


def test_capacity_that_never_came_is_no_time() -> None:
    found = scale_out([added(0, 30), added(10, 50), added(20, None)])
    (burst,) = found.bursts
    assert (burst.seconds_until(0.5), burst.seconds_until(1.0), burst.serving) == (50, None, 2)
    assert (found.half_seconds, found.all_seconds) == (50, None)


def test_hits_are_of_bursts_and_the_unprepared_of_all() -> None:
    burst = [added(at, at + 9, hit=at > 0, lacked=at == 0) for at in range(3)]
    alone = [added(5000, 5100, hit=False, lacked=True), added(9000, None, hit=None, lacked=None)]
    found = scale_out([*burst, *alone])
    assert (found.hits, found.known) == (2, 3)
    assert (found.unprepared, found.measured, found.added) == (2, 4, 5)
    assert found.all_seconds == 11
