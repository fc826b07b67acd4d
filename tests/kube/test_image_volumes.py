"""Image volumes on an API server that has them: it is asked to store one, and what it stored is read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from controlplane.clusters.gateway import ImageHolder
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.image_calls import volumes_stored
from controlplane.clusters.kubernetes.image_holders import holder_name
from controlplane.embedded import ports
from controlplane.embedded.kube import api
from controlplane.embedded.kube.cluster import KubeCluster
from tests.contracts.kube import KubeContractCluster
from tests.contracts.observing import DIGEST

pytestmark = pytest.mark.e2e
REFERENCE = f"registry.invalid/engine@{DIGEST}"
HOLDER = ImageHolder("pool-a", REFERENCE, nodes=("n-1",), helper_image="registry.invalid/hearth:1")


@pytest.fixture
def able(own_kube_api: KubeCluster, contract: KubeContractCluster) -> Iterator[KubernetesGateway]:
    """A second API server beside the one of the tests, over the same database, with the feature switched on."""
    port, plane = ports.free_port(), own_kube_api.control
    server = f"https://{ports.HOST}:{port}"
    spec, probe = plane.api_spec(), api.Client(server, plane.certificates.folder, "admin")
    argv = [*spec.argv, f"--secure-port={port}", "--feature-gates=ImageVolume=true"]
    own_kube_api.supervisor.start(
        replace(spec, name="apiserver-volumes", argv=argv, ready=lambda: probe.is_ready("/readyz"))
    )
    kubeconfig = own_kube_api.folder / "volumes.kubeconfig"
    kubeconfig.write_text(own_kube_api.kubeconfig.read_text().replace(own_kube_api.server, server))
    kubeconfig.chmod(0o600)
    yield KubernetesGateway(str(kubeconfig))
    own_kube_api.supervisor.forget("apiserver-volumes")


def test_a_holder_mounts_the_image_where_server_kubelet_and_runtime_do(
    able: KubernetesGateway, contract: KubeContractCluster
) -> None:
    assert volumes_stored(able.client)
    contract.add_node("n-1")

    def applied(runtime: str, kubelet: str) -> tuple[str, list[str]]:
        info = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
        contract.client.merge(f"{names.NODES}/n-1/status", {"status": {"nodeInfo": info}}, manager="kubelet")
        able.apply_image_holder(HOLDER)
        stored = able.client.get(f"{names.IMAGE_DAEMON_SETS}/{holder_name('pool-a', REFERENCE)}")
        pod = stored["spec"]["template"]["spec"]
        return pod["containers"][0]["image"], [one["image"]["reference"] for one in pod.get("volumes") or ()]

    assert applied("containerd://2.1.4", "v1.35.1") == (HOLDER.helper_image, [REFERENCE])
    assert applied("containerd://1.6.20", "v1.35.1") == (REFERENCE, []), "its runtime would refuse it"
    assert applied("containerd://2.1.4", "v1.34.4") == (REFERENCE, []), "its kubelet would wait for ever"
    # A server that does not have the feature goes on storing what was there, and no new one.
    if not volumes_stored(contract.client):
        contract.gateway.apply_image_holder(HOLDER)
        stored = contract.client.get(f"{names.IMAGE_DAEMON_SETS}/{holder_name('pool-a', REFERENCE)}")
        assert stored["spec"]["template"]["spec"]["containers"][0]["image"] == REFERENCE
