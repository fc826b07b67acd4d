"""A real Kubernetes for tests: a control plane without nodes, and a cluster with three nodes and a registry.

Both start when the first test asks, and one worker runs every test that does. ``HEARTH_TEST_KUBECONFIG`` names another
cluster to use instead (``FILE`` or ``FILE#CONTEXT``); what runs there leaves nothing behind and its owner's alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from _pytest.terminal import TerminalReporter

from controlplane.embedded.kube.cluster import KubeCluster, missing_for_nodes
from controlplane.embedded.kube.control import SILENCE
from tests.plugins.given import GivenCluster, given

KubeApi: TypeAlias = KubeCluster | GivenCluster
GIVEN = "HEARTH_TEST_KUBECONFIG"
NODES = ("node-a", "node-b", "node-c")
# Hearth on nodes, nodes alone, and a control plane without any are three clusters that three workers may have. The
# first that a test asks for counts.
_GROUPS = {"installed_kube": "kube-nodes", "kube_cluster": "kube-machines", "own_kube_api": "kube", "kube_api": "kube"}
# What runs them. One that asks for another while it is made comes before it; others end with what they stand on.
_STANDING = ("kube_api", "own_kube_api", "kube_cluster")
# Seconds: whichever test comes first also waits for an image to be built and for three nodes to pull it.
_PATIENCE = 900


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker owns one cluster; no test has to remember it."""
    for item in items:
        marked = _marked(item)
        group = marked or _group(item)
        if group and not marked:
            item.add_marker(pytest.mark.xdist_group(group))
        own = item.get_closest_marker("timeout")
        if group in _GROUPS.values() and (own is None or own.args[0] < _PATIENCE):
            item.add_marker(pytest.mark.timeout(_PATIENCE))


def _group(item: pytest.Item) -> str:
    """The one cluster that is given is everybody's."""
    for fixture, group in _GROUPS.items():
        if fixture in getattr(item, "fixturenames", ()):
            return "kube" if os.environ.get(GIVEN) else group
    return ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """A cluster ends with the last test of its group: idle it would go on taking processor time from all that follow.

    Only where groups stay together, which is in workers.
    """
    try:
        return (yield)
    finally:
        group = _marked(item) if os.environ.get("PYTEST_XDIST_WORKER") else ""
        if group and group != _marked(nextitem):
            _end_clusters(item)


def _marked(item: pytest.Item | None) -> str:
    mark = item.get_closest_marker("xdist_group") if item is not None else None
    return str(mark.args[0]) if mark else ""


def _end_clusters(item: pytest.Item) -> None:
    """Should another test ask all the same, it gets a new one."""
    request = item._request  # type: ignore[attr-defined]
    for fixture in _STANDING:
        for definition in item.session._fixturemanager.getfixturedefs(fixture, item) or ():
            definition.finish(request)


@contextmanager
def running(label: str, *, registry: bool = False, silence: int = SILENCE) -> Iterator[KubeCluster]:
    """A cluster of its own in a temporary folder, for tests of the harness and for those that break everything."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-kube-"))
    try:
        with KubeCluster(folder, label=label, registry=registry, silence=silence) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def own_kube_api() -> Iterator[KubeCluster]:
    """As ``kube_api``, for tests that look at its processes, certificates and database.

    Nodes are simulated here: what a test says about them stays true, however long they are silent.
    """
    if os.environ.get(GIVEN):
        pytest.skip("looks at processes and keys of the control plane, which must be our own")
    with running("This test run", silence=3600) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kube_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """An API server with scheduler and controllers, without nodes. Give each test its own names.

    A test may stop, restart and compact it, as long as it leaves it running.
    """
    if kubeconfig := os.environ.get(GIVEN):
        with given(kubeconfig, tmp_path_factory.mktemp("given")) as cluster:
            yield cluster
        return
    own: KubeCluster = request.getfixturevalue("own_kube_api")
    yield own


@pytest.fixture(scope="session")
def kube_cluster() -> Iterator[KubeCluster]:
    """Three nodes ``node-a``, ``node-b``, ``node-c`` with stores of 512 MiB, and a registry.

    Give each test its own namespace; a test that kills a node starts it again, one that adds a node removes it.
    """
    if os.environ.get(GIVEN):
        pytest.skip("kills and fills nodes, and looks at their disks, which must be our own")
    missing = missing_for_nodes()
    if missing and not os.environ.get("CI"):
        pytest.skip(missing)
    with running("This test run", registry=True) as cluster:
        for name in NODES:
            cluster.add_node(name)
        yield cluster


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what did not run for want of root or packages; a line of dots would hide it."""
    missing = missing_for_nodes()
    unrun = [
        report for report in terminalreporter.stats.get("skipped", []) if missing and missing in str(report.longrepr)
    ]
    if unrun:
        terminalreporter.section("not run: Kubernetes nodes")
        terminalreporter.write_line(missing)
        for report in unrun:
            terminalreporter.write_line(f"  {report.nodeid}")
