"""Asking a cluster many things at a time: the threads speak to the cluster, and never to the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from caches.services.loop.round_budget import RoundBudget
from controlplane.clusters.gateway import Conflict, GatewayError, NotFound, Refused

T = TypeVar("T")
R = TypeVar("R")

THREADS = 8
FEW = 4  # as many are asked one after the other: threads would cost more than they save
AT_LEAST = 32  # are asked even where the time was spent before
REFUSALS = 3  # one may be about its item alone; more of them are a cluster that refuses Hearth


@dataclass(frozen=True, slots=True)
class Answer(Generic[T, R]):
    """What became of one item: ``result``, or the ``error`` that concerns nothing but it."""

    item: T
    result: R | None = None
    error: GatewayError | None = None


def fan_out(
    work: Callable[[T], R], items: Sequence[T], *, budget: RoundBudget | None = None
) -> tuple[list[Answer[T, R]], GatewayError | None]:
    """``work`` on every item, and what was answered. An error that concerns the whole cluster (it does not answer, it
    is asked too much, it refuses) ends it: nothing more is asked, and the error is returned beside what was done.
    A ``budget`` that is spent ends it too: the rest is put off, except for the first few, so that work always goes on.
    """
    ended: list[GatewayError] = []
    refused: list[GatewayError] = []
    late: list[T] = []
    stop = threading.Event()

    def one(number: int, item: T) -> Answer[T, R] | None:
        if stop.is_set():
            return None
        if budget is not None and number >= AT_LEAST and budget.spent:
            late.append(item)
            return None
        try:
            return Answer(item, result=work(item))
        except (NotFound, Conflict) as error:
            return Answer(item, error=error)
        except Refused as error:
            refused.append(error)
            if len(refused) < REFUSALS:
                return Answer(item, error=error)
            ended.append(error)
            stop.set()
            return None
        except GatewayError as error:
            ended.append(error)
            stop.set()
            return None

    if len(items) <= FEW:
        answers = [one(number, item) for number, item in enumerate(items)]
    else:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="fan-out") as pool:
            answers = list(pool.map(one, range(len(items)), items))
    if budget is not None:
        budget.put_off(len(late))
    return [answer for answer in answers if answer is not None], (ended[0] if ended else None)
