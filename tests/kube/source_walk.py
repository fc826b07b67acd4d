"""Endpoints of every other source that documents name, on real nodes: a file system, the hub with a token, JumpStart.

The hub and AWS stand in at their border, on servers that the nodes reach; agents, pods and the API server are real.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from caches.domain.labels import ready_label
from caches.models import EndpointToken, ModelVersion, Pin
from caches.models.catalogue import EulaAcceptance
from caches.services.connections import connection_create
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.endpoints import IMAGE_CACHES_NAMESPACE
from controlplane.clusters.gateway import GatewayError, Kind, ObservedNodeCache
from controlplane.clusters.kubernetes import names
from controlplane.serving.models import Endpoint
from tests.kube.endpoint_kinds import API, MANIFESTS, Kubectl
from tests.kube.forward import Forward
from tests.kube.hearth import SECRET, HearthOnKube, noise
from tests.kube.installed import answers
from tests.standins.hub import Hub, hub
from tests.standins.jumpstart import REGION, TERMS, JumpStart, jumpstart

TYPE = "ml.g5.24xlarge"
TOKEN = "hf_of-this-namespace"
TOKEN_SECRET = "/api/v1/namespaces/default/secrets/hub-token"
GATED, OPEN = "meta-textgeneration-llama-3-1-8b-instruct", "acme-open-model"
PLURALS = {"hub-llama": names.JUMPSTART_MODELS, "hub-open": names.JUMPSTART_MODELS}
PORTS = {"hub-llama": 8080, "hub-open": 8080}
ENDPOINTS = ("chat-fsx", "chat-hub", "hub-llama", "hub-open")
_PORT_OF_MODEL = {"name": "SAGEMAKER_BIND_TO_PORT", "default": "8080", "required_for_model_class": True}


@dataclass
class Sources:
    """What stands at the border. ``files`` are what each endpoint is to serve."""

    hearth: HearthOnKube
    kubectl: Kubectl
    hub: Hub
    jumpstart: JumpStart
    image: str
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def until_served(self, name: str) -> None:
        self.hearth.until(lambda: self.status(name).get("state") == "DeploymentComplete", f"{name} serves", seconds=300)
        for version in ModelVersion.objects.filter(artifact__isnull=False).select_related("artifact"):
            assert version.artifact is not None
            self.hearth.digests.add(version.artifact.digest)

    def path(self, name: str) -> str:
        return f"{API}/namespaces/default/{PLURALS.get(name, names.CONFIGS)}/{name}"

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.hearth.client.get(self.path(name)).get("status") or {})

    def condition(self, name: str, type_: str) -> dict[str, Any]:
        [found] = [one for one in self.status(name)["conditions"] if one["type"] == type_]
        return dict(found)

    def said(self, name: str) -> dict[str, int]:
        """What the endpoint's Service says it serves: sizes by name; nothing while it does not answer."""
        port = PORTS.get(name, 8000)
        try:
            return dict(self.hearth.client.get(f"/api/v1/namespaces/default/services/{name}:{port}/proxy/")["files"])
        except GatewayError:
            return {}

    def apply(self, document: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(dict(document)))


@contextmanager
def sources(hearth: HearthOnKube, kubectl: Kubectl, image: str, mount: Path) -> Iterator[Sources]:
    """Every source with one model, and the connections that lead there."""
    files = {name: {"config.json": b"{}", f"{name}.safetensors": noise(name, 300_000)} for name in ENDPOINTS}
    model_files(mount / "llms" / "chat-fsx", files["chat-fsx"])
    address = hearth.kube.control.network.service_address
    keys = hearth.bucket.secret
    with ExitStack() as stack:
        standing = stack.enter_context(hub())
        models = stack.enter_context(jumpstart(hearth.bucket.endpoint, keys=keys, image=image, family="g5"))

        def reached(port: int) -> str:
            return stack.enter_context(Forward(address, ("127.0.0.1", port))).endpoint

        standing.store_at, models.bucket_at = reached(standing.store.port), reached(models.bucket.port)
        standing.tokens.add(TOKEN)
        standing.repository("org/chat", gated="masked").commit(files["chat-hub"])
        environment = {"inference_environment_variables": [_PORT_OF_MODEL]}
        models.gate(GATED, "1.2.0", f"{models.root}/gated/", files["hub-llama"], **environment)
        models.offer(OPEN, "3.0.1", f"{models.root}/open/", **environment)
        for name, body in files["hub-open"].items():
            models.put(f"{models.root}/open/{name}", body)
        connection_create(actor=SYSTEM, name="fs-0123", type="Filesystem", allowed=[str(mount)])
        connection_create(
            actor=SYSTEM, name="hub", type="HuggingFace", endpoint=reached(standing.api.port), allowed=["org"]
        )
        connection_create(
            actor=SYSTEM, name="js", type="JumpStart", endpoint=hearth.forward.endpoint, region=REGION,
            secret_name=SECRET, allowed=["*"], manifest=models.manifest_uri, hub_endpoint=reached(models.hub.port),
        )  # fmt: skip
        try:
            yield Sources(hearth, kubectl, standing, models, image, files)
        finally:
            hearth.client.delete(TOKEN_SECRET)
            shutil.rmtree(mount / "llms", ignore_errors=True)


def model_files(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)


def config(sources: Sources, name: str, gate: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """The printed InferenceEndpointConfig with another source and gate, and without accelerators."""
    document: dict[str, Any] = yaml.safe_load(MANIFESTS[0].read_text())
    document["metadata"] |= {"name": name, "annotations": {"hearth.dev/gate": gate}}
    document["spec"]["modelName"] = name
    document["spec"]["modelSourceConfig"] = dict(source)
    document["spec"]["worker"] |= {"image": sources.image, "resources": {"limits": {"memory": "256Mi"}}}
    # The vendor's own asks every ten seconds, and every start here would wait for that.
    probe = {"httpGet": {"path": "/ping", "port": 8000}, "periodSeconds": 1}
    document["spec"]["worker"]["probes"] = {"readinessProbe": probe}
    return document


def all_are_served(sources: Sources) -> None:
    """Once there is room, every node is warm for each of them."""
    hearth = sources.hearth
    for name in ENDPOINTS:
        sources.until_served(name)
        hearth.until(
            lambda name=name: sources.condition(name, "WeightsCacheReady")["status"] == "True",  # type: ignore[misc]
            f"every node is warm for {name}", seconds=180,
        )  # fmt: skip
    for name in ENDPOINTS:
        sizes = {path: len(body) for path, body in sources.files[name].items()}
        hearth.until(lambda name=name, sizes=sizes: sources.said(name) == sizes, f"{name} answers", seconds=60)  # type: ignore[misc]
        hearth.until(
            lambda name=name: sources.condition(name, "ImageCacheReady")["status"] == "True",  # type: ignore[misc]
            f"the image of {name} is kept", seconds=180,
        )  # fmt: skip
    accepted = EulaAcceptance.objects.get()
    assert (accepted.subject, accepted.text) == (GATED, TERMS.decode()), "of the gated one, and of no other"
    assert (accepted.accepted_by, accepted.accepted_via) == ("JumpStartModel default/hub-llama", "Kubectl")
    assert sources.condition("chat-hub", "TokenReadable")["status"] == "True"


def tables_are_those_of_the_documents(sources: Sources, nodes: int) -> None:
    """One line for each cache of weights; the image is one for all of them."""
    count = str(nodes)
    for kind in ("modeldatacacheconfig", "modelweightscacheconfigs"):
        header, *lines = sources.kubectl.table(kind, "--namespace", "default")
        assert header == ["NAME", "STATE", "TARGET", "READY", "AGE"]
        assert [line[:4] for line in lines] == [[f"{name}-model-cache", "Ready", count, count] for name in ENDPOINTS]
    for kind in ("inferenceimagecache", "mic"):
        header, *lines = sources.kubectl.table(kind, "--namespace", IMAGE_CACHES_NAMESPACE)
        assert header == ["NAME", "PHASE", "CACHED", "TARGET", "AGE"]
        [[name, *numbers, _]] = lines
        assert name.startswith("iic-vllm-openai-ml-g5-24xlarge-") and numbers == ["Complete", count, count]


def the_shared_image_stays_until_the_last_one_goes(sources: Sources, pool: str, down: str) -> None:
    """Its holder goes with the last of four endpoints, and with it every label, entry and file, also on a node that was
    down meanwhile; nothing beside the store is touched, and nobody has the token any more."""
    hearth, client, kubectl = sources.hearth, sources.hearth.client, sources.kubectl
    [holder] = hearth.gateway.image_holders(pool)
    digest = Pin.objects.filter(image__isnull=False, removed_at=None).values_list("image__artifact__digest", flat=True)
    label = ready_label(digest[0], ArtifactKind.IMAGE)
    versions = list(ModelVersion.objects.select_related("artifact", "model"))
    token = EndpointToken.objects.select_related("connection").get()
    copy = f"{names.SECRETS}/{token.connection.secret_name}"
    assert answers(client, copy) and label in hearth.labels(down)
    beside = {node: hearth.store(hearth.kube.nodes[node]).parent / "not-hearths" for node in hearth.kube.nodes}
    for path in beside.values():
        path.write_text("mine")

    *first, last = ENDPOINTS
    for name in first:
        kubectl("delete", "--wait=false", PLURALS.get(name, names.CONFIGS), name)
    hearth.until(lambda: Endpoint.objects.count() == 1, "three of four are gone", seconds=120)
    assert hearth.gateway.image_holders(pool) == (holder,) and sources.said(last), "what shares it goes on"

    hearth.kube.nodes[down].kill(pods=True)
    kubectl("delete", "--wait=false", PLURALS[last], last)
    hearth.until(lambda: not Endpoint.objects.exists(), "no node is waited for", seconds=120)
    hearth.until(lambda: hearth.gateway.image_holders(pool) == (), "nobody holds its image", seconds=180)
    assert kubectl.table("mic", "--namespace", IMAGE_CACHES_NAMESPACE) == []
    hearth.kube.nodes[down].start()
    hearth.until(
        lambda: not any(hearth.content(node, version) for node in hearth.kube.nodes for version in versions),
        "the files are gone everywhere", seconds=300,
    )  # fmt: skip
    hearth.until(
        lambda: not any("cache-ready" in name for node in hearth.kube.nodes for name in hearth.labels(node)),
        "and every label", seconds=120,
    )  # fmt: skip
    hearth.until(lambda: not wanted(hearth), "and every line of a NodeCache", seconds=120)
    hearth.until(lambda: not EndpointToken.objects.exists() and not answers(client, copy), "and the token", seconds=120)
    for path in beside.values():
        assert path.read_text() == "mine"
        path.unlink()


def wanted(hearth: HearthOnKube) -> list[str]:
    """Digests that some node of the cluster is to have."""
    items = [item for item in hearth.gateway.list(Kind.NODE_CACHE).items if isinstance(item, ObservedNodeCache)]
    return [line.digest for item in items if item.node_name in hearth.kube.nodes for line in item.spec.desired]
