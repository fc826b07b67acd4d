"""The readers on a real API server that restarts, compacts, throttles and is watched twice: nothing lost, no storm."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from controlplane.clusters.documents import Consumer, NodeCacheStatus, WaitReason
from controlplane.clusters.gateway import EventType, Gone, Kind, Observed, ObservedNode, ObservedNodeCache
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.readers import Failed, KindReader, Message, Relisted
from tests.contracts.kube import KubeContractCluster, add_node, engine_pod, remove_node
from tests.contracts.observing import DIGEST, OTHER, changes, first_change, spec, status
from tests.kube.faulty import Answer, Cut, FaultyProxy
from tests.plugins.kube import KubeApi
from tests.waiting import until

pytestmark = pytest.mark.faults


class Picture:
    """What somebody who listens to a reader believes is there."""

    def __init__(self, gateway: KubernetesGateway, kind: Kind, *, queue_size: int = 1000) -> None:
        self.items: dict[str, Observed] = {}
        self.relists = self.failures = 0
        self.held = threading.Event()
        self.held.set()
        self._into: queue.Queue[Message] = queue.Queue(queue_size)
        self._stopping = threading.Event()
        self.reader = KindReader(
            name="test", kind=kind, gateway=lambda: gateway, into=self._into, stopping=self._stopping, watch_seconds=1.0
        )
        self._taker = threading.Thread(target=self._take, daemon=True)

    @contextmanager
    def running(self) -> Iterator[Picture]:
        self.reader.start()
        self._taker.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self.held.set()
            self._taker.join(60)
            self.reader.join(60)

    def _take(self) -> None:
        while not self._stopping.is_set():
            self.held.wait()
            try:
                message = self._into.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(message, Relisted):
                self.relists += 1
                self.items = {_uid(item): item for item in message.items}
            elif isinstance(message, Failed):
                self.failures += 1
            elif message.event.object is not None:
                uid = _uid(message.event.object)
                if message.event.type is EventType.DELETED:
                    self.items.pop(uid, None)
                else:
                    self.items[uid] = message.event.object

    def names(self) -> set[str]:
        return {item.name for item in list(self.items.values()) if isinstance(item, ObservedNode)}


def _uid(item: Observed) -> str:
    return item.node_uid if isinstance(item, ObservedNodeCache) else item.uid


def shows(picture: Picture, told: NodeCacheStatus) -> bool:
    return [getattr(item, "status", None) for item in list(picture.items.values())] == [told]


def agrees(picture: Picture, contract: KubeContractCluster) -> Callable[[], bool]:
    return lambda: picture.names() == {n["metadata"]["name"] for n in contract.client.get(names.NODES)["items"]}


def test_it_finds_everything_again_after_the_server_restarted(contract: KubeContractCluster, kube_api: KubeApi) -> None:
    contract.add_node("n-1")
    gateway = KubernetesGateway(str(kube_api.kubeconfig))
    with Picture(gateway, Kind.NODE).running() as picture:
        until(lambda: picture.names() == {"n-1"})
        kube_api.stop_api_server()
        until(lambda: picture.failures > 0, "it notices")
        sent, started = sum(gateway.client.requests().values()), time.monotonic()
        kube_api.start_api_server()
        add_node(contract.client, "n-2")
        remove_node(contract.client, "n-1")
        until(agrees(picture, contract), "it agrees again")
        spent = time.monotonic() - started
        assert sum(gateway.client.requests().values()) - sent < 30 + 6 * spent, "no hot loop"


def test_it_loses_nothing_when_it_is_slower_than_the_compaction(
    contract: KubeContractCluster, kube_api: KubeApi
) -> None:
    gateway = KubernetesGateway(str(kube_api.kubeconfig))
    contract.add_node("n-1")
    token = gateway.list(Kind.NODE).token
    with Picture(gateway, Kind.NODE, queue_size=1).running() as picture:
        until(lambda: picture.names() == {"n-1"})
        picture.held.clear()
        for number in range(3):
            contract.client.merge(f"{names.NODES}/n-1", {"metadata": {"labels": {"x": str(number)}}}, manager="test")
        add_node(contract.client, "n-2")
        kube_api.compact()
        add_node(contract.client, "n-3")
        picture.held.set()
        until(agrees(picture, contract), "it agrees again")
        until(lambda: any(getattr(i, "labels", {}).get("x") == "2" for i in picture.items.values()), "the last label")
    with pytest.raises(Gone):
        list(gateway.watch(Kind.NODE, token, 0.0))


@pytest.mark.parametrize(
    "fault", [Answer(429, headers={"Retry-After": "1"}), Answer(503), Cut()], ids=["429", "503", "cut"]
)
def test_it_answers_a_storm_with_patience_and_heals_after_it(
    contract: KubeContractCluster, proxy: FaultyProxy, fault: Answer | Cut
) -> None:
    contract.add_node("n-1")
    gateway = KubernetesGateway("x", client=proxy.client())
    with Picture(gateway, Kind.NODE).running() as picture:
        until(lambda: picture.names() == {"n-1"})
        proxy.rule = lambda method, path: fault
        before, started = len(proxy.seen), time.monotonic()
        until(lambda: picture.failures >= 3, "it fails")
        took = time.monotonic() - started
        # A closed idle connection is tried once more, so that a cut may count twice.
        assert len(proxy.seen) - before <= 2 * (picture.failures + 1) + 1
        assert took > 0.7, "no hot loop: at least a quarter and half a second between the three"
        add_node(contract.client, "n-2")
        proxy.rule = lambda method, path: None
        until(agrees(picture, contract), "it heals", seconds=150)


def test_two_watchers_see_the_same(contract: KubeContractCluster, kube_api: KubeApi) -> None:
    pictures = [Picture(KubernetesGateway(str(kube_api.kubeconfig)), Kind.NODE_CACHE) for _ in range(2)]
    with pictures[0].running(), pictures[1].running():
        uid = contract.add_node("n-1")
        contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
        contract.link("n-1", uid).report(told := status("n-1", uid))
        for picture in pictures:
            until(partial(shows, picture, told), "both see it")
        assert pictures[0].items == pictures[1].items


def test_a_change_of_a_status_costs_no_request_of_the_watcher(contract: KubeContractCluster, kube_api: KubeApi) -> None:
    uid = contract.add_node("n-1")
    contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link = contract.link("n-1", uid)
    gateway = KubernetesGateway(str(kube_api.kubeconfig))
    token = gateway.list(Kind.NODE_CACHE).token
    before = sum(gateway.client.requests().values())
    for used in range(20):
        link.report(status("n-1", uid, used=used))
    seen = (event for event in gateway.watch(Kind.NODE_CACHE, token, 100.0) if event.type is not EventType.BOOKMARK)
    assert len(list(itertools.islice(seen, 20))) == 20
    assert sum(gateway.client.requests().values()) - before == 1, "one watch for all of them"


def test_it_holds_no_raw_objects(
    contract: KubeContractCluster, kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes with much that Hearth has no use for: what stays is small, and so is the most that is held on the way."""
    monkeypatch.setattr("controlplane.clusters.kubernetes.watches.PAGE_ITEMS", 10)
    monkeypatch.setattr(
        "controlplane.clusters.kubernetes.watches.listed.__kwdefaults__", {"only_metadata": False, "page_items": 10}
    )
    ballast, count = "x" * 100_000, 60
    for number in range(count):
        document = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n-{number}", "annotations": {"b": ballast}},
        }
        contract.client.create(names.NODES, document, manager="test")
    gateway = KubernetesGateway(str(kube_api.kubeconfig))
    gateway.capabilities()
    tracemalloc.start()
    try:
        listing = gateway.list(Kind.NODE)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing.items) == count
    assert kept < 1_000_000
    assert peak < count * len(ballast), "never the whole list at once"


def test_it_sees_a_consumer_end_and_change(contract: KubeContractCluster) -> None:
    contract.add_node("n-1")
    engine = contract.use("n-1", DIGEST)
    contract.use("n-1", OTHER)
    token = contract.gateway.list(Kind.CONSUMER).token
    path = f"/api/v1/namespaces/default/pods/{engine.name.partition('/')[2]}"
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    contract.client.merge(f"{path}/status", ready, manager="kubelet")
    contract.client.merge(f"{path}/status", {"status": {"phase": "Succeeded"}}, manager="kubelet")
    told = changes(contract.gateway, Kind.CONSUMER, token, at_least=2, last=EventType.DELETED)
    seen = [event for event in told if event.object is not None and _uid(event.object) == engine.uid]
    assert [event.type for event in seen] == [EventType.MODIFIED, EventType.DELETED]
    assert getattr(seen[0].object, "ready", False) is True
    assert {c.uid for c in contract.gateway.consumers("n-1", engine.node_uid)}.isdisjoint({engine.uid})


def test_it_sees_a_pod_of_an_endpoint_wait_for_a_node_get_one_and_leave(contract: KubeContractCluster) -> None:
    uid = contract.add_node("n-1")
    pods = "/api/v1/namespaces/default/pods"
    made = engine_pod("n-1", DIGEST, labels={names.ENDPOINT_LABEL: "chat"})
    made["spec"] |= {"nodeName": None, "nodeSelector": {"hearth.dev/nobody": "has"}}
    name = contract.client.create(pods, made, manager="test")["metadata"]["name"]

    def seen() -> Consumer | None:
        found = [one for one in contract.gateway.list(Kind.CONSUMER).items if isinstance(one, Consumer)]
        return next((one for one in found if one.name == f"default/{name}"), None)

    until(lambda: (one := seen()) is not None and one.wait_reason == WaitReason.UNSCHEDULABLE, "the scheduler says so")
    waits = seen()
    assert waits is not None and (waits.node_name, waits.node_uid) == ("", "") and waits.digests == {DIGEST}
    assert "0/1 nodes are available" in waits.wait_message and not waits.leaving

    token = contract.gateway.list(Kind.CONSUMER).token
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
               "target": {"kind": "Node", "name": "n-1"}}  # fmt: skip
    contract.client.create(f"{pods}/{name}/binding", binding, manager="test")
    contract.client.delete(f"{pods}/{name}")
    first_change(contract.gateway, Kind.CONSUMER, token, lambda e: _is(e.object, uid, leaving=False))
    first_change(contract.gateway, Kind.CONSUMER, token, lambda e: _is(e.object, uid, leaving=True))
    contract.client.delete(f"{pods}/{name}", grace_seconds=0)


def _is(seen: Observed | None, node_uid: str, *, leaving: bool) -> bool:
    if not isinstance(seen, Consumer) or seen.wait_reason or seen.ready:
        return False
    return (seen.node_uid, seen.leaving) == (node_uid, leaving)
