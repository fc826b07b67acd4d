"""The printed InferenceEndpointConfig on real nodes: applied, gated, served, shown, and gone without a trace."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caches.models import ModelVersion, Pin, Rollout
from controlplane.clusters.gateway import GatewayError, NotFound
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.serving.models import Endpoint, Instance
from tests.kube.endpoint_kinds import API, MANIFESTS, Kubectl, endpoint_kinds
from tests.kube.hearth import MIB, HearthOnKube, agents, noise
from tests.kube.installed import answers
from tests.kube.real import InstalledKube

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

SIZE = 8 * MIB
WORK = "/apis/apps/v1/namespaces/default/deployments/chat-small"
SERVICE = "/api/v1/namespaces/default/services/chat-small"
PATH = f"{API}/namespaces/default/{names.CONFIGS}/chat-small"
PODS = "/api/v1/namespaces/default/pods"
# An inference server as far as this goes: it is ready once its model is there, and says what it serves.
SERVER = """
import http.server, json, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
ROOT = "/opt/ml/model"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        files = {name: os.path.getsize(f"{ROOT}/{name}") for name in sorted(os.listdir(ROOT)) if name[0] != "."}
        said = json.dumps({"files": files, "pod": os.uname().nodename}).encode()
        self.send_response(200 if files else 503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


@pytest.fixture
def image(installed_kube: InstalledKube, tmp_path: Path) -> str:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "server.py").write_text(SERVER)
    recipe = 'ARG BASE=none\nFROM ${BASE}\nCOPY server.py /server.py\nCMD ["python", "/server.py"]\n'
    (folder / "Dockerfile").write_text(recipe)
    return installed_kube.cluster.build_image(folder, folder / "Dockerfile", "vllm/vllm-openai:test")


@pytest.fixture
def kinds(installed_kube: InstalledKube) -> Iterator[KubeClient]:
    """The vendor's kinds, and nodes that look as the manifests want them."""
    client = installed_kube.client
    gpus = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "4"}]
    with endpoint_kinds(client):
        for node in ("node-a", "node-b"):
            labels = {"node.kubernetes.io/instance-type": "ml.g5.24xlarge"}
            client.merge(f"{names.NODES}/{node}", {"metadata": {"labels": labels}}, manager="test")
            client.patch(f"{names.NODES}/{node}/status", gpus, manager="test")
        yield client
        client.delete(WORK)
        client.delete(SERVICE)
        for node in ("node-a", "node-b"):
            without = {"metadata": {"labels": {"node.kubernetes.io/instance-type": None}}}
            client.merge(f"{names.NODES}/{node}", without, manager="test")


def test_the_printed_manifest_is_gated_served_shown_and_leaves_nothing(
    kinds: KubeClient, hearth_on: Callable[..., HearthOnKube], image: str, measured: Callable[[str, object], None]
) -> None:
    hearth = hearth_on("node-a", "node-b")
    kube, client, kubectl = hearth.kube, hearth.client, Kubectl(hearth.kube.kubeconfig)
    hearth.until(lambda: hearth.reports("node-a", "node-b"), "the nodes report", seconds=180)
    for number in (0, 1):
        hearth.bucket.put(f"llms/chat-small/model-{number}.safetensors", noise(f"served/{number}", SIZE // 2))
    text = MANIFESTS[0].read_text().replace("bucketName: models", f"bucketName: {hearth.bucket.name}")
    text = text.replace("vllm/vllm-openai:latest", image)

    [silent] = agents(kube.nodes["node-b"])
    os.kill(silent, signal.SIGSTOP)
    try:
        kubectl("apply", "-f", "-", stdin=text)
        hearth.until(lambda: warm(hearth, "node-a"), "one node is warm", seconds=120)
        for _ in range(3):
            hearth.step()
        assert not answers(client, WORK), "the gate holds until every target is warm"
        told = condition(client, "RolledOut")
        assert told["status"] == "False" and "1 of 2 ready" in told["message"], told
        header, line = kubectl.table("modeldatacacheconfig", "--namespace", "default")
        assert header == ["NAME", "STATE", "TARGET", "READY", "AGE"]
        assert [line[0], *line[2:4]] == ["chat-small-model-cache", "2", "1"]
    finally:
        os.kill(silent, signal.SIGCONT)

    hearth.until(lambda: answers(client, WORK), "the gate opens", seconds=120)
    took = hearth.until(
        lambda: client.get(PATH)["status"].get("state") == "DeploymentComplete", "it serves", seconds=180
    )
    measured("gate_to_served_seconds", round(took, 1))
    # Through the Service, as the API server resolves it.
    hearth.until(lambda: asked(client) is not None, "a request is answered", seconds=60)
    assert asked(client) == {f"model-{number}.safetensors": SIZE // 2 for number in (0, 1)}

    [pod] = client.get(PODS, {"labelSelector": "app=chat-small"})["items"]
    ended = pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"]
    assert json.loads(ended)["found"] == "hit"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    hearth.until(lambda: Instance.objects.filter(uid=pod["metadata"]["uid"], ready=True).exists(), "it is an instance")
    for name in ("modelweightscacheconfigs", "modeldatacacheconfigs"):
        _, line = kubectl.table(name, "--namespace", "default")
        assert line[:4] == ["chat-small-model-cache", "Ready", "2", "2"], name
    assert Rollout.objects.get().state == "Done"

    kubectl("delete", "-f", "-", "--wait=false", stdin=text)
    hearth.until(lambda: not answers(client, PATH), "the finalizer lets it go", seconds=60)
    assert not Pin.objects.filter(removed_at=None).exists()
    hearth.until(lambda: not answers(client, WORK) and not answers(client, SERVICE), "its workload is gone")
    hearth.until(lambda: not Endpoint.objects.exists(), "and its row")
    version = ModelVersion.objects.get()
    hearth.until(
        lambda: not any(hearth.content(node, version) for node in ("node-a", "node-b")),
        "the files are gone, once the pod is",
        seconds=180,
    )


def warm(hearth: HearthOnKube, node: str) -> bool:
    version = ModelVersion.objects.filter(artifact__isnull=False).first()
    if version is None or version.artifact is None:
        return False
    hearth.digests.add(version.artifact.digest)
    return hearth.is_ready(version, node)


def condition(client: KubeClient, type_: str) -> dict[str, Any]:
    [found] = [one for one in client.get(PATH)["status"]["conditions"] if one["type"] == type_]
    return dict(found)


def asked(client: KubeClient) -> dict[str, int] | None:
    try:
        return dict(client.get(f"{SERVICE}:8000/proxy/")["files"])
    except (GatewayError, NotFound):
        return None
