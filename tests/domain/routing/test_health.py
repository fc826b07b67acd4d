"""Who is left out, for how long, and how it comes back."""

from __future__ import annotations

import pytest

from routing.domain.health import ANSWERS, LONGEST_SECONDS, WELL, Failure, Health, away, failed, succeeded

CONNECT, ANSWER = Failure.CONNECT, Failure.ANSWER


def after(failures: list[Failure], now: float = 100.0, health: Health = WELL) -> Health:
    for failure in failures:
        health = failed(health, failure, now)
    return health


@pytest.mark.parametrize(
    ("failures", "out"),
    [
        ([CONNECT], False),
        ([CONNECT, CONNECT], True),
        ([ANSWER] * (ANSWERS - 1), False),
        ([ANSWER] * ANSWERS, True),
        ([CONNECT, ANSWER], False),
        ([CONNECT, *[ANSWER] * 5, CONNECT], True),
    ],
)
def test_it_takes_several_failures_and_more_of_answers(failures: list[Failure], out: bool) -> None:
    assert (after(failures).until > 100.0) is out


def test_one_success_forgives_everything() -> None:
    health = succeeded(after([CONNECT]), 100.0)
    assert health == WELL and after([CONNECT], health=health).until == 0
    assert succeeded(WELL, 1.0) is WELL


def test_it_is_out_longer_each_time_and_not_for_ever() -> None:
    health, now, seconds = WELL, 100.0, []
    for _ in range(9):
        health = after([CONNECT, CONNECT], now, health)
        seconds.append(health.until - now)
        now = health.until
    assert seconds == [1, 2, 4, 8, 16, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]


def test_back_from_outside_one_failure_is_enough() -> None:
    health = after([CONNECT, CONNECT])
    again = after([CONNECT], health.until, health)
    assert again.until == health.until + 2
    assert succeeded(health, health.until) == WELL


def test_what_was_under_way_when_it_was_left_out_changes_nothing() -> None:
    health = after([CONNECT, CONNECT])
    assert after([CONNECT] * 5, 100.5, health) == health
    assert succeeded(health, 100.5) == health


@pytest.mark.parametrize(
    ("draining", "ejected", "expected"),
    [
        ([], [], set()),
        (["a"], ["b"], {"a", "b"}),
        ([], ["a", "b", "c"], set()),
        (["a"], ["b", "c"], {"a"}),
        (["a", "b", "c"], [], {"a", "b", "c"}),
    ],
)
def test_when_everybody_failed_they_are_tried_even_so(
    draining: list[str], ejected: list[str], expected: set[str]
) -> None:
    assert away(["a", "b", "c"], draining, ejected) == expected
