"""What people do to the machines of a running cluster from another process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded.kube import cgroups
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.kube.node import MEBIBYTE
from controlplane.embedded.kube.verbs import Machines, Request, ask
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Supervisor
from tests.kube import pods

Ask = Callable[..., str]
SIZE = 16 * MEBIBYTE


@pytest.fixture
def machines(kube_cluster: KubeCluster) -> Iterator[Machines]:
    yield Machines(kube_cluster)
    if "spare" in kube_cluster.nodes:
        kube_cluster.nodes["spare"].remove()


@pytest.fixture
def told(kube_cluster: KubeCluster, machines: Machines) -> Iterator[Ask]:
    """Ask as another process would, while the owner does its rounds."""

    def tell(verb: str, node: str = "", **details: Any) -> str:
        answer = pool.submit(ask, kube_cluster.folder, Request(verb, node, details))
        while not answer.done():
            said.extend(machines.check())
        return answer.result()

    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        yield tell


def test_a_machine_joins_dies_comes_back_fills_is_replaced_and_leaves(
    kube_cluster: KubeCluster, machines: Machines, told: Ask
) -> None:
    assert "joined" in told("add", "spare", pool="pool-b", bytes=SIZE)
    pods.run(kube_cluster, "verbs-victim", "spare", "echo kept > /store/file; while true; do sleep 1; done")
    node = kube_cluster.nodes["spare"]

    assert "lost power" in told("stop", "spare")
    assert cgroups.processes(node.cgroup) == set()
    assert machines.check() == [] and cgroups.processes(node.cgroup) == set(), "nobody brings it back by itself"
    assert "spare" in told("list") and "stopped" in told("list")
    with pytest.raises(EmbeddedError, match="dead already"):
        told("stop", "spare")
    assert "is back" in told("start", "spare")
    assert (node.store / "file").read_text() == "kept\n"

    told("fill", "spare", bytes=12 * MEBIBYTE)
    assert node.store_bytes()[1] < 4 * MEBIBYTE
    told("fill", "spare", bytes=0)
    uid = node.uid
    assert uid not in told("replace", "spare")
    assert kube_cluster.nodes["spare"].uid != uid
    assert "is gone" in told("remove", "spare")
    assert "spare" not in told("list")
    assert machines.check() == [], "what was removed is not started again"


@pytest.mark.parametrize(
    ("verb", "node", "details", "why"),
    [
        ("stop", "nobody", {}, "There is no machine nobody. There are: node-a, node-b, node-c"),
        ("start", "node-a", {}, "runs already"),
        ("add", "../out", {"bytes": SIZE}, "lower case letters"),
        ("add", "node-a", {"bytes": SIZE}, "There is a node node-a already"),
        ("add", "spare", {"bytes": 1}, "at least 8 MiB"),
        ("add", "spare", {}, "This is no request"),
        ("fill", "node-a", {"bytes": 2**40}, "has no room"),
        ("explode", "node-a", {}, "nothing that can be done"),
    ],
)
def test_it_refuses_with_a_sentence(told: Ask, verb: str, node: str, details: dict[str, Any], why: str) -> None:
    with pytest.raises(EmbeddedError, match=why):
        told(verb, node, **details)


def test_it_survives_what_is_no_request(machines: Machines, told: Ask, kube_cluster: KubeCluster) -> None:
    requests = kube_cluster.folder / "requests"
    (requests / "broken.ask").write_text('{"verb": ')
    assert "node-a" in told("list")
    assert not (requests / "broken.ask").exists()
    (requests / "broken.answer").unlink()


def test_it_says_that_no_cluster_runs(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="make run-kube"):
        ask(tmp_path, Request("list"))


def test_it_takes_back_what_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    with Supervisor(tmp_path), pytest.raises(EmbeddedError, match="did not answer"):
        ask(tmp_path, Request("list"), within=0.1)
    assert list((tmp_path / "requests").iterdir()) == []


def test_it_notices_that_the_owner_left(tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    with Supervisor(tmp_path) as owner:
        threading.Timer(0.3, owner.stop).start()
        with pytest.raises(EmbeddedError, match="was stopped before it answered"):
            ask(tmp_path, Request("list"), within=20)
