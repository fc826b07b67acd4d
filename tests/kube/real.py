"""Fixtures of tests that run on real nodes; conftest.py takes them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import LazySettings

from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.embedded.kube import own_image
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.seaweed import S3
from tests.kube.forward import Forward
from tests.kube.hearth import LABEL, POOL, HearthOnKube
from tests.kube.installed import around_hearth, install


@dataclass(frozen=True)
class InstalledKube:
    """Three real nodes with deploy/base around Hearth, and the project's own image in the registry."""

    cluster: KubeCluster
    client: KubeClient
    image: str


@pytest.fixture(scope="session")
def installed_kube(kube_cluster: KubeCluster) -> InstalledKube:
    client = KubeClient(lambda: access_for(str(kube_cluster.kubeconfig)))
    image = kube_cluster.push_image(own_image.build())
    install(client, around_hearth([str(kube_cluster.cache_path)], [str(shared(kube_cluster))]))
    return InstalledKube(kube_cluster, client, image)


def shared(cluster: KubeCluster) -> Path:
    """The file system that is "mounted" on this machine and on every node, at the same path."""
    folder = cluster.folder / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def hearth_on(
    installed_kube: InstalledKube, s3_server: S3, valkey_url: str, settings: LazySettings, tmp_path: Path
) -> Iterator[Callable[..., HearthOnKube]]:
    """``hearth_on("node-a", …, field=value)``: Hearth runs over a pool of these nodes until the test ends."""
    settings.SECRETS_DIR = tmp_path / "secrets"
    settings.AGENT_IMAGE, settings.AGENT_API_SERVER, settings.AGENT_PULL_SECRETS = installed_kube.image, "", []
    settings.SCHEDULING_LAG_SECONDS = 0.2
    kube, client = installed_kube.cluster, installed_kube.client
    store = urlsplit(s3_server.endpoint)
    with ExitStack() as stack:
        forward = Forward(kube.control.network.service_address, (str(store.hostname), int(store.port or 0)))
        stack.enter_context(forward)

        def start(*nodes: str, **pool: Any) -> HearthOnKube:
            for name in kube.nodes:
                labels = {LABEL: POOL if name in nodes else None}
                client.merge(f"{names.NODES}/{name}", {"metadata": {"labels": labels}}, manager="test")
            return stack.enter_context(HearthOnKube(kube, s3_server, forward, **pool).running())

        yield start


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """``measured("seconds", 1.2)``: a figure for people, in the JUnit report and in no assertion."""
    return lambda name, value: request.node.user_properties.append((name, value))
