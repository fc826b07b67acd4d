"""The agent's road: it hears of its own incarnation only, and writes for no other."""

from __future__ import annotations

import threading
import time

import pytest

from controlplane.clusters.gateway import Conflict, EventType, Kind, NotFound, ObservedNodeCache
from tests.contracts.clusters import ContractCluster
from tests.contracts.observing import DIGEST, OTHER, changes, spec, status


def test_it_hears_nothing_before_anything_was_said(cluster: ContractCluster) -> None:
    link = cluster.link("n-1", cluster.add_node("n-1"))

    assert (link.node_name, link.desired()) == ("n-1", None)
    assert link.wait(0, 0.0) is False
    with pytest.raises(NotFound):
        link.manifest(DIGEST)
    with pytest.raises(NotFound):
        link.secret("none")


def test_it_hears_the_spec_with_its_generation(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    link = cluster.link("n-1", uid)
    generation = cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))

    heard = link.desired()
    assert heard is not None
    assert (heard.generation, heard.spec) == (generation, spec("n-1", uid, DIGEST))
    assert link.wait(0, 0.0) is True
    assert link.wait(generation, 0.0) is False


def test_it_wakes_when_the_spec_changes(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    link = cluster.link("n-1", uid)
    known = cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    later = threading.Timer(0.1, cluster.gateway.apply_node_cache, [spec("n-1", uid, DIGEST, OTHER)])
    later.start()
    started = time.monotonic()
    try:
        assert link.wait(known, 100.0) is True
    finally:
        later.join()
    assert time.monotonic() - started < 60.0


def test_it_is_not_woken_by_its_own_report(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    link = cluster.link("n-1", uid)
    known = cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link.report(status("n-1", uid, generation=known))

    assert link.wait(known, 0.1) is False


def test_it_is_deaf_once_another_incarnation_has_its_name(cluster: ContractCluster) -> None:
    old = cluster.add_node("n-1")
    link = cluster.link("n-1", old)
    known = cluster.gateway.apply_node_cache(spec("n-1", old, DIGEST))
    new = cluster.replace_node("n-1")
    cluster.gateway.apply_node_cache(spec("n-1", new, OTHER))

    assert link.desired() is None
    assert link.wait(known, 0.0) is False, "a spec that is gone is no news; it would wake the agent for ever"
    with pytest.raises(Conflict):
        link.report(status("n-1", old))
    (cache,) = cluster.gateway.list(Kind.NODE_CACHE).items
    assert isinstance(cache, ObservedNodeCache)
    assert (cache.node_uid, cache.status) == (new, None)


def test_it_is_refused_once_its_node_is_gone(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    link = cluster.link("n-1", uid)
    cluster.remove_node("n-1")

    assert link.desired() is None
    with pytest.raises(Conflict):
        link.report(status("n-1", uid))
    assert cluster.gateway.list(Kind.NODE_CACHE).items == ()


def test_it_writes_for_no_node_but_its_own(cluster: ContractCluster) -> None:
    uid, other = cluster.add_node("n-1"), cluster.add_node("n-2")
    cluster.gateway.apply_node_cache(spec("n-2", other))

    for name, of in (("n-2", other), ("n-1", other), ("n-2", uid)):
        with pytest.raises(Conflict):
            cluster.link("n-1", uid).report(status(name, of))
    caches = [i for i in cluster.gateway.list(Kind.NODE_CACHE).items if isinstance(i, ObservedNodeCache)]
    assert [cache.status for cache in caches] == [None]


def test_it_reports_capacity_before_anything_was_wanted_of_it(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    told = status("n-1", uid, generation=0)
    cluster.link("n-1", uid).report(told)

    (cache,) = cluster.gateway.list(Kind.NODE_CACHE).items
    assert isinstance(cache, ObservedNodeCache)
    assert (cache.node_uid, cache.status, cache.spec.desired) == (uid, told, ())
    cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    heard = cluster.link("n-1", uid).desired()
    assert heard is not None and heard.generation > cache.generation


def test_it_replaces_the_whole_status(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    link = cluster.link("n-1", uid)
    cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link.report(status("n-1", uid, used=1))
    token = cluster.gateway.list(Kind.NODE_CACHE).token
    link.report(last := status("n-1", uid, used=2))

    (event,) = changes(cluster.gateway, Kind.NODE_CACHE, token, at_least=1)
    assert isinstance(event.object, ObservedNodeCache)
    assert (event.type, event.object.status) == (EventType.MODIFIED, last)


def test_it_knows_the_disk_where_the_cluster_does(cluster: ContractCluster) -> None:
    link = cluster.link("n-1", cluster.add_node("n-1"))
    disk = link.disk()
    assert disk == (None if cluster.disk_bytes is None else (cluster.disk_bytes, 0))
