"""deploy/examples/consumer.yaml as a pod of a test: digest, store, source and images filled in, nothing else changed.

The served container reads every byte, tries to write, and says in its termination message what it could.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from caches.domain.labels import cache_uid
from caches.models import ModelVersion
from controlplane.clusters.gateway import Conflict, GatewayError
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.embedded.processes import ROOT
from tests.kube.hearth import HearthOnKube

EXAMPLE = ROOT / "deploy" / "examples" / "consumer.yaml"
NAMESPACE = "consumers"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ZEROS = "0" * 64
READ = """
import glob, hashlib, json, os, time
paths, buffer, count, start = sorted(glob.glob("/model/*.safetensors")), bytearray(4 << 20), 0, time.monotonic()
for path in paths:
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            count += size
seconds = time.monotonic() - start
sums = {os.path.basename(path): hashlib.sha256(open(path, "rb").read()).hexdigest() for path in paths}
try:
    open("/hearth/weights/more", "w")
    written = "yes"
except OSError as error:
    written = os.strerror(error.errno)
secret = sorted(name for name in os.environ if name.startswith(("AWS_", "HEARTH_SOURCE")))
said = {"sums": sums, "bytes": count, "seconds": seconds, "written": written, "secret": secret,
        "links": [os.readlink(path) for path in paths if os.path.islink(path)]}
open("/dev/termination-log", "w").write(json.dumps(said))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A pod that ended: what its ensure step and its served container said, from the API server."""

    pod: Mapping[str, Any]
    ensure: Mapping[str, Any]
    server: Mapping[str, Any]

    @property
    def found(self) -> str:
        return str(self.ensure["found"])


def consumer(
    hearth: HearthOnKube, image: str, version: ModelVersion, name: str, node: str, *options: str
) -> dict[str, Any]:
    """The example as a pod on a node; ``options`` are more arguments of the ensure step."""
    assert version.artifact is not None
    digest = version.artifact.digest
    text = EXAMPLE.read_text().replace(ZEROS, digest.removeprefix("sha256:"))
    pod: dict[str, Any] = yaml.safe_load(text.replace("00000000-0000-5000-8000-000000000000", cache_uid(digest)))
    pod["metadata"]["name"] = name
    spec = pod["spec"]
    spec |= {"nodeName": node, "restartPolicy": "Never"}
    spec["volumes"][0]["hostPath"]["path"] = f"{hearth.kube.cache_path}/hearth"
    ensure, server = spec["initContainers"][0], spec["containers"][0]
    source = json.loads(next(row["value"] for row in ensure["env"] if row["name"] == "HEARTH_SOURCE"))
    source["connection"] |= {"endpoint": hearth.forward.endpoint, "allowed": [hearth.bucket.name]}
    source["uri"] = version.uri
    for row in ensure["env"]:
        if row["name"] == "HEARTH_SOURCE":
            row["value"] = json.dumps(source)
    ensure["image"] = server["image"] = image
    ensure["args"] += options
    del server["args"]
    server["command"] = ["python", "-c", READ]
    return pod


def run(hearth: HearthOnKube, pod: dict[str, Any], *, seconds: float = 150.0) -> Ended:
    """Run it to its end while Hearth works; AssertionError with what it said when it fails."""
    start(hearth, pod)
    return ended(hearth, pod["metadata"]["name"], seconds=seconds)


def start(hearth: HearthOnKube, pod: dict[str, Any]) -> None:
    client, secret = hearth.client, hearth.bucket.secret
    _namespace(client)
    document = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "model-reader"},
        "stringData": {"access-key-id": secret["access_key_id"], "secret-access-key": secret["secret_access_key"]},
    }  # fmt: skip
    client.apply(f"/api/v1/namespaces/{NAMESPACE}/secrets/model-reader", document, manager="test", force=True)
    client.delete(f"{PODS}/{pod['metadata']['name']}", grace_seconds=0)

    def made() -> bool:
        with contextlib.suppress(GatewayError):  # the account follows the namespace by a moment
            client.create(PODS, pod, manager="test")
            return True
        return False

    hearth.until(made, "the pod is taken")


def ended(hearth: HearthOnKube, name: str, *, seconds: float = 150.0) -> Ended:
    hearth.until(lambda: phase(hearth, name) in ("Succeeded", "Failed"), f"{name} ends", seconds=seconds)
    pod = hearth.client.get(f"{PODS}/{name}")
    said = [_said(status) for status in (pod["status"]["initContainerStatuses"] + pod["status"]["containerStatuses"])]
    assert pod["status"]["phase"] == "Succeeded", said
    hearth.client.delete(f"{PODS}/{name}", grace_seconds=0)
    return Ended(pod, json.loads(said[0]), json.loads(said[1]))


def phase(hearth: HearthOnKube, name: str) -> str:
    return str(hearth.client.get(f"{PODS}/{name}")["status"].get("phase"))


def _said(status: Mapping[str, Any]) -> str:
    return str(status["state"].get("terminated", {}).get("message") or status["state"])


def _namespace(client: KubeClient) -> None:
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    with contextlib.suppress(Conflict):
        client.create("/api/v1/namespaces", document, manager="test")
