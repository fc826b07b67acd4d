"""What machines and people write reaches pages as text: markup, huge, unicode, empty, right to left."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from caches.models import CacheEntry, EntryChange, ModelVersion, PoolLoop, SourceConnection
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.operations.models import Operation, OperationTarget
from tests import factories
from tests.views.addresses import FORMS, PAGES, TABLES
from tests.views.conftest import Stage, available
from tests.views.heatmap import unpacked
from tests.views.reading import Page

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7|add:7 }}&amp;"
NAMES = {
    "markup": MARKUP,
    "unicode": "日本語 🔥 ñ \u202e\u200b é\u0301",
    "long": "x" * 60 + " " + "ö" * 60,
    "separators": 'a,b;c\td|e\\n"q"',
    "formula": "=HYPERLINK(1)",
}


def rename(stage: Stage, name: str) -> None:
    """Everything that somebody outside of Hearth can name, or that carries what a machine said."""
    CacheEntry.objects.update(message=name, hold_reason=name[:100], damaged=[name])
    EntryChange.objects.create(entry=stage.ready, at=timezone.now(), old_state="Queued", new_state="Ready",
                               reason="Internal", message=name)  # fmt: skip
    Node.objects.filter(pk=stage.nodes[0].pk).update(
        name=name[:120],
        uid=f"uid{name}"[:60],
        labels={"hearth.dev/pool": "gpu", name[:60]: name},
        conditions=[{"type": "Disk", "status": "True", "reason": name[:50], "message": name}],
        orphans=[{"name": name, "bytes": 5, "partial": False}],
        agent_version=name[:40],
    )
    NodePool.objects.update(conditions=[{"reason": name, "message": name}], selector={"hearth.dev/pool": name})
    Cluster.objects.update(error=name)
    SourceConnection.objects.update(message=name, endpoint=name, allowed=[name], secret_name=name[:100])
    ModelVersion.objects.update(uri=name, allow_patterns=[name], ignore_patterns=[name], drift="Drifted",
                                drift_changed=[{"change": "Changed", "path": name}],
                                metadata={"parameters": name, "context_length": name})  # fmt: skip
    Operation.objects.update(subject_name=name, message=name, started_by=name[:150], request_id=name[:64],
                             error={"detail": name, "next_step": name, "code": name})  # fmt: skip
    OperationTarget.objects.update(name=name, detail=name)
    AuditEvent.objects.update(actor=name[:150], action=name[:64], object_name=name, message=name, request_id=name[:64],
                              before={name: name}, after={name: f"{name}!"})  # fmt: skip
    PoolLoop.objects.create(pool=stage.pool, error=name, plan={"refusals": [{"artifact": name, "detail": name}]})


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, stage: Stage) -> str:
    rename(stage, NAMES[request.param])
    return NAMES[request.param]


@pytest.mark.usefixtures("health_once")
def test_it_shows_hostile_names_as_text_on_every_page(name: str, stage: Stage, olga: Client) -> None:
    clean = {"script", "img"}
    for page_name, make in (PAGES | FORMS).items():
        response = olga.get(make(stage))
        assert response.status_code == 200, page_name
        page = Page(response.content)
        assert page.problems == [], page_name
        found = [one for one in page.page.walk() if one.tag in clean and one.attrs.get("type") != "application/json"]
        assert found == [], page_name
        assert "{{ 7" in page.html if "{{ 7" in page.text else True
        assert "<script>alert" not in page.html, page_name


@pytest.mark.usefixtures("health_once")
def test_it_shows_each_of_them_where_it_belongs(name: str, stage: Stage, olga: Client) -> None:
    words = " ".join(name.split())
    for page_name in ("node", "entry", "version", "operation", "audit", "connection", "pool", "overview"):
        text = Page(olga.get(PAGES[page_name](stage)).content).text
        assert words[:40] in text, page_name


@pytest.mark.usefixtures("health_once")
def test_it_leads_to_a_node_of_any_name(name: str, stage: Stage, olga: Client) -> None:
    pool = Page(olga.get("/fleet/lab.gpu").content)
    figure = json.loads(pool.page.one("figure").one("script").text)
    leads = {address.partition("#")[0] for row in unpacked(figure)["customdata"] for address in row}
    assert leads
    for address in leads:
        assert olga.get(address).status_code == 200
    for label in figure["layout"]["yaxis"]["ticktext"]:
        assert "<" not in label


def test_it_exports_hostile_names_unchanged_but_harmless(name: str, stage: Stage, olga: Client) -> None:
    for page_name, tables in TABLES.items():
        for table in tables:
            base = f"{PAGES[page_name](stage)}?table={table}&format="
            rows = json.loads(olga.get(base + "json").content)["rows"]
            text = olga.get(base + "csv").content.decode()
            parsed = list(csv.DictReader(io.StringIO(text)))
            assert len(parsed) == len(rows), (page_name, table)
            for cells, row in zip(parsed, rows, strict=True):
                for column, value in row.items():
                    assert not cells[column].startswith(("=", "+", "-", "@")) or not isinstance(value, str)
                    if isinstance(value, str):
                        assert cells[column].removeprefix("'") == value.removeprefix("'").replace("\r\n", "\n")


@pytest.mark.parametrize("name", ["register", "new", "versions", "csv", "search"])
def test_it_has_a_page_for_a_model_whose_name_is_a_word_of_addresses(name: str, stage: Stage, olga: Client) -> None:
    version = available(name, "v1", 1000)

    page = olga.get(f"/models/{name}")

    assert page.status_code == 200 and page.context["title"] == name
    assert olga.get(f"/models/{name}/versions/v1").context["version"] == version
    assert olga.get("/register").context["title"] == "Register a version"


def test_it_searches_for_anything(stage: Stage, victor: Client) -> None:
    for text in (*NAMES.values(), "%", "_", "\\", "a" * 5000, "  ", "' OR 1=1 --", "sha256:", "llama v1"):
        page = victor.get("/search", {"q": text})
        assert page.status_code == 200, text
        assert not Page(page.content).page.all("script"), text
    assert victor.get("/search", {"q": "%"}).content.decode().count('href="/models/') == 0


def test_it_signs_in_people_with_any_name(stage: Stage, client: Client) -> None:
    user: User = factories.user(username="Zoë <admin> 🔥", role="Viewer")
    client.force_login(user)
    page = Page(client.get("/").content)
    assert "Zoë <admin> 🔥" in page.root.text
    assert page.problems == []


@pytest.mark.usefixtures("health_once")
def test_it_shows_numbers_of_any_size(stage: Stage, victor: Client) -> None:
    huge = 2**62
    CacheEntry.objects.update(bytes_done=huge, bytes_total=huge, eta_seconds=1e15, rate_bytes_per_second=1e18,
                              attempts=2**30)  # fmt: skip
    Node.objects.update(capacity_bytes=huge, used_bytes=huge, other_bytes=huge, reserved_bytes=huge)
    Operation.objects.update(bytes_done=huge, bytes_total=huge, eta_seconds=1e15)
    for name, make in PAGES.items():
        assert victor.get(make(stage)).status_code == 200, name


@pytest.mark.usefixtures("health_once")
def test_it_shows_nothing_as_a_dash_and_not_as_zero_or_none(stage: Stage, victor: Client) -> None:
    Node.objects.update(capacity_bytes=None, reported_at=None, observed_at=None)
    CacheEntry.objects.update(rate_bytes_per_second=None, eta_seconds=None, ready_at=None, verified_at=None,
                              last_used_at=None, state_since=None, bytes_total=0, bytes_done=0)  # fmt: skip
    Operation.objects.update(bytes_total=0, bytes_done=0, eta_seconds=None, message="", started_at=None)
    for name, make in PAGES.items():
        response = victor.get(make(stage))
        assert response.status_code == 200, name
        words = Page(response.content).text.split()
        assert not {"None", "nan", "NaN", "inf", "[]", "{}"} & set(words), name


def test_it_reads_times_far_away(stage: Stage, victor: Client) -> None:
    CacheEntry.objects.update(retry_at=timezone.now() + timedelta(days=36500), last_used_at=timezone.now())
    Node.objects.update(joined_at=timezone.now() - timedelta(days=36500))
    assert "in 36499 d" in Page(victor.get(f"/entries/{stage.failed.id}").content).text
    assert victor.get("/fleet/lab.gpu").status_code == 200
