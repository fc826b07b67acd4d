"""Images on real nodes: held before a pod needs them, started from with the registry down, let go and still there."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from caches.sources import open_registry
from controlplane.clusters.gateway import ImageHolder, ImagePresence
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.install import install
from controlplane.embedded import ports
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.kube.registry import Registry, busybox_layer
from controlplane.errors import HearthError
from tests.contracts.kube import IMAGES
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 180.0
READER = "reader:$2b$04$oNOtkEVauO5A2xTu180tf.riDJw/FCvQ3axgup5YHBQtM/TF2V9Ga\n"  # let-me-in


@dataclass
class Real:
    kube: KubeCluster
    gateway: KubernetesGateway

    def push(self, repository: str, layer: bytes, command: list[str]) -> str:
        """Pushed under a tag and resolved by it as anybody would; its reference by digest."""
        assert self.kube._registry is not None
        pushed = self.kube._registry.push(repository, "v1", layer, command)
        assert pushed.endswith(f"@{self.resolved(repository)}")
        return pushed

    def resolved(self, repository: str) -> str:
        """The digest that the tag names, as the registry says."""
        client = open_registry(None, {}, allow_private=True)
        try:
            return client.resolve(f"{self.kube.registry}/{repository}:v1").digest
        finally:
            client.close()

    def presence(self) -> dict[str, ImagePresence]:
        return {one.node_name: one for one in self.gateway.image_presence("real") if not one.leaving}

    def pod(self, name: str, node: str, image: str) -> None:
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": image, "imagePullPolicy": "IfNotPresent"}],
        }
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.gateway.client.create(PODS, document, manager="test")

    def container(self, name: str) -> dict[str, Any]:
        """What the kubelet says of the pod's container."""
        status = self.gateway.client.get(f"{PODS}/{name}").get("status") or {}
        found: list[dict[str, Any]] = status.get("containerStatuses") or [{}]
        return dict(found[0].get("state") or {})

    def uid(self, node: str) -> str:
        return str(self.gateway.client.get(f"{names.NODES}/{node}")["metadata"]["uid"])


@pytest.fixture
def real(kube_cluster: KubeCluster) -> Iterator[Real]:
    """The three nodes, and where holders run as deploy/base has it, with its policy."""
    made = Real(kube_cluster, KubernetesGateway(str(kube_cluster.kubeconfig)))
    install(made.gateway.client, [item for item in yaml.safe_load_all(IMAGES.read_text()) if item])
    yield made
    made.gateway.client.delete(f"{PODS}/warm", grace_seconds=0)
    made.gateway.client.delete(names.IMAGE_DAEMON_SETS)


def test_a_held_image_starts_with_the_registry_down_and_stays_with_whoever_runs_it(real: Real) -> None:
    reference = real.push("held/engine", busybox_layer(), ["/bin/sleep", "3600"])
    digest = reference.rpartition("@")[2]
    holder = ImageHolder("real", reference, nodes=("node-a", "node-b"))
    real.gateway.apply_image_holder(holder)

    def both_ready() -> bool:
        found = real.presence()
        return found.keys() == {"node-a", "node-b"} and all(one.ready for one in found.values())

    until(both_ready, "both nodes hold the image", seconds=PATIENCE)
    assert real.presence()["node-a"].node_uid == real.uid("node-a")

    real.kube.supervisor.kill("registry")
    try:
        with pytest.raises(HearthError):
            real.resolved("held/engine")
        real.pod("warm", "node-a", reference)
        until(lambda: "running" in real.container("warm"), "a warm pod starts without its registry", seconds=PATIENCE)
        with pytest.raises(HearthError):
            real.resolved("held/engine")
    finally:
        real.kube.supervisor.restart("registry")

    real.gateway.delete_image_holder("real", reference)
    until(lambda: real.gateway.image_presence("real") == (), "nothing holds it any more", seconds=PATIENCE)
    assert real.gateway.image_holders("real") == ()
    until(
        lambda: digest in (real.gateway.images_listed("node-b", real.uid("node-b")) or ()),
        "its node says that it still has it",
        seconds=PATIENCE,
    )
    assert "running" in real.container("warm"), "whoever runs it is not disturbed"


@pytest.fixture
def closed(real: Real) -> Iterator[str]:
    """An image by its digest in a registry that wants a name and a password."""
    folder, port = real.kube.folder / "closed-registry", ports.free_port()
    registry, supervisor = Registry(folder, port), real.kube.supervisor
    supervisor.start(replace(registry.spec(), name="closed-registry"))
    reference = registry.push("held/closed", "v1", busybox_layer(), ["/bin/sleep", "3600"])
    supervisor.forget("closed-registry")
    spec = registry.spec()
    (folder / "readers").write_text(READER)
    configuration = folder / "registry.json"
    htpasswd = {"realm": "test", "path": str(folder / "readers")}
    configuration.write_text(json.dumps(json.loads(configuration.read_text()) | {"auth": {"htpasswd": htpasswd}}))
    supervisor.start(replace(spec, name="closed-registry", ready=lambda: ports.is_listening(port)))
    yield reference
    supervisor.forget("closed-registry")
    real.gateway.delete_pull_secret("hearth-pull-closed")


def test_nodes_pull_with_the_credentials_that_they_were_given(real: Real, closed: str) -> None:
    holder = ImageHolder("real", closed, nodes=("node-a",))
    real.gateway.apply_image_holder(holder)
    until(lambda: "node-a" in real.presence() and real.presence()["node-a"].reason, "it is refused", seconds=PATIENCE)
    assert real.presence()["node-a"].reason == "AccessDenied", real.presence()

    real.gateway.apply_pull_secret("hearth-pull-closed", closed.partition("/")[0], "reader", "let-me-in")
    real.gateway.apply_image_holder(replace(holder, pull_secrets=("hearth-pull-closed",)))
    until(lambda: "node-a" in real.presence() and real.presence()["node-a"].ready, "it is held", seconds=PATIENCE)


def test_an_image_that_cannot_be_held_says_so_and_one_that_is_not_there_says_that(real: Real) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing-that-runs"))
    bare = real.push("held/bare", packed.getvalue(), ["/nothing-that-runs"])
    nobodys = f"{real.kube.registry}/held/nobodys@sha256:{'0' * 64}"
    real.gateway.apply_image_holder(ImageHolder("real", bare, nodes=("node-a",)))
    real.gateway.apply_image_holder(ImageHolder("real", nobodys, nodes=("node-b",)))

    def failed() -> bool:
        found = real.presence()
        return found.keys() == {"node-a", "node-b"} and all(one.reason for one in found.values())

    until(failed, "both say what is wrong", seconds=PATIENCE)
    found = real.presence()
    assert (found["node-a"].reason, found["node-a"].holdable) == ("InvalidRequest", False)
    assert "cannot be held" in found["node-a"].message and "/bin/sh" in found["node-a"].message
    assert (found["node-b"].reason, found["node-b"].holdable) == ("SourceUnavailable", True)
