"""Hostile documents on a real API server: refused with the field and a reason, or kept as they are; nothing runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from caches.models import Pin
from caches.services.endpoints.rounds import endpoints_round
from controlplane.clusters.endpoints import EndpointOwner
from controlplane.clusters.gateway import EventType, Kind, WatchEvent
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.serving.models import Endpoint
from controlplane.serving.sinks import ServingSink
from tests.kube.endpoint_kinds import API, MANIFESTS, endpoint_kinds
from tests.kube.world import KubeWorld
from tests.plugins.kube import KubeApi
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
PATH = f"{API}/namespaces/default/{names.CONFIGS}"
ELSEWHERE = {"name": "s", "key": "k", "namespace": "kube-system"}
HUB = {"modelId": "org/name", "tokenSecretRef": {"name": "hf", "key": "token", "namespace": "kube-system"}}
LONG = [{"name": f"V{number}", "value": "x" * 120_000} for number in range(9)]
# By name: the change of the printed document, and the field that its condition names.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "megabyte": ({"worker": {"environmentVariables": LONG}}, "The document has 1080"),
    "long": ({"worker": {"environmentVariables": LONG[1:]}}, "spec.worker.environmentVariables: The environment has"),
    "folder": (
        {"kubernetes": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
        "spec.kubernetes.volumes[0].hostPath: A pod of an endpoint mounts no folder",
    ),
    "secret": (
        {"worker": {"environmentVariables": [{"name": "T", "valueFrom": {"secretKeyRef": ELSEWHERE}}]}},
        "secretKeyRef.namespace: an endpoint uses objects of its own namespace",
    ),
    "token": (
        {"modelSourceConfig": {"modelSourceType": "huggingface", "huggingFaceModel": HUB}},
        "tokenSecretRef.namespace: The token's Secret is one of the endpoint's own namespace.",
    ),
    "climbs": ({"modelSourceConfig": {"modelLocation": "a/../../etc"}}, "spec.modelSourceConfig.modelLocation"),
    "root": ({"modelCacheConfig": {"weightsCache": {"enabled": True, "hostPath": "/x/../etc"}}}, "hostPath"),
    "power": (
        {"kubernetes": {"initContainers": [{"name": "x", "securityContext": {"privileged": True}}]}},
        "spec.kubernetes.initContainers[0].securityContext.privileged",
    ),
}  # fmt: skip


def document(name: str, change: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(yaml.safe_load(MANIFESTS[0].read_text()))
    made["metadata"]["name"] = name
    for field, value in change.items():
        made["spec"][field] = {**made["spec"].get(field, {}), **value} if isinstance(value, dict) else value
    return made


def condition(client: KubeClient, name: str, type_: str) -> dict[str, Any]:
    [found] = [one for one in client.get(f"{PATH}/{name}")["status"]["conditions"] if one["type"] == type_]
    return dict(found)


def test_what_is_hostile_is_refused_with_a_reason_and_what_is_unknown_is_kept(
    make_world: Callable[..., KubeWorld], kube_api: KubeApi
) -> None:
    client = KubeClient(lambda: access_for(str(kube_api.kubeconfig)))
    with endpoint_kinds(client):
        world = make_world(nodes=1)
        for name, (change, _) in REFUSED.items():
            client.create(PATH, document(name, change), manager="somebody")
        unknown = document("unknown", {"somethingNew": {"deep": [1, {"x": "y" * 100_000}]}})
        client.create(PATH, unknown, manager="somebody")
        until(lambda: world.gateway.endpoint_owner() is EndpointOwner.HEARTH, "the kinds are Hearth's")
        now, sink = datetime.now(UTC), ServingSink()
        seen = world.gateway.list(Kind.ENDPOINT).items
        events = [WatchEvent(EventType.ADDED, Kind.ENDPOINT, "t", item) for item in seen]
        sink.changed(str(world.cluster.pk), tuple(events), now)
        assert Endpoint.objects.count() == len(REFUSED) + 1
        assert endpoints_round(cluster_id=world.cluster.pk) == len(REFUSED) + 1

        for name, (_, words) in REFUSED.items():
            told = condition(client, name, "Accepted")
            assert (told["status"], told["reason"]) == ("False", "Refused") and words in told["message"], told
            assert not told["message"].startswith(":"), "what is no field's needs none"
            assert client.get(f"{PATH}/{name}")["status"]["state"] == "DeploymentFailed"
        assert condition(client, "unknown", "Accepted")["status"] == "True"
        assert "somethingNew" in condition(client, "unknown", "FieldsIgnored")["message"]
        assert client.get(f"{PATH}/unknown")["spec"]["somethingNew"] == unknown["spec"]["somethingNew"]
        assert client.get("/apis/apps/v1/namespaces/default/deployments")["items"] == []
        assert not Pin.objects.exists()
