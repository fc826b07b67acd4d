"""The agent as a process, let in by the token of its pod and with the least rights, on a real API server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from caches.agent.__main__ import EXIT_REPLACED
from controlplane.clusters.documents import EntryState, Manifest
from controlplane.clusters.gateway import Kind, ObservedNodeCache
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.install import apply_documents
from controlplane.embedded.processes import ROOT
from tests.contracts.kube import KubeContractCluster
from tests.contracts.observing import DIGEST, spec
from tests.kube.installed import POLICIES, around_hearth
from tests.plugins.kube import KubeApi
from tests.waiting import until

ACCOUNT = "hearth-agent"


class AgentPod:
    """The place of an agent's pod on a node: its account, and a token that names the machine."""

    def __init__(self, contract: KubeContractCluster, cluster: KubeApi, folder: Path) -> None:
        self.contract, self.server, self.folder = contract, cluster.server, folder
        self.ca = cluster.folder / "pki" / "ca.crt"
        self.store = folder / "disk"
        self.store.mkdir()

    def allow(self) -> None:
        """What deploy/ gives to agents."""
        rights = [item for item in around_hearth() if item["metadata"]["name"].startswith(ACCOUNT)]
        apply_documents(self.contract.client, [item for item in rights if item["kind"] not in POLICIES])

    def token_for(self, node: str) -> Path:
        """What a kubelet would put into the pod."""
        pods = f"/api/v1/namespaces/{names.NODES_NAMESPACE}/pods"
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-{node}"},
            "spec": {
                "nodeName": node,
                "serviceAccountName": ACCOUNT,
                "containers": [{"name": "agent", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
            },
        }
        client = self.contract.client
        client.delete(f"{pods}/agent-{node}", grace_seconds=0)
        pod = client.create(pods, document, manager="test")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": f"agent-{node}", "uid": pod["metadata"]["uid"]}
        answer = client.create(
            f"/api/v1/namespaces/{names.NODES_NAMESPACE}/serviceaccounts/{ACCOUNT}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}},
            manager="test",
        )
        path = self.folder / f"token-{node}"
        path.write_text(answer["status"]["token"])
        return path

    @contextmanager
    def agent(self, node: str, token: Path) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            sys.executable, "-m", "caches.agent", "--kubernetes", "--node", node, "--root", str(self.store),
            "--server", self.server, "--token-file", str(token), "--ca-file", str(self.ca),
        ]  # fmt: skip
        with (self.folder / f"{node}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(150)

    def cache(self) -> ObservedNodeCache | None:
        for item in self.contract.gateway.list(Kind.NODE_CACHE).items:
            if isinstance(item, ObservedNodeCache):
                return item
        return None


@pytest.fixture
def place(contract: KubeContractCluster, kube_api: KubeApi, tmp_path: Path) -> AgentPod:
    made = AgentPod(contract, kube_api, tmp_path)
    made.allow()
    return made


def test_it_says_what_the_disk_holds_does_what_is_wanted_and_ends_when_asked(place: AgentPod) -> None:
    uid = place.contract.add_node("n-1")
    with place.agent("n-1", place.token_for("n-1")) as process:
        until(lambda: (c := place.cache()) is not None and c.status is not None, "it reports first")
        first = place.cache()
        assert first is not None and first.status is not None
        assert (first.node_uid, first.spec.pool) == (uid, "")
        assert first.status.capacity.capacity_bytes > 0

        place.contract.gateway.apply_manifest(Manifest(DIGEST, ()))
        generation = place.contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST, connections=()))
        until(lambda: _failed(place.cache(), generation), "it tries, and says why not: the store is not known")

        process.send_signal(signal.SIGTERM)
        assert process.wait(150) == 0


def _failed(cache: ObservedNodeCache | None, generation: int) -> bool:
    status = None if cache is None else cache.status
    if status is None or status.observed_generation != generation:
        return False
    return [entry.state for entry in status.entries] in ([EntryState.FAILED], [EntryState.QUEUED])


def test_it_stops_writing_once_its_machine_is_another_one(place: AgentPod) -> None:
    place.contract.add_node("n-1")
    with place.agent("n-1", place.token_for("n-1")) as process:
        until(lambda: (c := place.cache()) is not None and c.status is not None, "it reports")
        place.contract.client.delete(f"/api/v1/namespaces/{names.NODES_NAMESPACE}/pods/agent-n-1", grace_seconds=0)
        new = place.contract.replace_node("n-1")
        token = place.token_for("n-1")
        (place.folder / "token-n-1").write_text(token.read_text())
        place.contract.gateway.apply_node_cache(spec("n-1", new, DIGEST))
        assert process.wait(150) == EXIT_REPLACED
        cache = place.cache()
        assert cache is not None and (cache.node_uid, cache.status) == (new, None)


def test_it_waits_for_an_api_server_and_ends_when_asked_meanwhile(place: AgentPod) -> None:
    place.server = "https://127.0.0.1:9"
    nameless = place.folder / "token"
    nameless.write_text("says nothing of a node")
    with place.agent("n-1", nameless) as process:
        log = place.folder / "n-1.log"
        until(lambda: b"not known yet which machine" in log.read_bytes(), "it asks")
        process.send_signal(signal.SIGTERM)
        assert process.wait(150) == 0
