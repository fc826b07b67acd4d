"""From an API server to the rows, by the command that people run: nodes come, report, are replaced and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.utils import timezone

from caches.models import PoolLoop, PublishedManifest
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import Cluster, ClusterType, Node
from controlplane.management.commands.watch_cluster import watch_clusters
from tests import factories
from tests.contracts.kube import KubeContractCluster
from tests.contracts.observing import DIGEST, spec, status
from tests.plugins.kube import KubeApi
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watched(contract: KubeContractCluster, kube_api: KubeApi) -> Iterator[KubeContractCluster]:
    Cluster.objects.create(name="prod", type=ClusterType.KUBERNETES, address=f"{kube_api.kubeconfig}#hearth")
    with running([]):
        yield contract


@contextmanager
def running(names: list[str]) -> Iterator[None]:
    """The watcher's command for these clusters, or for all."""
    stopping = threading.Event()
    thread = threading.Thread(target=watch_clusters, args=(names, stopping), kwargs={"round_seconds": 0.2})
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(60)


def row(name: str) -> Node | None:
    return Node.objects.filter(name=name, lost_at=None).first()


def test_it_shows_a_cluster_as_it_is(watched: KubeContractCluster) -> None:
    old = watched.add_node("n-1")
    until(lambda: (n := row("n-1")) is not None and n.uid == old and n.ready is True, "the node has a row")
    watched.gateway.apply_node_cache(spec("n-1", old, DIGEST))
    watched.link("n-1", old).report(told := status("n-1", old))
    until(lambda: (n := row("n-1")) is not None and n.reported_at is not None, "its report is in the row")
    seen = row("n-1")
    assert seen is not None
    assert (seen.capacity_bytes, seen.used_bytes, seen.agent_version) == (
        told.capacity.capacity_bytes, told.capacity.used_bytes, "1.2.3",
    )  # fmt: skip
    watched.cordon("n-1")
    until(lambda: (n := row("n-1")) is not None and not n.schedulable, "it is cordoned")

    new = watched.replace_node("n-1")
    until(lambda: (n := row("n-1")) is not None and n.uid == new, "the replacement has a row of its own")
    assert Node.objects.get(uid=old).lost_at is not None
    fresh = row("n-1")
    assert fresh is not None and fresh.reported_at is None, "nothing of the old machine's is taken for the new one's"
    assert Cluster.objects.get().error == ""


def test_it_forgets_what_it_told_a_cluster_that_was_at_this_address_before(
    contract: KubeContractCluster, kube_api: KubeApi
) -> None:
    """Like one that was installed anew: another uid than the remembered one, and nothing of what was published."""
    old = factories.cluster(
        name="prod", type=ClusterType.KUBERNETES, address=str(kube_api.kubeconfig), uid="the old one"
    )
    other = factories.cluster()
    for cluster in (old, other):
        PublishedManifest.objects.create(
            cluster=cluster, artifact=factories.artifact(), origin_hash="x", published_at=timezone.now()
        )
        PoolLoop.objects.create(pool=factories.pool(of=cluster, name="gpu"), agent_hash="applied")
    with running(["prod"]):
        until(lambda: not PublishedManifest.objects.filter(cluster=old).exists(), "what was published is forgotten")
    assert PublishedManifest.objects.filter(cluster=other).exists()
    assert dict(PoolLoop.objects.values_list("pool__cluster__name", "agent_hash")) == {
        "prod": "", other.name: "applied",
    }  # fmt: skip
    assert Cluster.objects.get(name="prod").uid == contract.client.get(names.CLUSTER)["metadata"]["uid"]


def test_it_says_on_the_cluster_what_is_wrong_and_loses_no_node(
    watched: KubeContractCluster, kube_api: KubeApi
) -> None:
    watched.add_node("n-1")
    until(lambda: row("n-1") is not None, "the node has a row")
    kube_api.stop_api_server()
    try:
        until(lambda: Cluster.objects.get().error != "", "the cluster says so")
        assert row("n-1") is not None, "a cluster that does not answer has lost nothing"
    finally:
        kube_api.start_api_server()
    until(lambda: Cluster.objects.get().error == "", "it heals", seconds=150)
