"""Endpoints through the gateway on a real API server: seen, changed without force, served, mirrored, released."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from caches.domain.endpoints.specs import read_endpoint
from caches.domain.endpoints.workload import Served, deployment, service
from controlplane.clusters.endpoints import CacheMirror, EndpointName, EndpointOwner, MirrorKind, ObservedEndpoint
from controlplane.clusters.gateway import Conflict, EventType, Gone, Kind, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from tests.contracts.kube import prepare
from tests.contracts.observing import changes
from tests.kube.endpoint_kinds import API, MANIFESTS, endpoint_kinds, release
from tests.plugins.kube import KubeApi
from tests.waiting import until

CONFIG = yaml.safe_load(MANIFESTS[0].read_text())
OF = EndpointName("InferenceEndpointConfig", "default", "chat-small")
PATH = f"{API}/namespaces/default/{names.CONFIGS}"
WORK = "/apis/apps/v1/namespaces/default/deployments/chat-small"
SERVICE = "/api/v1/namespaces/default/services/chat-small"


@pytest.fixture(scope="module")
def client(kube_api: KubeApi) -> Iterator[KubeClient]:
    made = KubeClient(lambda: access_for(str(kube_api.kubeconfig)))
    prepare(made)
    gateway = KubernetesGateway("before", client=made)
    before = gateway.list(Kind.ENDPOINT)
    assert before.items == () and gateway.endpoint_owner() is EndpointOwner.NOBODY
    assert changes(gateway, Kind.ENDPOINT, before.token) == [], "a kind that is not there can be waited for"
    with endpoint_kinds(made):
        with pytest.raises(Gone):
            list(gateway.watch(Kind.ENDPOINT, before.token, 0.0))
        yield made


@pytest.fixture
def gateway(client: KubeClient) -> Iterator[KubernetesGateway]:
    yield KubernetesGateway("test", client=client)
    release(client, names.CONFIGS)
    for path in (f"{PATH}/chat-small", WORK, SERVICE):
        client.delete(path)


def made(client: KubeClient, **metadata: Any) -> dict[str, Any]:
    """As somebody applies it with kubectl."""
    document = copy.deepcopy(CONFIG)
    document["metadata"] |= metadata
    return client.apply(f"{PATH}/chat-small", document, manager="kubectl-client-side-apply")


def seen(gateway: KubernetesGateway) -> ObservedEndpoint:
    [item] = gateway.list(Kind.ENDPOINT).items
    assert isinstance(item, ObservedEndpoint)
    return item


def test_it_sees_endpoints_come_change_and_go(gateway: KubernetesGateway, client: KubeClient) -> None:
    token = gateway.list(Kind.ENDPOINT).token
    made(client, annotations={"hearth.dev/gate": "Count:1"})
    item = seen(gateway)
    assert (item.of, item.generation, item.status) == (OF, 1, {})
    assert read_endpoint(item.document).spec is not None and gateway.endpoint_owner() is EndpointOwner.HEARTH
    client.merge(f"{PATH}/chat-small", {"spec": {"replicas": 3}}, manager="test")
    client.delete(f"{PATH}/chat-small")
    events = changes(gateway, Kind.ENDPOINT, token, last=EventType.DELETED)
    told = [(event.type, getattr(event.object, "generation", 0)) for event in events]
    assert told[0] == (EventType.ADDED, 1) and (EventType.MODIFIED, 2) in told and told[-1][0] is EventType.DELETED
    assert gateway.list(Kind.JUMPSTART_MODEL).items == ()


def test_a_finalizer_holds_an_endpoint_until_it_is_taken_away(gateway: KubernetesGateway, client: KubeClient) -> None:
    uid = made(client, finalizers=["other/one"])["metadata"]["uid"]
    for _ in range(2):
        gateway.set_endpoint_finalizer(OF, uid, True)
    assert seen(gateway).finalizers == ("other/one", names.FINALIZER)
    gateway.set_endpoint_finalizer(OF, "another-uid", False)
    gateway.delete_endpoint(OF, uid)
    assert seen(gateway).deleting_at is not None
    gateway.set_endpoint_finalizer(OF, uid, False)
    assert seen(gateway).finalizers == ("other/one",), "that of somebody else is theirs to remove"
    release(client, names.CONFIGS)
    until(lambda: gateway.list(Kind.ENDPOINT).items == (), "it is gone")
    gateway.set_endpoint_finalizer(OF, uid, False)


def test_the_caches_of_an_endpoint_that_others_reconcile_are_set_and_nothing_else(
    gateway: KubernetesGateway, client: KubeClient
) -> None:
    document = copy.deepcopy(CONFIG)
    del document["spec"]["modelCacheConfig"]
    stored = client.apply(f"{PATH}/chat-small", document, manager="kubectl-client-side-apply")
    uid = stored["metadata"]["uid"]
    gateway.set_endpoint_cache(OF, uid, {"weightsCache": {"enabled": True}, "imageCache": {"enabled": False}})
    gateway.set_endpoint_cache(OF, uid, {"weightsCache": {"enabled": False}, "imageCache": {"enabled": False}})
    spec = client.get(f"{PATH}/chat-small")["spec"]
    assert spec.pop("modelCacheConfig") == {"weightsCache": {"enabled": False}, "imageCache": {"enabled": False}}
    assert spec == stored["spec"]

    with pytest.raises(Refused, match="uid"):
        gateway.set_endpoint_cache(OF, "another-uid", {"weightsCache": {"enabled": True}})
    on = {"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}}
    gateway.set_endpoint_cache(OF, uid, on)
    made(client)  # kubectl says the same of caches from now on: they are both's
    with pytest.raises(Conflict) as caught:
        gateway.set_endpoint_cache(OF, uid, on | {"imageCache": {"enabled": False}})
    assert "kubectl-client-side-apply" in caught.value.managers


def test_a_status_is_written_for_the_very_object(gateway: KubernetesGateway, client: KubeClient) -> None:
    uid = made(client)["metadata"]["uid"]
    status = {"state": "DeploymentPending", "observedGeneration": 1, "replicas": 0, "selector": "app=chat-small"}
    gateway.set_endpoint_status(OF, uid, status)
    gateway.set_endpoint_status(OF, uid, status)
    assert seen(gateway).status == status and seen(gateway).generation == 1
    with pytest.raises(Refused):
        gateway.set_endpoint_status(OF, "another-uid", status)
    with pytest.raises(Refused):
        gateway.set_endpoint_status(OF, uid, {"state": "Fine"})


def test_it_changes_an_endpoint_without_force(gateway: KubernetesGateway, client: KubeClient) -> None:
    gateway.apply_endpoint(CONFIG, dry_run=True)
    assert gateway.list(Kind.ENDPOINT).items == ()
    made(client)
    gateway.apply_endpoint(CONFIG)
    changed = copy.deepcopy(CONFIG)
    changed["spec"]["worker"]["image"] = "other:1"
    with pytest.raises(Conflict, match="kubectl-client-side-apply") as error:
        gateway.apply_endpoint(changed)
    assert error.value.managers == ("kubectl-client-side-apply",)
    assert seen(gateway).spec["worker"]["image"] == CONFIG["spec"]["worker"]["image"]


def documents(replicas: int = 1, **metadata: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    document = copy.deepcopy(CONFIG)
    document["spec"]["replicas"] = replicas
    spec = read_endpoint(document).spec
    assert spec is not None
    served = Served("registry.invalid/x:1", "registry.invalid/hearth:1", "/opt/dlami/nvme", "sha256:" + "a" * 64)
    return deployment(spec, served), service(spec)


def test_it_serves_and_leaves_the_replicas_to_who_scales(gateway: KubernetesGateway, client: KubeClient) -> None:
    gateway.apply_served(*documents(2))
    status = gateway.workload_status("default", "chat-small")
    assert status is not None and status.wanted == 2
    assert client.get(SERVICE)["spec"]["ports"][0]["port"] == 8000
    gateway.apply_served(*documents(3))
    assert client.get(WORK)["spec"]["replicas"] == 3
    # As an autoscaler does it.
    scale = client.get(f"{WORK}/scale")
    client.merge(f"{WORK}/scale", {"spec": {"replicas": scale["spec"]["replicas"] + 2}}, manager="autoscaler")
    gateway.apply_served(*documents(1))
    assert client.get(WORK)["spec"]["replicas"] == 5
    gateway.apply_served(*documents(1))
    assert client.get(WORK)["spec"]["replicas"] == 5, "also the second time"
    gateway.delete_served("default", "chat-small")
    assert gateway.workload_status("default", "chat-small") is None
    gateway.delete_served("default", "chat-small")


def test_it_touches_nothing_of_the_same_name_that_is_not_its_own(
    gateway: KubernetesGateway, client: KubeClient
) -> None:
    theirs, _ = documents()
    theirs["metadata"]["labels"] = {"app": "theirs"}
    before = client.create("/apis/apps/v1/namespaces/default/deployments", theirs, manager="somebody")
    with pytest.raises(Conflict, match="somebody else"):
        gateway.apply_served(*documents())
    gateway.delete_served("default", "chat-small")
    assert client.get(WORK)["metadata"]["labels"] == before["metadata"]["labels"]


def test_mirrors_are_written_again_and_removed(gateway: KubernetesGateway, client: KubeClient) -> None:
    for kind, spec in ((MirrorKind.WEIGHTS, {"hostPath": "/x"}), (MirrorKind.INFERENCE_IMAGE, {"image": "a:1"})):
        for ready in (0, 2):
            counts = {"state": "Ready", "readyNodes": ready, "targetNodes": 2, "message": ""}
            gateway.apply_cache_mirror(CacheMirror(kind, "default", "m", spec, counts))
        plural = {"ModelWeightsCacheConfig": "modelweightscacheconfigs"}.get(kind, "inferenceimagecaches")
        stored = client.get(f"{API}/namespaces/default/{plural}/m")
        assert (stored["spec"], stored["status"]["readyNodes"]) == (spec, 2)
        for _ in range(2):
            gateway.delete_cache_mirror(kind, "default", "m")
