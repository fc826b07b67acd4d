"""Every verb of the local fleet in every state it may find a node in, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.clusters import codec
from controlplane.clusters.gateway import ClusterEvent, Conflict, Kind, NotFound, Unreachable
from controlplane.clusters.local import database, disks, leases, nodes
from controlplane.clusters.local.fleet import LocalFleet, PoolLayout
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.link import LocalLink
from controlplane.clusters.local.nodes import POOL_LABEL, LocalNode
from controlplane.clusters.local.serving import endpoint_serve, engine_made, engine_put
from controlplane.errors import Invalid
from tests.contracts.observing import DIGEST, OTHER, changes, spec, status

MIB = 2**20
NAME = "a-1"


@pytest.fixture
def fleet(tmp_path: Path) -> LocalFleet:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=2)
    return made


def _node(fleet: LocalFleet, name: str = NAME) -> LocalNode:
    return next(row.node for row in fleet.nodes() if row.node.name == name)


def _ready(fleet: LocalFleet) -> None:
    uid = _node(fleet).uid
    with fleet.store.write() as session:
        nodes.node_set_ready(session, NAME, uid, True)
        leases.leases_renew(session, [(NAME, uid)])


STATES: dict[str, Callable[[LocalFleet], object]] = {
    "fresh": lambda fleet: None,
    "ready": _ready,
    "stopped": lambda fleet: fleet.stop(NAME),
    "cordoned": lambda fleet: fleet.cordon(NAME),
    "full": lambda fleet: fleet.fill(NAME, 1024 * MIB),
    "in use": lambda fleet: fleet.use(NAME, DIGEST),
    "tainted": lambda fleet: LocalGateway(fleet.folder).set_node_taint(NAME, _node(fleet).uid, "x", True),
    "reported": lambda fleet: LocalLink(fleet.folder, NAME, _node(fleet).uid).report(status(NAME, _node(fleet).uid)),
}
# What each verb leaves of the node's facts, whatever it was before.
VERBS: dict[str, tuple[Callable[[LocalFleet], object], Callable[[LocalFleet], bool]]] = {
    "cordon": (lambda f: f.cordon(NAME), lambda f: not _node(f).schedulable),
    "uncordon": (lambda f: f.uncordon(NAME), lambda f: _node(f).schedulable),
    "stop": (lambda f: f.stop(NAME), lambda f: _node(f).stopped),
    "start": (lambda f: f.start(NAME), lambda f: not _node(f).stopped),
    "resize": (lambda f: f.resize(NAME, 3 * MIB), lambda f: _node(f).capacity_bytes == 3 * MIB),
    "unfill": (lambda f: f.fill(NAME, 0), lambda f: nodes.other_bytes(f.folder, _node(f).uid) == 0),
    "use": (lambda f: f.use(NAME, OTHER), lambda f: any(OTHER in c.digests for c in f.nodes()[0].consumers)),
    "unuse": (lambda f: f.unuse(NAME, DIGEST), lambda f: not any(DIGEST in c.digests for c in f.nodes()[0].consumers)),
    "replace": (lambda f: f.replace(NAME), lambda f: f.nodes()[0].ready is None and f.nodes()[0].consumers == ()),
    "remove": (lambda f: f.remove(NAME), lambda f: [row.node.name for row in f.nodes()] == ["b-1"]),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
def test_it_does_what_a_verb_says_in_any_state(fleet: LocalFleet, state: str, verb: str) -> None:
    STATES[state](fleet)
    before, other = _node(fleet), _node(fleet, "b-1")
    act, done = VERBS[verb]
    act(fleet)
    assert done(fleet)
    assert _node(fleet, "b-1") == other, "its neighbour is left alone"
    if verb == "remove":
        assert nodes.other_bytes(fleet.folder, before.uid) == 0
        assert LocalGateway(fleet.folder).list(Kind.NODE_CACHE).items == ()
        with pytest.raises(NotFound):
            act(fleet)
        return
    act(fleet)  # twice is once
    assert done(fleet)
    assert (_node(fleet).uid == before.uid) is (verb != "replace")


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"unfill", "resize", "use", "unuse"}))
def test_it_keeps_what_a_verb_does_not_speak_of(fleet: LocalFleet, verb: str) -> None:
    _ready(fleet)
    fleet.use(NAME, DIGEST)
    before = fleet.nodes()[0]
    if verb in ("replace", "remove"):
        return
    VERBS[verb][0](fleet)
    after = fleet.nodes()[0]
    assert (after.ready, after.consumers, after.other_bytes) == (True, before.consumers, before.other_bytes)
    assert after.node.labels == before.node.labels and after.node.created_at == before.node.created_at


@pytest.mark.parametrize("verb", VERBS)
def test_it_finds_no_fleet_where_there_is_none(tmp_path: Path, verb: str) -> None:
    with pytest.raises(Unreachable, match="There is no fleet"):
        VERBS[verb][0](LocalFleet(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_it_finds_no_node_for_the_verbs_with_arguments(fleet: LocalFleet) -> None:
    for act in (
        lambda: fleet.fill("nope", 1),
        lambda: fleet.resize("nope", MIB),
        lambda: fleet.use("nope", DIGEST),
        lambda: fleet.unuse("nope", DIGEST),
    ):
        with pytest.raises(NotFound, match="nope"):
            act()


@pytest.mark.parametrize("size", [-1, 0, MIB - 1, 2**50, 2**200])
def test_it_takes_no_disk_of_an_impossible_size(fleet: LocalFleet, size: int) -> None:
    before = fleet.nodes()
    acts: tuple[Callable[[], object], ...] = (
        lambda: fleet.resize(NAME, size),
        lambda: fleet.add("c-1", pool="pool-c", capacity_bytes=size),
    )
    for act in acts:
        with pytest.raises(Invalid) as told:
            act()
        assert told.value.code == "fleet:user:bad-size" and str(MIB) in told.value.next_step
    assert fleet.nodes() == before


@pytest.mark.parametrize("pool", ["", "Pool A", "../x", "a.b", "x" * 64, "größe"])
def test_it_puts_no_node_into_a_pool_that_nobody_could_select(fleet: LocalFleet, pool: str) -> None:
    with pytest.raises(Invalid) as told:
        fleet.add("c-1", pool=pool, capacity_bytes=MIB)
    assert told.value.code == "fleet:user:bad-pool"
    assert len(fleet.nodes()) == 2


@pytest.mark.parametrize(
    ("names", "nodes_made"),
    [(("pool-a", "a"), 2), (("x" * 63,), 1), (("pool-a", "pool-b", "pool-a"), 0), (("a", "pool-a"), 5)],
)
def test_it_refuses_pools_whose_nodes_would_share_or_outgrow_a_name(
    tmp_path: Path, names: tuple[str, ...], nodes_made: int
) -> None:
    fleet = LocalFleet(tmp_path / "fleet")
    with pytest.raises(Invalid) as told:
        fleet.create(nodes=nodes_made, pools=tuple(PoolLayout(name, MIB, "x") for name in names))
    assert told.value.code == "fleet:user:bad-pools"
    assert not fleet.folder.exists()


@pytest.mark.parametrize(
    ("count", "pools", "made"), [(0, 2, []), (1, 2, ["a-1"]), (5, 2, ["a-1", "a-2", "a-3", "b-1", "b-2"])]
)
def test_it_shares_nodes_between_pools(tmp_path: Path, count: int, pools: int, made: list[str]) -> None:
    fleet = LocalFleet(tmp_path / "fleet")
    layouts = tuple(PoolLayout(f"pool-{letter}", MIB, "x") for letter in "abc"[:pools])
    assert fleet.create(nodes=count, pools=layouts) is True
    assert [row.node.name for row in fleet.nodes()] == made
    assert {row.node.labels[POOL_LABEL] for row in fleet.nodes()} <= {layout.name for layout in layouts}
    assert fleet.create(nodes=9, pools=layouts) is False


def test_it_seeds_again_after_a_kill_before_the_nodes_were_there(tmp_path: Path) -> None:
    database.database_create(tmp_path / "fleet")
    assert LocalFleet(tmp_path / "fleet").create(nodes=3) is True
    assert len(LocalFleet(tmp_path / "fleet").nodes()) == 3


def test_it_knows_a_removed_node_that_comes_back_as_another(fleet: LocalFleet) -> None:
    gateway = LocalGateway(fleet.folder)
    old = _node(fleet)
    gateway.apply_node_cache(spec(NAME, old.uid, DIGEST))
    token = gateway.list(Kind.NODE).token
    fleet.remove(NAME)
    new = fleet.add(NAME, pool="pool-a", capacity_bytes=MIB)
    assert new.uid != old.uid and gateway.list(Kind.NODE_CACHE).items == ()
    assert [event.type.value for event in changes(gateway, Kind.NODE, token)] == ["Deleted", "Added"]
    with pytest.raises(NotFound):
        gateway.apply_node_cache(spec(NAME, old.uid, DIGEST))


def test_it_removes_the_consumers_of_that_node_only(fleet: LocalFleet) -> None:
    fleet.add("a-10", pool="pool-a", capacity_bytes=MIB)
    for name in ("a-1", "a-10"):
        fleet.use(name, DIGEST)
    fleet.remove("a-1")
    assert [len(row.consumers) for row in fleet.nodes()] == [1, 0]


@pytest.mark.parametrize("verb", ["remove", "replace"])
def test_it_says_of_engines_that_they_went_with_their_node(fleet: LocalFleet, verb: str) -> None:
    gateway, endpoint = LocalGateway(fleet.folder), endpoint_serve(fleet.store, "chat", DIGEST, replicas=3)
    doomed, other = _node(fleet), _node(fleet, "b-1")
    lost, left, stays = (engine_made(endpoint, node) for node in (doomed, doomed, other))
    with fleet.store.write() as session:
        for engine in (replace(lost, restart_count=2), replace(left, leaving=True), stays):
            engine_put(session, engine)
    getattr(fleet, verb)(NAME)
    told = [one for one in gateway.list(Kind.EVENT).items if isinstance(one, ClusterEvent)]
    assert [(one.object_kind, one.object_uid, one.reason, one.restart_count) for one in told] == [
        ("Engine", lost.uid, "NodeLost", 2)
    ], "one that was scaled in was not lost, and nothing happened to the other node's"
    assert gateway.list(Kind.CONSUMER).items == (stays,)


def test_it_measures_a_disk_by_what_it_takes(fleet: LocalFleet) -> None:
    node = _node(fleet)
    disk = disks.disk_prepare(fleet.folder, NAME, node.uid)
    (disk / "deep").mkdir()
    (disk / "deep" / "written").write_bytes(b"x" * 5000)
    with (disk / "sparse").open("wb") as file:
        file.truncate(500 * MIB)
    (disk / "way-out").symlink_to("/proc")
    taken = disks.disk_bytes(fleet.folder, NAME, node.uid)
    assert 5000 <= taken < 10_000, "holes take no room, and nothing is followed out of the disk"
    assert disks.disk_bytes(fleet.folder, NAME, "another") == 0
    assert disks.disk_bytes(fleet.folder, "never", "another") == 0


def test_it_fills_to_the_last_byte_and_no_further(fleet: LocalFleet) -> None:
    fleet.resize(NAME, 2 * MIB)
    fleet.fill(NAME, 2 * MIB)
    fleet.fill(NAME, MIB)  # a smaller one replaces it
    assert nodes.other_bytes(fleet.folder, _node(fleet).uid) == MIB
    with pytest.raises(Invalid, match="of which 2 MiB"):
        fleet.fill(NAME, 2 * MIB + 1)
    fleet.resize(NAME, MIB)
    fleet.fill(NAME, 0)


def test_it_says_unreachable_when_an_object_cannot_be_read(fleet: LocalFleet) -> None:
    """As a store that a newer version wrote: no traceback, and no node that is half understood."""
    with fleet.store.write() as session:
        stored = session.get(Kind.NODE, NAME)
        assert stored is not None
        session.put(Kind.NODE, NAME, stored.uid, spec=stored.spec[:-1] + ',"future":1}', status=stored.status)
    for act in (fleet.nodes, lambda: fleet.cordon(NAME), lambda: LocalGateway(fleet.folder).list(Kind.NODE)):
        with pytest.raises(Unreachable, match=r"LocalNode\.future: unknown field"):
            act()
    assert codec.loads(LocalNode, stored.spec).name == NAME


def test_it_adds_no_second_node_of_a_name_however_it_differs(fleet: LocalFleet) -> None:
    before = _node(fleet)
    with pytest.raises(Conflict, match="a-1 already"):
        fleet.add(NAME, pool="pool-b", capacity_bytes=7 * MIB)
    assert _node(fleet) == before
