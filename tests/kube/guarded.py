"""A control plane without nodes that has deploy/base around Hearth, and clients as everybody who has a token there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.clusters.gateway import GatewayError, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.link import KubernetesLink
from tests.contracts.kube import KubeContractCluster
from tests.kube.installed import (
    AGENT_PODS,
    agent_on,
    agent_token,
    around_hearth,
    client_of,
    install,
    policies_gone,
    policies_hold,
    remove_policies,
    token_of,
)
from tests.plugins.kube import KubeApi

SOURCES = ["/fsx"]


@pytest.fixture(scope="module")
def policies(kube_api: KubeApi) -> Iterator[KubeClient]:
    """The administrator's client while the policies hold; without them again afterwards."""
    client = KubeClient(lambda: access_for(str(kube_api.kubeconfig)))
    objects = around_hearth(sources=SOURCES)
    install(client, objects)
    policies_hold(client)
    yield client
    remove_policies(client, objects)
    policies_gone(client)
    client.delete(AGENT_PODS, grace_seconds=0)


class Guarded:
    """Clients by whose token they use."""

    def __init__(self, contract: KubeContractCluster, cluster: KubeApi, admin: KubeClient) -> None:
        self.contract, self.cluster, self.admin = contract, cluster, admin
        self._links: list[KubernetesLink] = []

    def agent(self, node: str) -> KubeClient:
        return client_of(self.cluster, agent_token(self.admin, node))

    def pod_of(self, node: str) -> dict[str, Any]:
        return agent_on(self.admin, node)

    def link(self, node: str, uid: str, client: KubeClient | None = None) -> KubernetesLink:
        made = KubernetesLink(client or self.agent(node), node, uid)
        self._links.append(made)
        return made

    def hearth(self, account: str = "hearth") -> KubernetesGateway:
        token = token_of(self.admin, names.SYSTEM_NAMESPACE, account)
        return KubernetesGateway("with a token", client=client_of(self.cluster, token))

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.admin.delete(AGENT_PODS, grace_seconds=0)


@pytest.fixture
def guarded(contract: KubeContractCluster, kube_api: KubeApi, policies: KubeClient) -> Iterator[Guarded]:
    made = Guarded(contract, kube_api, policies)
    with contextlib.closing(made):
        yield made


def answered(call: Callable[..., object], *arguments: Any, manager: str = "test") -> str:
    """ "" when it was done, "refused" by a policy, or the error's name."""
    try:
        call(*arguments, manager=manager)
    except Refused as error:
        return "refused" if "ValidatingAdmissionPolicy" in str(error) else f"Refused: {error}"
    except GatewayError as error:
        return type(error).__name__
    return ""
