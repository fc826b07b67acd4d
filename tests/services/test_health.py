"""/healthz, /readyz and /metrics: real answers, real causes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from caches.models import PoolLoop, Transfer
from caches.selectors.nodes import node_coverage, nodes_list
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import Actor
from controlplane.clusters.models import Cluster, Node
from controlplane.web import readiness
from controlplane.web.readiness import Finding
from tests import factories
from tests.services.world import MIB, World, version_of
from tests.waiting import until

pytestmark = pytest.mark.urls("controlplane.web.health_urls")


def scrape(client: Client) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture
def broker_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_broker", lambda: Finding(True, "up"))


def test_healthz_needs_nothing(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_readyz_is_ready_when_everything_is(client: Client, world: World, broker_up: None) -> None:
    world.reconcile()
    answer = client.get("/readyz")
    assert answer.status_code == 200, answer.json()
    assert set(answer.json()["checks"]) == {"database", "broker", "watcher", "loop"}


def test_readyz_names_the_broker(client: Client, db: None, settings: LazySettings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["causes"] == ["Valkey does not answer: ConnectionError."]


def test_readyz_names_the_database_and_asks_it_nothing_more(
    client: Client, db: None, broker_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"host": "127.0.0.1", "port": 9, "dbname": "hearth", "user": "hearth"}
    monkeypatch.setattr(connections["default"], "get_connection_params", lambda: nowhere)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["causes"] == ["PostgreSQL does not answer: OperationalError."]
    assert set(answer.json()["checks"]) == {"database", "broker"}


def test_readyz_with_a_real_broker(client: Client, db: None, valkey_url: str, settings: LazySettings) -> None:
    settings.REDIS_URL = valkey_url
    # It is given one second to answer, which a busy machine may let pass.
    until(lambda: client.get("/readyz").json()["checks"]["broker"]["ok"], "Valkey answers")


def test_readyz_names_a_silent_watcher(client: Client, world: World, broker_up: None) -> None:
    world.reconcile()
    Cluster.objects.update(observed_at=timezone.now() - timedelta(seconds=90))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    (cause,) = answer.json()["causes"]
    assert world.cluster.name in cause and "watcher" in cause


def test_readyz_names_a_pool_that_nobody_reconciles(client: Client, world: World, broker_up: None) -> None:
    world.reconcile()
    PoolLoop.objects.update(reconciled_at=timezone.now() - timedelta(seconds=300), error="Unreachable: gone")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert world.pool.full_name in answer.json()["causes"][0] and "Unreachable" in answer.json()["causes"][0]


def test_metrics_show_coverage_entries_bytes_times_and_operations(client: Client, world: World, actor: Actor) -> None:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    world.obey("n1")
    world.observe()
    Transfer.objects.all().delete()
    Transfer.objects.create(
        entry=world.entry("n1", version),
        connection=version.connection,
        bytes_moved=1,
        seconds=7,
        queued_seconds=0.5,
        ended_at=timezone.now(),
    )
    found = scrape(client)
    pool = {"cluster": world.cluster.name, "pool": "gpu"}
    mine = {**pool, "model": version.full_name, "artifact": version.artifact.digest}
    assert (mine, 2.0) in found["hearth_coverage_required"]
    assert (mine, 1.0) in found["hearth_coverage_ready"]
    assert (mine, 100.0 * MIB) in found["hearth_coverage_ready_bytes"]
    assert ({**pool, "state": "Ready", "reason": ""}, 1.0) in found["hearth_entries"]
    assert (pool, 100.0 * MIB) in found["hearth_moved_bytes_total"]
    store = {"connection": version.connection.name}
    assert ({**store, "le": "5.0"}, 0.0) in found["hearth_transfer_seconds_bucket"]
    assert ({**store, "le": "10.0"}, 1.0) in found["hearth_transfer_seconds_bucket"]
    assert (store, 7.0) in found["hearth_transfer_seconds_sum"]
    assert (store, 1.0) in found["hearth_transfer_queue_seconds_count"]
    assert ({"kind": "PinWarm", "state": "Pending"}, 1.0) in found["hearth_operations_active"]
    assert found["hearth_loop_waiting_seconds"][0][1] >= 0


def test_metrics_never_count_a_silent_node_as_ready(client: Client, world: World, actor: Actor) -> None:
    version = version_of(10 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    Node.objects.update(reported_at=timezone.now() - timedelta(hours=1))
    found = scrape(client)
    assert [value for _, value in found["hearth_coverage_ready"]] == [0.0]
    assert [value for _, value in found["hearth_coverage_unknown"]] == [2.0]


def test_a_scrape_costs_the_same_whatever_the_number_of_nodes(client: Client, world: World) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.get("/metrics")
        return len(captured)

    factories.pin(pools=(world.pool,))
    few = queries()
    for _ in range(4):
        version = factories.version()
        factories.pin(of=version, pools=(world.pool,))
        factories.entry(on=factories.node(of=world.pool), of=version.artifact)
    assert queries() == few


@pytest.mark.parametrize(("sent", "status"), [("", 401), ("Bearer wrong", 401), ("Bearer s3cret", 200)])
def test_metrics_can_ask_for_a_token(client: Client, db: None, settings: LazySettings, sent: str, status: int) -> None:
    settings.METRICS_TOKEN = "s3cret"
    headers: dict[str, Any] = {"Authorization": sent} if sent else {}
    assert client.get("/metrics", headers=headers).status_code == status


def test_metrics_and_nodes_count_what_a_stopped_node_reported_as_unknown(
    client: Client, world: World, actor: Actor
) -> None:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    # Its cluster calls it NotReady, and its agent is silent: what it holds is unknown all the same.
    silent_since = timezone.now() - timedelta(hours=1)
    Node.objects.filter(name="n2").update(ready=False, reported_at=silent_since)
    found = scrape(client)
    values = {name: [value for _, value in found[f"hearth_coverage_{name}"]] for name in ("required", "ready")}
    assert values == {"required": [2.0], "ready": [1.0]}
    assert found["hearth_coverage_unknown"][0][1] == 1
    assert found["hearth_coverage_ready_bytes"][0][1] == 100 * MIB
    assert {labels["state"]: value for labels, value in found["hearth_entries"]} == {"Ready": 1.0, "Unknown": 1.0}
    nodes = {node.name: node for node in nodes_list()}
    assert nodes["n2"].shown_state == "NotReady"  # type: ignore[attr-defined]
    counted = node_coverage(list(nodes.values()))
    assert (counted[nodes["n1"].pk].ready, counted[nodes["n2"].pk].ready) == (1, 0)
    assert (counted[nodes["n2"].pk].required, counted[nodes["n2"].pk].bytes_ready) == (1, 0)
