"""What befalls nodes in the middle of a download: no power, a dead kubelet or agent, another machine, a full disk."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable

import pytest

from caches.models import ModelVersion
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState, Reason
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import Node, NodePool
from controlplane.embedded.kube.node import KubeNode
from controlplane.operations.models import Operation, OperationState
from tests.kube.again import warm_again
from tests.kube.hearth import AGENT_PODS, MIB, HearthOnKube, agents
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

SIZE = 64 * MIB
RATE = 6 * MIB  # bytes a second: ten seconds for a model, so that there is a middle
MOST_AGAIN = 0.6
Start = Callable[..., HearthOnKube]
Measured = Callable[[str, object], None]


def halfway(hearth: HearthOnKube, version: ModelVersion, node: str) -> None:
    """Pin it and wait until about half of it is on the node's disk."""
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(hearth.pool.pk,)))
    hearth.until(lambda: hearth.moved(node, version) > 0, "it is on its way")
    # Only looked at from here on: a step of Hearth's takes seconds on a busy machine, and so does the rest of it.
    until(lambda: hearth.moved(node, version) > SIZE * 0.4, "about half of it is there")
    assert not hearth.is_ready(version, node), "too fast for this test"


def hurry(hearth: HearthOnKube) -> None:
    """Lift the limit for what is left."""
    NodePool.objects.filter(pk=hearth.pool.pk).update(node_bytes_per_second=None)
    hearth.pool.refresh_from_db()
    hearth.step()


def begun(hearth_on: Start, node: str, name: str) -> tuple[HearthOnKube, ModelVersion, KubeNode]:
    hearth = hearth_on(node, node_bytes_per_second=RATE)
    hearth.until(lambda: hearth.reports(node), "the node reports")
    version = hearth.model(name, SIZE)
    halfway(hearth, version, node)
    return hearth, version, hearth.kube.nodes[node]


def finish(hearth: HearthOnKube, version: ModelVersion, node: str, sent_before: int, sent_at_fault: int) -> float:
    """Wait until it is Ready with the very bytes; the share of it that was sent a second time."""
    hearth.until(lambda: hearth.is_ready(version, node), "it is ready in the end")
    assert hearth.content(node, version) == hearth.wanted_content(version)
    total = hearth.forward.sent(hearth.kube.nodes[node].address) - sent_before
    again = max(0.0, (total - SIZE) / SIZE)
    assert again < MOST_AGAIN, f"{total} bytes for {SIZE}, {sent_at_fault - sent_before} of them before the fault"
    assert Operation.objects.get(kind="PinWarm").state in (OperationState.SUCCEEDED, OperationState.RUNNING)
    return round(again, 3)


def test_a_node_that_loses_power_goes_on_where_it_was(hearth_on: Start, measured: Measured) -> None:
    hearth, version, node = begun(hearth_on, "node-a", "power")
    sent = hearth.forward.sent(node.address)
    node.kill(pods=True)
    assert agents(node) == []
    assert hearth.content("node-a", version) == {}, "nothing that is half there is published"
    hurry(hearth)
    node.start()
    before = sent - hearth.moved("node-a", version)
    measured("power_lost_moved_again", finish(hearth, version, "node-a", min(before, sent), sent))


def test_a_download_goes_on_while_kubelet_and_containerd_are_dead(hearth_on: Start) -> None:
    hearth, version, node = begun(hearth_on, "node-a", "kubelet")
    node.kill()
    try:
        assert len(agents(node)) == 1
        hurry(hearth)
        hearth.until(lambda: hearth.is_ready(version, "node-a"), "the agent needs neither of them")
        assert hearth.content("node-a", version) == hearth.wanted_content(version)
    finally:
        node.start()
    hearth.until(lambda: (row := hearth.node("node-a")) is not None and row.ready, "the node is back")
    assert hearth.is_ready(version, "node-a")


@pytest.mark.parametrize("how", ["killed", "asked"])
def test_an_agent_that_dies_moves_little_again(hearth_on: Start, measured: Measured, how: str) -> None:
    hearth, version, node = begun(hearth_on, "node-b", f"agent-{how}")
    before = hearth.forward.sent(node.address) - hearth.moved("node-b", version)
    pod = hearth.agent_pod("node-b")
    assert pod is not None
    sent = hearth.forward.sent(node.address)
    if how == "killed":
        os.kill(agents(node)[0], signal.SIGKILL)
    else:
        [process] = agents(node)
        hearth.client.delete(f"{AGENT_PODS}/{pod['metadata']['name']}")
        measured("agent_seconds_to_end", hearth.until(lambda: process not in agents(node), "it ends"))
    hurry(hearth)
    measured(f"agent_{how}_moved_again", finish(hearth, version, "node-b", min(before, sent), sent))
    after = hearth.agent_pod("node-b")
    assert after is not None and (after["metadata"]["uid"] == pod["metadata"]["uid"]) == (how == "killed")


def test_a_machine_that_took_the_name_begins_anew(hearth_on: Start, measured: Measured) -> None:
    hearth, version, node = begun(hearth_on, "node-c", "replaced")
    old, kept = hearth.node("node-c"), hearth.kube.nodes["node-c"].options
    assert old is not None
    fresh = node.replace()
    hearth.client.merge(f"{names.NODES}/node-c", {"metadata": {"labels": hearth.pool.selector}}, manager="test")
    hurry(hearth)

    def warm() -> bool:
        row = hearth.node("node-c")
        return row is not None and row.uid == fresh.uid and hearth.is_ready(version, "node-c")

    measured("replaced_to_warm_seconds", round(hearth.until(warm, "the new machine is warm"), 1))
    assert Node.objects.get(pk=old.pk).lost_at is not None and fresh.options == kept
    assert hearth.content("node-c", version) == hearth.wanted_content(version)
    cache = hearth.cache("node-c")
    assert cache is not None and cache.status is not None
    assert (cache.node_uid, cache.status.node_uid) == (fresh.uid, fresh.uid)


def test_a_full_disk_stops_one_node_and_no_other(hearth_on: Start) -> None:
    hearth = hearth_on("node-a", "node-b")
    hearth.until(lambda: hearth.reports("node-a", "node-b"), "the nodes report")
    version, node = hearth.model("full", SIZE), hearth.kube.nodes["node-a"]
    # Somebody else takes the room after it was promised.
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(hearth.pool.pk,)))
    node.fill(shutil.disk_usage(node.store).free - SIZE // 2)
    try:

        def refused() -> bool:
            entry = hearth.entry("node-a", version)
            return entry is not None and entry.state == EntryState.FAILED and "InsufficientCapacity" in entry.reason

        hearth.until(lambda: hearth.is_ready(version, "node-b"), "the other node is warm")
        hearth.until(lambda: refused() or is_refused(hearth, "node-a"), "the full one says so")
        assert hearth.content("node-a", version) == {}
        assert others(hearth, "node-a") > SIZE, "who took the room is said"
    finally:
        node.fill(0)
    hearth.until(lambda: others(hearth, "node-a") < SIZE, "it says that it has room")
    hearth.until(warm_again(hearth, "node-a", version), "with room again it is warm")
    assert hearth.content("node-a", version) == hearth.wanted_content(version)


def others(hearth: HearthOnKube, node: str) -> int:
    """Bytes on a node's disk that are not Hearth's."""
    row = hearth.node(node)
    assert row is not None
    return row.other_bytes


def is_refused(hearth: HearthOnKube, node: str) -> bool:
    """By the plan, before a byte was asked for."""
    loop = hearth.pool.loop
    loop.refresh_from_db()
    refusals = (loop.plan or {}).get("refusals", [])
    return any(line["node"] == node and line["reason"] == Reason.INSUFFICIENT_CAPACITY for line in refusals)
