"""What is done to a local fleet by command is in the audit trail, as a change that launches may have come from."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from controlplane.audit.models import AuditEvent
from controlplane.clusters import fleet_audit
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.serving import endpoints_all
from controlplane.clusters.models import Cluster
from tests import factories
from tests.contracts.observing import DIGEST

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet(tmp_path: Path) -> LocalFleet:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=2)
    factories.cluster(name="elsewhere", address=str(tmp_path / "other"))
    factories.cluster(name="local", address=f"{tmp_path}/./fleet")
    return made


def run(fleet: LocalFleet, *arguments: str) -> None:
    call_command("fleet", "--dir", str(fleet.folder), *arguments, stdout=io.StringIO())


def told() -> list[tuple[str, str, str]]:
    return [(one.action, one.object_type, one.object_name) for one in AuditEvent.objects.order_by("at", "id")]


def last() -> AuditEvent:
    return AuditEvent.objects.order_by("at", "id").last()  # type: ignore[return-value]  # there is one


def changed(event: AuditEvent) -> dict[str, tuple[Any, Any]]:
    before, after = event.before or {}, event.after or {}
    return {name: (before.get(name), after.get(name)) for name in before | after if before.get(name) != after.get(name)}


def test_every_verb_that_changes_the_fleet_is_written_down_with_what_it_changed(fleet: LocalFleet) -> None:
    for verb, field, values in (
        ("cordon", "schedulable", (True, False)), ("uncordon", "schedulable", (False, True)),
        ("stop", "stopped", (False, True)), ("start", "stopped", (True, False)),
    ):  # fmt: skip
        run(fleet, verb, "a-1")
        assert changed(last()) == {field: values} and last().action == f"fleet.{verb}"
        run(fleet, verb, "a-1")
    run(fleet, "fill", "a-1", "3MiB")
    assert changed(last()) == {"other_bytes": (0, 3 * 2**20)}
    run(fleet, "use", "a-1", DIGEST)
    assert changed(last()) == {"in_use": ([], [DIGEST])}
    run(fleet, "unuse", "a-1", DIGEST)
    run(fleet, "unfill", "a-1")
    run(fleet, "serve", "chat", DIGEST, "--replicas", "1")
    run(fleet, "scale", "chat", "3")
    assert changed(last()) == {"replicas": (1, 3)}
    run(fleet, "unserve", "chat")
    run(fleet, "add", "c-1", "--pool", "pool-b")
    assert last().before is None and last().after["pool"] == "pool-b"  # type: ignore[index]  # it is there
    run(fleet, "replace", "c-1")
    assert set(changed(last())) == {"uid"}
    run(fleet, "remove", "c-1")
    assert last().after is None and last().message == "c-1 removed with its disk"
    for verb in ("list", "engines"):
        run(fleet, verb)
    of_node = ["cordon", "uncordon", "stop", "start", "fill", "use", "unuse", "unfill"]
    assert told() == [
        *[(f"fleet.{verb}", "node", "a-1") for verb in of_node],
        *[(f"fleet.{verb}", "Endpoint", "chat") for verb in ("serve", "scale", "unserve")],
        *[(f"fleet.{verb}", "node", "c-1") for verb in ("add", "replace", "remove")],
    ], "what changed nothing, and what only looks, is not"
    assert {(one.via, one.actor.endswith(" (manage.py)")) for one in AuditEvent.objects.all()} == {("Command", True)}


def test_a_node_that_hearth_knows_is_named_by_its_row_the_incarnation_that_it_happened_to(fleet: LocalFleet) -> None:
    row, other = fleet.nodes()
    pool = factories.pool(of=Cluster.objects.get(name="local"))
    known = factories.node(of=pool, name="a-1", uid=row.node.uid)
    factories.node(name="b-1", uid=other.node.uid)  # of another cluster
    for name in ("a-1", "b-1"):
        run(fleet, "replace", name)
    assert [one.object_id for one in AuditEvent.objects.order_by("at")] == [str(known.pk), other.node.uid]


def test_what_fails_is_not_written_down(fleet: LocalFleet) -> None:
    for arguments in (("cordon", "nope"), ("add", "a-1"), ("scale", "nope", "2"), ("kill", "nope")):
        with pytest.raises(CommandError):
            run(fleet, *arguments)
    run(fleet, "unserve", "nope")
    assert told() == []


def test_a_fleet_that_is_no_cluster_has_no_trail(tmp_path: Path) -> None:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=1)
    run(made, "cordon", "a-1")
    assert told() == []


def test_without_a_database_the_fleet_does_what_it_is_told(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(**_: object) -> None:
        raise OperationalError("connection refused\nIs the server running?")

    monkeypatch.setattr(fleet_audit, "audit_write", away)
    run(fleet, "serve", "chat", DIGEST)
    with fleet.store.read() as session:
        assert [one.name for one in endpoints_all(session)] == ["chat"]
    assert capsys.readouterr().err == (
        "Not written to the audit trail, because the database does not answer: connection refused\n"
    )
