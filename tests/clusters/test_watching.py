"""Watching a real local fleet into real rows, with sinks that hear everything, fail, or lose their database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest
from django.db import OperationalError, connection

from controlplane.clusters import sinks
from controlplane.clusters.documents import NodeState
from controlplane.clusters.freshness import node_state
from controlplane.clusters.gateway import Kind, Observed, ObservedNode, Unreachable, WatchEvent
from controlplane.clusters.local import database
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.link import LocalLink
from controlplane.clusters.models import Cluster, Node
from controlplane.clusters.registry import gateway_for, override_gateway
from controlplane.errors import Invalid
from controlplane.management.commands.watch_cluster import watch_clusters
from tests import factories
from tests.contracts.observing import DIGEST, spec, status
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


class Ear:
    """A sink that remembers; ``trouble`` is raised as often as it has items."""

    def __init__(self) -> None:
        self.trouble: list[Exception] = []
        self.listings: list[tuple[Kind, int]] = []
        self.heard: list[WatchEvent] = []

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        self._fail()
        self.listings.append((kind, len(items)))

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        self._fail()
        for event in events:
            if isinstance(event.object, ObservedNode):  # rows come before sinks
                assert Node.objects.filter(cluster_id=UUID(cluster_id), uid=event.object.uid).exists()
        self.heard += events

    def _fail(self) -> None:
        if self.trouble:
            raise self.trouble.pop()


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    made = Ear()
    monkeypatch.setattr(sinks, "_sinks", [made])
    monkeypatch.setattr(sinks, "_pools_listeners", [])
    return made


@pytest.fixture
def fleet(tmp_path: Path) -> LocalFleet:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=4)
    return made


@pytest.fixture
def cluster(fleet: LocalFleet) -> Cluster:
    made = factories.cluster(address=str(fleet.folder), observed_at=None)
    for name in ("pool-a", "pool-b"):
        factories.pool(of=made, name=name)
    return made


@pytest.fixture
def watched(cluster: Cluster, ear: Ear) -> Iterator[Cluster]:
    """The cluster, with a watcher at work."""
    stopping = threading.Event()
    thread = threading.Thread(target=watch_clusters, args=([], stopping), kwargs={"round_seconds": 0.2})
    thread.start()
    yield cluster
    stopping.set()
    thread.join(60)
    assert not thread.is_alive()


def _live(cluster: Cluster) -> dict[str, str]:
    return dict(Node.objects.filter(cluster=cluster, lost_at=None).values_list("name", "uid"))


def _uids(fleet: LocalFleet) -> dict[str, str]:
    return {row.node.name: row.node.uid for row in fleet.nodes()}


def test_it_keeps_the_rows_like_the_fleet(watched: Cluster, fleet: LocalFleet, ear: Ear) -> None:
    until(lambda: _live(watched) == _uids(fleet) and len(ear.listings) == len(Kind))
    assert ear.listings[0] == (Kind.NODE, 4)
    assert dict(watched.pools.values_list("name", "nodes__name")).keys() == {"pool-a", "pool-b"}
    old = _uids(fleet)["a-1"]

    fleet.replace("a-1")
    fleet.remove("b-1")
    fleet.cordon("b-2")
    until(lambda: _live(watched) == _uids(fleet) and Node.objects.filter(name="b-2", schedulable=False).exists())
    assert Node.objects.get(uid=old).lost_at is not None

    uid = _uids(fleet)["a-2"]
    gateway_for(watched).apply_node_cache(spec("a-2", uid, DIGEST))
    told = status("a-2", uid)
    LocalLink(fleet.folder, "a-2", uid).report(told)
    fleet.use("a-2", DIGEST)
    until(lambda: Node.objects.filter(uid=uid, reported_at=told.reported_at, other_bytes=7).exists())
    until(lambda: {event.kind for event in ear.heard} >= {Kind.NODE, Kind.NODE_CACHE, Kind.CONSUMER})
    watched.refresh_from_db()
    assert watched.observed_at is not None and watched.error == ""


def test_it_says_why_a_fleet_is_silent_and_heals_when_it_is_back(
    watched: Cluster, fleet: LocalFleet, tmp_path: Path
) -> None:
    until(lambda: len(_live(watched)) == 4)
    fleet.folder.rename(tmp_path / "away")
    until(lambda: "There is no fleet" in Cluster.objects.get().error)
    assert len(_live(watched)) == 4, "silence loses no node"

    (tmp_path / "away").rename(fleet.folder)
    fleet.remove("a-1")
    until(lambda: len(_live(watched)) == 3 and Cluster.objects.get().error == "")


def test_it_takes_a_fleet_made_anew_for_what_it_is(
    watched: Cluster, fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[Cluster] = []
    monkeypatch.setattr(sinks, "_cluster_listeners", [replaced.append])
    until(lambda: len(_live(watched)) == 4)
    before = _live(watched)
    for path in fleet.folder.glob(f"{database.FILE_NAME}*"):
        path.unlink()
    fleet.create(nodes=4)
    until(lambda: _live(watched) == _uids(fleet))
    assert set(before.values()).isdisjoint(_live(watched).values())
    assert replaced == [watched], "who wrote something to the old one heard of it before there were new nodes"


def test_it_delivers_again_after_the_database_failed(watched: Cluster, fleet: LocalFleet, ear: Ear) -> None:
    until(lambda: len(ear.listings) == len(Kind))
    ear.trouble = [OperationalError("the connection is lost")] * 2
    uid = fleet.add("c-1", pool="pool-a", capacity_bytes=2**20).uid
    until(lambda: any(getattr(event.object, "uid", "") == uid for event in ear.heard))
    assert ear.trouble == []
    assert len(ear.listings) == len(Kind), "the same batch, no new list"


def test_it_survives_that_postgresql_cuts_its_sessions(watched: Cluster, fleet: LocalFleet) -> None:
    until(lambda: len(_live(watched)) == 4)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    fleet.remove("a-1")
    until(lambda: len(_live(watched)) == 3)


def test_it_lists_again_when_a_sink_cannot_digest_something(watched: Cluster, fleet: LocalFleet, ear: Ear) -> None:
    until(lambda: len(ear.listings) == len(Kind))
    ear.trouble = [ValueError("a bug")]
    fleet.cordon("a-1")
    until(lambda: ear.trouble == [] and ear.listings.count((Kind.NODE, 4)) == 2)
    fleet.cordon("a-2")
    until(lambda: any(getattr(event.object, "name", "") == "a-2" for event in ear.heard))
    until(lambda: Cluster.objects.get().error == "")


def test_it_notices_clusters_that_come_and_go(watched: Cluster, tmp_path: Path) -> None:
    other = LocalFleet(tmp_path / "other")
    other.create(nodes=1)
    second = factories.cluster(address=str(other.folder))
    until(lambda: len(_live(second)) == 1)
    second.delete()
    other.add("z-9", pool="pool-a", capacity_bytes=2**20)
    until(lambda: len(_live(watched)) == 4)
    assert Node.objects.filter(name="z-9").count() == 0


def test_it_makes_a_node_unknown_when_nobody_vouches_for_it(watched: Cluster) -> None:
    until(lambda: len(_live(watched)) == 4)
    row = Node.objects.first()
    assert row is not None and row.observed_at is not None
    state = node_state(
        ready=row.ready,
        schedulable=row.schedulable,
        observed_at=row.observed_at,
        reported_at=row.observed_at,
        lost_at=row.lost_at,
        freshness_seconds=60,
        now=row.observed_at,
    )
    assert state is NodeState.UNKNOWN


def test_it_opens_one_gateway_for_a_cluster_and_another_for_a_new_address(cluster: Cluster, tmp_path: Path) -> None:
    first = gateway_for(cluster)
    assert gateway_for(Cluster.objects.get()) is first
    cluster.address = str(tmp_path / "elsewhere")
    assert gateway_for(cluster) is not first

    override_gateway(cluster.pk, first)
    assert gateway_for(cluster) is first
    override_gateway(cluster.pk, None)
    assert gateway_for(cluster) is not first
    kubernetes = gateway_for(factories.cluster(type="Kubernetes", address=str(tmp_path / "no-kubeconfig")))
    with pytest.raises(Unreachable, match="no-kubeconfig"):  # only when it is asked something
        kubernetes.capabilities()
    with pytest.raises(Invalid, match="cannot speak to"):
        gateway_for(factories.cluster(type="Nomad"))
