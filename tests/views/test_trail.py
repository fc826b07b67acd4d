"""The audit trail leads to what is there, and to nothing that is gone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.models import CacheEntry, Pin
from caches.selectors.subjects import subjects_there
from caches.views.trail import changes
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.operations.models import Operation
from tests import factories
from tests.views.conftest import Stage
from tests.views.reading import Page


def wrote(type: str, row: Any, name: str, action: str = "") -> AuditEvent:
    return audit_write(
        actor=SYSTEM,
        action=action or f"{type}.x",
        object_type=type,
        object_id=str(row.pk),
        object_name=name,
    )


def everything(stage: Stage) -> dict[str, AuditEvent]:
    """An event of each kind of thing that has a page, by that page."""
    AuditEvent.objects.all().delete()
    version, pool = stage.qwen, stage.pool
    return {
        f"/pins/{stage.pin.pk}": wrote("pin", stage.pin, "llama v1"),
        f"/entries/{stage.loose.pk}": wrote("entry", stage.loose, "qwen v1 on n1"),
        f"/nodes/{stage.nodes[0].pk}": wrote("node", stage.nodes[0], "n1"),
        "/models/qwen/versions/v1": wrote("version", version, "qwen v1"),
        f"/fleet/{pool.full_name}": wrote("NodePool", pool, pool.full_name),
        f"/connections/{version.connection.name}": wrote("connection", version.connection, version.connection.name),
    }


def links(client: Client) -> set[str]:
    rows = Page(client.get("/audit").content).page.one("table").one("tbody")
    return {link.attrs["href"] for link in rows.all("a") if not link.attrs["href"].startswith("/audit")}


def test_it_leads_to_what_is_there_and_the_page_opens(stage: Stage, ada: Client) -> None:
    expected = everything(stage)

    assert links(ada) == set(expected)
    assert {ada.get(url).status_code for url in expected} == {200}


def test_it_names_what_is_gone_without_a_link(stage: Stage, ada: Client) -> None:
    events = everything(stage)
    Pin.objects.update(removed_at=timezone.now())
    CacheEntry.objects.all().delete()
    stage.qwen.delete()

    kept = {f"/nodes/{stage.nodes[0].pk}", f"/fleet/{stage.pool.full_name}"}
    assert links(ada) == kept | {f"/connections/{stage.qwen.connection.name}"}
    page = Page(ada.get("/audit").content)
    assert "qwen v1 on n1" in page.text
    for event in events.values():
        one = Page(ada.get(f"/audit?id={event.pk}").content)
        for link in one.page.all("a"):
            if link.attrs["href"].startswith(("/pins/", "/entries/", "/models/qwen")):
                pytest.fail(f"a dead link: {link.attrs['href']}")


def test_it_leads_from_an_operation_to_no_removed_entry(stage: Stage, ada: Client) -> None:
    operation = Operation.objects.create(
        kind="EntryEvict", subject_type="entry", subject_id=str(stage.loose.pk), subject_name="x", started_by="ada"
    )
    address = f"/entries/{stage.loose.pk}"

    assert Page(ada.get(f"/operations/{operation.pk}").content).page.all("a", href=address)
    stage.loose.delete()
    assert not Page(ada.get(f"/operations/{operation.pk}").content).page.all("a", href=address)


def test_it_asks_once_for_a_page_and_takes_any_id(stage: Stage) -> None:
    pins = [factories.pin(of=factories.version()) for _ in range(20)]
    asked = [("pin", str(pin.pk)) for pin in pins]
    asked += [("entry", str(stage.loose.pk)), ("node", "zoe"), ("User", "1"), ("pin", "0" * 32)]

    with CaptureQueriesContext(
        connection,
    ) as queries:
        there = subjects_there(asked)

    assert len(queries) == 1
    assert there == {*asked[:20], ("entry", str(stage.loose.pk))}
    assert subjects_there([]) == subjects_there([("User", "1")]) == set()


@pytest.mark.parametrize(
    ("action", "tone", "word"),
    [
        ("node-cache.repaired", "warn", "Repaired"),
        ("node.label-restored", "warn", "Label restored"),
        ("node.label-swept", "warn", "Label swept"),
        ("node.warmed", "ok", "Warmed"),
        ("pool.delete", "warn", "Deleting"),
        ("pool.deleted", "idle", "Deleted"),
        ("pool.delete-canceled", "idle", "Kept"),
    ],
)
def test_it_marks_what_the_loop_did_by_word_icon_and_colour(
    action: str, tone: str, word: str, stage: Stage, ada: Client
) -> None:
    AuditEvent.objects.all().delete()
    wrote("node", stage.nodes[0], "n1", action)

    [pill] = [
        one
        for one in Page(ada.get("/audit").content).page.one("table").walk()
        if "pill" in one.attrs.get("class", "").split()
    ]

    assert (pill.text.strip(), f"tone-{tone}" in pill.attrs["class"].split()) == (word, True)
    assert pill.all("use") and pill.attrs["title"]


def test_it_writes_a_change_of_a_list_as_its_names() -> None:
    pools = [f"kube.pool-{letter}" for letter in "abcde"]
    event = AuditEvent(before={"pools": pools, "priority": 5}, after={"pools": pools[:1], "priority": 8})
    assert changes(event) == ["pools kube.pool-a, kube.pool-b, kube.pool-c and 2 more → kube.pool-a", "priority 5 → 8"]
    long = AuditEvent(before={"path": "/a" * 60}, after={"path": "/b"})
    assert len(changes(long)[0]) < 80 and "…" in changes(long)[0]
