"""Nothing there yet, nothing that matches, nothing known: three different sentences, never a blank or a lie."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from caches.models import Artifact, Model, PoolLoop
from controlplane.accounts.models import Token
from controlplane.clusters.models import Cluster, Node
from tests import factories
from tests.views.conftest import Stage, stray_node
from tests.views.reading import Page

# page, the sentence of an installation without rows
EMPTY = [
    ("/", "Nothing is registered yet"),
    ("/", "No node pool yet"),
    ("/", "Nothing is running"),
    ("/", "Every disk has room"),
    ("/", "Nobody changed anything yet"),
    ("/fleet", "No node pool yet"),
    ("/fleet", "No cluster yet."),
    ("/entries", "Nothing here"),
    ("/models", "No model version yet"),
    ("/images", "No image yet"),
    ("/images/new", "Register an image"),
    ("/pins", "Nothing is pinned"),
    ("/operations", "Nothing was started yet"),
    ("/audit", "Nothing here"),
    ("/tokens", "No token yet"),
    ("/connections", "No connection yet"),
    ("/search", "Type a name above"),
    ("/search?q=zebra", "zebra"),
    ("/pins/new", "No version can be pinned yet"),
    ("/register", "Register a version"),
]


@pytest.mark.parametrize(("address", "sentence"), EMPTY)
def test_it_says_that_nothing_is_there_yet(address: str, sentence: str, ada: Client) -> None:
    response = ada.get(address)
    page = Page(response.content)
    assert response.status_code == 200 and page.problems == []
    assert sentence in page.root.text if address.startswith("/search") else sentence in page.text


def test_it_tells_nothing_matches_from_nothing_there(stage: Stage, victor: Client) -> None:
    for address in ("/models?q=zebra", "/pins?suspended=true", "/operations?started_by=zoe", "/audit?actor=zoe",
                    "/entries?model=zebra", "/connections?name=zebra", "/images?search=zebra",
                    "/fleet/lab.gpu?state=Cordoned"):  # fmt: skip
        page = Page(victor.get(address).content)
        assert "No row matches." in page.text, address
        for lie in ("No model version yet", "Nothing is pinned", "Nothing was started yet", "No connection yet"):
            assert lie not in page.text, address
        back = address.partition("?")[0] + "?"
        assert "No row matches." not in Page(victor.get(back).content).text, address


def test_it_exports_an_empty_table_with_its_heads(ada: Client) -> None:
    for address in ("/overview", "/fleet", "/entries", "/models", "/pins", "/operations", "/tokens", "/connections"):
        lines = ada.get(f"{address}.csv").content.decode().splitlines()
        assert len(lines) == 1 and "," in lines[0], address
        document = json.loads(ada.get(f"{address}.json").content)
        assert document["rows"] == [] and document["complete"] is True, address


def test_it_offers_beginnings_only_to_those_who_can_begin(ada: Client, victor: Client) -> None:
    assert Page(ada.get("/").content).page.all("a", href="/register")
    assert not Page(victor.get("/").content).page.all("a", href="/register")


def test_it_shows_a_pool_without_nodes_and_one_without_versions(stage: Stage, olga: Client, victor: Client) -> None:
    bare = factories.pool(of=stage.pool.cluster, name="bare")
    page = Page(olga.get("/fleet/lab.bare").content)
    assert "This pool has no node" in page.text and "hearth.dev/pool=bare" in page.text
    assert not page.page.all("figure"), "there is nothing to draw"
    factories.node(of=bare)
    page = Page(olga.get("/fleet/lab.bare").content)
    assert "Nothing is wanted or present in this pool" in page.text
    assert page.page.all("a", href=f"/pins/new?pools={bare.id}")
    assert "Pin a version" not in Page(victor.get("/fleet/lab.bare").content).text
    assert "Empty" in page.text and "Warm" not in page.text.split("Nodes")[0]


def test_it_shows_a_node_that_never_reported(stage: Stage, victor: Client) -> None:
    node = factories.node(of=stage.pool, ready=None, reported_at=None, observed_at=None, capacity_bytes=None)
    page = Page(victor.get(f"/nodes/{node.id}").content)
    assert "The node's agent has not reported its disk." in page.text and not page.page.all("figure")
    assert "Nothing is on this node yet" in page.text and "Nothing could go" in page.text
    assert "Unknown" in page.text and "last known" not in page.text, "nobody ever knew"


def test_it_shows_a_machine_that_is_gone_beside_the_one_that_took_its_name(stage: Stage, victor: Client) -> None:
    old = stage.nodes[0]
    Node.objects.filter(pk=old.pk).update(lost_at=old.joined_at)
    new = factories.node(of=stage.pool, name=old.name)
    page = Page(victor.get(f"/nodes/{old.id}").content)
    assert "This machine is gone" in page.text and page.page.all("a", href=f"/nodes/{new.id}")
    assert page.page.all("a", href=f"/nodes/{new.id}")[0].text in new.uid
    assert "0 of 0 wanted versions ready" in page.text, "what it held counts for nothing"
    current = Page(victor.get(f"/nodes/{new.id}").content)
    assert "(gone" in current.text and "This machine is gone" not in current.text
    assert old.name in [row[0] for row in Page(victor.get("/fleet/lab.gpu?state=Lost").content).table("nodes")]


def test_it_shows_nodes_that_no_pool_selects(stage: Stage, victor: Client, olga: Client) -> None:
    assert "Nodes outside every pool" not in Page(victor.get("/fleet").content).text
    loose = stray_node(stage.pool, name="stray")
    entry = factories.entry(on=loose, of=stage.llama.artifact)
    page = Page(victor.get("/fleet").content)
    assert "Nodes outside every pool" in page.text and page.table("loose")[0][0] == "stray"
    for address in (f"/nodes/{loose.id}", f"/entries/{entry.id}", "/entries"):
        assert olga.get(address).status_code == 200, address
    refused = Page(olga.get(f"/entries/{entry.id}/evict").content)
    assert "It cannot be evicted now." in refused.text and "entry:user:no-pool" in refused.text


@pytest.mark.parametrize("state", ["Resolving", "Refused"])
def test_it_shows_a_version_without_files(state: str, stage: Stage, olga: Client) -> None:
    factories.version(model="early", version="v1", artifact=None, state=state, code="source:user:no-files",
                      message="The prefix is empty.", next_step="Upload them first.")  # fmt: skip
    page = Page(olga.get("/models/early/versions/v1").content)
    assert page.problems == [] and "Manifest" not in page.text and "Pin…" not in page.text
    assert ("The prefix is empty." in page.text and "Upload them first." in page.text) == (state == "Refused")
    assert ("Its files are being listed." in page.text) == (state == "Resolving")
    assert "Recheck source" not in page.text and "Delete…" in page.text
    assert json.loads(olga.get("/models/early/versions/v1.json?table=manifest").content)["rows"] == []
    assert olga.post("/models/early/versions/v1/recheck").status_code in (302, 409)


def test_it_shows_a_model_whose_versions_were_all_deleted(stage: Stage, olga: Client) -> None:
    Model.objects.create(name="hollow")
    page = Page(olga.get("/models/hollow").content)
    assert "0 versions" in page.text and "No model version yet" in page.text


def test_it_says_that_nothing_pins_a_version(stage: Stage, olga: Client, victor: Client) -> None:
    assert "No pin wants this version" in Page(victor.get("/models/qwen/versions/v1").content).text
    assert Page(olga.get("/models/qwen/versions/v1").content).page.all("a", href=f"/pins/new?version={stage.qwen.id}")


def test_it_warns_of_bytes_that_no_store_vouches_for(stage: Stage, victor: Client) -> None:
    assert "Unanchored" not in Page(victor.get("/models/llama/versions/v1").content).text
    Artifact.objects.update(anchored=False)
    assert "Unanchored" in Page(victor.get("/models/llama/versions/v1").content).text


def test_it_shows_paused_pools_and_failed_planning(stage: Stage, victor: Client) -> None:
    assert "Paused." not in Page(victor.get("/fleet/lab.gpu").content).text
    Cluster.objects.update(paused=True)
    assert "Paused." in Page(victor.get("/fleet/lab.gpu").content).text
    assert "lab Local Reachable Paused" in Page(victor.get("/fleet").content).text
    PoolLoop.objects.create(pool=stage.pool, error="a pin names a label that no node has")
    page = Page(victor.get("/fleet/lab.gpu").content)
    assert "The last planning had problems. a pin names a label that no node has" in page.text


@pytest.mark.parametrize(
    ("fields", "state", "tone"),
    [
        ({}, "Reachable", "ok"),
        ({"observed_at": timezone.now() - timedelta(minutes=5)}, "Unknown", "unknown"),
        ({"observed_at": None}, "Unknown", "unknown"),
        ({"error": "401 from the API server"}, "Unreachable", "bad"),
    ],
)
def test_it_shows_each_cluster_with_its_type_and_last_contact(
    fields: dict[str, Any], state: str, tone: str, stage: Stage, victor: Client
) -> None:
    Cluster.objects.update(type="Kubernetes", **{"observed_at": timezone.now(), **fields})
    row = Page(victor.get("/fleet").content).page.one("section", aria_labelledby="clusters").one("tbody").one("tr")
    [pill] = [one for one in row.walk() if "pill" in one.attrs.get("class", "").split()]
    assert (pill.text.strip(), f"tone-{tone}" in pill.attrs["class"]) == (state, True)
    assert "lab Kubernetes" in row.text and fields.get("error", "") in row.text
    assert bool(row.all("time")) is (fields.get("observed_at", True) is not None)


def test_it_calls_an_expired_and_a_revoked_token_by_their_names(ada: Client) -> None:
    for name in ("fresh", "old", "dead"):
        ada.post("/tokens", {"name": name, "scopes": ["read"], "days": "7"})
    Token.objects.filter(name="old").update(expiry=timezone.now() - timedelta(seconds=1))
    Token.objects.filter(name="dead").update(revoked_at=timezone.now())
    states = {row[0]: row[1] for row in Page(ada.get("/tokens").content).table("tokens")}
    assert states == {"fresh": "Active", "old": "Expired", "dead": "Revoked"}
