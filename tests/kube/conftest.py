"""What adapter tests share: the contract's cluster, and a proxy before it that misbehaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.conf import LazySettings

from controlplane.clusters.kubernetes.access import access_for
from tests.contracts.kube import KubeContractCluster, kube_contract
from tests.kube.faulty import FaultyProxy
from tests.kube.guarded import guarded, policies
from tests.kube.real import hearth_on, installed_kube, measured
from tests.kube.world import KubeWorld
from tests.plugins.kube import KubeApi

__all__ = ["guarded", "hearth_on", "installed_kube", "measured", "policies"]


@pytest.fixture
def contract(kube_api: KubeApi) -> Iterator[KubeContractCluster]:
    """An empty cluster without nodes on the real API server."""
    with kube_contract(kube_api) as made:
        yield made


@pytest.fixture
def proxy(kube_api: KubeApi) -> Iterator[FaultyProxy]:
    with FaultyProxy(access_for(str(kube_api.kubeconfig))).running() as made:
        yield made


@pytest.fixture
def make_world(contract: KubeContractCluster, kube_api: KubeApi, settings: LazySettings) -> Callable[..., KubeWorld]:
    """The control plane's rows beside an API server that is empty; call it once a test that may use the database."""
    settings.AGENT_IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
    settings.SCHEDULING_LAG_SECONDS = 0.0  # nothing is scheduled by labels here
    settings.CELERY_TASK_SOFT_TIME_LIMIT = 3600  # a round that is counted is a whole one, also on a busy machine
    return lambda **options: KubeWorld(kube_api, **options)
