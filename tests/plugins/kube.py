"""A real Kubernetes for tests: a control plane without nodes, and a cluster with three nodes and a registry.

Both start when the first test asks, and one worker runs every test that does. ``HEARTH_TEST_KUBECONFIG`` names
another cluster to use instead; its owner keeps it, so tests that break a control plane do not run there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from controlplane.embedded.kube.cluster import KubeCluster

GIVEN = "HEARTH_TEST_KUBECONFIG"
_FIXTURES = {"kube_api", "kube_cluster", "own_kube_api"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker owns one cluster; no test has to remember it."""
    for item in items:
        if _FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("kube"))


class GivenCluster:
    """Somebody else's cluster: what every test may use of one."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        document = yaml.safe_load(kubeconfig.read_text())
        named = {context["name"]: context["context"] for context in document["contexts"]}
        cluster = named[document["current-context"]]["cluster"]
        self.server: str = next(row["cluster"]["server"] for row in document["clusters"] if row["name"] == cluster)


@contextmanager
def running(label: str) -> Iterator[KubeCluster]:
    """A cluster of its own in a temporary folder, for tests of the harness and for those that break everything."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-kube-"))
    try:
        with KubeCluster(folder, label=label) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def own_kube_api() -> Iterator[KubeCluster]:
    """A control plane that a test may stop, restart and compact, as long as it leaves it running."""
    if os.environ.get(GIVEN):
        pytest.skip("breaks the control plane, which must be our own")
    with running("This test run") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kube_api(request: pytest.FixtureRequest) -> KubeCluster | GivenCluster:
    """An API server with scheduler and controllers, without nodes. Give each test its own names."""
    given = os.environ.get(GIVEN)
    if given:
        return GivenCluster(Path(given))
    cluster: KubeCluster = request.getfixturevalue("own_kube_api")
    return cluster
