"""The printed manifests on real nodes: gated, served, changed under requests, gone without a trace; every source."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from django.conf import LazySettings

from caches.models import ModelVersion, Pin, Rollout
from controlplane.clusters.endpoints import IMAGE_CACHES_NAMESPACE
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.serving.models import Endpoint, Instance
from tests.kube.endpoint_kinds import MANIFESTS, Kubectl, endpoint_kinds
from tests.kube.endpoint_launches import (
    a_launch_of_each_class,
    a_machine_is_lost_with_its_pod,
    a_pod_that_says_what_it_uses,
    only_this_node_is_new,
)
from tests.kube.endpoint_routed import scaled_behind_a_router
from tests.kube.endpoint_server import Requests, build, server_image
from tests.kube.endpoint_walk import (
    NAME,
    PATH,
    SECRET,
    SERVICE,
    TYPE,
    TYPE_LABEL,
    WORK,
    Walk,
    cache_off_and_on,
    five_at_once_while_a_node_joins,
    no_room_then_another_image,
    other_weights_and_back,
    with_keys,
)
from tests.kube.hearth import POOL, HearthOnKube, agents
from tests.kube.installed import answers
from tests.kube.real import InstalledKube, shared
from tests.kube.source_gates import (
    a_request_warms_a_pod_up_before_it_is_ready,
    full,
    pods_start_where_nothing_can_be_kept,
    policies_open_gates_though_a_node_is_full,
)
from tests.kube.source_walk import (
    all_are_served,
    sources,
    tables_are_those_of_the_documents,
    the_shared_image_stays_until_the_last_one_goes,
)

__all__ = ["server_image"]  # a fixture
pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

SMALL, NEXT, LARGE = "llms/chat-small", "llms/chat-next", "llms/chat-large"
# Room for two pods of the manifest on each warm node, for one on the node that joins.
GPUS = {"node-a": 8, "node-b": 8, "node-c": 4}


@pytest.fixture
def kinds(installed_kube: InstalledKube) -> Iterator[KubeClient]:
    """The vendor's kinds, and nodes that look as the manifests want them; node-c does not yet, and is no target."""
    client = installed_kube.client
    with endpoint_kinds(client):
        for node, count in GPUS.items():
            labels = {TYPE_LABEL: TYPE if node != "node-c" else None}
            client.merge(f"{names.NODES}/{node}", {"metadata": {"labels": labels}}, manager="test")
            gpus = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(count)}]
            client.patch(f"{names.NODES}/{node}/status", gpus, manager="test")
        yield client
        for path in (WORK, SERVICE, SECRET):
            client.delete(path)
        for node in GPUS:
            client.merge(f"{names.NODES}/{node}", {"metadata": {"labels": {TYPE_LABEL: None}}}, manager="test")


@pytest.fixture
def mount(installed_kube: InstalledKube, settings: LazySettings) -> Path:
    """The file system that is mounted on this machine and on the nodes."""
    folder = shared(installed_kube.cluster) / "endpoints"
    folder.mkdir(exist_ok=True)
    settings.SOURCE_ROOTS = [str(folder)]
    return folder


def test_the_printed_manifest_is_served_changed_scaled_and_leaves_nothing(
    kinds: KubeClient,
    hearth_on: Callable[..., HearthOnKube],
    server_image: str,
    valkey_url: str,
    tmp_path: Path,
    measured: Callable[[str, object], None],
) -> None:
    hearth = hearth_on(*GPUS)
    walk = Walk(hearth, Kubectl(hearth.kube.kubeconfig))
    hearth.until(lambda: hearth.reports(*GPUS), "the nodes report", seconds=180)
    only_this_node_is_new(walk, "node-c")
    measured("gate_to_served_seconds", gated_and_served(walk, server_image))
    shown(walk)
    scaled_behind_a_router(walk, tmp_path, valkey_url, measured)

    with_keys(walk)
    another = build(hearth.kube, tmp_path, "2")
    probe = {"readinessProbe": {"httpGet": {"path": "/ping", "port": 8000}, "periodSeconds": 1}}
    walk.document["spec"]["worker"]["probes"] = probe
    with Requests(hearth.kube, f"{SERVICE}:8000/proxy/", WORK) as requests:
        other_weights_and_back(walk, requests, SMALL, NEXT)
        cache_off_and_on(walk, requests, SMALL)
        no_room_then_another_image(walk, requests, SMALL, LARGE, another)
        only_this_node_is_new(walk, "node-c")
        for start in five_at_once_while_a_node_joins(walk, requests, SMALL):
            measured("request_to_ready", str(start))
    a_machine_is_lost_with_its_pod(walk, SMALL, GPUS["node-c"])
    measured("launches", a_launch_of_each_class(walk))
    a_pod_that_says_what_it_uses(walk, SMALL)
    assert requests.is_whole() and len(requests.answers) > 100
    gone_without_a_trace(walk)


def test_every_other_source_is_served_with_both_caches_and_one_image_for_all(
    kinds: KubeClient, hearth_on: Callable[..., HearthOnKube], server_image: str, mount: Path
) -> None:
    warm = ("node-a", "node-b")
    hearth = hearth_on(*warm, source_paths=[str(mount)])
    hearth.until(lambda: hearth.reports(*warm), "the nodes report", seconds=180)
    with sources(hearth, Kubectl(hearth.kube.kubeconfig), server_image, mount) as others:
        with full(others, "node-b"):
            policies_open_gates_though_a_node_is_full(others, "node-b")
            a_request_warms_a_pod_up_before_it_is_ready(others)
            pods_start_where_nothing_can_be_kept(others, full="node-b", strange="node-c")
        all_are_served(others)
        tables_are_those_of_the_documents(others, len(warm))
        the_shared_image_stays_until_the_last_one_goes(others, POOL, "node-b")


def gated_and_served(walk: Walk, image: str) -> float:
    """As printed, but for image and bucket: no Deployment until both nodes are warm. Seconds from gate to served."""
    hearth, client = walk.hearth, walk.hearth.client
    walk.put(SMALL)
    text = MANIFESTS[0].read_text().replace("bucketName: models", f"bucketName: {hearth.bucket.name}")
    walk.document = yaml.safe_load(text.replace("vllm/vllm-openai:latest", image))
    [silent] = agents(hearth.kube.nodes["node-b"])
    os.kill(silent, signal.SIGSTOP)
    try:
        walk.apply()
        hearth.until(lambda: is_warm(walk, "node-a"), "one node is warm", seconds=120)
        for _ in range(3):
            hearth.step()
        assert not answers(client, WORK), "the gate holds until every target is warm"
        told = walk.condition("RolledOut")
        assert told["status"] == "False" and "1 of 2 ready" in told["message"], told
        header, line = walk.kubectl.table("modeldatacacheconfig", "--namespace", "default")
        assert header == ["NAME", "STATE", "TARGET", "READY", "AGE"]
        assert [line[0], *line[2:4]] == [f"{NAME}-model-cache", "2", "1"]
    finally:
        os.kill(silent, signal.SIGCONT)
    hearth.until(lambda: answers(client, WORK), "the gate opens", seconds=120)
    took = hearth.until(
        lambda: client.get(PATH)["status"].get("state") == "DeploymentComplete", "it serves", seconds=180
    )
    return round(took, 1)


def is_warm(walk: Walk, node: str) -> bool:
    return ModelVersion.objects.filter(artifact__isnull=False).exists() and walk.hearth.is_ready(
        walk.version(SMALL), node
    )


def shown(walk: Walk) -> None:
    """Through the Service, as the API server resolves it; as an instance; in the tables."""
    hearth = walk.hearth
    hearth.until(walk.files, "a request is answered", seconds=60)
    assert walk.files() == [f"chat-small-{number}.safetensors" for number in (0, 1)]
    [pod] = walk.pods()
    assert walk.found() == ["hit"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    hearth.until(lambda: Instance.objects.filter(uid=pod["metadata"]["uid"], ready=True).exists(), "it is an instance")
    for name in ("modelweightscacheconfigs", "modeldatacacheconfigs"):
        _, line = walk.kubectl.table(name, "--namespace", "default")
        assert line[:4] == [f"{NAME}-model-cache", "Ready", "2", "2"], name
    hearth.until(lambda: walk.condition("ImageCacheReady")["status"] == "True", "its image is kept", seconds=180)
    for name in ("mic", "inferenceimagecaches"):
        header, line = walk.kubectl.table(name, "--namespace", IMAGE_CACHES_NAMESPACE)
        assert header == ["NAME", "PHASE", "CACHED", "TARGET", "AGE"]
        assert line[1:4] == ["Complete", "2", "2"], name
    assert Rollout.objects.get().state == "Done"


def gone_without_a_trace(walk: Walk) -> None:
    hearth, client = walk.hearth, walk.hearth.client
    versions = [walk.version(location) for location in (SMALL, NEXT, LARGE)]
    walk.kubectl("delete", "-f", "-", "--wait=false", stdin=yaml.safe_dump(walk.document))
    hearth.until(lambda: not answers(client, PATH), "the finalizer lets it go", seconds=60)
    assert not Pin.objects.filter(removed_at=None).exists()
    hearth.until(lambda: not answers(client, WORK) and not answers(client, SERVICE), "its workload is gone")
    hearth.until(lambda: not Endpoint.objects.exists(), "and its row")
    hearth.until(lambda: hearth.gateway.image_holders(POOL) == (), "nobody holds its images", seconds=180)
    assert walk.kubectl.table("mic", "--namespace", IMAGE_CACHES_NAMESPACE) == []
    hearth.until(
        lambda: not any(hearth.content(node, version) for node in GPUS for version in versions),
        "the files are gone, once the pods are",
        seconds=240,
    )
