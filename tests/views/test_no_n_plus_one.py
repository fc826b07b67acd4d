"""No page asks the database once for each row: the same page with many rows, watched for repeated queries."""

from __future__ import annotations

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from zeal import zeal_context

from caches.models import EntryChange, Pin
from controlplane.accounts.models import RoleGrant, User
from controlplane.audit.services import audit_write
from controlplane.clusters.documents import EntryState
from controlplane.operations.models import Operation
from routing.models import RouterProcess
from tests import factories
from tests.views.addresses import FORMS, PAGES, TABLES
from tests.views.conftest import ACTOR, Stage, stray_node


def grow(stage: Stage, *, by: int) -> None:
    """More of everything that a table lists."""
    assert stage.llama.artifact is not None
    twins = [factories.version(artifact=stage.llama.artifact) for _ in range(by)]
    for number in range(by):
        other = factories.pool(of=stage.pool.cluster)
        Pin.objects.get(pk=stage.pin.pk).pools.add(other)
        node = factories.node(of=stage.pool)
        factories.node(of=other)
        stray_node(stage.pool)
        for state in (EntryState.READY, EntryState.FAILED, EntryState.DOWNLOADING):
            version = factories.version(connection=stage.llama.connection)
            factories.version(model="llama", connection=stage.llama.connection)
            factories.entry(on=stage.nodes[0], of=version.artifact, state=state)
        factories.entry(on=node, of=stage.llama.artifact)
        factories.pin(of=twins[number], pools=(stage.pool, other))
        operation = Operation.objects.create(kind="PinWarm", state="Running", subject_type="pin",
                                             subject_id=str(stage.pin.pk), subject_name="llama v1",
                                             started_by="ada")  # fmt: skip
        operation.targets.create(key=str(node.pk), name=node.name)
        stage.operation.targets.create(key=str(node.pk), name=node.name)
        audit_write(actor=ACTOR, action="pin.update", object_type="pin", object_id=str(stage.pin.pk),
                    object_name="llama v1", before={"priority": 1}, after={"priority": 2},
                    operation_id=stage.operation.pk)  # fmt: skip
        EntryChange.objects.create(entry=stage.ready, at=timezone.now(), old_state="Queued", new_state="Ready")


@pytest.fixture
def paula(stage: Stage, client: Client) -> Client:
    """An operator by several grants, which is more to ask than one for everything."""
    user: User = factories.user(username="paula", role="Operator", target="lab")
    RoleGrant.objects.create(user=user, role="Viewer", target="lab.gpu")
    client.force_login(user)
    return client


def test_it_asks_as_much_for_many_rows_as_for_few(stage: Stage, paula: Client) -> None:
    def asked() -> dict[str, int]:
        found = {}
        for name, make in (PAGES | FORMS).items():
            with CaptureQueriesContext(connection) as queries:
                assert paula.get(make(stage)).status_code == 200, name
            found[name] = len(queries)
        return found

    # The clock stands still: on a busy machine routers and nodes would fall silent meanwhile, and that is asked about.
    now = timezone.now()
    RouterProcess.objects.update(seen_at=now)
    with time_machine.travel(now, tick=False):
        grow(stage, by=2)
        asked()
        few = asked()
        grow(stage, by=6)
        many = asked()
    # Why a version is not warm is asked pool by pool, and so is what removing or making a pin would do.
    by_pool = {"version", "unpin"}
    assert {name: (few[name], many[name]) for name in few if many[name] > few[name] and name not in by_pool} == {}
    assert max(many.values()) < 100


def test_it_repeats_no_query_on_any_page(stage: Stage, paula: Client) -> None:
    grow(stage, by=4)
    for name, make in PAGES.items():
        with zeal_context():
            assert paula.get(make(stage)).status_code == 200, name


def test_it_repeats_no_query_in_any_export(stage: Stage, paula: Client) -> None:
    grow(stage, by=4)
    for name, tables in TABLES.items():
        for table in tables:
            with zeal_context():
                assert paula.get(f"{PAGES[name](stage)}?format=json&table={table}").status_code == 200, (name, table)


def test_it_counts_only_the_nodes_that_the_page_shows(stage: Stage, paula: Client) -> None:
    for number in range(60):
        factories.entry(on=factories.node(of=stage.pool, name=f"m{number:02}"), of=stage.llama.artifact)
    first = paula.get("/fleet/lab.gpu?sort=name").content.decode()
    rows = first[first.index('id="nodes-rows"') :]
    assert rows.count("1 of 1") == 50
    second = paula.get("/fleet/lab.gpu?sort=name&page=2").content.decode()
    rows = second[second.index('id="nodes-rows"') :]
    assert rows.count("1 of 1") + rows.count("0 of 1") == 14
    exported = paula.get("/fleet/lab.gpu.csv").content.decode().splitlines()
    ready = exported[0].split(",").index("ready")
    assert sum(line.split(",")[ready] == "1" for line in exported[1:]) == 61
