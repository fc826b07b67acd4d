"""List and watch: what was listed plus what was watched is what is there, without a gap and without an invention."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import (
    ClusterEvent,
    EventType,
    Gone,
    Kind,
    NotFound,
    ObservedNode,
    ObservedNodeCache,
    Unreachable,
    WatchEvent,
)
from tests.contracts.clusters import ContractCluster
from tests.contracts.observing import DIGEST, OTHER, changes, first_change, spec, status
from tests.waiting import until


def _nodes(cluster: ContractCluster) -> dict[str, ObservedNode]:
    items = cluster.gateway.list(Kind.NODE).items
    return {item.name: item for item in items if isinstance(item, ObservedNode)}


def test_it_lists_nodes_as_the_cluster_knows_them(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    cluster.add_node("n-2")
    cluster.cordon("n-2")

    nodes = _nodes(cluster)
    assert nodes.keys() == {"n-1", "n-2"}
    assert nodes["n-1"].uid == uid
    assert (nodes["n-1"].schedulable, nodes["n-2"].schedulable) == (True, False)
    assert nodes["n-1"].labels["hearth.dev/pool"] == "pool-a"
    assert abs(datetime.now(UTC) - nodes["n-1"].created_at) < timedelta(minutes=1)


@pytest.mark.parametrize("kind", list(Kind))
def test_it_lists_nothing_of_any_kind_in_an_empty_cluster(cluster: ContractCluster, kind: Kind) -> None:
    listing = cluster.gateway.list(kind)

    assert listing.items == ()
    (bookmark,) = cluster.gateway.watch(kind, listing.token, 0.0)
    assert (bookmark.type, bookmark.object) == (EventType.BOOKMARK, None)


def test_it_says_which_cluster_answered(cluster: ContractCluster) -> None:
    uid = cluster.gateway.list(Kind.NODE).cluster_uid
    assert 0 < len(uid) <= 64
    cluster.add_node("n-1")
    cluster.compact()
    assert cluster.gateway.list(Kind.NODE).cluster_uid == uid, "it is the same one for as long as it lives"
    assert {cluster.gateway.list(kind).cluster_uid for kind in Kind if kind is not Kind.NODE} == {""}


def test_it_continues_from_a_listing_without_a_gap(cluster: ContractCluster) -> None:
    cluster.add_node("n-1")
    token = cluster.gateway.list(Kind.NODE).token
    cluster.add_node("n-2")
    cluster.cordon("n-1")
    cluster.remove_node("n-1")

    removed = changes(cluster.gateway, Kind.NODE, token, last=EventType.DELETED)
    seen = [(e.type, getattr(e.object, "name", "")) for e in removed]
    assert seen[0] == (EventType.ADDED, "n-2")
    assert seen[-1] == (EventType.DELETED, "n-1")


def test_it_continues_from_every_event_it_told(cluster: ContractCluster) -> None:
    token = cluster.gateway.list(Kind.NODE).token
    for number in range(3):
        cluster.add_node(f"n-{number}")
    events = changes(cluster.gateway, Kind.NODE, token, at_least=3)

    def added(token: str, at_least: int) -> list[WatchEvent]:
        # Repeating what was told already is allowed; leaving something out is not.
        told = changes(cluster.gateway, Kind.NODE, token, at_least=at_least)
        return [event for event in told if event.type is EventType.ADDED]

    assert [event.type for event in events] == [EventType.ADDED] * 3
    assert added(events[0].token, 2) == events[1:]
    assert added(events[2].token, 0) == []


def test_it_tells_of_a_replaced_node_that_the_old_one_went_and_a_new_one_came(cluster: ContractCluster) -> None:
    old = cluster.add_node("n-1")
    token = cluster.gateway.list(Kind.NODE).token
    new = cluster.replace_node("n-1")

    gone, come = changes(cluster.gateway, Kind.NODE, token, at_least=2)
    assert isinstance(gone.object, ObservedNode) and isinstance(come.object, ObservedNode)
    assert (gone.type, gone.object.uid) == (EventType.DELETED, old)
    assert (come.type, come.object.uid) == (EventType.ADDED, new)
    assert old != new


def test_it_tells_while_it_waits(cluster: ContractCluster) -> None:
    token = cluster.gateway.list(Kind.NODE).token
    later = threading.Timer(0.1, cluster.add_node, ["n-1"])
    later.start()
    try:
        event = first_change(cluster.gateway, Kind.NODE, token, lambda event: True)
    finally:
        later.join()
    assert event.type is EventType.ADDED


def test_it_watches_one_kind_at_a_time(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    tokens = {kind: cluster.gateway.list(kind).token for kind in Kind}
    cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    cluster.link("n-1", uid).report(status("n-1", uid))

    seen = changes(cluster.gateway, Kind.NODE_CACHE, tokens[Kind.NODE_CACHE], at_least=1)
    assert seen and all(isinstance(event.object, ObservedNodeCache) for event in seen)
    assert changes(cluster.gateway, Kind.NODE, tokens[Kind.NODE]) == []


def test_it_says_gone_to_a_token_that_was_compacted_away(cluster: ContractCluster) -> None:
    token = cluster.gateway.list(Kind.NODE).token
    cluster.add_node("n-1")
    cluster.compact()

    with pytest.raises(Gone):
        list(cluster.gateway.watch(Kind.NODE, token, 0.0))
    fresh = cluster.gateway.list(Kind.NODE)
    assert len(fresh.items) == 1
    assert changes(cluster.gateway, Kind.NODE, fresh.token) == []


def test_it_keeps_a_quiet_kind_watchable_by_bookmarks(cluster: ContractCluster) -> None:
    token = cluster.gateway.list(Kind.CONSUMER).token
    cluster.add_node("n-1")

    def moved() -> bool:
        *_, bookmark = cluster.gateway.watch(Kind.CONSUMER, token, cluster.bookmark_seconds)
        assert bookmark.type is EventType.BOOKMARK
        return bookmark.token != token

    until(moved, "the token moves without news of the kind")
    cluster.compact()

    *_, later = cluster.gateway.watch(Kind.CONSUMER, cluster.gateway.list(Kind.CONSUMER).token, 0.0)
    assert later.type is EventType.BOOKMARK


@pytest.mark.parametrize("token", ["", "nonsense", "Node", "Node.x.1", "9" * 30])
def test_it_says_gone_to_a_token_that_it_never_gave(cluster: ContractCluster, token: str) -> None:
    with pytest.raises(Gone):
        list(cluster.gateway.watch(Kind.NODE, token, 0.0))


def test_it_lists_the_consumers_of_one_incarnation(cluster: ContractCluster) -> None:
    uid, other = cluster.add_node("n-1"), cluster.add_node("n-2")
    engine = cluster.use("n-1", DIGEST)
    cluster.use("n-2", OTHER)

    (found,) = cluster.gateway.consumers("n-1", uid)
    assert found == engine
    assert (found.node_name, found.node_uid, found.digests) == ("n-1", uid, frozenset({DIGEST}))
    assert {c.uid for c in cluster.gateway.list(Kind.CONSUMER).items if isinstance(c, Consumer)} > {engine.uid}
    assert len(cluster.gateway.consumers("n-2", other)) == 1

    token = cluster.gateway.list(Kind.CONSUMER).token
    cluster.unuse("n-1", DIGEST)
    assert cluster.gateway.consumers("n-1", uid) == ()

    def is_its_end(event: WatchEvent) -> bool:
        # Whether it was seen on its way out before it was gone is the cluster's own matter.
        ended = event.object if event.type is EventType.DELETED else None
        return isinstance(ended, Consumer) and replace(ended, leaving=False) == engine

    first_change(cluster.gateway, Kind.CONSUMER, token, is_its_end)


def test_it_never_calls_an_incarnation_unused_that_is_gone(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    cluster.replace_node("n-1")

    for name, wanted in (("n-1", uid), ("never", "x")):
        with pytest.raises(NotFound):
            cluster.gateway.consumers(name, wanted)


def test_it_shows_what_the_agent_wants_people_to_know(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    token = cluster.gateway.list(Kind.EVENT).token
    cluster.link("n-1", uid).event("Evicted", "made room")

    def from_us(event: object) -> bool:
        return isinstance(event, ClusterEvent) and event.object_uid == uid

    told = first_change(cluster.gateway, Kind.EVENT, token, lambda e: from_us(e.object)).object
    assert isinstance(told, ClusterEvent)
    assert (told.object_name, told.reason, told.message) == ("n-1", "Evicted", "made room")


def test_it_says_unreachable_when_nothing_answers(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    token = cluster.gateway.list(Kind.NODE).token
    link = cluster.link("n-1", uid)
    cluster.cut_off()

    for call in (
        lambda: cluster.gateway.list(Kind.NODE),
        lambda: list(cluster.gateway.watch(Kind.NODE, token, 0.0)),
        lambda: cluster.gateway.consumers("n-1", uid),
        lambda: cluster.gateway.apply_node_cache(spec("n-1", uid)),
        lambda: cluster.gateway.apply_secret("key", {"a": "b"}),
        lambda: cluster.gateway.capabilities(),
        link.desired,
        lambda: link.wait(0, 0.0),
        lambda: link.report(status("n-1", uid)),
    ):
        with pytest.raises(Unreachable):
            call()
    link.event("Best", "effort")
