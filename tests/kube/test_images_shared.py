"""An image that two endpoints share, on real nodes: held once, run with its registry down, moved, removed under its
holder, withdrawn, and gone with the last of both, also from a node that was down meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from caches.domain.labels import ready_label
from caches.models import CacheEntry, Image, ModelVersion, Pin
from caches.services.images import observing as image_observing
from caches.services.images.catalogue import image_check, image_delete, image_restore, image_revoke
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.embedded.kube import namespace
from controlplane.embedded.kube.node import KubeNode
from controlplane.embedded.kube.registry import busybox_layer
from controlplane.embedded.kube.runtime import SOCKET
from controlplane.errors import Clash
from tests.domain.endpoints import GONE, config
from tests.kube.endpoint_kinds import API, Kubectl, endpoint_kinds
from tests.kube.hearth import LABEL, MIB, POOL, HearthOnKube, noise
from tests.kube.installed import answers
from tests.kube.real import InstalledKube

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

NODES = ("node-a", "node-b")
BOTH = ("first", "second")
REPOSITORY = "shared/engine"
WORK = "/apis/apps/v1/namespaces/default/deployments"
SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"


class Shared:
    """Two endpoints of one model and one image by its tag ``latest``, without pods until one is scaled."""

    def __init__(self, hearth: HearthOnKube) -> None:
        self.hearth, self.client, self.kubectl = hearth, hearth.client, Kubectl(hearth.kube.kubeconfig)
        self.hearth.bucket.put("llms/shared/model-0.safetensors", noise(f"{hearth.bucket.name}/shared", 2 * MIB))

    def push(self, number: str) -> str:
        """Another image under the tag; its digest."""
        assert self.hearth.kube._registry is not None
        # Ends when it is told to: what a pod runs is in use until it has ended.
        script = f"trap 'exit 0' TERM; while :; do sleep 3600{number} & wait $!; done"
        pushed = self.hearth.kube._registry.push(REPOSITORY, "latest", busybox_layer(), ["/bin/sh", "-c", script])
        return pushed.rpartition("@")[2]

    def apply(self, name: str) -> None:
        here = {"matchExpressions": [{"key": LABEL, "operator": "In", "values": [POOL]}]}
        changes: dict[str, Any] = {
            "metadata__name": name,
            "spec__replicas": 0,
            "spec__modelName": "shared",
            "spec__instanceType": GONE,
            "spec__nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}},
            "spec__modelSourceConfig__s3Storage__bucketName": self.hearth.bucket.name,
            "spec__modelSourceConfig__modelLocation": "llms/shared",
            "spec__worker__image": f"{self.hearth.kube.registry}/{REPOSITORY}:latest",
            "spec__worker__resources": {"requests": {"cpu": "1m"}},
        }
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(config(**changes)))

    def delete(self, name: str) -> None:
        """By its document; the finalizer lets it go."""
        self.kubectl("delete", names.CONFIGS, name, "--wait=false")
        path = f"{API}/namespaces/default/{names.CONFIGS}/{name}"
        self.hearth.until(lambda: not answers(self.client, path), f"{name} is let go", seconds=120)

    def condition(self, name: str, type_: str) -> dict[str, Any]:
        status = self.client.get(f"{API}/namespaces/default/{names.CONFIGS}/{name}").get("status") or {}
        return next((dict(one) for one in status.get("conditions") or () if one["type"] == type_), {})

    def states(self, digest: str) -> dict[str, str]:
        rows = CacheEntry.objects.filter(artifact__digest=digest, node__lost_at=None)
        return dict(rows.values_list("node__name", "state"))

    def kept(self, digest: str, *nodes: str) -> bool:
        """Ready and labelled on these nodes and on no other."""
        ready = {name for name, state in self.states(digest).items() if state == "Ready"}
        label = ready_label(digest, ArtifactKind.IMAGE)
        return ready == set(nodes) == {name for name in NODES if label in self.hearth.labels(name)}

    @property
    def version(self) -> ModelVersion:
        found: ModelVersion = ModelVersion.objects.select_related("artifact", "model").get()
        if found.artifact is not None:
            self.hearth.digests.add(found.artifact.digest)
        return found

    def files(self, node: str) -> dict[str, str]:
        return self.hearth.content(node, self.version)


@pytest.fixture
def shared(installed_kube: InstalledKube, hearth_on: Callable[..., HearthOnKube]) -> Iterator[Shared]:
    client: KubeClient = installed_kube.client
    with endpoint_kinds(client):
        hearth = hearth_on(*NODES)
        hearth.until(lambda: hearth.reports(*NODES), "the nodes report", seconds=180)
        yield Shared(hearth)
        for name in BOTH:
            client.delete(f"{WORK}/{name}")
            client.delete(f"{SERVICES}/{name}")
        client.delete(names.IMAGE_DAEMON_SETS)


def test_two_endpoints_share_an_image_until_the_last_is_gone(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    # The node's list is asked at once, and believed as soon as the test has seen it there.
    monkeypatch.setattr(image_observing, "PROVEN_EVERY", timedelta(seconds=1))
    hearth, digest = shared.hearth, shared.push("1")
    for name in BOTH:
        shared.apply(name)
    hearth.until(lambda: shared.kept(digest, *NODES), "both nodes keep it", seconds=240)
    hearth.until(
        lambda: all(shared.condition(name, "ImageCacheReady").get("status") == "True" for name in BOTH), "both say so"
    )
    reference = f"{hearth.kube.registry}/{REPOSITORY}@{digest}"
    assert hearth.gateway.image_holders(POOL) == (reference,), "held once"
    image = Image.objects.get(artifact__digest=digest)
    assert Pin.objects.filter(image=image, removed_at=None).count() == 2

    another_under_the_tag(shared, image)
    runs_with_its_registry_down(shared, digest)
    removed_under_its_holder(shared, digest, hearth.kube.nodes["node-b"], monkeypatch)
    withdrawn_and_back(shared, image, digest)

    hearth.until(lambda: all(shared.files(node) for node in NODES), "and the weights are there")
    strangers = [stranger(hearth.kube.nodes[node]) for node in NODES]
    shared.delete("first")
    for _ in range(3):
        hearth.step()
    assert shared.kept(digest, *NODES) and hearth.gateway.image_holders(POOL) == (reference,), "the other one has it"
    assert all(shared.files(node) for node in NODES)
    with pytest.raises(Clash):
        image_delete(actor=SYSTEM, image_id=image.pk)

    last_one_goes_while_a_node_is_down(shared, image, digest)
    assert [path.read_bytes() for path in strangers] == [b"somebody else's"] * 2


def another_under_the_tag(shared: Shared, image: Image) -> None:
    """It is shown, and changes nothing that is kept."""
    other = shared.push("2")
    image_check(image_id=image.pk)
    for name in BOTH:
        shared.hearth.until(lambda name=name: shared.condition(name, "ImageTagMoved"), "it is told")  # type: ignore[misc]
        assert other in shared.condition(name, "ImageTagMoved")["message"]
    assert not CacheEntry.objects.filter(artifact__digest=other).exists()


def runs_with_its_registry_down(shared: Shared, digest: str) -> None:
    """A pod of ``:latest`` starts from what is kept, as it was when the endpoint came."""
    hearth = shared.hearth

    def running() -> bool:
        query = {"labelSelector": "app=first"}
        told = [pod["status"].get("containerStatuses") or () for pod in shared.client.get(PODS, query)["items"]]
        return any("running" in one["state"] and digest in one["imageID"] for of in told for one in of)

    hearth.kube.supervisor.kill("registry")
    try:
        shared.kubectl("scale", f"{names.CONFIGS}/first", "--replicas=1")
        hearth.until(running, "a warm pod starts without its registry", seconds=180)
    finally:
        hearth.kube.supervisor.restart("registry")
    shared.kubectl("scale", f"{names.CONFIGS}/first", "--replicas=0")


def removed_under_its_holder(shared: Shared, digest: str, node: KubeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes it from the node's runtime: the node is not warm any more, pulls it again, and is."""
    hearth = shared.hearth

    def listed() -> bool:
        nodes = [hearth.kube.nodes[name] for name in NODES]
        return all(digest in (hearth.gateway.images_listed(one.name, one.uid) or ()) for one in nodes)

    hearth.until(listed, "the nodes list it", seconds=180)
    before = holder(shared, node)
    run_on(node, "rm", *images_of(node, digest))
    assert images_of(node, digest) == []
    with monkeypatch.context() as believed:
        believed.setattr(image_observing, "SETTLED", timedelta(seconds=1))
        hearth.until(lambda: holder(shared, node) not in ("", before), "its holder is made again", seconds=240)
    hearth.until(lambda: shared.kept(digest, *NODES), "and the node is warm again", seconds=240)
    assert images_of(node, digest), "because it was pulled again"


def images_of(node: KubeNode, digest: str) -> list[str]:
    """The names under which the node's runtime has it."""
    return [line.split()[0] for line in run_on(node, "ls").splitlines() if digest in line.split()]


def run_on(node: KubeNode, *arguments: str) -> str:
    argv = ["ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", *arguments]
    return subprocess.run(
        namespace.inside(node._namespace, argv), capture_output=True, text=True, check=True, timeout=120
    ).stdout


def holder(shared: Shared, node: KubeNode) -> str:
    """The uid of the holder's pod there; "" while there is none."""
    items = shared.client.get(names.IMAGE_PODS, {"fieldSelector": f"spec.nodeName={node.name}"})["items"]
    uids = [item["metadata"]["uid"] for item in items if not item["metadata"].get("deletionTimestamp")]
    return str(uids[0]) if len(uids) == 1 else ""


def withdrawn_and_back(shared: Shared, image: Image, digest: str) -> None:
    """A revoked digest leaves every node on request, whoever wants it, and comes back when it is restored."""
    hearth = shared.hearth
    image_revoke(actor=SYSTEM, image_id=image.pk, reason="CVE", withdraw=True)
    hearth.until(lambda: hearth.gateway.image_holders(POOL) == () and shared.kept(digest), "it leaves", seconds=120)
    image_restore(actor=SYSTEM, image_id=image.pk)
    hearth.until(lambda: shared.kept(digest, *NODES), "it comes back", seconds=240)


def last_one_goes_while_a_node_is_down(shared: Shared, image: Image, digest: str) -> None:
    hearth, down = shared.hearth, shared.hearth.kube.nodes["node-b"]
    weights, files = shared.version, hearth.store(down) / "weights"
    assert weights.artifact is not None
    down.kill(pods=True)
    try:
        shared.delete("second")
        hearth.until(lambda: not shared.files("node-a"), "its files are gone", seconds=180)
        assert any(files.iterdir()), "those of the node that is down are not"
    finally:
        down.start()
    marks = {ready_label(digest, ArtifactKind.IMAGE), ready_label(weights.artifact.digest)}
    # Who uses what on a node that is down may be unknown, and then nothing is let go there before it is back.
    hearth.until(lambda: not shared.files("node-b"), "and go when it comes back", seconds=300)
    hearth.until(lambda: hearth.gateway.image_holders(POOL) == (), "nobody holds it any more", seconds=180)
    hearth.until(lambda: not any(marks & hearth.labels(node).keys() for node in NODES), "no label is left", seconds=180)
    hearth.until(lambda: not any(wanted(hearth, node) for node in NODES), "and nothing is asked of a node", seconds=180)
    items = shared.client.get(names.IMAGE_PODS)["items"]
    assert [item for item in items if not item["metadata"].get("deletionTimestamp")] == []
    image_delete(actor=SYSTEM, image_id=image.pk)
    assert not Image.objects.filter(pk=image.pk).exists()


def wanted(hearth: HearthOnKube, node: str) -> bool:
    """Whether the node's document still asks for something that it should have, or tells of something that it has."""
    cache = hearth.cache(node)
    assert cache is not None and cache.status is not None
    return bool(cache.spec.desired) or any(entry.state != "Absent" for entry in cache.status.entries)


def stranger(node: KubeNode) -> Path:
    """A file beside the store, on the same disk."""
    path = node.store / "somebody" / "file"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"somebody else's")
    return path
