"""?wait= holds an answer, but neither a connection nor more than its share of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from caches.models import Pin
from controlplane.audit.services import SYSTEM
from controlplane.operations.models import Operation, OperationKind
from controlplane.operations.services import operation_start, operation_succeed
from controlplane.rest import waiting
from controlplane.rest.models import IdempotencyKey
from tests import factories
from tests.api.conftest import Api

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operation(monkeypatch: pytest.MonkeyPatch) -> Operation:
    # No broker runs here, and each commit would wait for one.
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids: True)
    return operation_start(
        actor=SYSTEM, kind=OperationKind.MODEL_REGISTER, subject_type="version", subject_id="1", subject_name="llama v1"
    )


@pytest.fixture
def beside() -> Iterator[Callable[..., Any]]:
    """Runs a call in another thread with its own connection."""

    def run(call: Callable[[], Any]) -> Any:
        try:
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        yield lambda call: pool.submit(run, call)


def polled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody really waits."""
    began = threading.Event()
    original = waiting._release_connection

    def release() -> None:
        original()
        began.set()

    monkeypatch.setattr(waiting, "_release_connection", release)
    return began


def test_it_answers_as_soon_as_the_operation_ends(
    viewer_api: Api, operation: Operation, beside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = polled(monkeypatch)
    answer = beside(lambda: viewer_api.get(f"operations/{operation.id}?wait=60"))
    assert began.wait(60)

    operation_succeed(operation_id=operation.id)

    assert answer.result(60).status_code == 200
    assert answer.result().json()["state"] == "Succeeded"


def test_it_answers_202_when_the_time_is_up(viewer_api: Api, operation: Operation) -> None:
    answer = viewer_api.get(f"operations/{operation.id}?wait=1")

    assert (answer.status_code, answer.json()["state"]) == (202, "Pending")
    assert int(answer["Retry-After"]) > 0


def test_it_holds_no_more_answers_than_it_has_places_for(
    viewer_api: Api, operation: Operation, beside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_slots", threading.BoundedSemaphore(1))
    began = polled(monkeypatch)
    held = beside(lambda: viewer_api.get(f"operations/{operation.id}?wait=60"))
    assert began.wait(60)

    turned_away = viewer_api.get(f"operations/{operation.id}?wait=300")
    operation_succeed(operation_id=operation.id)

    assert turned_away.status_code == 202
    assert held.result(60).status_code == 200
    assert waiting._slots.acquire(blocking=False), "the place was not given back"


def test_it_gives_its_connection_back_while_it_waits(
    operation: Operation, beside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    began = threading.Event()

    def pause(seconds: float) -> None:
        held.append(connection.connection is not None)
        began.set()

    monkeypatch.setattr("controlplane.rest.waiting.time.sleep", pause)
    ended = beside(lambda: waiting.wait_for_end(operation.id, 60))
    assert began.wait(60)
    operation_succeed(operation_id=operation.id)

    assert ended.result(60) is True
    assert held and not any(held)


def test_it_keeps_the_idempotency_key_alive_while_it_waits(
    operator_api: Api, beside: Callable[..., Any], operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = factories.pool()
    factories.node(of=pool)
    factories.version(model="llama", version="v1")
    monkeypatch.setattr(waiting, "TICK_SECONDS", 0)
    began = polled(monkeypatch)
    body = {"model": "llama", "version": "v1", "pools": [pool.full_name]}
    first = beside(lambda: operator_api.post("pins?wait=60", body, headers={"Idempotency-Key": "k"}))
    assert began.wait(60)
    IdempotencyKey.objects.update(updated_at=timezone.now() - timedelta(hours=1))
    for _ in range(2):  # a whole round later the key was touched again
        began.clear()
        assert began.wait(60)

    twin = operator_api.post("pins", body, headers={"Idempotency-Key": "k"})
    for one in Operation.objects.filter(kind=OperationKind.PIN_WARM):
        operation_succeed(operation_id=one.id)

    assert (twin.status_code, twin.json()["code"]) == (409, "idempotency:key:running")
    assert first.result(60).status_code == 200
    assert operator_api.post("pins", body, headers={"Idempotency-Key": "k"})["Idempotency-Replayed"] == "true"
    assert Pin.objects.count() == 1
