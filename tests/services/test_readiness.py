"""/readyz names every cause, says it in whole sentences, and asks nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.conf import LazySettings
from django.db import connections
from django.test import Client
from django.utils import timezone

from caches.metrics import loop_finding
from caches.models import PoolLoop
from controlplane.clusters.models import Cluster, Node
from controlplane.web import readiness
from controlplane.web.readiness import Finding, register_check
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def stopped_clock() -> Iterator[None]:
    """Sentences count seconds: none pass between a row and its finding."""
    with time_machine.travel(timezone.now(), tick=False):
        yield


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers, and no checks of apps."""
    monkeypatch.setattr(readiness, "_broker", lambda: Finding(True, "Valkey answers."))
    monkeypatch.setattr(readiness, "_checks", {})


def watcher() -> Finding:
    return readiness.findings()["watcher"]


@pytest.mark.parametrize(
    ("clusters", "detail"),
    [(0, "0 clusters are watched."), (1, "1 cluster is watched."), (2, "2 clusters are watched.")],
)
def test_it_counts_clusters_in_words(answers: None, clusters: int, detail: str) -> None:
    for _ in range(clusters):
        factories.cluster()
    assert watcher() == Finding(True, detail)


@pytest.mark.parametrize(
    ("seconds", "error", "detail"),
    [
        (None, "", "lab was never seen. Is the watcher running?"),
        (None, "forbidden", "lab was never seen (forbidden). Is the watcher running?"),
        (90, "", "lab was last seen 90 seconds ago. Is the watcher running?"),
        (90, "refused", "lab was last seen 90 seconds ago (refused). Is the watcher running?"),
    ],
)
def test_it_says_which_cluster_is_silent_since_when_and_why(
    answers: None, seconds: int | None, error: str, detail: str
) -> None:
    factories.cluster()
    observed_at = None if seconds is None else timezone.now() - timedelta(seconds=seconds)
    factories.cluster(name="lab", observed_at=observed_at, error=error)
    assert watcher() == Finding(False, detail)


def test_a_cluster_that_answers_with_an_error_is_watched(answers: None) -> None:
    factories.cluster(error="one of its kinds is missing")
    assert watcher().ok


def test_it_names_every_silent_cluster(answers: None) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    for name in ("one", "two"):
        factories.cluster(name=name, observed_at=long_ago)
    found = watcher()
    assert not found.ok
    assert "one was last seen" in found.detail and "two was last seen" in found.detail


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"reconciled": 10}, ""),
        ({"reconciled": 119}, ""),
        ({"reconciled": 130}, "pool lab.gpu was last reconciled 130 seconds ago"),
        ({"reconciled": 130, "error": "boom"}, "pool lab.gpu was last reconciled 130 seconds ago (boom)"),
        ({"reconciled": 10, "error": "boom"}, ""),  # it was looked at
        ({"created": 10}, ""),
        ({"created": 130}, "pool lab.gpu was never reconciled"),
        ({"created": 130, "error": "boom"}, "pool lab.gpu was never reconciled (boom)"),
    ],
)
def test_it_says_which_pool_nobody_reconciles(fields: dict[str, Any], detail: str) -> None:
    now = timezone.now()
    reconciled, created = fields.get("reconciled"), fields.get("created", 0)
    loop = PoolLoop.objects.create(
        pool=factories.pool(of=factories.cluster(name="lab"), name="gpu"),
        reconciled_at=None if reconciled is None else now - timedelta(seconds=reconciled),
        error=fields.get("error", ""),
    )
    PoolLoop.objects.filter(pk=loop.pk).update(created_at=now - timedelta(seconds=created))
    found = loop_finding()
    assert found.ok == (not detail)
    assert found.detail == (
        f"{detail}. Are worker and beat running?" if detail else "Every pool was reconciled lately."
    )


def test_an_app_adds_a_check_and_the_last_of_a_name_counts(answers: None, client: Client) -> None:
    register_check("disk", lambda: Finding(True, "There is room."))
    assert client.get("/readyz").status_code == 200
    register_check("disk", lambda: Finding(False, "The disk is full."))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["causes"]) == (503, ["The disk is full."])
    assert answer.json()["checks"]["disk"] == {"ok": False, "detail": "The disk is full."}


def test_every_cause_is_named_at_once(answers: None, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_broker", lambda: Finding(False, "Valkey does not answer."))
    factories.cluster(name="lab", observed_at=None)
    register_check("disk", lambda: Finding(False, "The disk is full."))
    body = client.get("/readyz").json()
    assert body["ready"] is False
    assert len(body["causes"]) == 3
    assert [name for name, check in body["checks"].items() if check["ok"]] == ["database"]


def test_without_a_database_no_check_of_an_app_is_asked(
    answers: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> Finding:
        raise AssertionError

    register_check("loop", asked)
    nowhere = {"host": "127.0.0.1", "port": 9, "dbname": "hearth", "user": "hearth", "password": "pa55word"}
    monkeypatch.setattr(connections["default"], "get_connection_params", lambda: nowhere)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert set(answer.json()["checks"]) == {"database", "broker"}
    assert b"pa55word" not in answer.content


@pytest.mark.parametrize("url", ["redis://:hunter2@127.0.0.1:9/0", "redis://user:hunter2@127.0.0.1:9/0"])
def test_a_broker_that_does_not_answer_is_named_without_its_password(
    client: Client, settings: LazySettings, url: str
) -> None:
    settings.REDIS_URL = url
    answer = client.get("/readyz")
    assert "Valkey does not answer: ConnectionError." in answer.json()["causes"]
    assert b"hunter2" not in answer.content


def test_a_broker_that_refuses_the_password_is_not_ready(
    client: Client, settings: LazySettings, valkey_url: str
) -> None:
    head, _, tail = valkey_url.partition("@")
    settings.REDIS_URL = f"{head.rpartition(':')[0]}:wrong-password@{tail}"
    finding = readiness.findings()["broker"]
    assert not finding.ok
    assert "wrong-password" not in finding.detail


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_health_is_for_get_and_head_without_a_session_and_never_cached(
    answers: None, client: Client, path: str
) -> None:
    assert client.head(path).content == b""
    answer = client.get(path)
    assert "no-store" in answer["Cache-Control"]
    assert not answer.cookies
    for send in (client.post, client.put, client.delete):
        refused: Callable[..., Any] = send
        assert refused(path).status_code == 405


def test_healthz_answers_without_a_database(client: Client, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert client.get("/healthz").json() == {"status": "ok"}


def test_a_cluster_that_was_removed_is_not_waited_for(answers: None) -> None:
    factories.cluster(observed_at=None)
    assert not watcher().ok
    Cluster.objects.all().delete()
    assert watcher().ok


def test_it_tells_how_fresh_the_pages_are(answers: None, client: Client) -> None:
    now = timezone.now()
    nothing = {"clusters": 0, "contacted_at": None, "nodes": 0, "reporting": 0, "unheard": 0}
    assert client.get("/readyz").json()["news"] == nothing
    older = now - timedelta(seconds=40)
    pool = factories.pool(of=factories.cluster(observed_at=now))
    factories.cluster(observed_at=older)
    for fields in ({}, {"reported_at": now - timedelta(minutes=2)}, {"reported_at": None}, {"lost_at": now}):
        factories.node(of=pool, **fields)
    Node.objects.filter(pk=factories.node(of=pool).pk).update(pool=None)  # of no pool: it has no agent
    news = client.get("/readyz").json()["news"]
    assert (news["clusters"], news["nodes"], news["reporting"], news["unheard"]) == (2, 3, 1, 1)
    assert datetime.fromisoformat(news["contacted_at"]) == older
    factories.cluster(observed_at=None)
    assert client.get("/readyz").json()["news"]["contacted_at"] is None, "one was never reached"
