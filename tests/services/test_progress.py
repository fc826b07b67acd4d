"""Operations of pins and entries: the gate, lost nodes, permanent reasons, cancel and retry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.models import GateType, Pin
from caches.services.entries import entry_evict, entry_scrub
from caches.services.pins import PinSpec, pin_create, pin_remove, pin_suspend
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState, EntryStatus, ScrubFindings
from controlplane.clusters.models import Cluster, Node
from controlplane.operations.models import Operation
from controlplane.operations.services import TargetSpec, operation_cancel, operation_retry, operation_targets_add
from controlplane.operations.steps import operation_step
from tests import factories
from tests.services.world import MIB, World, failed, version_of


def warm(world: World, actor: Actor, gate: str = "All", value: int = 100, mib: int = 100) -> tuple[Pin, Operation]:
    spec = PinSpec(
        version_id=version_of(mib * MIB).pk,
        pool_ids=(world.pool.pk,),
        gate_type=GateType(gate),
        gate_value=value,
    )
    made = pin_create(actor=actor, spec=spec)
    world.reconcile()
    return made


def step(operation: Operation) -> Operation:
    operation_step(operation_id=operation.pk)
    return Operation.objects.get(pk=operation.pk)


def error_of(operation: Operation) -> dict[str, Any]:
    error: dict[str, Any] | None = operation.error
    assert error is not None
    return error


def states(operation: Operation) -> dict[str, str]:
    return {target.name.split("/")[1]: target.state for target in operation.targets.all()}


def test_it_shows_progress_and_succeeds_when_all_are_ready(world: World, actor: Actor) -> None:
    pin, operation = warm(world, actor)
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    loading = EntryStatus(digest, EntryState.DOWNLOADING, bytes_done=25 * MIB, bytes_total=100 * MIB, eta_seconds=9.0)
    world.report("n1", loading)
    world.observe()
    step(operation)
    Operation.objects.update(updated_at=timezone.now() - timedelta(seconds=2))
    running = step(operation)
    assert (running.state, running.bytes_done, running.bytes_total) == ("Running", 25 * MIB, 200 * MIB)
    assert running.eta_seconds == 9.0
    assert states(running) == {"n1": "Running", "n2": "Pending"}
    world.settle()
    done = step(operation)
    assert (done.state, done.result) == ("Succeeded", {"ready": 2, "required": 2, "targets": 2})
    assert (done.bytes_done, done.bytes_total) == (200 * MIB, 200 * MIB)
    assert [target.bytes_done for target in done.targets.all()] == [100 * MIB, 100 * MIB]
    assert set(states(done).values()) == {"Succeeded"}


@pytest.mark.parametrize(("gate", "value"), [("Count", 1), ("Percent", 50)])
def test_a_weaker_gate_opens_earlier(world: World, actor: Actor, gate: str, value: int) -> None:
    _, operation = warm(world, actor, gate, value)
    assert step(operation).state == "Running"
    world.obey("n1")
    world.observe()
    assert step(operation).state == "Succeeded"


def test_a_timeout_gate_opens_when_the_time_is_up(world: World, actor: Actor) -> None:
    _, operation = warm(world, actor, "Timeout", 60)
    assert step(operation).state == "Running"
    Operation.objects.filter(pk=operation.pk).update(started_at=timezone.now() - timedelta(seconds=61))
    assert step(operation).state == "Succeeded"


def test_a_permanent_reason_fails_the_operation_and_a_transient_one_does_not(world: World, actor: Actor) -> None:
    pin, operation = warm(world, actor)
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    world.report("n1", failed(digest, "SourceUnavailable"))
    world.observe()
    assert step(operation).state == "Running"
    world.report("n1", failed(digest, "AccessDenied"))
    world.observe()
    done = step(operation)
    assert done.state == "Failed" and "AccessDenied" in error_of(done)["detail"]
    assert states(done)["n1"] == "Failed"


def test_a_lost_node_is_skipped(world: World, actor: Actor) -> None:
    _, operation = warm(world, actor)
    world.obey("n1")
    world.replace("n2")
    world.observe()
    done = step(operation)
    assert done.state == "Succeeded"
    assert states(done) == {"n1": "Succeeded", "n2": "Skipped"}


@pytest.mark.parametrize("said", [True, False])
def test_a_node_that_is_silent_never_counts_as_ready(world: World, actor: Actor, said: bool) -> None:
    _, operation = warm(world, actor)
    world.settle()
    Node.objects.filter(name="n1").update(ready=said, reported_at=timezone.now() - timedelta(hours=1))
    waiting = step(operation)
    assert waiting.state == "Running" and states(waiting)["n1"] == "Running"


def test_room_that_goes_away_fails_the_operation_with_the_numbers(
    make_world: Callable[..., World], actor: Actor
) -> None:
    world = make_world(nodes=1)
    spec = PinSpec(version_id=version_of(400 * MIB).pk, pool_ids=(world.pool.pk,))
    _, operation = pin_create(actor=actor, spec=spec)
    world.fleet.fill("n1", 700 * MIB)
    world.report("n1")
    world.observe()
    world.reconcile()
    done = step(operation)
    assert done.state == "Failed" and "InsufficientCapacity" in error_of(done)["detail"]
    assert error_of(done)["next_step"]


def test_a_pin_on_an_empty_pool_ends_with_the_clusters_word_that_it_is_empty(world: World, actor: Actor) -> None:
    empty = factories.pool(of=world.cluster)
    _, operation = pin_create(actor=actor, spec=PinSpec(version_id=version_of(MIB).pk, pool_ids=(empty.pk,)))
    waiting = step(operation)
    assert waiting.state == "Running", "the cluster's last word is older than the question"
    assert waiting.message == f"Waiting until {world.cluster.name} has said which nodes there are."
    world.observe()
    assert step(operation).state == "Succeeded"


def test_it_waits_for_a_cluster_that_was_never_heard_of_and_then_for_its_nodes(world: World, actor: Actor) -> None:
    """The pin is older than the watcher's first list: what comes then is what the operation is about."""
    Node.objects.filter(cluster=world.cluster).delete()
    Cluster.objects.filter(pk=world.cluster.pk).update(observed_at=None)
    _, operation = warm(world, actor)
    assert step(operation).state == "Running" and not states(operation)
    world.observe()
    world.reconcile()
    running = step(operation)
    assert running.state == "Running" and running.bytes_total == 2 * 100 * MIB
    assert states(operation) == {"n1": "Pending", "n2": "Pending"}
    world.settle()
    done = step(operation)
    assert done.state == "Succeeded" and (done.result or {})["ready"] == 2


def test_a_suspended_pin_without_nodes_yet_has_not_succeeded(world: World, actor: Actor) -> None:
    empty = factories.pool(of=world.cluster)
    pin, operation = pin_create(actor=actor, spec=PinSpec(version_id=version_of(MIB).pk, pool_ids=(empty.pk,)))
    pin_suspend(actor=actor, pin_id=pin.pk)
    world.observe()
    assert (step(operation).state, step(operation).message) == ("Running", "The pin is suspended.")


def test_a_cancelled_operation_takes_no_targets(world: World, actor: Actor) -> None:
    empty = factories.pool(of=world.cluster)
    _, operation = pin_create(actor=actor, spec=PinSpec(version_id=version_of(MIB).pk, pool_ids=(empty.pk,)))
    operation_cancel(actor=actor, operation_id=operation.pk)
    assert not operation_targets_add(operation_id=operation.pk, targets=[TargetSpec("1", "one", 5)])
    assert not operation.targets.exists()


def test_cancelling_suspends_the_pin_and_waits_for_the_nodes_to_stop(world: World, actor: Actor) -> None:
    pin, operation = warm(world, actor)
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    world.report("n1", EntryStatus(digest, EntryState.DOWNLOADING, bytes_total=100 * MIB))
    world.observe()
    operation_cancel(actor=actor, operation_id=operation.pk)
    assert Pin.objects.get(pk=pin.pk).suspended
    assert step(operation).state == "Canceling"
    world.reconcile()
    assert digest not in world.desired("n1")
    world.held["n1"].clear()
    world.report("n1")
    world.observe()
    assert step(operation).state == "Canceled"
    world.reconcile()
    assert Pin.objects.get(pk=pin.pk).suspended  # the loop never undoes a cancel


def test_a_retry_resumes_the_pin_and_forgets_old_failures(world: World, actor: Actor) -> None:
    pin, operation = warm(world, actor)
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    world.report("n1", failed(digest, "AccessDenied"))
    world.observe()
    assert step(operation).state == "Failed"
    Pin.objects.update(suspended=True)
    again = operation_retry(actor=actor, operation_id=operation.pk)
    pin.refresh_from_db()
    assert (pin.suspended, pin.operation_id) == (False, again.pk)
    assert step(again).state == "Running"  # the old failure does not count: its round was not answered yet
    world.reconcile()
    assert world.line("n1", factories.version_of(pin)).retry_round == 1
    world.settle()
    assert step(again).state == "Succeeded"


def test_removing_a_pin_ends_when_nothing_is_fetched_any_more(world: World, actor: Actor) -> None:
    pin, _ = warm(world, actor)
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    world.obey("n1")
    world.report("n2", EntryStatus(digest, EntryState.DOWNLOADING, bytes_total=100 * MIB))
    world.observe()
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    assert states(step(removal)) == {"n1": "Succeeded", "n2": "Running"}
    world.held["n2"].clear()
    world.report("n2")
    world.observe()
    assert step(removal).state == "Succeeded"


def test_an_eviction_ends_when_the_files_are_gone(world: World, actor: Actor) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    operation = entry_evict(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    assert entry_evict(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk).pk == operation.pk
    assert step(operation).state == "Running"
    world.settle()
    assert step(operation).state == "Succeeded"
    assert world.entry("n1", factories.version_of(pin)).evict_requested_at is None


def test_cancelling_an_eviction_keeps_the_files(world: World, actor: Actor) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    operation = entry_evict(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    operation_cancel(actor=actor, operation_id=operation.pk)
    assert step(operation).state == "Canceled"
    world.settle()
    assert world.entry("n1", factories.version_of(pin)).state == "Ready"


@pytest.mark.parametrize(("outcome", "state"), [("Ready", "Succeeded"), ("Failed", "Failed")])
def test_a_scrub_ends_with_what_it_found(world: World, actor: Actor, outcome: str, state: str) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    operation = entry_scrub(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    assert step(operation).state == "Running"
    world.reconcile()
    line = world.line("n1", factories.version_of(pin))
    if outcome == "Ready":
        world.obey("n1")
    else:
        world.report("n1", failed(line.digest, "IntegrityMismatch", line))
    world.observe()
    assert step(operation).state == state


def test_a_gate_that_opens_early_records_what_has_arrived(world: World, actor: Actor) -> None:
    pin, operation = warm(world, actor, "Count", 1)
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    world.obey("n1")
    world.report("n2", EntryStatus(digest, EntryState.DOWNLOADING, bytes_done=30 * MIB, bytes_total=100 * MIB))
    world.observe()
    done = step(operation)
    assert (done.state, done.bytes_done, done.bytes_total) == ("Succeeded", 130 * MIB, 200 * MIB)


def test_a_scrub_says_what_was_wrong_and_what_was_fetched(world: World, actor: Actor) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    operation = entry_scrub(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    world.reconcile()
    line = world.line("n1", factories.version_of(pin))
    sound = world.held["n1"][line.digest]
    world.report("n1", replace(sound, state=EntryState.REPAIRING, damaged=("model.bin",), verify_round=1))
    world.observe()
    running = step(operation)
    assert (running.state, running.message) == ("Running", "1 damaged file")
    moved = sound.bytes_moved + 20 * MIB
    world.report("n1", replace(sound, verify_round=1, bytes_moved=moved))
    world.observe()
    done = step(operation)
    assert (done.state, done.result) == ("Succeeded", {"damaged": ["model.bin"], "repaired_bytes": 20 * MIB})
    assert (
        done.message == done.targets.get().detail == "1 file was wrong and is right again (20 MiB fetched): model.bin."
    )


@pytest.mark.parametrize(
    ("moved", "fetched", "message"),
    [
        (100 * MIB, 0, "Every byte is right."),
        (102 * MIB, 2 * MIB, "Something was wrong and is right again (2 MiB fetched)."),  # between two reports
        (3 * MIB, 3 * MIB, "Something was wrong and is right again (3 MiB fetched)."),  # a new meter
    ],
)
def test_a_scrub_counts_bytes_that_no_report_explains(
    world: World, actor: Actor, moved: int, fetched: int, message: str
) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    operation = entry_scrub(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    world.reconcile()
    sound = world.held["n1"][world.line("n1", factories.version_of(pin)).digest]
    world.report("n1", replace(sound, verify_round=1, bytes_moved=moved))
    world.observe()
    done = step(operation)
    assert (done.result, done.message) == ({"damaged": [], "repaired_bytes": fetched}, message)


@pytest.mark.parametrize(
    ("scrub", "damaged", "message"),
    [
        ((1, ("a", "b"), 2), ["a", "b"], "2 files were wrong and are right again (2 MiB fetched): a, b."),
        ((1, ("a",), 300), ["a"], "300 files were wrong and are right again (2 MiB fetched): a and 299 more."),
        ((2, ("a",), 1), ["a"], "1 file was wrong and is right again (2 MiB fetched): a."),  # asked for again
        ((0, ("a",), 1), [], "Something was wrong and is right again (2 MiB fetched)."),  # found before it was asked
    ],
)
def test_a_scrub_names_what_was_repaired_between_two_reports(
    world: World, actor: Actor, scrub: tuple[int, tuple[str, ...], int], damaged: list[str], message: str
) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    operation = entry_scrub(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    world.reconcile()
    sound = world.held["n1"][world.line("n1", factories.version_of(pin)).digest]
    moved = sound.bytes_moved + 2 * MIB
    world.report("n1", replace(sound, verify_round=1, bytes_moved=moved, scrub=ScrubFindings(*scrub)))
    world.observe()
    done = step(operation)
    assert (done.result, done.message) == ({"damaged": damaged, "repaired_bytes": 2 * MIB}, message)
    event = AuditEvent.objects.get(operation_id=operation.pk, action="operation.succeeded")
    assert event.message == message


def test_a_scrub_that_is_retried_begins_without_findings(world: World, actor: Actor) -> None:
    pin, _ = warm(world, actor)
    world.settle()
    operation = entry_scrub(actor=actor, entry_id=world.entry("n1", factories.version_of(pin)).pk)
    world.reconcile()
    line = world.line("n1", factories.version_of(pin))
    sound = world.held["n1"][line.digest]
    moved = sound.bytes_moved + 7 * MIB
    world.report("n1", replace(sound, state=EntryState.REPAIRING, damaged=("model.bin",), verify_round=1))
    world.observe()
    step(operation)
    world.report("n1", failed(line.digest, "IntegrityMismatch", line, bytes_moved=moved))
    world.observe()
    assert step(operation).state == "Failed"
    again = operation_retry(actor=actor, operation_id=operation.pk)
    world.report("n1", replace(sound, verify_round=2, bytes_moved=moved))
    world.observe()
    done = step(again)
    assert (done.state, done.result) == ("Succeeded", {"damaged": [], "repaired_bytes": 0})


def test_a_step_costs_the_same_for_few_and_many_targets(make_world: Callable[..., World], actor: Actor) -> None:
    world = make_world(nodes=6)
    _, many = warm(world, actor, mib=10)
    small = factories.pool(of=Cluster.objects.get())
    factories.node(of=small)
    _, few = pin_create(actor=actor, spec=PinSpec(version_id=version_of(MIB).pk, pool_ids=(small.pk,)))
    counts = []
    for operation in (few, many):
        step(operation)
        with CaptureQueriesContext(connection) as captured:
            operation_step(operation_id=operation.pk)
        counts.append(len(captured))
    assert counts[0] == counts[1]
