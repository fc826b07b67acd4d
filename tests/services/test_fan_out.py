"""Many questions at a time: every answer is kept, what concerns one item stays with it, and a storm is not fed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from caches.services.loop.fan_out import AT_LEAST, FEW, REFUSALS, THREADS, fan_out
from caches.services.loop.round_budget import RoundBudget
from controlplane.clusters.gateway import Conflict, GatewayError, NotFound, Refused, Throttled, Unreachable


class Cluster:
    """Answers with the number, unless ``wrong`` says otherwise; remembers what it was asked."""

    def __init__(self, wrong: Callable[[int], GatewayError | None] = lambda number: None) -> None:
        self.wrong, self.asked = wrong, list[int]()

    def __call__(self, number: int) -> int:
        self.asked.append(number)
        if (error := self.wrong(number)) is not None:
            raise error
        return number * 10


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 100])
def test_it_answers_for_every_item_in_order(count: int) -> None:
    answers, failure = fan_out(Cluster(), range(count))
    assert [answer.result for answer in answers] == [number * 10 for number in range(count)]
    assert failure is None


def test_it_asks_several_at_the_same_time() -> None:
    together = threading.Barrier(THREADS)
    answers, _ = fan_out(lambda item: together.wait(60), range(THREADS))
    assert sorted(answer.result for answer in answers if answer.result is not None) == list(range(THREADS))


@pytest.mark.parametrize(
    "error", [NotFound("gone"), Conflict("another"), Refused("a rule")], ids=["gone", "raced", "refused"]
)
@pytest.mark.parametrize("count", [FEW, 20])
def test_an_error_about_one_item_stays_with_it(error: GatewayError, count: int) -> None:
    cluster = Cluster(lambda number: error if number == 1 else None)
    answers, failure = fan_out(cluster, range(count))
    assert failure is None
    assert [answer.item for answer in answers if answer.error is error] == [1]
    assert len(answers) == count


@pytest.mark.parametrize("error", [Throttled("slow down", 1.0), Unreachable("no answer")], ids=["throttled", "silent"])
@pytest.mark.parametrize("count", [FEW, 1000])
def test_a_cluster_that_does_not_answer_is_not_asked_on(error: GatewayError, count: int) -> None:
    cluster = Cluster(lambda number: error if number >= 2 else None)
    answers, failure = fan_out(cluster, range(count))
    assert failure is error
    assert len(cluster.asked) <= 2 + THREADS
    answered = {answer.item for answer in answers}
    assert answered == {0, 1} & set(cluster.asked), "what was done before is not forgotten"


def test_a_cluster_that_refuses_hearth_is_not_asked_a_thousand_times() -> None:
    cluster = Cluster(lambda number: Refused("403"))
    _, failure = fan_out(cluster, range(1000))
    assert isinstance(failure, Refused)
    assert len(cluster.asked) <= REFUSALS + THREADS


def test_a_bug_is_no_answer() -> None:
    def broken(number: int) -> int:
        raise ZeroDivisionError

    for count in (1, 20):
        with pytest.raises(ZeroDivisionError):
            fan_out(broken, range(count))


@pytest.mark.parametrize("count", [FEW, AT_LEAST - 1, AT_LEAST, AT_LEAST + 1, 200])
def test_a_budget_that_is_spent_puts_off_all_but_the_first(count: int) -> None:
    budget, cluster = RoundBudget(float("-inf")), Cluster()
    answers, failure = fan_out(cluster, range(count), budget=budget)
    done = min(count, AT_LEAST)
    assert [answer.item for answer in answers] == list(range(done)) == sorted(cluster.asked)
    assert budget.left_over == count - done and failure is None


def test_a_budget_that_suffices_puts_nothing_off() -> None:
    budget = RoundBudget(float("inf"))
    answers, _ = fan_out(Cluster(), range(100), budget=budget)
    assert len(answers) == 100 and budget.left_over == 0


def test_what_a_cluster_that_does_not_answer_was_not_asked_is_not_put_off() -> None:
    """The round ends with its error, and is repeated as a whole."""
    budget = RoundBudget(float("inf"))
    _, failure = fan_out(Cluster(lambda number: Unreachable("no answer")), range(100), budget=budget)
    assert failure is not None and budget.left_over == 0
