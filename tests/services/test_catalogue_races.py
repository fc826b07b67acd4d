"""Two people, or a person and a worker, at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections as database

from caches.models import Artifact, ModelVersion, SourceConnection
from caches.services import resolving
from caches.services.catalogue import version_delete, version_register, version_resolve_step
from caches.services.connections import connection_create, connection_delete
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.errors import Clash, HearthError, Missing
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel

ADA = Actor("ada", Via.API)
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def disk(tmp_path: Path, settings: LazySettings) -> SourceConnection:
    settings.SOURCE_ROOTS = [str(tmp_path)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    return connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(tmp_path)])


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in as many threads, released together; each one's answer, or the HearthError it raised."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(60)
        try:
            return call()
        except HearthError as error:
            return error
        finally:
            database.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [task.result(60) for task in [pool.submit(run, call) for call in calls]]


def registration(disk: SourceConnection, folder: str) -> Callable[[], Any]:
    uri = f"file://{disk.allowed[0]}/{folder}"
    return lambda: version_register(actor=ADA, model="llama", version="1", connection=disk, uri=uri)


def test_the_same_registration_four_times_is_one(disk: SourceConnection) -> None:
    answers = at_once(*[registration(disk, "one")] * 4)
    assert len({(version.pk, operation.pk) for version, operation in answers}) == 1
    assert ModelVersion.objects.count() == Operation.objects.count() == 1
    assert AuditEvent.objects.filter(action="version.register").count() == 1


def test_of_two_sources_for_one_name_one_wins(disk: SourceConnection) -> None:
    answers = at_once(registration(disk, "one"), registration(disk, "two"))
    lost = [answer for answer in answers if isinstance(answer, Clash)]
    assert len(lost) == 1 and lost[0].code == "version:user:registering"
    assert ModelVersion.objects.count() == 1


def test_steps_that_run_twice_at_once_publish_once(disk: SourceConnection) -> None:
    version, operation = registration(disk, "one")()

    def step() -> bool:
        return version_resolve_step(operation_id=operation.pk)

    assert True in at_once(step, step, step)
    assert step() is True
    version.refresh_from_db()
    operation.refresh_from_db()
    assert (version.state, operation.state) == ("Available", "Succeeded")
    assert Artifact.objects.count() == 1
    assert AuditEvent.objects.filter(action="version.available").count() == 1


def test_a_cancel_in_the_last_moment_undoes_the_last_step(
    disk: SourceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, operation = registration(disk, "one")()

    def cancelled(*_: Any, **__: Any) -> dict[str, Any]:
        operation_cancel(actor=ADA, operation_id=operation.pk)
        return {}

    monkeypatch.setattr(resolving, "read_metadata", cancelled)
    assert version_resolve_step(operation_id=operation.pk) is False
    assert not Artifact.objects.exists()
    assert version_resolve_step(operation_id=operation.pk) is True
    version.refresh_from_db()
    operation.refresh_from_db()
    assert (version.state, version.code, operation.state) == ("Refused", "version:user:canceled", "Canceled")


def test_a_connection_is_either_used_or_deleted(disk: SourceConnection) -> None:
    answers = at_once(registration(disk, "one"), lambda: connection_delete(actor=ADA, connection_id=disk.pk))
    if SourceConnection.objects.exists():
        assert ModelVersion.objects.count() == 1 and isinstance(answers[1], Clash)
    else:
        assert not ModelVersion.objects.exists() and isinstance(answers[0], Missing)


def test_a_version_is_deleted_once(disk: SourceConnection) -> None:
    version, operation = registration(disk, "one")()
    version_resolve_step(operation_id=operation.pk)
    answers = at_once(*[lambda: version_delete(actor=ADA, version_id=version.pk)] * 3)
    assert [answer is None for answer in answers].count(True) == 1
    assert all(answer is None or isinstance(answer, Missing) for answer in answers)
    assert not Artifact.objects.exists()
    assert AuditEvent.objects.filter(action="version.delete").count() == 1
