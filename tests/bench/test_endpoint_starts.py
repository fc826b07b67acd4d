"""``make bench``: how long a replica takes from the request to Ready on real nodes, cold against warm, and a burst.

A model of 1 GiB lies on the S3 server, an image with 384 MiB of its own in the registry. Every start is asked for
through ``/scale``, as an autoscaler does, and timed until its pod is Ready; the kubelet says what the pull took, the
ensure step what the weights took. Nodes, servers and Hearth share one machine: ratios mean more than seconds.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from caches.models import CacheEntry
from controlplane.clusters.gateway import GatewayError
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.embedded.kube.cluster import KubeCluster, missing_for_nodes
from tests.kube.bursts import Start, burst
from tests.kube.endpoint_kinds import MANIFESTS, Kubectl, endpoint_kinds
from tests.kube.endpoint_server import RECIPE, SERVER
from tests.kube.endpoint_walk import NAME, PATH, PODS, TYPE, TYPE_LABEL, WORK, Walk, with_keys
from tests.kube.hearth import LABEL, POOL, HearthOnKube
from tests.kube.installed import answers
from tests.kube.real import InstalledKube, hearth_on, installed_kube
from tests.plugins.kube import running
from tests.waiting import until

__all__ = ["hearth_on", "installed_kube"]  # fixtures
pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

MIB = 1024 * 1024
WEIGHTS = int(os.environ.get("HEARTH_BENCH_WEIGHTS_MIB", "1024")) * MIB
IMAGE = int(os.environ.get("HEARTH_BENCH_IMAGE_MIB", "384")) * MIB
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
LOCATION = "llms/bench"
NODES = ("node-a", "node-b", "node-c")
JOINING = "node-d"
GPUS = {"node-a": 8, "node-b": 8, "node-c": 4, JOINING: 4}
LONG = 900.0  # seconds; nothing here is a limit that anybody should come near


@pytest.fixture(scope="session")
def kube_cluster() -> Iterator[KubeCluster]:
    """Nodes with room for the model."""
    if missing := missing_for_nodes():
        pytest.skip(missing)
    with running("A bench", registry=True) as cluster:
        for name in NODES:
            cluster.add_node(name, disk_bytes=2 * WEIGHTS)
        yield cluster


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one start; ``pull`` and ``fetch`` are parts of ``ready``. ``found`` is the ensure step's word."""

    node: str
    ready: float
    pull: float
    fetch: float
    found: str


class Watch:
    """Looks at the endpoint's pods ten times a second, and remembers when each was Ready first."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = KubeClient(lambda: access_for(str(kubeconfig)))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.ready: dict[str, float] = {}

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            try:
                pods = self._client.get(PODS, {"labelSelector": f"app={NAME}"})["items"]
            except GatewayError:
                continue
            for pod in pods:
                turned = {one["type"]: one["status"] for one in pod["status"].get("conditions") or ()}
                if turned.get("Ready") == "True":
                    self.ready.setdefault(pod["metadata"]["name"], time.monotonic())


def test_starts_of_an_endpoint(
    installed_kube: InstalledKube,
    hearth_on: Callable[..., HearthOnKube],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = installed_kube.client
    load = [os.getloadavg()[0]]
    with endpoint_kinds(client):
        for node in NODES:
            furnish(client, node)
        hearth = hearth_on(*NODES)
        walk = Walk(hearth, Kubectl(hearth.kube.kubeconfig))
        hearth.until(lambda: hearth.reports(*NODES), "the nodes report", seconds=LONG)
        without_caches(walk, large_image(hearth.kube, tmp_path))
        cold = [one_more(walk, node, number) for number, node in enumerate(NODES, start=1)]
        assert {one.found for one in cold} == {"miss"}
        cached(walk)
        warm = []
        for _ in range(ROUNDS):
            nobody(walk)
            warm += [one_more(walk, node, number) for number, node in enumerate(NODES, start=1)]
        assert {one.found for one in warm} == {"hit"}
        nobody(walk)
        at_once = five_while_a_node_joins(walk)
        client.delete(WORK)
    load.append(os.getloadavg()[0])
    with capsys.disabled():
        print(f"\nload of the machine at the beginning and at the end: {load[0]:.1f}, {load[1]:.1f}")
        print("\n".join(table(cold, warm)))
        print("\n".join(str(start) for start in at_once))
    assert len(at_once) == 5 and None not in [start.ready for start in at_once]


def furnish(client: KubeClient, node: str) -> None:
    """It looks as the manifest wants it."""
    client.merge(f"{names.NODES}/{node}", {"metadata": {"labels": {TYPE_LABEL: TYPE}}}, manager="test")
    gpus = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS[node])}]
    client.patch(f"{names.NODES}/{node}/status", gpus, manager="test")


def large_image(cluster: KubeCluster, folder: Path) -> str:
    """The server of the tests with bytes that no compression helps; what lies below them is on every node already."""
    (folder / "server.py").write_text(SERVER)
    with (folder / "bytes").open("wb") as file:
        for _ in range(IMAGE // MIB):
            file.write(os.urandom(MIB))
    recipe = folder / "Dockerfile"
    recipe.write_text(f"{RECIPE % 'bench'}COPY bytes /bytes\n")
    made = cluster.build_image(folder, recipe, "bench/engine:1")
    (folder / "bytes").unlink()
    return made


def without_caches(walk: Walk, image: str) -> None:
    """Served by no pod yet, and kept nowhere."""
    walk.put(LOCATION, WEIGHTS)
    text = MANIFESTS[0].read_text().replace("bucketName: models", f"bucketName: {walk.hearth.bucket.name}")
    walk.document = yaml.safe_load(text.replace("vllm/vllm-openai:latest", image).replace("llms/chat-small", LOCATION))
    with_keys(walk)
    probe = {"readinessProbe": {"httpGet": {"path": "/ping", "port": 8000}, "periodSeconds": 1}}
    off = {"weightsCache": {"enabled": False}, "imageCache": {"enabled": False}}
    walk.document["spec"]["replicas"] = 0
    walk.apply(modelCacheConfig=off, worker={"probes": probe})
    walk.hearth.until(lambda: answers(walk.hearth.client, WORK), "there is a Deployment", seconds=LONG)
    assert not CacheEntry.objects.exists()


def cached(walk: Walk) -> None:
    on = {"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}}
    walk.apply(modelCacheConfig=on)
    hearth, version = walk.hearth, walk.version(LOCATION)
    hearth.until(lambda: hearth.is_ready(version, *NODES), "the weights are on all nodes", seconds=LONG)

    def image_kept() -> bool:
        status = hearth.client.get(PATH).get("status") or {}
        return bool((status.get("imageCacheStatus") or {}).get("state") == "Ready")

    hearth.until(image_kept, "and the image", seconds=LONG)


def scale(walk: Walk, replicas: int) -> None:
    walk.hearth.client.merge(f"{PATH}/scale", {"spec": {"replicas": replicas}}, manager="autoscaler")
    walk.document["spec"]["replicas"] = replicas


def nobody(walk: Walk) -> None:
    scale(walk, 0)
    query = {"labelSelector": f"app={NAME}"}
    walk.hearth.until(lambda: not walk.hearth.client.get(PODS, query)["items"], "no pod is left", seconds=LONG)


def one_more(walk: Walk, node: str, replicas: int) -> Timed:
    """One replica more, on this node, with nothing else going on."""
    client = walk.hearth.client
    for other in NODES:
        client.merge(f"{names.NODES}/{other}", {"spec": {"unschedulable": other != node}}, manager="test")
    before = {pod["metadata"]["name"] for pod in walk.pods()}
    with Watch(walk.hearth.kube.kubeconfig) as watch:
        asked = time.monotonic()
        scale(walk, replicas)
        walk.hearth.until(lambda: watch.ready.keys() - before, f"one more on {node}", seconds=LONG)
        [name] = watch.ready.keys() - before
        took = watch.ready[name] - asked
    [pod] = [pod for pod in walk.pods() if pod["metadata"]["name"] == name]
    assert pod["spec"]["nodeName"] == node
    for other in NODES:
        client.merge(f"{names.NODES}/{other}", {"spec": {"unschedulable": None}}, manager="test")
    ended = json.loads(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"])
    return Timed(node, took, pull_seconds(client, pod), float(ended["seconds"]), ended["found"])


def pull_seconds(client: KubeClient, pod: dict[str, Any]) -> float:
    """What the kubelet says of the served image; 0 where it was there."""
    query = {"fieldSelector": f"involvedObject.uid={pod['metadata']['uid']},reason=Pulled"}
    image = pod["spec"]["containers"][0]["image"]
    path = "/api/v1/namespaces/default/events"

    def told() -> list[str]:
        return [event["message"] for event in client.get(path, query)["items"] if image in event["message"]]

    until(lambda: bool(told()), "the kubelet says how it got the image")
    found = re.search(r" in (?:(\d+)m)?([\d.]+)(ms|s)", told()[0])
    if found is None:
        return 0.0
    seconds = float(found[2]) / (1000 if found[3] == "ms" else 1)
    return 60 * int(found[1] or 0) + seconds


def five_while_a_node_joins(walk: Walk) -> Sequence[Start]:
    """Two warm nodes have room for four; the machine that the fifth needs comes while they start."""
    hearth, client = walk.hearth, walk.hearth.client
    client.merge(f"{names.NODES}/node-c", {"spec": {"unschedulable": True}}, manager="test")
    requested = datetime.now(UTC)
    scale(walk, 5)
    hearth.until(lambda: client.get(WORK)["spec"]["replicas"] == 5, "the scale reaches the Deployment", seconds=LONG)
    hearth.kube.add_node(JOINING, disk_bytes=2 * WEIGHTS, labels={LABEL: POOL})
    furnish(client, JOINING)
    hearth.until(lambda: client.get(WORK)["status"].get("availableReplicas") == 5, "five serve", seconds=LONG)
    events = client.get("/api/v1/namespaces/default/events", {"fieldSelector": "involvedObject.kind=Pod"})["items"]
    return burst(requested, walk.pods(), events)


def table(cold: Sequence[Timed], warm: Sequence[Timed]) -> Iterator[str]:
    """Medians with their ranges, and how much shorter warm is."""
    yield f"{'seconds':24}{'cold':>20}{'warm':>20}{'shorter by':>12}"
    parts = {"ready": "request to ready", "fetch": "weights (ensure step)", "pull": "image (kubelet's pull)"}
    for part, name in parts.items():
        sides = [sorted(float(getattr(one, part)) for one in side) for side in (cold, warm)]
        medians = [statistics.median(side) for side in sides]
        told = [f"{m:.2f} ({s[0]:.2f}-{s[-1]:.2f})" for m, s in zip(medians, sides, strict=True)]
        yield f"{name:24}{told[0]:>20}{told[1]:>20}{1 - medians[1] / medians[0]:>11.0%}"
    yield f"{len(cold)} cold and {len(warm)} warm starts, one at a time"
