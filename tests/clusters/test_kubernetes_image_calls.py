"""Holders as they are applied and looked at: volumes only where all nodes mount them, and no pod of an earlier node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import ImageHolder, NotFound, Refused, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.image_calls import (
    holder_apply,
    holder_delete,
    holder_renew,
    holders_list,
    image_presences,
    images_listed,
    volumes_stored,
)
from controlplane.clusters.kubernetes.image_holders import holder_set
from tests.clusters.scripted_api import ScriptedApi, scripted_api

REFERENCE = "registry.example/serving@sha256:" + "a" * 64
HOLDER = ImageHolder("gpu", REFERENCE, nodes=("n-1", "n-2"), node_selector={POOL_LABEL: "gpu"}, helper_image="helper")
SET = f"{names.IMAGE_DAEMON_SETS}/hearth-image-gpu-{'a' * 12}"
PROBE = f"{names.IMAGE_DAEMON_SETS}/hearth-image-probe-{'0' * 12}"
EARLY, LATE = "2030-01-01T00:00:00Z", "2030-01-02T00:00:00Z"


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as made:
        made.objects = {names.NODES: {"items": []}, names.IMAGE_PODS: {"items": []}}
        yield made


def node(name: str, runtime: str = "containerd://2.1.0", made_at: str = EARLY) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": made_at}
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.35.1"}
    return {"metadata": metadata, "status": {"nodeInfo": info}}


def pod(on: str, made_at: str = LATE, **metadata: Any) -> dict[str, Any]:
    template = holder_set(replace(HOLDER, nodes=(on,)))["spec"]["template"]
    status = {"containerStatuses": [{"state": {"running": {}}, "imageID": REFERENCE}]}
    marks = {"name": f"pod-{on}", "uid": f"pod-uid-{on}", "creationTimestamp": made_at, **metadata}
    return {
        "metadata": {**template["metadata"], **marks},
        "spec": {**template["spec"], "nodeName": on},
        "status": status,
    }


def volumes(api: ScriptedApi) -> bool:
    return "volumes" in api.body("PATCH", SET)["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("runtimes", "mounts"),
    [
        ({"n-1": "containerd://2.1.0", "n-2": "cri-o://1.32.1"}, True),
        ({"n-1": "containerd://2.1.0", "n-2": "containerd://1.7.0"}, False),
        ({"n-1": "containerd://2.1.0", "n-2": "containerd://2.1.0", "n-3": "containerd://1.7.0"}, True),
        ({"n-3": "containerd://2.1.0"}, False),  # the nodes that it is for are unknown
        ({"n-1": "", "n-2": "containerd://2.1.0"}, False),
        ({}, False),
    ],
)
def test_it_mounts_volumes_where_every_node_that_it_is_for_can(
    runtimes: dict[str, str], mounts: bool, api: ScriptedApi
) -> None:
    api.objects[names.NODES]["items"] = [node(name, runtime) for name, runtime in runtimes.items()]
    holder_apply(api.client, HOLDER)
    assert volumes(api) is mounts
    probes = [query for method, path, query, _ in api.sent if (method, path) == ("PATCH", PROBE)]
    assert all(query["dryRun"] == "All" for query in probes) and len(probes) == mounts, (
        "the server is asked for nothing"
    )


@pytest.mark.parametrize("changes", [{"helper_image": ""}, {"nodes": ()}])
def test_it_asks_nobody_about_volumes_that_it_cannot_use(changes: dict[str, Any], api: ScriptedApi) -> None:
    holder_apply(api.client, replace(HOLDER, **changes))
    assert not volumes(api) and api.writes() == [("PATCH", SET)]


def test_a_server_that_drops_volumes_has_none(api: ScriptedApi) -> None:
    assert volumes_stored(api.client)
    api.refusals["PATCH", PROBE] = [
        (422, {"reason": "Invalid", "message": "unknown field"}),
        (404, {"reason": "NotFound", "message": "no namespace", "details": {"name": "hearth-images"}}),
        (200, {"spec": {"template": {"spec": {"volumes": [{"name": "image"}]}}}}),
        (200, {"spec": {"template": {"spec": {"volumes": None}}}}),
    ]
    assert [volumes_stored(api.client) for _ in range(4)] == [False] * 4
    api.refusals["PATCH", PROBE] = [(503, {"message": "later"})]
    with pytest.raises(Unreachable):
        volumes_stored(api.client)  # not known is not none


def test_pods_that_are_older_than_their_node_are_made_again(api: ScriptedApi) -> None:
    api.objects[names.NODES]["items"] = [node("n-1", made_at=LATE), node("n-2", made_at=EARLY)]
    api.objects[names.IMAGE_PODS]["items"] = [pod("n-1", EARLY), pod("n-2", LATE), pod("n-9", EARLY)]
    path = f"{names.IMAGE_PODS}/pod-n-1"
    api.objects[path] = {}
    holder_apply(api.client, HOLDER)
    assert [path for method, path in api.writes() if method == "DELETE"] == [path]
    assert api.body("DELETE", path)["preconditions"] == {"uid": "pod-uid-n-1"}

    api.refusals["DELETE", path] = [(409, {"reason": "Conflict", "message": "the UID in the precondition is another"})]
    holder_apply(api.client, HOLDER)  # it was replaced meanwhile


def test_pods_that_pull_without_the_credentials_of_now_are_made_again(api: ScriptedApi) -> None:
    api.objects[names.NODES]["items"] = [node("n-1"), node("n-2")]
    waits = pod("n-1") | {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}}
    api.objects[names.IMAGE_PODS]["items"] = [waits, pod("n-2")]
    path = f"{names.IMAGE_PODS}/pod-n-1"
    api.objects[path] = {}
    holder_apply(api.client, HOLDER)
    assert ("DELETE", path) not in api.writes(), "it has those of now: none"
    holder_apply(api.client, replace(HOLDER, pull_secrets=("reader",)))
    deleted = [path for method, path in api.writes() if method == "DELETE"]
    assert deleted == [path], "and one that has the image already needs none"


def test_the_holder_of_one_node_is_made_again_when_it_is_told_so(api: ScriptedApi) -> None:
    leaving = pod("n-1", deletionTimestamp=LATE, name="going")
    api.objects[names.IMAGE_PODS]["items"] = [pod("n-1"), pod("n-2"), leaving]
    path = f"{names.IMAGE_PODS}/pod-n-1"
    api.objects[path] = {}
    holder_renew(api.client, "gpu", REFERENCE, "n-1")
    assert api.writes() == [("DELETE", path)] and api.body("DELETE", path)["preconditions"] == {"uid": "pod-uid-n-1"}
    selector = next(query["labelSelector"] for _, path, query, _ in api.sent if path == names.IMAGE_PODS)
    assert f"cache.hearth.dev/image={'a' * 12}" in selector, "and none of another image"
    holder_renew(api.client, "gpu", REFERENCE, "n-3")
    assert len(api.writes()) == 1


def test_presence_is_of_the_nodes_that_are_there(api: ScriptedApi) -> None:
    api.objects[names.NODES]["items"] = [node("n-1"), node("n-2", made_at=LATE)]
    items = [pod("n-1"), pod("n-2", EARLY), pod("n-9"), pod("n-1", annotations={})]
    api.objects[names.IMAGE_PODS]["items"] = items
    found = image_presences(api.client, "gpu")
    assert [(one.node_uid, one.ready) for one in found] == [("uid-n-1", True), ("uid-n-2", None)]
    selector = next(query["labelSelector"] for _, path, query, _ in api.sent if path == names.IMAGE_PODS)
    assert selector == f"app.kubernetes.io/name=hearth-image,{POOL_LABEL}=gpu"


def test_holders_are_known_by_what_they_are_there_for(api: ScriptedApi) -> None:
    other = REFERENCE.replace("a" * 64, "b" * 64)
    sets = [holder_set(replace(HOLDER, reference=reference)) for reference in (other, REFERENCE, REFERENCE)]
    api.objects[names.IMAGE_DAEMON_SETS] = {"items": [*sets, {"metadata": {"name": "x", "annotations": None}}]}
    assert holders_list(api.client, "gpu") == (REFERENCE, other)
    api.objects[SET] = {}
    holder_delete(api.client, "gpu", REFERENCE)
    holder_delete(api.client, "gpu", REFERENCE)
    assert api.writes() == [("DELETE", SET)] * 2
    with pytest.raises(Refused):
        holder_delete(api.client, "gpu", "registry.example/serving:latest")


def test_what_a_node_lists_is_asked_of_the_very_node(api: ScriptedApi) -> None:
    api.objects[f"{names.NODES}/n-1"] = node("n-1") | {"status": {"images": [{"names": [REFERENCE]}]}}
    assert images_listed(api.client, "n-1", "uid-n-1") == frozenset({"sha256:" + "a" * 64})
    for name, uid in (("n-1", "another"), ("n-2", "uid-n-2"), ("n-1/status", "uid-n-1"), ("", "")):
        with pytest.raises(NotFound):
            images_listed(api.client, name, uid)
    assert all("status" not in path for _, path, _, _ in api.sent)
