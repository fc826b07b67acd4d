"""From a pin over REST to pods that start: on warm, cold, full and poolless nodes, and where the agent is dead."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable

import pytest

from caches.agent.store import name_of
from caches.domain.labels import ready_label
from caches.models import ModelVersion
from controlplane.accounts.models import Scope, User
from controlplane.clusters.kubernetes import names
from controlplane.operations.models import Operation, OperationState
from tests.api.conftest import api_for
from tests.kube.consumers import consumer, run
from tests.kube.hearth import LABEL, MIB, HearthOnKube, agents
from tests.kube.real import InstalledKube

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

SIZE = 48 * MIB
Start = Callable[..., HearthOnKube]
Measured = Callable[[str, object], None]


@pytest.fixture
def image(installed_kube: InstalledKube) -> str:
    return installed_kube.image


def pin(user: User, version: ModelVersion) -> str:
    """As a pipeline does it; the operation's id."""
    api = api_for(user, Scope.READ, Scope.PINS_WRITE)
    answer = api.post("pins", {"model": version.model.name, "version": version.version, "pools": ["real.gpu"]})
    assert answer.status_code == 202, answer.content
    return str(answer.json()["id"])


def test_a_pin_over_rest_leaves_nodes_warm_and_pods_start_at_once(
    hearth_on: Start, image: str, operator: User, measured: Measured
) -> None:
    hearth = hearth_on("node-a", "node-b")
    hearth.until(lambda: hearth.reports("node-a", "node-b"), "the nodes report")
    version = hearth.model("llama", SIZE)
    operation = pin(operator, version)

    def done() -> bool:
        return Operation.objects.get(pk=operation).state == OperationState.SUCCEEDED

    measured("pin_to_warm_seconds", round(hearth.until(done, "both nodes are warm"), 2))
    for node in ("node-a", "node-b"):
        assert hearth.content(node, version) == hearth.wanted_content(version), "the very bytes"
    assert version.artifact is not None
    label = ready_label(version.artifact.digest)
    hearth.until(lambda: label in hearth.labels("node-a") and label in hearth.labels("node-b"), "they are labelled")
    assert label not in hearth.labels("node-c")

    ended = run(hearth, consumer(hearth, image, version, "warm", "node-a"))
    assert (ended.found, ended.ensure["bytes"]) == ("hit", 0)
    assert ended.ensure["seconds"] < 30, "milliseconds on a quiet machine"
    assert ended.server["sums"] == hearth.wanted_content(version)
    assert ended.server["written"] == "Read-only file system"
    assert ended.server["secret"] == [], "what the ensure step was given stays with it"
    assert ended.server["links"] == [f"/hearth/weights/model-{n}.safetensors" for n in (0, 1)]
    measured("warm_ensure_seconds", ended.ensure["seconds"])
    measured("local_read_bytes_per_second", round(ended.server["bytes"] / ended.server["seconds"]))


def test_a_pod_on_a_cold_node_has_the_agent_fetch_and_leaves_the_node_warm(
    hearth_on: Start, image: str, measured: Measured
) -> None:
    hearth = hearth_on("node-a", "node-b")
    hearth.until(lambda: hearth.reports("node-a", "node-b"), "the nodes report")
    version = hearth.model("cold", SIZE)
    hearth.until(lambda: published(hearth, version), "what nobody pinned is published all the same")

    first = run(hearth, consumer(hearth, image, version, "cold-1", "node-b"))
    assert (first.found, first.ensure["bytes"], first.ensure["source"]) == ("miss", SIZE, "models")
    assert first.server["sums"] == hearth.wanted_content(version)
    measured("cold_ensure_seconds", first.ensure["seconds"])

    hearth.until(lambda: hearth.is_ready(version, "node-b"), "Hearth knows it is warm")
    second = run(hearth, consumer(hearth, image, version, "cold-2", "node-b"))
    assert (second.found, second.ensure["bytes"]) == ("hit", 0)
    assert hearth.content("node-a", version) == {}, "on no other node"


def published(hearth: HearthOnKube, version: ModelVersion) -> bool:
    query = {"labelSelector": names.MANIFEST_LABEL}
    found = hearth.client.get(names.MANIFESTS, query, only_metadata="PartialObjectMetadataList")["items"] or ()
    assert version.artifact is not None
    return any(version.artifact.digest[7:] in item["metadata"]["name"] for item in found)


def test_a_pod_starts_on_a_full_node(hearth_on: Start, image: str) -> None:
    hearth = hearth_on("node-a", "node-b")
    hearth.until(lambda: hearth.reports("node-a"), "the node reports")
    version, node = hearth.model("too-much", SIZE), hearth.kube.nodes["node-a"]
    hearth.until(lambda: published(hearth, version), "it is published")
    free = shutil.disk_usage(node.store).free
    node.fill(free - SIZE // 2)
    try:
        ended = run(hearth, consumer(hearth, image, version, "full", "node-a"))
    finally:
        node.fill(0)
    assert (ended.found, ended.ensure["bytes"]) == ("local", SIZE)
    assert ended.server["sums"] == hearth.wanted_content(version)
    assert not (hearth.store(node) / "weights" / tree(version)).exists() or hearth.content("node-a", version) == {}


def test_a_pod_starts_on_a_node_of_no_pool(hearth_on: Start, image: str) -> None:
    hearth = hearth_on("node-a")
    version, node = hearth.model("anywhere", SIZE), hearth.kube.nodes["node-c"]
    hearth.until(lambda: hearth.agent_pod("node-c") is None and not agents(node), "no agent is left there")
    shutil.rmtree(hearth.store(node), ignore_errors=True)
    ended = run(hearth, consumer(hearth, image, version, "poolless", "node-c"))
    assert (ended.found, ended.ensure["bytes"]) == ("local", SIZE)
    assert ended.server["sums"] == hearth.wanted_content(version)


def test_a_pod_starts_where_the_agent_is_dead(hearth_on: Start, image: str) -> None:
    hearth = hearth_on("node-a", "node-b")
    hearth.until(lambda: hearth.reports("node-b"), "the node reports")
    version, node = hearth.model("alone", SIZE), hearth.kube.nodes["node-b"]
    [hung] = agents(node)
    os.kill(hung, signal.SIGSTOP)  # it holds the store, and says nothing
    try:
        ended = run(hearth, consumer(hearth, image, version, "hung", "node-b", "--answer-seconds=1"))
    finally:
        os.kill(hung, signal.SIGCONT)
    assert (ended.found, ended.ensure["bytes"]) == ("local", SIZE)
    assert ended.server["sums"] == hearth.wanted_content(version)

    hearth.client.merge(f"{names.NODES}/node-b", {"metadata": {"labels": {LABEL: None}}}, manager="test")
    hearth.until(lambda: hearth.agent_pod("node-b") is None, "its agent is told to go")
    hearth.until(lambda: not agents(node), "its agent is gone")
    ended = run(hearth, consumer(hearth, image, version, "gone", "node-b"))
    assert (ended.found, ended.ensure["bytes"]) == ("miss", SIZE)
    assert hearth.content("node-b", version) == hearth.wanted_content(version), "the node is left warm"
    assert run(hearth, consumer(hearth, image, version, "again", "node-b")).found == "hit"


def tree(version: ModelVersion) -> str:
    assert version.artifact is not None
    return name_of(version.artifact.digest)
