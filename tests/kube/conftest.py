"""What adapter tests share: the contract's cluster, and a proxy before it that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.clusters.kubernetes.access import access_for
from controlplane.embedded.kube.cluster import KubeCluster
from tests.contracts.kube import KubeContractCluster, kube_contract
from tests.kube.faulty import FaultyProxy


@pytest.fixture
def contract(own_kube_api: KubeCluster) -> Iterator[KubeContractCluster]:
    """An empty cluster without nodes on the real API server."""
    with kube_contract(own_kube_api) as made:
        yield made


@pytest.fixture
def proxy(own_kube_api: KubeCluster) -> Iterator[FaultyProxy]:
    with FaultyProxy(access_for(str(own_kube_api.kubeconfig))).running() as made:
        yield made
