"""The launches of an endpoint on real nodes, told apart by what the cluster itself says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from caches.domain.launches.losses import HEARD_WITHIN
from caches.domain.launches.words import PHASES, EventClass, Mark, Phase
from caches.models import Launch, LaunchLog, LaunchObservation
from caches.services.launches.assembly import launches_assemble
from caches.services.launches.logs import launch_logs_read
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import Node
from controlplane.embedded.kube.node import KubeNode
from routing.services.intake import figures_take
from tests.kube.endpoint_walk import PODS, TYPE, TYPE_LABEL, WORK, Walk
from tests.waiting import until

_PULLED = re.compile(r"pulled image .* in \S+ \((?P<whole>[\d.]+)(?P<unit>ms|s) including waiting\)")


def only_this_node_is_new(walk: Walk, name: str) -> None:
    """Machines of tests have just been made, all of them: let the others be there for a day."""
    nodes = Node.objects.filter(cluster=walk.hearth.row, lost_at=None)
    nodes.exclude(name=name).update(joined_at=timezone.now() - timedelta(days=1))
    nodes.filter(name=name).update(joined_at=timezone.now() - timedelta(minutes=1))


def a_machine_is_lost_with_its_pod(walk: Walk, location: str, gpus: int) -> None:
    """Nowhere else is room for its successor: it waits until another machine has the name."""
    hearth, client = walk.hearth, walk.hearth.client
    [victim] = [pod for pod in walk.pods() if pod["spec"]["nodeName"] == "node-c"]
    node, row = hearth.kube.nodes["node-c"], hearth.node("node-c")
    assert row is not None
    made = max(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in walk.pods())
    until(lambda: timezone.now() > made + HEARD_WITHIN + timedelta(seconds=1), "no other start may be its successor")
    node.remove()
    try:
        hearth.until(lambda: Node.objects.get(pk=row.pk).lost_at is not None, "it is lost")
        client.delete(f"{PODS}/{victim['metadata']['name']}", grace_seconds=0)
        hearth.until(lambda: _waits_for_a_node() is not None, "its successor waits for a node", seconds=120)
    finally:
        hearth.kube.place(KubeNode(hearth.kube, node.options))
    labels = {**hearth.pool.selector, TYPE_LABEL: TYPE}
    client.merge(f"{names.NODES}/node-c", {"metadata": {"labels": labels}}, manager="test")
    capacity = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(gpus)}]
    client.patch(f"{names.NODES}/node-c/status", capacity, manager="test")
    # No round of Hearth's comes before the pod, so that the machine is cold for sure.
    until(lambda: client.get(WORK)["status"].get("availableReplicas") == 5, "five serve again", seconds=300)
    hearth.until(lambda: hearth.is_ready(walk.version(location), "node-c"), "and the machine is warm", seconds=180)


def _waits_for_a_node() -> Launch | None:
    launches_assemble()
    waiting = Launch.objects.filter(state="Starting", reached=Phase.WAITING, node=None)
    return waiting.filter(observations__mark=Mark.NOTED, observations__facts__reason="FailedScheduling").first()


def a_pod_that_says_what_it_uses(walk: Walk, location: str) -> None:
    """Nobody's endpoint: its annotation makes its start a launch. Its image is pulled whatever is there."""
    hearth, client, artifact = walk.hearth, walk.hearth.client, walk.version(location).artifact
    assert artifact is not None
    image = walk.document["spec"]["worker"]["image"]
    document = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "consumer", "annotations": {names.WEIGHTS_ANNOTATION: artifact.digest}},
        "spec": {
            "nodeName": "node-a", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "uses", "image": image, "imagePullPolicy": "Always"}],
        },
    }  # fmt: skip
    uid = client.create(PODS, document, manager="test")["metadata"]["uid"]
    try:
        hearth.until(lambda: _is_taken_in() and _pulls(walk, uid), "its pull is known", seconds=120)
        pulls = _pulls(walk, uid)
        assert pulls is not None and pulls[0] == pulls[1], "pull seconds are the kubelet's"
        launch = Launch.objects.get(pod_uid=uid)
        assert (launch.container, launch.endpoint_name, launch.image) == ("uses", "", "Miss")
        hearth.until(
            lambda: _is_taken_in() and Launch.objects.get(pod_uid=uid).state == "Ready", "it is ready", seconds=120
        )
        assert Launch.objects.get(pod_uid=uid).phase_seconds[PHASES.index(Phase.IMAGE_PULL)] is not None
    finally:
        client.delete(f"{PODS}/consumer", grace_seconds=0)


def a_launch_of_each_class(walk: Walk) -> dict[str, int]:
    """Every class, provoked and told apart. How many launches there were of each."""
    hearth = walk.hearth
    hearth.until(_is_taken_in, "what was seen is taken in", seconds=120)
    rows = list(Launch.objects.filter(endpoint_name="default/chat-small").order_by("began_at"))
    of = {kind: [row for row in rows if row.event_class == kind and row.state == "Ready"] for kind in EventClass}
    said = [(row.event_class, row.state, row.node_name, row.weights, row.image, row.restart_count) for row in rows]
    assert {row.container for row in rows} == {"server"} and not of[EventClass.UNKNOWN], said
    assert len({row.version_name for row in of[EventClass.NEW_VERSION]}) >= 2, said
    restarts = of[EventClass.WARM_RESTART]
    assert restarts and {row.restart_count for row in restarts} == {1}, said
    assert {row.image for row in restarts} == {"Hit"}, said
    assert {tuple(row.phase_seconds[:3]) for row in restarts} == {(0, 0, 0)}, "it stays where it is, with what it has"
    cold = of[EventClass.COLD_POD]
    assert len(cold) >= 4 and {row.weights for row in cold} == {"Hit"}, said
    assert {row.node_name for row in cold} <= {"node-a", "node-b"}, said
    [fresh] = of[EventClass.NEW_NODE]
    assert (fresh.node_name, fresh.weights) == ("node-c", "Miss"), said
    [recovered] = of[EventClass.NODE_LOSS]
    assert (recovered.node_name, recovered.weights) == ("node-c", "Miss"), said
    assert recovered.node_id != fresh.node_id, "another machine has the name"
    assert recovered.phase_seconds[0] is not None and recovered.phase_seconds[0] >= 1, "it waited for a node"
    _logs_and_router(rows)
    return {kind.value: len(some) for kind, some in of.items()}


def _is_taken_in() -> bool:
    while figures_take():
        pass
    launches_assemble()
    launch_logs_read(limit=100)
    return not (
        Launch.objects.filter(stale_at__isnull=False).exists() or LaunchLog.objects.filter(state="Due").exists()
    )


def _pulls(walk: Walk, uid: str) -> tuple[list[float], list[float]] | None:
    """The seconds of a pod's pulls, as its kubelet's events say them and as they are stored; None before both."""
    events = walk.hearth.client.get("/api/v1/namespaces/default/events", {"fieldSelector": f"involvedObject.uid={uid}"})
    told = sorted(seconds for one in events["items"] if (seconds := _seconds(one)) is not None)
    pulled = LaunchObservation.objects.filter(launch__pod_uid=uid, mark=Mark.PULLED)
    stored = sorted(one.seconds or 0 for one in pulled)
    return (told, stored) if told and stored else None


def _seconds(event: Mapping[str, Any]) -> float | None:
    found = _PULLED.search(event["message"])
    return round(float(found["whole"]) * (0.001 if found["unit"] == "ms" else 1), 6) if found else None


def _logs_and_router(rows: list[Launch]) -> None:
    """What only a runtime's log and a router know."""
    load, first = PHASES.index(Phase.WEIGHTS_LOAD), PHASES.index(Phase.FIRST_REQUEST)
    loaded = [row.phase_seconds[load] for row in rows if row.phase_seconds[load] is not None]
    assert len(loaded) >= 4, "the logs of those that are there were read"
    served = [row for row in rows if row.phase_seconds[first] is not None]
    assert len(served) >= 3 and {row.phases[first]["observer"] for row in served} == {"Router"}
