"""Endpoints where one node is full and one of no pool: which gates open, and what a pod on such a node does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import yaml

from controlplane.clusters.kubernetes import names
from tests.kube.endpoint_kinds import MANIFESTS
from tests.kube.endpoint_walk import PODS, SECRET, TYPE_LABEL
from tests.kube.hearth import agents
from tests.kube.installed import answers
from tests.kube.source_walk import ENDPOINTS, OPEN, TOKEN, TOKEN_SECRET, TYPE, Sources, config

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
WARM_UP_SECONDS = 2
FETCH = ("chat-hub", "chat-fsx")  # whose pods are put where nothing can be kept


@contextmanager
def full(sources: Sources, name: str) -> Iterator[None]:
    """Somebody else takes the node's disk; Hearth knows it before the block begins."""
    hearth, node = sources.hearth, sources.hearth.kube.nodes[name]
    total, free = node.store_bytes()
    node.fill(free - total // 20)

    def is_known() -> bool:
        row = hearth.node(name)
        return row is not None and row.other_bytes > 0.9 * (row.capacity_bytes or 0)

    try:
        hearth.until(is_known, "the agent tells what somebody else took", seconds=120)
        yield
    finally:
        node.fill(0)


def policies_open_gates_though_a_node_is_full(sources: Sources, full: str) -> None:
    """Four documents at once, both caches each, JumpStart's as it is printed, to the letter. That one waits for all
    nodes, and says which has no room, with numbers; one node of two, half of them or a second suffice for the others.
    """
    hearth = sources.hearth
    _apply_all(sources)
    for name in ENDPOINTS:
        if name != "hub-llama":
            sources.until_served(name)
    hearth.until(
        lambda: sources.condition("hub-llama", "RolledOut")["reason"] == "InsufficientCapacity",
        "the one for all nodes waits", seconds=120,
    )  # fmt: skip
    said = sources.condition("hub-llama", "RolledOut")["message"]
    assert "does not fit on 1 of 2 nodes" in said and f"On {full} it needs" in said, said
    assert not answers(hearth.client, f"{DEPLOYMENTS}/hub-llama")


def _apply_all(sources: Sources) -> None:
    # Pods come as soon as a gate is open, to the full node too: what they need to fetch by themselves is there.
    keys = sources.hearth.bucket.secret
    reader = {"access-key-id": keys["access_key_id"], "secret-access-key": keys["secret_access_key"]}
    for path, values in ((TOKEN_SECRET, {"token": TOKEN}), (SECRET, reader)):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": path.rpartition("/")[2]}}
        sources.hearth.client.apply(path, {**secret, "stringData": values}, manager="test", force=True)
    place = {"modelSourceType": "fsx", "fsxStorage": {"fileSystemId": "fs-0123"}, "modelLocation": "llms/chat-fsx"}
    fsx = config(sources, "chat-fsx", "Count:1", place)
    fsx["metadata"]["annotations"]["hearth.dev/warm-up"] = f"/?seconds={WARM_UP_SECONDS}"
    sources.apply(fsx)
    named = {"modelId": "org/chat", "tokenSecretRef": {"name": "hub-token", "key": "token"}}
    hub_model = {"modelSourceType": "huggingface", "huggingFaceModel": named}
    sources.apply(config(sources, "chat-hub", "Timeout:1", hub_model))
    sources.kubectl("apply", "-f", str(MANIFESTS[1]))
    document = yaml.safe_load(MANIFESTS[1].read_text())
    annotations = {"hearth.dev/gate": "Percent:50", "hearth.dev/source-secret": "reader"}
    document["metadata"] |= {"name": "hub-open", "annotations": annotations}
    document["spec"]["model"] = {"modelId": OPEN, "acceptEula": False}
    sources.apply(document)


def a_request_warms_a_pod_up_before_it_is_ready(sources: Sources) -> None:
    """The pod was not ready before the slow request had its answer."""
    sources.hearth.until(lambda: _warmed_up(sources), "the container beside it has ended and waits", seconds=120)
    ended = _warmed_up(sources)
    found = json.loads(ended["message"])
    assert found["warm"] and found["seconds"] >= WARM_UP_SECONDS, found
    [pod] = _pods(sources, "chat-fsx")
    turned = {one["type"]: datetime.fromisoformat(one["lastTransitionTime"]) for one in pod["status"]["conditions"]}
    earliest = datetime.fromisoformat(ended["startedAt"]) + timedelta(seconds=WARM_UP_SECONDS)
    assert turned["Ready"] >= earliest, (turned, ended)
    sources.hearth.until(lambda: sources.condition("chat-fsx", "WarmedUp")["status"] == "True", "its endpoint says so")


def _warmed_up(sources: Sources) -> dict[str, Any]:
    """How the container that sends the request ended, once it was started again."""
    [pod] = _pods(sources, "chat-fsx")
    [beside] = [one for one in pod["status"]["containerStatuses"] if one["name"] == "warm-up"]
    return dict(beside["lastState"].get("terminated") or {})


def pods_start_where_nothing_can_be_kept(sources: Sources, *, full: str, strange: str) -> None:
    """On a node without room, and on one of no pool where nobody ever made a store: each fetches into itself, from the
    hub and from the file system that its node has mounted."""
    hearth = sources.hearth
    hearth.until(lambda: not agents(hearth.kube.nodes[strange]), "nobody keeps anything there", seconds=120)
    shutil.rmtree(hearth.store(hearth.kube.nodes[strange]), ignore_errors=True)
    _label(sources, strange, TYPE)
    try:
        for replicas, node in ((2, full), (3, strange)):
            _schedulable(sources, node)
            for name in FETCH:
                sources.kubectl("scale", f"{names.CONFIGS}/{name}", f"--replicas={replicas}")
            hearth.until(
                lambda count=replicas: all(_placed(sources, name) == count for name in FETCH),  # type: ignore[misc]
                f"one more is on {node}", seconds=120,
            )  # fmt: skip
    finally:
        _schedulable(sources, *hearth.kube.nodes)
        _label(sources, strange, None)
    for name in FETCH:
        hearth.until(lambda name=name: _available(sources, name) == 3, f"{name} serves", seconds=180)  # type: ignore[misc]
        told = {pod["spec"]["nodeName"]: _ensured(pod) for pod in _pods(sources, name)}
        assert told[full]["found"] == told[strange]["found"] == "local", (name, told)
        assert "the node's store has no room" in told[full]["message"], (name, told)
        assert told[strange]["message"] == "this node has no store", (name, told)


def _pods(sources: Sources, name: str) -> list[dict[str, Any]]:
    found = sources.hearth.client.get(PODS, {"labelSelector": f"app={name}"})["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def _placed(sources: Sources, name: str) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in _pods(sources, name))


def _available(sources: Sources, name: str) -> int:
    return int(sources.hearth.client.get(f"{DEPLOYMENTS}/{name}")["status"].get("availableReplicas", 0))


def _ensured(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"]))


def _schedulable(sources: Sources, *wanted: str) -> None:
    for name in sources.hearth.kube.nodes:
        spec = {"unschedulable": None if name in wanted else True}
        sources.hearth.client.merge(f"{names.NODES}/{name}", {"spec": spec}, manager="test")


def _label(sources: Sources, node: str, value: str | None) -> None:
    labels = {"metadata": {"labels": {TYPE_LABEL: value}}}
    sources.hearth.client.merge(f"{names.NODES}/{node}", labels, manager="test")
