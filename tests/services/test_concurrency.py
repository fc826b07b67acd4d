"""Real transactions in threads: admissions that share a pool, lost races, one round at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connection

from caches.models import Pin
from caches.selectors.pool_view import pool_view
from caches.services import pins
from caches.services.entries import entry_evict
from caches.services.loop.rounds import pool_reconcile, pools_mark_dirty
from caches.services.pins import PinSpec, pin_create, pin_remove
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, HearthError
from controlplane.locks import advisory_lock
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_acknowledge, operation_cancel, operation_succeed
from tests.services.world import MIB, World, version_of
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")


@pytest.fixture
def one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # No broker runs here, and each commit would wait for one.
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids: True)
    return World(tmp_path / "fleet", nodes=1)


def together(*calls: Callable[[], T]) -> list[T | HearthError]:
    """Run all at the same moment, each on its own connection."""
    barrier = threading.Barrier(len(calls), timeout=60)

    def run(call: Callable[[], T]) -> T | HearthError:
        try:
            barrier.wait()
            return call()
        except HearthError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(run, call) for call in calls]]


def test_two_pins_that_fit_alone_but_not_together_are_not_both_admitted(one_node: World, actor: Actor) -> None:
    specs = [PinSpec(version_id=version_of(500 * MIB).pk, pool_ids=(one_node.pool.pk,)) for _ in range(4)]
    results = together(*[lambda spec=spec: pin_create(actor=actor, spec=spec) for spec in specs])
    refused = [result for result in results if isinstance(result, HearthError)]
    assert len(refused) == 3
    assert {error.code for error in refused} == {"pin:user:insufficient-capacity"}
    assert Pin.objects.count() == AuditEvent.objects.filter(action="pin.create").count() == 1


def test_a_pin_that_waited_for_the_pool_does_not_outrank_what_was_admitted_meanwhile(
    one_node: World, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [PinSpec(version_id=version_of(500 * MIB).pk, pool_ids=(one_node.pool.pk,)) for _ in range(2)]
    lock_pools = pins._lock_pools
    overtaken: list[object] = []

    def overtake(pools: Sequence[NodePool]) -> None:
        if not overtaken:
            overtaken.append(None)
            overtaken[0] = together(lambda: pin_create(actor=actor, spec=second))[0]
        lock_pools(pools)

    monkeypatch.setattr(pins, "_lock_pools", overtake)
    with pytest.raises(HearthError) as refused:
        pin_create(actor=actor, spec=first)
    assert refused.value.code == "pin:user:insufficient-capacity"
    assert not isinstance(overtaken[0], HearthError)
    assert Pin.objects.get().version_id == second.version_id


def test_of_two_pins_of_the_same_version_one_is_told_of_the_other(one_node: World, actor: Actor) -> None:
    spec = PinSpec(version_id=version_of(10 * MIB).pk, pool_ids=(one_node.pool.pk,))
    results = together(*[lambda: pin_create(actor=actor, spec=spec)] * 3)
    codes = sorted(result.code for result in results if isinstance(result, HearthError))
    assert codes == ["pin:user:exists"] * 2
    assert Pin.objects.count() == Operation.objects.count() == 1


def test_of_two_removals_one_wins(one_node: World, actor: Actor) -> None:
    spec = PinSpec(version_id=version_of(10 * MIB).pk, pool_ids=(one_node.pool.pk,))
    pin, _ = pin_create(actor=actor, spec=spec)
    results = together(*[lambda: pin_remove(actor=actor, pin_id=pin.pk)] * 3)
    assert sum(isinstance(result, Operation) for result in results) == 1
    assert AuditEvent.objects.filter(action="pin.remove").count() == 1


def test_of_a_success_and_a_cancel_exactly_one_wins(one_node: World, actor: Actor) -> None:
    spec = PinSpec(version_id=version_of(10 * MIB).pk, pool_ids=(one_node.pool.pk,))
    _, operation = pin_create(actor=actor, spec=spec)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: operation_succeed(operation_id=operation.pk),
        lambda: operation_cancel(actor=actor, operation_id=operation.pk),
    )
    succeeded, cancelled = together(*calls)
    operation_acknowledge(operation_id=operation.pk)
    operation.refresh_from_db()
    if succeeded is True:
        assert operation.state == "Succeeded" and isinstance(cancelled, Clash)
    else:
        assert operation.state == "Canceled" and isinstance(cancelled, Operation)


def test_two_evictions_asked_at_once_share_one_operation(one_node: World, actor: Actor) -> None:
    version = version_of(10 * MIB)
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(one_node.pool.pk,)))
    one_node.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    entry = one_node.entry("n1", version)
    results = together(*[lambda: entry_evict(actor=actor, entry_id=entry.pk)] * 3)
    assert len({result.pk for result in results if isinstance(result, Operation)}) == 1
    assert Operation.objects.filter(kind="EntryEvict").count() == 1


def test_one_worker_at_a_time_reconciles_a_pool(one_node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, leave = threading.Event(), threading.Event()
    real = pool_view

    def slow(*args: Any, **kwargs: Any) -> Any:
        inside.set()
        assert leave.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr("caches.services.loop.rounds.pool_view", slow)
    found: list[Any] = []

    def first() -> None:
        try:
            found.append(pool_reconcile(pool_id=one_node.pool.pk))
        finally:
            connection.close()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    assert pool_reconcile(pool_id=one_node.pool.pk) is None
    pools_mark_dirty(pool_ids=[one_node.pool.pk])  # a change during the round is not lost
    leave.set()
    thread.join(60)
    assert found[0] is not None
    state = one_node.loop()
    assert state.wanted_round == state.done_round + 1


def test_a_lock_is_free_again_after_its_connection_died(db: None) -> None:
    def hold_and_die() -> bool:
        try:
            with advisory_lock("a name") as mine:
                connection.connection.close()  # as a killed worker's
                return mine
        finally:
            connection.close()

    assert together(hold_and_die) == [True]

    def free() -> bool:
        with advisory_lock("a name") as taken:
            return taken

    until(free, "PostgreSQL notices the closed socket")


def test_marking_many_pools_from_many_sides_never_deadlocks(one_node: World, actor: Actor) -> None:
    from tests import factories

    ids = [one_node.pool.pk, *(factories.pool(of=one_node.cluster).pk for _ in range(4))]
    calls = [
        *[lambda: pools_mark_dirty(pool_ids=ids)] * 3,
        *[lambda: pools_mark_dirty(pool_ids=list(reversed(ids)))] * 3,
    ]
    assert together(*calls) == [5] * 6
    spec = PinSpec(version_id=version_of(10 * MIB).pk, pool_ids=tuple(ids))
    pin_create(actor=actor, spec=spec)
    one_node.settle(1)
    assert list(one_node.desired("n1").values()) == [Action.ENSURE]
