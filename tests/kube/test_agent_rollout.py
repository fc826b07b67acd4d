"""The agents of a pool on real nodes: Hearth places them, they run without power over the machine, and they report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caches.models import PoolLoop
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import Node
from tests.kube.hearth import AGENT_PODS, HearthOnKube, agents, seconds_since

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

DAEMON_SET = f"{names.DAEMON_SETS}/hearth-agent-gpu"


def test_it_runs_an_agent_on_each_node_of_the_pool(
    hearth_on: Callable[..., HearthOnKube], measured: Callable[[str, object], None]
) -> None:
    hearth = hearth_on("node-a", "node-b", "node-c")
    reported = hearth.until(lambda: hearth.reports("node-a", "node-b", "node-c"), "each node reports")
    measured("seconds_until_all_report", round(reported, 1))

    def all_ready() -> bool:
        return bool(hearth.client.get(DAEMON_SET)["status"].get("numberReady") == 3)

    hearth.until(all_ready, "the DaemonSet is ready")
    for name in ("node-a", "node-b", "node-c"):
        pod, cache = hearth.agent_pod(name), hearth.cache(name)
        assert pod is not None and cache is not None and cache.status is not None
        started = next(row for row in pod["status"]["conditions"] if row["type"] == "Ready")["lastTransitionTime"]
        measured(f"{name}_seconds_to_ready", seconds_since(pod["metadata"]["creationTimestamp"], started))
        assert "running" in pod["status"]["containerStatuses"][0]["state"]
        # The disk of this very node: its size is known here.
        node = Node.objects.get(name=name, lost_at=None)
        assert node.capacity_bytes == hearth.kube.nodes[name].options.disk_bytes
        assert (cache.node_uid, cache.spec.pool) == (hearth.kube.nodes[name].uid, "gpu")
    hearth.until(lambda: PoolLoop.objects.get(pool=hearth.pool).error == "", "nothing is wrong")

    # A new one takes its place as soon as it has ended by itself, not at the end of its grace.
    pod, machine = hearth.agent_pod("node-a"), hearth.kube.nodes["node-a"]
    assert pod is not None
    [before] = agents(machine)
    hearth.client.delete(f"{AGENT_PODS}/{pod['metadata']['name']}")
    measured("seconds_to_end", round(hearth.until(lambda: before not in agents(machine), "it ends"), 1))
    measured("seconds_to_replace", round(hearth.until(lambda: agents(machine), "another one runs"), 1))
