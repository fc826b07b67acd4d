"""The control plane of the harness: it answers, survives what tests do to it, and keeps its secrets."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from controlplane.embedded import records
from controlplane.embedded.kube import binaries
from controlplane.embedded.kube.api import ApiError, Client, Document
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.processes import ROOT
from tests.plugins.kube import running

pytestmark = pytest.mark.e2e

HOLD = (
    "import pathlib, sys, time\n"
    "from controlplane.embedded.kube.cluster import KubeCluster\n"
    "with KubeCluster(pathlib.Path(sys.argv[1]), label='A test') as cluster:\n"
    "    print(cluster.server, flush=True)\n"
    "    time.sleep(600)\n"
)


def _namespace(client: Client, name: str) -> Document:
    return client.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def _first_event(client: Client, version: str) -> Document:
    """What a watch of namespaces from a resource version says first."""
    path = f"/api/v1/namespaces?watch=1&timeoutSeconds=60&resourceVersion={version}"
    with urllib.request.urlopen(client.server + path, timeout=120, context=client.tls) as answer:
        return dict(json.loads(answer.readline()))


def test_it_answers_with_the_version_that_was_built(own_kube_api: KubeCluster) -> None:
    assert own_kube_api.client.get("/version")["gitVersion"] == binaries.kubernetes_version()


def test_it_controls_what_is_created(own_kube_api: KubeCluster) -> None:
    client = own_kube_api.client
    _namespace(client, "harness-controls")
    found = records.wait_until(lambda: _has_service_account(client, "harness-controls"), 120)
    assert found, "the controller manager made no service account in a new namespace"


def _has_service_account(client: Client, namespace: str) -> bool:
    rows = client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]
    return any(row["metadata"]["name"] == "default" for row in rows)


def test_it_keeps_port_and_data_when_the_api_server_restarts(own_kube_api: KubeCluster) -> None:
    server = own_kube_api.server
    made = _namespace(own_kube_api.client, "harness-restart")
    own_kube_api.stop_api_server()
    with pytest.raises(ApiError) as refused:
        own_kube_api.client.get("/version")
    own_kube_api.start_api_server()
    assert refused.value.status == 0
    assert own_kube_api.server == server
    kept = own_kube_api.client.get("/api/v1/namespaces/harness-restart")
    assert kept["metadata"]["uid"] == made["metadata"]["uid"]
    _namespace(own_kube_api.client, "harness-controls-again")
    found = records.wait_until(lambda: _has_service_account(own_kube_api.client, "harness-controls-again"), 120)
    assert found, "those who stood still meanwhile go on"


def test_it_answers_410_for_versions_before_a_compaction(own_kube_api: KubeCluster) -> None:
    client = own_kube_api.client
    old = _namespace(client, "harness-compact-1")["metadata"]["resourceVersion"]
    _namespace(client, "harness-compact-2")
    before = _first_event(client, old)
    own_kube_api.compact()
    _namespace(client, "harness-compact-3")
    after = _first_event(client, old)
    assert before["object"]["metadata"]["name"] == "harness-compact-2"
    assert (after["type"], after["object"]["code"]) == ("ERROR", 410)


def test_it_refuses_who_brings_no_certificate(own_kube_api: KubeCluster) -> None:
    stranger = ssl.create_default_context(cafile=str(own_kube_api.folder / "pki" / "ca.crt"))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(own_kube_api.server + "/api/v1/secrets", timeout=60, context=stranger)
    with refused.value:
        assert refused.value.code in {401, 403}


def test_it_lets_nobody_but_its_owner_read_its_keys(own_kube_api: KubeCluster) -> None:
    files = [own_kube_api.kubeconfig, *(own_kube_api.folder / "pki").iterdir()]
    assert len(files) > 10
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files if path.stat().st_mode & 0o077} == {}


def test_it_passes_no_secret_in_process_arguments(own_kube_api: KubeCluster) -> None:
    document = yaml.safe_load(own_kube_api.kubeconfig.read_text())
    secret = document["users"][0]["user"]["client-key-data"]
    for record in records.read(own_kube_api.folder / "pids"):
        arguments = Path(f"/proc/{record.pid}/cmdline").read_text()
        assert secret not in arguments
        assert "PRIVATE" not in arguments


def test_it_runs_beside_another_cluster(own_kube_api: KubeCluster) -> None:
    with running("Another test run") as other:
        _namespace(other.client, "harness-beside")
        assert other.server != own_kube_api.server
        assert other.control.network.whole != own_kube_api.control.network.whole
        with pytest.raises(ApiError) as refused:
            own_kube_api.client.get("/api/v1/namespaces/harness-beside")
        with pytest.raises(ApiError):
            Client(own_kube_api.server, other.folder / "pki", "admin").get("/version")
    assert refused.value.status == 404


def test_it_leaves_no_process_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith(b"https://127.0.0.1:")
    started = records.read(tmp_path / "pids")
    owner.send_signal(signal.SIGKILL)
    owner.wait(timeout=60)
    owner.stdout.close()
    assert {record.name for record in started} == {"etcd", "apiserver", "scheduler", "controllers"}
    assert records.wait_until(lambda: not any(map(records.is_alive, started)), 120)
