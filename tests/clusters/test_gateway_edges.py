"""LocalGateway and LocalLink at their edges: what ran out, came back, is damaged, or belongs to another fleet."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.clusters.documents import Algorithm, EntryStatus, FileRecord, Manifest, NodeCacheStatus
from controlplane.clusters.gateway import (
    Conflict,
    EventType,
    GatewayError,
    Gone,
    Kind,
    NotFound,
    ObservedNodeCache,
    Throttled,
    Unreachable,
)
from controlplane.clusters.local import database
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.link import LocalLink
from tests.contracts.observing import DIGEST, changes, spec, status


@pytest.fixture
def fleet(tmp_path: Path) -> LocalFleet:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=2)
    return made


@pytest.fixture
def gateway(fleet: LocalFleet) -> LocalGateway:
    return LocalGateway(fleet.folder, poll_seconds=0.01)


def _uid(fleet: LocalFleet, name: str = "a-1") -> str:
    return next(row.node.uid for row in fleet.nodes() if row.node.name == name)


def _link(fleet: LocalFleet) -> LocalLink:
    return LocalLink(fleet.folder, "a-1", _uid(fleet), poll_seconds=0.01)


def _cache(gateway: LocalGateway) -> ObservedNodeCache:
    (item,) = gateway.list(Kind.NODE_CACHE).items
    assert isinstance(item, ObservedNodeCache)
    return item


def _odd(told: NodeCacheStatus, text: str) -> NodeCacheStatus:
    (entry,) = told.entries
    assert isinstance(entry, EntryStatus)
    return replace(told, entries=(replace(entry, message=text, damaged=(text,)),))


@pytest.mark.parametrize("text", [b"shard\xff.bin".decode(errors="surrogateescape"), "a\0b", "", "☃" * 10_000])
def test_it_carries_any_words_of_an_agent(fleet: LocalFleet, gateway: LocalGateway, text: str) -> None:
    told = _odd(status("a-1", _uid(fleet)), text)
    _link(fleet).report(told)
    assert _cache(gateway).status == told
    _link(fleet).event("Odd", text)
    (event,) = gateway.list(Kind.EVENT).items
    assert getattr(event, "message", None) == text[:1000]


def test_it_drops_an_event_that_cannot_be_stored(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    link = _link(fleet)
    (fleet.folder / database.FILE_NAME).rename(fleet.folder / "away")
    link.event("Lost", "no store")
    (fleet.folder / "away").rename(fleet.folder / database.FILE_NAME)

    def busy() -> None:
        raise Throttled("busy", 1.0)

    monkeypatch.setattr(link._store, "write", busy)
    link.event("Lost", "no turn")
    assert LocalGateway(fleet.folder).list(Kind.EVENT).items == ()


def test_it_tells_a_watch_that_the_fleet_went_away_in_the_middle(
    fleet: LocalFleet, gateway: LocalGateway, tmp_path: Path
) -> None:
    watch = gateway.watch(Kind.NODE, gateway.list(Kind.NODE).token, 20.0)
    fleet.cordon("a-1")
    assert next(watch).type is EventType.MODIFIED
    fleet.folder.rename(tmp_path / "away")
    with pytest.raises(GatewayError):
        list(watch)
    with pytest.raises(Unreachable):
        gateway.list(Kind.NODE)
    (tmp_path / "away").rename(fleet.folder)
    assert len(gateway.list(Kind.NODE).items) == 2


def test_it_lets_go_of_the_store_when_a_watch_is_left(fleet: LocalFleet, gateway: LocalGateway) -> None:
    watch = gateway.watch(Kind.NODE, gateway.list(Kind.NODE).token, 20.0)
    fleet.cordon("a-1")
    next(watch)
    watch.close()  # type: ignore[attr-defined]
    fleet.uncordon("a-1")


def test_it_says_gone_when_a_watch_is_slower_than_the_log(fleet: LocalFleet) -> None:
    gateway = LocalGateway(fleet.folder, keep_changes=4, poll_seconds=0.01)
    token = gateway.list(Kind.NODE).token
    for number in range(9):
        gateway.set_node_labels("a-1", _uid(fleet), {"hearth.dev/n": str(number)})
    with pytest.raises(Gone, match="older than the log"):
        changes(gateway, Kind.NODE, token)
    assert len(gateway.list(Kind.NODE).items) == 2


def test_it_ends_a_watch_in_time_with_a_token_that_works(fleet: LocalFleet, gateway: LocalGateway) -> None:
    began = time.monotonic()
    events = list(gateway.watch(Kind.NODE, gateway.list(Kind.NODE).token, 0.05))
    assert [event.type for event in events] == [EventType.BOOKMARK]
    assert time.monotonic() - began < 60
    fleet.cordon("a-1")
    assert len(changes(gateway, Kind.NODE, events[-1].token)) == 1


@pytest.mark.parametrize("kind", list(Kind))
def test_it_takes_no_token_of_another_kind_or_fleet(gateway: LocalGateway, tmp_path: Path, kind: Kind) -> None:
    twin = LocalFleet(tmp_path / "twin")
    twin.create(nodes=2)
    others = [gateway.list(other).token for other in Kind if other is not kind]
    for token in (*others, LocalGateway(twin.folder).list(kind).token):
        with pytest.raises(Gone):
            list(gateway.watch(kind, token, 0.0))


def test_it_keeps_two_fleets_apart(fleet: LocalFleet, tmp_path: Path) -> None:
    twin = LocalFleet(tmp_path / "twin")
    twin.create(nodes=2)
    stranger = LocalLink(twin.folder, "a-1", _uid(fleet))
    assert stranger.desired() is None
    with pytest.raises(Conflict):
        stranger.report(status("a-1", _uid(fleet)))
    with pytest.raises(Conflict):
        stranger.disk()
    with pytest.raises(NotFound):
        LocalGateway(twin.folder).apply_node_cache(spec("a-1", _uid(fleet)))


def test_it_says_unreachable_to_a_status_nobody_can_read(fleet: LocalFleet, gateway: LocalGateway) -> None:
    _link(fleet).report(status("a-1", _uid(fleet)))
    with fleet.store.write() as session:
        stored = session.get(Kind.NODE_CACHE, "a-1")
        assert stored is not None
        session.put(Kind.NODE_CACHE, "a-1", stored.uid, spec=stored.spec, status='{"from":"the future"}')
    with pytest.raises(Unreachable, match="NodeCacheStatus"):
        gateway.list(Kind.NODE_CACHE)
    assert len(gateway.list(Kind.NODE).items) == 2, "the other kinds are read on"
    _link(fleet).report(status("a-1", _uid(fleet)))
    assert _cache(gateway).status is not None, "the next report heals it"


def test_it_wakes_for_each_new_spec_and_for_nothing_else(fleet: LocalFleet, gateway: LocalGateway) -> None:
    link, uid = _link(fleet), _uid(fleet)
    known = gateway.apply_node_cache(spec("a-1", uid))
    fleet.cordon("a-1")
    gateway.apply_node_cache(spec("b-1", _uid(fleet, "b-1"), DIGEST))
    assert link.wait(known, 0.05) is False
    waiting = threading.Thread(target=link.wait, args=(known, 30.0))
    waiting.start()
    gateway.apply_node_cache(spec("a-1", uid, DIGEST))
    waiting.join(60)
    assert not waiting.is_alive()


def test_it_tells_an_agent_that_its_machine_is_another_now(fleet: LocalFleet) -> None:
    link = _link(fleet)
    fleet.replace("a-1")
    with pytest.raises(Conflict):
        link.disk()
    fleet.remove("a-1")
    with pytest.raises(NotFound):
        link.disk()


def test_it_sees_no_consumer_of_the_machine_before(fleet: LocalFleet, gateway: LocalGateway) -> None:
    fleet.use("a-1", DIGEST)
    old = _uid(fleet)
    fleet.replace("a-1")
    fleet.use("a-1", DIGEST)
    (found,) = gateway.consumers("a-1", _uid(fleet))
    assert found.node_uid == _uid(fleet) != old
    with pytest.raises(NotFound):
        gateway.consumers("a-1", old)


def test_it_merges_labels_that_are_set_side_by_side(fleet: LocalFleet, gateway: LocalGateway) -> None:
    uid = _uid(fleet)
    threads = [
        threading.Thread(target=gateway.set_node_labels, args=("a-1", uid, {f"hearth.dev/{number}": "x"}))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    labels = fleet.nodes()[0].node.labels
    assert {f"hearth.dev/{number}" for number in range(8)} <= set(labels)
    gateway.set_node_labels("a-1", uid, dict.fromkeys(labels))
    assert fleet.nodes()[0].node.labels == {}
    gateway.set_node_labels("a-1", uid, {})


def test_it_publishes_a_manifest_again_after_the_first_was_damaged(fleet: LocalFleet, gateway: LocalGateway) -> None:
    manifest = Manifest(DIGEST, (FileRecord("f", 1, Algorithm.SHA256, "0" * 64, "r"),))
    gateway.apply_manifest(manifest)
    with fleet.store.write() as session:
        session.connection.execute("UPDATE manifests SET data=zeroblob(10)")
    link = _link(fleet)
    with pytest.raises(Unreachable, match="damaged"):
        link.manifest(DIGEST)
    gateway.delete_manifest(DIGEST)
    gateway.apply_manifest(manifest)
    assert link.manifest(DIGEST) == manifest


def test_it_rotates_a_secret_under_its_readers(fleet: LocalFleet, gateway: LocalGateway) -> None:
    link, seen, done = _link(fleet), set(), threading.Event()
    gateway.apply_secret("key", {"a": "0" * 5000})

    def read() -> None:
        while not done.is_set():
            seen.add(link.secret("key")["a"])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        gateway.apply_secret("key", {"a": str(number % 10) * 5000})
    done.set()
    reader.join(60)
    assert seen and all(len(set(value)) == 1 and len(value) == 5000 for value in seen), "never half of two"
