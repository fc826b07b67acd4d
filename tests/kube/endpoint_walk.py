"""What an endpoint goes through while it serves on real nodes: other weights, another image, no cache, a burst."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml

from caches.models import CacheEntry, ModelVersion, Pin, Rollout
from caches.services.endpoints.rollouts import rollout_release
from controlplane.audit.services import SYSTEM
from controlplane.clusters.gateway import GatewayError
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import NodePool
from tests.kube.bursts import Start, burst
from tests.kube.endpoint_kinds import API, Kubectl
from tests.kube.endpoint_server import Requests
from tests.kube.hearth import MIB, HearthOnKube, noise
from tests.waiting import until

NAME = "chat-small"
WORK = f"/apis/apps/v1/namespaces/default/deployments/{NAME}"
SERVICE = f"/api/v1/namespaces/default/services/{NAME}"
PATH = f"{API}/namespaces/default/{names.CONFIGS}/{NAME}"
PODS = "/api/v1/namespaces/default/pods"
SECRET = "/api/v1/namespaces/default/secrets/reader"
TYPE_LABEL = "node.kubernetes.io/instance-type"
TYPE = "ml.g5.24xlarge"
SIZE = 8 * MIB


@dataclass
class Walk:
    """One endpoint on real nodes. ``document`` is what was applied last."""

    hearth: HearthOnKube
    kubectl: Kubectl
    document: dict[str, Any] = field(default_factory=dict)

    def put(self, location: str, size: int = SIZE) -> None:
        """A model of two files in the bucket; its files are called as its folder."""
        name = location.rpartition("/")[2]
        for number in (0, 1):
            content = noise(f"{self.hearth.bucket.name}/{location}/{number}", size // 2)
            self.hearth.bucket.put(f"{location}/{name}-{number}.safetensors", content)

    def apply(self, **spec: Any) -> None:
        """Apply the document with these fields below ``spec`` changed; mappings are merged."""
        made = copy.deepcopy(self.document)
        _merge(made["spec"], spec)
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(made))
        self.document = made

    def at(self, location: str) -> dict[str, Any]:
        """The field of a document that names another model."""
        return {"modelLocation": location}

    def until_rolled_out(self, number: int, state: str = "Holding") -> None:
        self.hearth.until(
            lambda: Rollout.objects.filter(number=number, state=state).exists(), f"rollout {number} is {state}",
            seconds=240,
        )  # fmt: skip

    def version(self, location: str) -> ModelVersion:
        found: ModelVersion = ModelVersion.objects.select_related("model", "artifact").get(
            uri=f"s3://{self.hearth.bucket.name}/{location}"
        )
        if found.artifact is not None:
            self.hearth.digests.add(found.artifact.digest)
        return found

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not on their way out."""
        found = self.hearth.client.get(PODS, {"labelSelector": f"app={NAME}"})["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def found(self) -> list[str]:
        """What the ensure step of each pod said."""
        told = [pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"] for pod in self.pods()]
        return [json.loads(message)["found"] for message in told]

    def condition(self, type_: str) -> dict[str, Any]:
        [found] = [one for one in self.hearth.client.get(PATH)["status"]["conditions"] if one["type"] == type_]
        return dict(found)

    def files(self) -> list[str]:
        """What the Service says it serves; nothing while it does not answer."""
        try:
            return list(self.hearth.client.get(f"{SERVICE}:8000/proxy/")["files"])
        except GatewayError:
            return []


def other_weights_and_back(walk: Walk, requests: Requests, old: str, new: str) -> None:
    """Another path is warmed, then served; the old one is held, going back finds it warm, also without a registry, and
    the other one goes."""
    hearth = walk.hearth
    walk.put(new)
    walk.apply(modelSourceConfig=walk.at(new))
    walk.until_rolled_out(2)
    first, second = walk.version(old), walk.version(new)
    assert hearth.is_ready(first, "node-a", "node-b") and hearth.is_ready(second, "node-a", "node-b")
    assert walk.files() == [f"{new.rpartition('/')[2]}-{number}.safetensors" for number in (0, 1)]
    ready = {entry.node_id: entry.ready_at for entry in CacheEntry.objects.filter(artifact=first.artifact)}

    pinned = Pin.objects.filter(version=second, image=None, removed_at=None)
    walk.apply(modelCacheConfig={"weightsCache": {"enabled": False}})
    hearth.until(lambda: not pinned.exists(), "what serves is let go of, and what is held is not")
    walk.apply(modelCacheConfig={"weightsCache": {"enabled": True}})
    hearth.until(pinned.exists, "it is pinned again")

    # Both nodes hold the image too: nobody asks the registry.
    hearth.kube.supervisor.kill("registry")
    try:
        walk.apply(modelSourceConfig=walk.at(old))
        walk.until_rolled_out(3)
    finally:
        hearth.kube.supervisor.restart("registry")
    assert Rollout.objects.get(number=2).state == "RolledBack" and walk.found() == ["hit"]
    again = {entry.node_id: entry.ready_at for entry in CacheEntry.objects.filter(artifact=first.artifact)}
    assert again == ready, "it was warm all the time: nothing was fetched"
    assert requests.is_whole()

    rollout_release(actor=SYSTEM, rollout_id=Rollout.objects.get(number=3).pk)
    walk.until_rolled_out(3, "Done")
    # Its last pod still answers for some seconds; nothing is taken from under it.
    hearth.until(
        lambda: not any(hearth.content(node, second) for node in ("node-a", "node-b")),
        "what is held no longer is removed", seconds=180,
    )  # fmt: skip


def cache_off_and_on(walk: Walk, requests: Requests, location: str) -> None:
    """The cache of a serving endpoint is switched: nothing but the cache changes."""
    hearth, version = walk.hearth, walk.version(location)
    [before] = walk.pods()
    pinned = Pin.objects.filter(removed_at=None)
    for cache in ("weightsCache", "imageCache"):
        walk.apply(modelCacheConfig={cache: {"enabled": False}})
    hearth.until(lambda: not pinned.exists(), "nothing is pinned")
    assert hearth.content(before["spec"]["nodeName"], version), "what a pod uses stays"
    for cache in ("weightsCache", "imageCache"):
        walk.apply(modelCacheConfig={cache: {"enabled": True}})
    hearth.until(lambda: pinned.filter(image=None).exists(), "it is pinned again")
    hearth.until(lambda: hearth.is_ready(version, "node-a", "node-b"), "and warm", seconds=180)
    assert requests.is_whole()
    assert [pod["metadata"]["uid"] for pod in walk.pods()] == [before["metadata"]["uid"]], "and no pod was replaced"


def no_room_then_another_image(walk: Walk, requests: Requests, location: str, large: str, image: str) -> None:
    """What does not fit beside its predecessor waits, with numbers; another image of what there is rolls out."""
    hearth = walk.hearth
    walk.put(large, 48 * MIB)
    nodes = [hearth.node(name) for name in ("node-a", "node-b")]
    used = max(node.used_bytes + node.other_bytes for node in nodes if node is not None)
    capacity = min(node.capacity_bytes or 0 for node in nodes if node is not None)
    pools = NodePool.objects.filter(pk=hearth.pool.pk)
    pools.update(high_watermark=(used + 24 * MIB) / capacity, low_watermark=0.01)
    walk.apply(modelSourceConfig=walk.at(large))
    walk.until_rolled_out(4, "WaitingForRoom")
    for _ in range(3):
        hearth.step()
    said = walk.condition("RolledOut")
    assert (said["status"], said["reason"]) == ("False", "InsufficientCapacity") and "48 MiB" in said["message"], said
    assert requests.is_whole(), "what serves goes on"

    pools.update(high_watermark=0.9, low_watermark=0.8)
    walk.apply(modelSourceConfig=walk.at(location), worker={"image": image})
    walk.until_rolled_out(5)
    assert Rollout.objects.get(number=4).state == "Superseded" and walk.found() == ["hit"]
    hearth.until(lambda: requests.answers[-1]["build"] == "2", "the other image answers")
    assert requests.is_whole()


def _asked(walk: Walk, requests: Requests, since: int) -> list[dict[str, Any]]:
    """The five that are ready, once each of them was asked. Others may be there: what a kubelet would not admit stays
    as Failed, and the Deployment makes another in its place."""
    told: dict[str, Any] = {}

    def each() -> bool:
        told.clear()
        told.update({pod["metadata"]["name"]: pod["status"] for pod in walk.pods()})
        ready = {name for name, status in told.items() if _is_ready(status)}
        return requests.is_whole() and len(ready) == 5 and ready <= requests.pods(since)

    try:
        until(each, "each of them is asked", seconds=120)
    except AssertionError as error:
        error.add_note(f"{sorted(requests.pods(since))} of {told}")
        raise
    return [pod for pod in walk.pods() if _is_ready(pod["status"])]


def _is_ready(status: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())


def five_at_once_while_a_node_joins(walk: Walk, requests: Requests, location: str) -> list[Start]:
    """Two warm nodes have room for four; the fifth runs on the one that joins, which is warm afterwards."""
    hearth, client = walk.hearth, walk.hearth.client
    requested, since = datetime.now(UTC), len(requests.answers)
    walk.kubectl("scale", f"{names.CONFIGS}/{NAME}", "--replicas=5")
    walk.document["spec"]["replicas"] = 5
    hearth.until(lambda: client.get(WORK)["spec"]["replicas"] == 5, "the scale reaches the Deployment")
    # No round of Hearth's comes before the pod, so that the node is cold for sure.
    client.merge(f"{names.NODES}/node-c", {"metadata": {"labels": {TYPE_LABEL: TYPE}}}, manager="test")
    until(lambda: client.get(WORK)["status"].get("availableReplicas") == 5, "five serve", seconds=240)
    pods = _asked(walk, requests, since)
    restarts = [s["restartCount"] for pod in pods for s in _statuses(pod["status"])]
    assert restarts == [0] * 10, "slowly, but without a failure"

    version = walk.version(location)
    assert hearth.content("node-c", version) == hearth.content("node-a", version), "the slow way leaves it there"
    hearth.until(lambda: hearth.is_ready(version, "node-c"), "and the node is warm", seconds=180)
    events = client.get("/api/v1/namespaces/default/events", {"fieldSelector": "involvedObject.kind=Pod"})["items"]
    told = burst(requested, pods, events)
    assert [one.found for one in told if one.node == "node-c"] == ["miss"]
    assert [one.found for one in told if one.node != "node-c"] == ["hit"] * 3
    assert None not in [one.ready for one in told]
    return told


def with_keys(walk: Walk) -> None:
    """Pods of the document fetch by themselves where an agent is slow to answer, with keys of their own namespace."""
    keys = walk.hearth.bucket.secret
    values = {"access-key-id": keys["access_key_id"], "secret-access-key": keys["secret_access_key"]}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "reader"}, "stringData": values}
    walk.hearth.client.apply(SECRET, document, manager="test", force=True)
    walk.document["metadata"]["annotations"] = {"hearth.dev/source-secret": "reader"}


def _statuses(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*status["initContainerStatuses"], *status["containerStatuses"]]


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value
