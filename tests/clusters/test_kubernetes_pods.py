"""What a pod holds decides what may be evicted under it, so a doubt counts as use."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.clusters.documents import ANY_DIGEST
from controlplane.clusters.kubernetes.pods import consumer_of

HEX_A, HEX_B = "a1" * 32, "b2" * 32
A, B = f"sha256:{HEX_A}", f"sha256:{HEX_B}"
FOLDER_A, FOLDER_B = f"weights/sha256-{HEX_A}", f"weights/sha256-{HEX_B}"
STORE = "/opt/dlami/nvme/hearth"
SILENT = "It ended with exit code {} and said nothing."


def container(*mounts: tuple[str, str] | dict[str, Any], name: str = "main") -> dict[str, Any]:
    made = [m if isinstance(m, dict) else {"name": m[0], "mountPath": "/m", "subPath": m[1]} for m in mounts]
    return {"name": name, "volumeMounts": made}


def pod(
    *containers: dict[str, Any],
    volumes: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    namespace: str = "serving",
    phase: str = "Running",
    node: str | None = "n-1",
    **spec: Any,
) -> dict[str, Any]:
    paths = {"store": STORE} if volumes is None else volumes
    return {
        "metadata": {
            "name": "engine-0",
            "namespace": namespace,
            "uid": "pod-uid",
            **({"annotations": annotations} if annotations else {}),
            **({"labels": labels} if labels else {}),
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": list(containers),
            "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()],
            **spec,
        },
        "status": {"phase": phase},
    }


def digests(*containers: dict[str, Any], **fields: Any) -> set[str]:
    consumer = consumer_of(pod(*containers, **fields), "uid")
    return set() if consumer is None else set(consumer.digests)


@pytest.mark.parametrize(
    ("volume", "below", "holds"),
    [
        (STORE, FOLDER_A, {A}),
        (STORE + "/", FOLDER_A + "/", {A}),
        (STORE, f"{FOLDER_A}/tokenizer", {A}),
        (STORE + "/weights", f"sha256-{HEX_A}", {A}),
        (f"{STORE}/{FOLDER_A}", "", {A}),
        ("/opt/dlami/nvme", f"hearth/{FOLDER_A}", {A}),
        (STORE, f"./weights/../{FOLDER_A}", {A}),
        (STORE, "", {ANY_DIGEST}),
        (STORE, "weights", {ANY_DIGEST}),
        (STORE, "partial", {ANY_DIGEST}),
        (STORE, f"partial/sha256-{HEX_A}", {ANY_DIGEST}),
        (STORE, "weights/sha256-short", {ANY_DIGEST}),
        (STORE, f"weights/sha256-{HEX_A.upper()}", {ANY_DIGEST}),
        (STORE, f"weights/sha256-{HEX_A}x", {ANY_DIGEST}),
        (STORE, f"weights/sha256-{HEX_A}\n", {ANY_DIGEST}),
        ("/", f"mnt/hearth/{FOLDER_A}", {A}),
        ("/opt/dlami/nvme", "", set()),
        ("/var/log", "", set()),
        ("/opt/hearths", "", set()),
        ("/opt/nothearth", FOLDER_A, set()),
        ("", "", set()),
    ],
)
def test_it_reads_a_mount(volume: str, below: str, holds: set[str]) -> None:
    assert digests(container(("store", below)), volumes={"store": volume}) == holds


def test_it_adds_up_all_containers_of_a_pod() -> None:
    both = digests(
        container(("store", FOLDER_A)), initContainers=[container(("store", FOLDER_B), name="ensure")],
        ephemeralContainers=None,
    )  # fmt: skip
    assert both == {A, B}
    assert digests(container(), ephemeralContainers=[container(("store", FOLDER_B))]) == {B}


def test_it_lets_a_pod_that_names_digests_also_see_the_store() -> None:
    # The ensure step mounts the store to speak with the agent and to fetch; what is served is named.
    ensure = container(("store", ""), name="ensure")
    assert digests(container(("store", FOLDER_A)), initContainers=[ensure]) == {A}
    assert digests(container(("store", "")), annotations={"cache.hearth.dev/weights": A}) == {A}


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (A, {A}),
        (f"{A},{B}", {A, B}),
        (f" {A} ,\n{B}, ", {A, B}),
        (f"{A} {B}", {A, B}),
        ("", set()),
        (" , ", set()),
        ("llama", {ANY_DIGEST}),
        (f"{A},llama", {A, ANY_DIGEST}),
        (HEX_A, {ANY_DIGEST}),
        (A.upper(), {ANY_DIGEST}),
    ],
)
def test_it_reads_the_annotation(value: str, holds: set[str]) -> None:
    assert digests(container(), annotations={"cache.hearth.dev/weights": value}) == holds


def test_it_counts_a_volume_only_where_it_is_mounted() -> None:
    assert digests(container()) == set()


def test_it_takes_a_path_that_is_made_in_the_pod_for_everything() -> None:
    mount = {"name": "store", "mountPath": "/m", "subPathExpr": "weights/$(DIGEST)"}
    assert digests(container(mount)) == {ANY_DIGEST}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_it_lets_go_with_the_pod(phase: str) -> None:
    ended = pod(container(("store", FOLDER_A)), phase=phase)
    assert consumer_of(ended, "uid") is None
    was = consumer_of(ended, "uid", ended=True)
    assert was is not None and was.digests == {A}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_it_holds_on_in_every_other_phase(phase: str) -> None:
    assert digests(container(("store", FOLDER_A)), phase=phase) == {A}


def test_it_waits_for_a_pod_to_be_placed() -> None:
    assert consumer_of(pod(container(("store", FOLDER_A)), node=None), "uid") is None


def test_it_excepts_agents_and_nobody_who_only_looks_like_one() -> None:
    agent = {"app.kubernetes.io/name": "hearth-agent", "pod-template-generation": "1"}
    assert digests(container(("store", "")), labels=agent, namespace="hearth-nodes") == set()
    assert digests(container(("store", "")), labels=agent, namespace="tenant") == {ANY_DIGEST}
    assert digests(container(("store", "")), namespace="hearth-nodes") == {ANY_DIGEST}


def test_it_tells_what_people_want_to_know_of_it() -> None:
    running = pod(container(("store", FOLDER_A)), labels={"app": "engine"})
    running["status"] |= {
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"restartCount": 2}, {"restartCount": 1}, {}],
    }
    consumer = consumer_of(running, "node-uid")
    assert consumer is not None
    assert (consumer.uid, consumer.name, consumer.node_name, consumer.node_uid) == (
        "pod-uid", "serving/engine-0", "n-1", "node-uid",
    )  # fmt: skip
    assert (consumer.ready, consumer.restart_count, consumer.labels) == (True, 3, {"app": "engine"})


def test_one_on_its_way_out_gets_nothing_new_whatever_its_kubelet_says() -> None:
    leaving = pod(container(("store", FOLDER_A)))
    leaving["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T08:00:00Z"
    consumer = consumer_of(leaving, "node-uid")
    assert consumer is not None and not consumer.ready and consumer.digests, "it still holds what it reads"
    assert consumer.leaving


def test_one_of_an_endpoint_counts_before_it_has_a_node_and_without_weights() -> None:
    serves = {"hearth.dev/endpoint": "chat"}
    nowhere = pod(container(), labels=serves, node=None, phase="Pending")
    reason = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}
    nowhere["status"]["conditions"] = [reason]
    found = consumer_of(nowhere, "")
    assert found is not None and (found.node_name, found.digests, found.leaving) == ("", frozenset(), False)
    assert (found.wait_reason, found.wait_message) == ("Unschedulable", "0/1 nodes are available.")
    placed = consumer_of(pod(container(), labels=serves), "uid")
    assert placed is not None and (placed.wait_reason, placed.wait_message) == ("", "")
    assert consumer_of(pod(container(), labels=serves, phase="Succeeded"), "uid") is None


@pytest.mark.parametrize(
    "odd",
    [
        {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"}},
        {"metadata": {"name": "p", "uid": "u"}, "spec": None, "status": None},
        {
            "metadata": {"name": "p", "uid": "u", "labels": None, "annotations": None},
            "spec": {
                "nodeName": "n",
                "containers": [{"volumeMounts": None}],
                "volumes": [{"name": "x", "hostPath": None}],
            },
        },
    ],
)
def test_it_is_not_upset_by_what_an_api_server_leaves_out(odd: dict[str, Any]) -> None:
    assert consumer_of(odd, "uid") is None


@pytest.mark.parametrize(("status", "address"), [({"podIP": "10.1.2.3"}, "10.1.2.3"), ({}, ""), ({"podIP": None}, "")])
def test_it_says_where_a_pod_answers_as_soon_as_the_pod_has_an_address(status: dict[str, Any], address: str) -> None:
    made = pod(container(("store", FOLDER_A)))
    consumer = consumer_of({**made, "status": made["status"] | status}, "uid")
    assert consumer is not None and consumer.address == address


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"state": {"running": {}}}, ""),
        ({"state": {"terminated": {"exitCode": 0, "message": '{"warm": true, "message": "HTTP 200"}'}}}, "ok"),
        (
            {"state": {"running": {}}, "lastState": {"terminated": {"message": '{"warm": false, "message": "No."}'}}},
            "No.",
        ),
        ({"lastState": {"terminated": {"exitCode": 137, "message": "[1]"}}}, SILENT.format(137)),
        ({"lastState": {"terminated": {"exitCode": 1}}}, SILENT.format(1)),
    ],
)
def test_it_says_how_the_warm_up_went_and_counts_its_end_as_no_restart(state: dict[str, Any], said: str) -> None:
    statuses = [{"name": "server", "restartCount": 2}, {"name": "warm-up", "restartCount": 1, **state}]
    running = pod(container(("store", FOLDER_A)))
    running["status"]["containerStatuses"] = statuses
    found = consumer_of(running, "uid")
    assert found is not None and (found.warm_up, found.restart_count) == (said, 2)
