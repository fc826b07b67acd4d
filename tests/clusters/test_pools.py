"""Pools and clusters as people change them: validated, audited, and membership follows at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.services import (
    cluster_create,
    cluster_pause,
    node_assign_pools,
    nodes_relisted,
    pool_create,
    pool_update,
)
from controlplane.errors import Clash, Invalid, Missing, Stale
from tests import factories
from tests.clusters.sightings import T0, seen

pytestmark = pytest.mark.django_db
ADA = Actor("ada", Via.API, "r-1")
A = {"hearth.dev/pool": "pool-a"}


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


def _audit() -> list[tuple[str, Any, Any]]:
    return list(AuditEvent.objects.order_by("at", "id").values_list("action", "before", "after"))


def test_it_creates_a_pool_that_takes_its_nodes(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1"), seen("b-1", labels={})], at=T0)
    pool = pool_create(
        actor=ADA, cluster_id=cluster.pk, name="pool-a", selector=A, settings={"priority": 3, "high_watermark": 0.9}
    )

    assert list(pool.nodes.values_list("name", flat=True)) == ["a-1"]
    assert (pool.selector, pool.priority, pool.high_watermark) == (A, 3, 0.9)
    ((action, before, after),) = _audit()
    assert (action, before, after["priority"]) == ("pool.create", None, 3)
    event = AuditEvent.objects.get()
    assert (event.actor, event.request_id, event.object_name) == ("ada", "r-1", f"{cluster.name}.pool-a")


def test_it_refuses_a_second_pool_of_the_name(cluster: Cluster) -> None:
    for at in (cluster, factories.cluster()):
        pool_create(actor=ADA, cluster_id=at.pk, name="pool-a", selector=A)
    with pytest.raises(Clash, match="already"):
        pool_create(actor=ADA, cluster_id=cluster.pk, name="pool-a", selector=A)
    with pytest.raises(Missing):
        pool_create(actor=ADA, cluster_id=uuid4(), name="pool-a", selector=A)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("selector", {}),
        ("selector", {"": "x"}),
        ("selector", {"a b": "x"}),
        ("selector", {"a": 1}),
        ("selector", ["a"]),
        ("priority", "1"),
        ("priority", True),
        ("cache_path", "relative"),
        ("cache_path", "/"),
        ("cache_path", "/a/../etc"),
        ("cache_path", "/a\nb"),
        ("high_watermark", 1.01),
        ("high_watermark", float("nan")),
        ("low_watermark", 0.95),
        ("low_watermark", 0),
        ("max_downloads_per_node", 0),
        ("max_requests_per_node", 10**6),
        ("node_bytes_per_second", 0),
        ("evict_grace_seconds", -1),
        ("paused", "yes"),
        ("status_interval_seconds", 0),
        ("freshness_seconds", 45),
        ("scrub_interval_seconds", 0.5),
        ("conditions", []),
        ("cluster", "x"),
    ],
)
def test_it_names_the_setting_that_is_wrong(cluster: Cluster, field: str, value: object) -> None:
    pool = factories.pool(of=cluster)
    before = NodePool.objects.filter(pk=pool.pk).values().get()
    with pytest.raises(Invalid) as told:
        pool_update(actor=ADA, pool_id=pool.pk, changes={field: value})
    assert [error.field for error in told.value.errors] == [field]
    assert NodePool.objects.filter(pk=pool.pk).values().get() == before
    assert _audit() == []


def test_a_folder_in_the_store_of_another_pool_is_refused(cluster: Cluster) -> None:
    pool_create(actor=ADA, cluster_id=cluster.pk, name="a", selector=A, settings={"cache_path": "/mnt/a"})
    other = {"hearth.dev/pool": "pool-b"}
    with pytest.raises(Invalid) as told:
        pool_create(
            actor=ADA, cluster_id=cluster.pk, name="b", selector=other, settings={"cache_path": "/mnt/a/hearth/b"}
        )
    assert [error.field for error in told.value.errors] == ["cache_path"]
    pool_create(actor=ADA, cluster_id=cluster.pk, name="c", selector=other, settings={"cache_path": "/mnt/a"})


@pytest.mark.parametrize("name", ["", "Pool", "a.b", "-a", "x" * 64, "a/b"])
def test_it_takes_only_names_that_fit_into_an_address(cluster: Cluster, name: str) -> None:
    with pytest.raises(Invalid) as told:
        pool_create(actor=ADA, cluster_id=cluster.pk, name=name, selector=A)
    assert [error.field for error in told.value.errors] == ["name"]
    with pytest.raises(Invalid):
        cluster_create(actor=ADA, name=name, type="Local", address="/x")


def test_it_updates_what_changed_and_audits_just_that(cluster: Cluster) -> None:
    pool = factories.pool(of=cluster, max_downloads=4)
    wanted = {"max_downloads": 4, "node_bytes_per_second": 5_000_000, "paused": True}
    updated = pool_update(actor=ADA, pool_id=pool.pk, changes=wanted, if_updated_at=pool.updated_at)

    assert (updated.node_bytes_per_second, updated.paused) == (5_000_000, True)
    assert updated.updated_at > pool.updated_at
    before = {"node_bytes_per_second": None, "paused": False}
    assert _audit() == [("pool.update", before, {"node_bytes_per_second": 5_000_000, "paused": True})]

    again = pool_update(actor=ADA, pool_id=pool.pk, changes=wanted)
    assert again.updated_at == updated.updated_at
    assert len(_audit()) == 1


def test_it_refuses_a_change_of_what_was_changed_meanwhile(cluster: Cluster) -> None:
    pool = factories.pool(of=cluster)
    pool_update(actor=ADA, pool_id=pool.pk, changes={"paused": True}, if_updated_at=pool.updated_at)
    with pytest.raises(Stale):
        pool_update(actor=ADA, pool_id=pool.pk, changes={"paused": False}, if_updated_at=pool.updated_at)
    assert NodePool.objects.get(pk=pool.pk).paused is True
    with pytest.raises(Missing):
        pool_update(actor=ADA, pool_id=uuid4(), changes={})


def test_it_moves_nodes_when_a_selector_or_priority_changes(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", labels={**A, "disk": "big"}), seen("a-2")], at=T0)
    general = pool_create(actor=ADA, cluster_id=cluster.pk, name="general", selector=A)
    special = pool_create(actor=ADA, cluster_id=cluster.pk, name="special", selector={"disk": "small"})
    assert general.nodes.count() == 2

    pool_update(actor=ADA, pool_id=special.pk, changes={"selector": {"disk": "big"}, "priority": 1})
    assert {node.name: node.pool.name for node in Node.objects.all() if node.pool} == {
        "a-1": "special",
        "a-2": "general",
    }
    pool_update(actor=ADA, pool_id=general.pk, changes={"priority": 2})
    assert general.nodes.count() == 2


def test_it_says_on_both_pools_that_they_overlap(cluster: Cluster) -> None:
    items = [seen(f"a-{n}", labels={**A, "disk": "big"}) for n in range(5)]
    nodes_relisted(cluster_id=cluster.pk, items=items, at=T0)
    first = pool_create(actor=ADA, cluster_id=cluster.pk, name="first", selector=A)
    second = pool_create(actor=ADA, cluster_id=cluster.pk, name="second", selector={"disk": "big"})
    NodePool.objects.filter(pk=first.pk).update(conditions=[{"type": "Other"}, *first.conditions])
    first.refresh_from_db()

    node_assign_pools(cluster_id=cluster.pk)
    found = {pool.name: pool.conditions for pool in NodePool.objects.all()}
    other, overlap = found["first"]
    assert other == {"type": "Other"}
    assert (overlap["type"], overlap["status"], overlap["reason"]) == ("Overlap", "True", "SelectorsOverlap")
    assert "a-0, a-1, a-2 and 2 more also match pool second" in overlap["message"]
    assert "match pool first" in found["second"][0]["message"]

    nodes_relisted(cluster_id=cluster.pk, items=items[:1], at=T0 + timedelta(minutes=1))
    changed = NodePool.objects.get(pk=first.pk).conditions[1]
    assert changed["last_transition"] == overlap["last_transition"]
    assert "node a-0 also matches pool" in changed["message"]

    pool_update(actor=ADA, pool_id=second.pk, changes={"selector": {"disk": "none"}})
    assert NodePool.objects.get(pk=first.pk).conditions == [{"type": "Other"}]
    assert NodePool.objects.get(pk=first.pk).updated_at == first.updated_at


def test_a_new_pool_of_the_same_priority_takes_no_node_away(cluster: Cluster) -> None:
    """Whatever its name: its agents would end those that keep the node warm."""
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=T0)
    for name in ("zeta", "alpha"):
        pool_create(actor=ADA, cluster_id=cluster.pk, name=name, selector=A)
    node = Node.objects.get()
    assert node.pool is not None and node.pool.name == "zeta"
    assert node_assign_pools(cluster_id=cluster.pk) == frozenset()
    messages = {pool.name: pool.conditions[0]["message"] for pool in NodePool.objects.all()}
    assert messages["zeta"].startswith("node a-1 also matches pool alpha, and this pool has it.")
    assert messages["alpha"].startswith("node a-1 also matches pool zeta, and pool zeta has it.")


def test_it_breaks_a_tie_over_a_new_node_by_name(cluster: Cluster) -> None:
    for name in ("zeta", "alpha"):
        pool_create(actor=ADA, cluster_id=cluster.pk, name=name, selector=A)
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=T0)
    node = Node.objects.get()
    assert node.pool is not None and node.pool.name == "alpha"


def test_it_creates_a_cluster_once() -> None:
    made = cluster_create(actor=ADA, name="home", type="Local", address="/srv/fleet")
    assert (made.observed_at, made.error) == (None, "")
    with pytest.raises(Clash):
        cluster_create(actor=ADA, name="home", type="Local", address="/elsewhere")
    assert Cluster.objects.get().address == "/srv/fleet"
    assert _audit() == [("cluster.create", None, {"type": "Local", "address": "/srv/fleet"})]


@pytest.mark.parametrize("wrong", [{"type": "Moon"}, {"address": ""}, {"address": "/a\nb"}])
def test_it_refuses_a_cluster_that_cannot_be(wrong: dict[str, str]) -> None:
    with pytest.raises(Invalid) as told:
        cluster_create(**({"actor": ADA, "name": "home", "type": "Local", "address": "/x"} | wrong))  # type: ignore[arg-type]
    assert [error.field for error in told.value.errors] == list(wrong)


def test_it_pauses_and_resumes_a_cluster(cluster: Cluster) -> None:
    for paused in (True, True, False):
        cluster_pause(actor=ADA, cluster_id=cluster.pk, paused=paused)
    assert Cluster.objects.get().paused is False
    assert [action for action, _, _ in _audit()] == ["cluster.pause", "cluster.resume"]
    with pytest.raises(Missing):
        cluster_pause(actor=ADA, cluster_id=uuid4(), paused=True)
