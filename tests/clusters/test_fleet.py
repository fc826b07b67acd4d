"""The local fleet's verbs, as any process may use them, and its readiness, which somebody must vouch for."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.clusters.gateway import ClusterEvent, Conflict, EventType, Kind, NotFound, ObservedNode
from controlplane.clusters.local import disks, leases, nodes
from controlplane.clusters.local.fleet import LocalFleet, PoolLayout
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.link import KEEP_EVENTS, LocalLink, event_put
from controlplane.errors import Invalid
from tests.contracts.observing import DIGEST, OTHER, changes

MIB = 2**20
spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def fleet(tmp_path: Path) -> LocalFleet:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=4)
    return made


def _node(fleet: LocalFleet, name: str) -> ObservedNode:
    items = LocalGateway(fleet.folder).list(Kind.NODE).items
    return next(item for item in items if isinstance(item, ObservedNode) and item.name == name)


def test_it_makes_two_pools_over_two_zones(fleet: LocalFleet) -> None:
    found = {row.node.name: row.node for row in fleet.nodes()}
    assert list(found) == ["a-1", "a-2", "b-1", "b-2"]
    assert [node.capacity_bytes // MIB for node in found.values()] == [1024, 1024, 512, 512]
    assert found["a-2"].labels == {
        "hearth.dev/pool": "pool-a",
        "hearth.dev/hardware": "nvme-large",
        "topology.kubernetes.io/zone": "zone-2",
        "kubernetes.io/arch": "amd64",
    }
    assert all(row.ready is None for row in fleet.nodes())


def test_it_makes_nodes_only_once(fleet: LocalFleet) -> None:
    for row in fleet.nodes():
        fleet.remove(row.node.name)
    assert fleet.create(nodes=4) is False
    assert fleet.nodes() == ()


@pytest.mark.parametrize(
    "pools",
    [
        (),
        (PoolLayout("x", MIB, ""), PoolLayout("x", MIB, "")),
        (PoolLayout("../x", MIB, ""),),
        (PoolLayout("x", 5, ""),),
    ],
)
def test_it_makes_no_fleet_of_impossible_pools(tmp_path: Path, pools: tuple[PoolLayout, ...]) -> None:
    with pytest.raises(Invalid):
        LocalFleet(tmp_path / "fleet").create(nodes=2, pools=pools)
    assert not (tmp_path / "fleet").exists()


def test_it_adds_and_removes_a_node(fleet: LocalFleet) -> None:
    made = fleet.add("c-1", pool="pool-c", capacity_bytes=5 * MIB, labels={"hearth.dev/hardware": "odd"})
    assert made.labels["topology.kubernetes.io/zone"] == "zone-1"
    assert made.labels["hearth.dev/hardware"] == "odd"
    with pytest.raises(Conflict):
        fleet.add("c-1", pool="pool-c", capacity_bytes=5 * MIB)

    fleet.fill("c-1", 10)
    assert fleet.remove("c-1").uid == made.uid
    with pytest.raises(NotFound):
        fleet.remove("c-1")
    assert not nodes.fill_file(fleet.folder, made.uid).exists()


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "a.b", "-a", "x" * 64])
def test_it_takes_no_name_that_could_be_a_path(fleet: LocalFleet, name: str) -> None:
    with pytest.raises(Invalid):
        fleet.add(name, pool="pool-a", capacity_bytes=MIB)


def test_it_replaces_a_node_by_an_empty_one_of_the_same_name(fleet: LocalFleet) -> None:
    before = _node(fleet, "a-1")
    gateway = LocalGateway(fleet.folder)
    gateway.set_node_labels("a-1", before.uid, {"hearth.dev/weights-cache-ready.x": "true"})
    fleet.fill("a-1", 100)
    fleet.use("a-1", DIGEST)
    fleet.cordon("a-1")
    fleet.replace("a-1")

    after = _node(fleet, "a-1")
    assert after.uid != before.uid
    assert after.labels == before.labels
    assert (after.schedulable, after.ready) == (True, None)
    assert LocalLink(fleet.folder, "a-1", after.uid).disk() == (1024 * MIB, 0)
    assert gateway.consumers("a-1", after.uid) == ()


def test_it_changes_what_the_node_says_of_its_disk(fleet: LocalFleet) -> None:
    link = LocalLink(fleet.folder, "a-1", _node(fleet, "a-1").uid)
    fleet.fill("a-1", 300 * MIB)
    assert link.disk() == (1024 * MIB, 300 * MIB)
    assert nodes.fill_file(fleet.folder, link.node_uid).stat().st_blocks == 0, "it takes no real room"
    fleet.fill("a-1", 0)
    fleet.resize("a-1", 2 * MIB)
    assert link.disk() == (2 * MIB, 0)
    for size in (-1, 2**60):
        with pytest.raises(Invalid):
            fleet.fill("a-1", size)


def test_it_fills_a_disk_no_further_than_its_room(fleet: LocalFleet) -> None:
    node = _node(fleet, "a-1")
    link = LocalLink(fleet.folder, "a-1", node.uid)
    (disks.disk_prepare(fleet.folder, "a-1", node.uid) / "weights").write_bytes(b"x" * MIB)
    fleet.fill("a-1", 10)
    with pytest.raises(Invalid, match="1 GiB, of which 1023 MiB") as caught:
        fleet.fill("a-1", 1023 * MIB + 1)
    assert caught.value.code == "fleet:user:no-room" and str(1023 * MIB) in caught.value.next_step
    assert link.disk() == (1024 * MIB, 10), "what was there before stays"
    fleet.fill("a-1", 1023 * MIB)  # replaces the ten bytes
    fleet.replace("a-1")
    fleet.fill("a-1", 1024 * MIB)  # the old machine's files do not count
    fleet.fill("a-1", 0)


def test_it_tells_watchers_what_was_done_to_a_node(fleet: LocalFleet) -> None:
    gateway = LocalGateway(fleet.folder)
    token = gateway.list(Kind.NODE).token
    for act, schedulable in ((fleet.cordon, False), (fleet.uncordon, True)):
        act("a-1")
        (event,) = changes(gateway, Kind.NODE, token)
        assert isinstance(event.object, ObservedNode)
        assert event.object.schedulable is schedulable
        token = event.token
    fleet.uncordon("a-1")
    assert changes(gateway, Kind.NODE, token) == []


def test_it_counts_each_use_once(fleet: LocalFleet) -> None:
    first = fleet.use("a-1", DIGEST)
    assert fleet.use("a-1", DIGEST) == first
    fleet.use("a-1", OTHER)
    assert len(next(row for row in fleet.nodes() if row.node.name == "a-1").consumers) == 2
    assert fleet.unuse("a-1", DIGEST) is True
    assert fleet.unuse("a-1", DIGEST) is False


@pytest.mark.parametrize("verb", ["remove", "replace", "cordon", "uncordon", "stop", "start"])
def test_it_says_so_when_there_is_no_such_node(fleet: LocalFleet, verb: str) -> None:
    with pytest.raises(NotFound, match="nope"):
        getattr(fleet, verb)("nope")


def test_it_forgets_the_oldest_events(fleet: LocalFleet) -> None:
    link = LocalLink(fleet.folder, "a-1", _node(fleet, "a-1").uid)
    link.event("Tick", "first")
    made = LocalGateway(fleet.folder).list(Kind.EVENT).items[0]
    assert isinstance(made, ClusterEvent)
    with fleet.store.write() as session:
        for number in range(KEEP_EVENTS + 2):
            later = made.at + timedelta(seconds=number)
            event_put(session, replace(made, uid=str(number), at=later, message=str(number)))
    events = LocalGateway(fleet.folder).list(Kind.EVENT).items
    assert len(events) == KEEP_EVENTS
    assert getattr(events[0], "message", "") == "2"


def test_it_knows_nothing_of_nodes_nobody_vouches_for(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = LocalGateway(fleet.folder)
    uids = {name: _node(fleet, name).uid for name in ("a-1", "a-2")}
    with fleet.store.write() as session:
        for name, uid in uids.items():
            nodes.node_set_ready(session, name, uid, True)
        leases.leases_renew(session, uids.items())
    assert _node(fleet, "a-1").ready is True

    token = gateway.list(Kind.NODE).token
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + leases.LEASE_SECONDS - 1)
    with fleet.store.write() as session:
        leases.leases_renew(session, [("a-2", uids["a-2"])])
    assert changes(gateway, Kind.NODE, token) == []
    monkeypatch.setattr(time, "time", lambda: now + leases.LEASE_SECONDS + 1)

    (event,) = changes(gateway, Kind.NODE, token)
    assert isinstance(event.object, ObservedNode)
    assert (event.type, event.object.name, event.object.ready) == (EventType.MODIFIED, "a-1", None)
    assert _node(fleet, "a-2").ready is True


def test_it_takes_no_word_for_an_incarnation_that_is_gone(fleet: LocalFleet) -> None:
    old = _node(fleet, "a-1").uid
    fleet.replace("a-1")
    with fleet.store.write() as session:
        nodes.node_set_ready(session, "a-1", old, True)
        nodes.node_set_ready(session, "never", old, True)
    assert _node(fleet, "a-1").ready is None


def _handle(folder: Path, worker: int) -> None:
    fleet, gateway = LocalFleet(folder), LocalGateway(folder)
    for number in range(8):
        name = f"w{worker}-{number}"
        uid = fleet.add(name, pool="pool-a", capacity_bytes=MIB).uid
        gateway.set_node_labels("a-1", _node(fleet, "a-1").uid, {f"hearth.dev/{name}": "true"})
        LocalLink(folder, name, uid).event("Joined", name)
        fleet.replace(name)
        if number % 2:
            fleet.remove(name)


@pytest.mark.e2e
def test_it_loses_nothing_when_many_processes_handle_it(fleet: LocalFleet) -> None:
    workers = [spawn.Process(target=_handle, args=(fleet.folder, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(fleet.nodes()) == 4 + 4 * 4
    labels = _node(fleet, "a-1").labels
    assert sum(label.startswith("hearth.dev/w") for label in labels) == 32
