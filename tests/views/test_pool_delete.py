"""Deleting a pool in the browser: who may, what is shown before, typed name, sent twice, and how it looks meanwhile."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from caches.models import CacheEntry, ConsumerSeen, Pin
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Node, NodePool
from controlplane.operations.models import Operation
from tests import factories
from tests.views.conftest import Stage
from tests.views.reading import Page

PATH = "/fleet/lab.gpu/delete"


@pytest.fixture
def unpinned(stage: Stage) -> Stage:
    Pin.objects.update(removed_at=timezone.now())
    Operation.objects.update(state="Succeeded")
    return stage


def form_key(client: Client) -> str:
    [key] = re.findall(r'name="form_key" value="([^"]+)"', client.get(PATH).content.decode())
    return str(key)


def test_it_shows_what_leaves_which_node_and_what_stays(unpinned: Stage, ada: Client) -> None:
    assert unpinned.llama.artifact is not None
    ConsumerSeen.objects.create(
        node=unpinned.nodes[0],
        uid="pod-1",
        name="server",
        digests=[unpinned.llama.artifact.digest],
        observed_at=timezone.now(),
    )

    page = Page(ada.get(PATH).content)

    text = page.text
    assert "Nothing has happened yet" in text and "4 nodes are emptied" in text
    rows = [" ".join(row) for row in page.page.one("table").rows()]
    assert [row for row in rows if "n1 llama v1" in row and "Later" in row and "In use" in row]
    assert [row for row in rows if "qwen v1" in row and "Now" in row]
    assert not Operation.objects.filter(kind="PoolDelete").exists()


def test_it_names_the_pins_that_forbid_it(stage: Stage, ada: Client) -> None:
    page = Page(ada.get(PATH).content)

    assert "cannot be deleted now: 1 pin wants something there" in page.text
    assert page.page.all("a", href=f"/pins/{stage.pin.id}") and not page.page.all("input", id="confirm")
    refused = ada.post(PATH, {"confirm": "lab.gpu"})
    assert refused.status_code == 409 and "llama v1" in refused.content.decode()
    assert NodePool.objects.get().deleting_at is None


def test_it_starts_once_however_often_the_form_is_sent(unpinned: Stage, ada: Client) -> None:
    form = {"confirm": "lab.gpu", "form_key": form_key(ada)}

    answers = [ada.post(PATH, form), ada.post(PATH, form), ada.post(PATH, {"confirm": "lab.gpu"})]

    operation = Operation.objects.get(kind="PoolDelete")
    assert {answer.status_code for answer in answers} == {302}
    assert {answer["Location"] for answer in answers} == {f"/operations/{operation.pk}"}
    event = AuditEvent.objects.get(action="pool.delete")
    assert (event.actor, event.via) == ("ada", "Browser")
    NodePool.objects.all().delete()  # the end of it
    assert ada.post(PATH, form)["Location"] == f"/operations/{operation.pk}"


@pytest.mark.parametrize("typed", ["", "gpu", "lab.GPU", "lab.gpux"])
def test_it_wants_the_name_typed(typed: str, unpinned: Stage, ada: Client) -> None:
    assert ada.post(PATH, {"confirm": typed}).status_code == 400
    assert NodePool.objects.get().deleting_at is None


def test_it_is_for_administrators_of_the_pool(unpinned: Stage, olga: Client, victor: Client, client: Client) -> None:
    for one in (olga, victor):
        assert one.get(PATH).status_code == one.post(PATH, {"confirm": "lab.gpu"}).status_code == 403
        assert PATH not in one.get("/fleet/lab.gpu").content.decode()
    client.force_login(factories.user(role="Admin", target="lab.other"))
    assert client.get(PATH).status_code == 404
    client.force_login(factories.user(role="Admin", target="lab.gpu"))
    assert PATH in client.get("/fleet/lab.gpu").content.decode()
    assert client.post(PATH, {"confirm": "lab.gpu"}).status_code == 302


def test_it_is_shown_as_going_everywhere(unpinned: Stage, ada: Client, olga: Client) -> None:
    factories.pool(of=unpinned.pool.cluster, name="other")
    ada.post(PATH, {"confirm": "lab.gpu"})
    operation = Operation.objects.get(kind="PoolDelete")

    for path in ("/fleet/lab.gpu", PATH):
        page = Page(ada.get(path).content)
        assert "This pool is being deleted" in page.text
        assert page.page.all("a", href=f"/operations/{operation.pk}")
        assert not page.page.all("input", id="confirm")
    assert "Pin a version here" not in Page(olga.get("/fleet/lab.gpu").content).text
    states = {row["pool"]: row["state"] for row in ada.get("/fleet.json").json()["rows"]}
    assert states == {"lab.gpu": "Deleting", "lab.other": "Empty"}
    assert "Deleting" in Page(ada.get("/fleet").content).text and "Deleting" in Page(ada.get("/").content).text
    # The pin form offers the other pool alone, and takes no address that names this one.
    form = Page(olga.get("/pins/new").content)
    assert "lab.other" in form.text and "lab.gpu" not in form.text
    tried = olga.get(f"/pins/new?step=preview&version={unpinned.qwen.id}&pools={unpinned.pool.id}&priority=500")
    assert tried.status_code == 400
    operation.refresh_from_db()
    assert "Delete pool lab.gpu" in Page(ada.get(f"/operations/{operation.pk}").content).text


def test_it_says_of_a_silent_node_that_it_is_waited_for(unpinned: Stage, ada: Client) -> None:
    Node.objects.update(reported_at=timezone.now() - timedelta(days=1))

    page = Page(ada.get(PATH).content)

    held = CacheEntry.objects.exclude(state="Absent").count()
    assert page.text.count("it leaves once the node is back") == held and "leave at once" not in page.text
