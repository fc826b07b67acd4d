"""Comparing again with the source: trouble half-way, races with deletions and cancels, what is written and audited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.models import DriftState, ModelVersion
from caches.services import connections, drift, housekeeping
from caches.services.catalogue import version_delete, version_recheck, version_register
from caches.services.connections import connection_create
from caches.services.drift import rechecks_due, version_recheck_step
from caches.sources import open_source
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.errors import Clash, Missing, Transient
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel
from controlplane.operations.steps import operation_step
from tests import factories
from tests.services.test_resolving import Troubled, failing, nth

pytestmark = pytest.mark.django_db
ADA = Actor("ada", Via.API)
AWAY = Transient("source:source:unavailable", "The store is away.", reason="SourceUnavailable")


class Registered:
    """A folder of five files registered as one version, compared two files a page through a source with trouble."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.log: list[tuple[str, Any]] = []
        self.trouble: Callable[[str, int], None] = lambda name, number: None
        connection = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(folder)])
        self.version, operation = version_register(
            actor=ADA, model="llama", version="1", connection=connection, uri=folder.as_uri(), ignore_patterns=["*.tmp"]
        )
        operation_step(operation_id=operation.pk)
        monkeypatch.setattr(drift, "LIST_PAGE", 2)
        monkeypatch.setattr(
            connections,
            "open_source",
            lambda *args, **given: Troubled(open_source(*args, **given), self.log, lambda *now: self.trouble(*now)),
        )

    def compare(self) -> Operation:
        self.log.clear()
        operation = version_recheck(actor=ADA, version_id=self.version.pk)
        assert version_recheck_step(operation_id=operation.pk)
        operation.refresh_from_db()
        self.version.refresh_from_db()
        return operation

    def drift(self) -> tuple[str, dict[str, str]]:
        self.compare()
        return self.version.drift, {change["path"]: change["change"] for change in self.version.drift_changed}


@pytest.fixture
def registered(tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Registered:
    settings.SOURCE_ROOTS = [str(tmp_path)]
    folder = tmp_path / "llama"
    folder.mkdir()
    for name in "abcde":
        (folder / name).write_bytes(name.encode() * 100)
    return Registered(folder, monkeypatch)


def test_only_files_that_look_different_are_asked_for_their_checksum(registered: Registered) -> None:
    assert registered.drift() == ("Matches", {})
    assert [name for name, _ in registered.log if name == "describe"] == []
    (registered.folder / "c").write_bytes(b"longer than it was before" * 9)
    assert registered.drift() == ("Drifted", {"c": "Changed"})
    assert [path for name, path in registered.log if name == "describe"] == ["c"]


def test_what_the_patterns_leave_out_is_no_drift(registered: Registered) -> None:
    (registered.folder / "lock.tmp").write_text("x")
    assert registered.drift() == ("Matches", {})
    (registered.folder / "größe ✓").write_text("x")
    (registered.folder / "a").unlink()
    assert registered.drift() == ("Drifted", {"größe ✓": "Added", "a": "Removed"})


@pytest.mark.parametrize(("call", "which"), [("list_page", 1), ("list_page", 3), ("describe", 1)])
def test_half_a_comparison_says_nothing_of_the_files(registered: Registered, call: str, which: int) -> None:
    (registered.folder / "b").write_bytes(b"changed, and longer" * 20)
    registered.trouble = nth(call, which, failing(AWAY))
    operation = registered.compare()
    assert (operation.state, registered.version.drift) == ("Failed", "Unreachable")
    assert registered.version.drift_changed == [] and registered.version.state == "Available"
    registered.trouble = lambda name, number: None
    assert registered.drift() == ("Drifted", {"b": "Changed"})


def test_an_outage_keeps_what_was_found_before_and_every_turn_is_in_the_trail(registered: Registered) -> None:
    (registered.folder / "a").unlink()
    registered.compare()
    registered.trouble = failing_always
    for _ in range(2):
        assert registered.drift() == ("Unreachable", {"a": "Removed"})
    turns = AuditEvent.objects.filter(action="version.drift").order_by("at").values_list("before", "after")
    assert [((before or {})["drift"], (after or {})["drift"]) for before, after in turns] == [
        ("Matches", "Drifted"),
        ("Drifted", "Unreachable"),
    ]


def failing_always(name: str, number: int) -> None:
    raise AWAY


def test_a_folder_with_far_too_many_files_is_said_and_not_read_to_its_end(
    registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "MAX_FILES", 5)
    for number in range(9):
        (registered.folder / f"new-{number}").write_text("x")
    operation = registered.compare()
    assert (operation.error or {})["code"] == "version:source:too-many-files"
    assert sum(name == "list_page" for name, _ in registered.log) == 3


def test_a_comparison_killed_in_the_middle_begins_again(registered: Registered) -> None:
    registered.trouble = nth("list_page", 2, failing(KeyboardInterrupt()))
    operation = version_recheck(actor=ADA, version_id=registered.version.pk)
    with pytest.raises(KeyboardInterrupt):
        version_recheck_step(operation_id=operation.pk)
    assert version_recheck(actor=ADA, version_id=registered.version.pk).pk == operation.pk
    assert version_recheck_step(operation_id=operation.pk)
    assert Operation.objects.get(pk=operation.pk).state == "Succeeded"


def test_a_cancel_while_it_compares_wins_and_a_deletion_ends_it(registered: Registered) -> None:
    operation = version_recheck(actor=ADA, version_id=registered.version.pk)
    registered.trouble = nth("list_page", 2, lambda: operation_cancel(actor=ADA, operation_id=operation.pk))
    assert not version_recheck_step(operation_id=operation.pk)  # it could not succeed any more: asked again
    assert version_recheck_step(operation_id=operation.pk)
    assert Operation.objects.get(pk=operation.pk).state == "Canceled"
    second = version_recheck(actor=ADA, version_id=registered.version.pk)
    version_delete(actor=ADA, version_id=registered.version.pk)
    assert version_recheck_step(operation_id=second.pk)
    assert (Operation.objects.get(pk=second.pk).error or {})["code"] == "version:user:not-found"


def test_a_version_deleted_while_it_is_compared_leaves_no_row_and_no_bug(registered: Registered) -> None:
    operation = version_recheck(actor=ADA, version_id=registered.version.pk)
    registered.trouble = nth("list_page", 2, lambda: version_delete(actor=ADA, version_id=registered.version.pk))
    version_recheck_step(operation_id=operation.pk)
    assert not ModelVersion.objects.exists()
    assert Operation.objects.get(pk=operation.pk).state in ("Succeeded", "Failed")


@pytest.mark.parametrize("state", ["Resolving", "Refused"])
def test_only_what_is_available_is_compared(state: str) -> None:
    version = factories.version(artifact=None, state=state)
    with pytest.raises(Clash, match=state):
        version_recheck(actor=ADA, version_id=version.pk)
    with pytest.raises(Missing):
        version_recheck(actor=ADA, version_id=factories.artifact().pk)
    assert rechecks_due(now=timezone.now()) == []


def test_the_longest_unchecked_go_first_and_a_few_at_a_time(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SOURCE_RECHECK_SECONDS = 3600
    monkeypatch.setattr(drift, "DUE_AT_ONCE", 3)
    now = timezone.now()
    never = factories.version()
    aged = [factories.version(drift_checked_at=now - timedelta(hours=hours)) for hours in (1, 5, 3)]
    factories.version(drift_checked_at=now - timedelta(minutes=59))
    assert rechecks_due(now=now) == [never.pk, aged[1].pk, aged[2].pk]
    assert housekeeping.rechecks_start(now=now) == 3
    assert housekeeping.rechecks_start(now=now) == 1  # the others are running
    assert housekeeping.rechecks_start(now=now) == 0


def test_a_version_deleted_between_due_and_start_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, there = factories.version(), factories.version()
    key = gone.pk
    gone.delete()
    monkeypatch.setattr(housekeeping, "rechecks_due", lambda now: [key, there.pk])
    assert housekeeping.rechecks_start(now=timezone.now()) == 1
    assert ModelVersion.objects.get().drift == DriftState.UNCHECKED
