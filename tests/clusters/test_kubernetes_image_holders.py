"""The documents that hold images: one DaemonSet for each digest and pool, which is allowed nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import ImageHolder, Refused, Toleration
from controlplane.clusters.kubernetes.image_holders import (
    IMAGE_LABEL,
    holder_name,
    holder_set,
    keeps_volume,
    mark_of,
    mounts_images,
)
from controlplane.clusters.kubernetes.names import is_object_name

HEX = "0123456789ab" + "c" * 52
REFERENCE = f"registry.example:5000/serving@sha256:{HEX}"
HOLDER = ImageHolder("gpu", REFERENCE, nodes=("n-2", "n-1", "n-2"), node_selector={POOL_LABEL: "gpu"})


def pod(holder: ImageHolder = HOLDER, **how: Any) -> dict[str, Any]:
    made: dict[str, Any] = holder_set(holder, **how)["spec"]["template"]["spec"]
    return made


def test_it_is_named_after_the_pool_and_the_digest() -> None:
    document = holder_set(HOLDER)

    assert document["metadata"]["name"] == "hearth-image-gpu-0123456789ab"
    labels = document["spec"]["selector"]["matchLabels"]
    assert (labels[IMAGE_LABEL], labels[POOL_LABEL]) == ("0123456789ab", "gpu")
    assert labels.items() <= document["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("pool", ["gpu", "x" * 63, "GPU Pool/ü", "-a-", "a.b", "1"])
def test_it_has_a_name_that_an_api_server_takes_whatever_the_pool_is_called(pool: str) -> None:
    name = holder_name(pool, REFERENCE)

    assert len(name) <= 63 and is_object_name(name) and "." not in name
    assert holder_set(replace(HOLDER, pool=pool))["spec"]["selector"]["matchLabels"][POOL_LABEL] in name


def test_it_tells_pools_apart_that_are_shortened_alike() -> None:
    assert holder_name("x" * 62 + "a", REFERENCE) != holder_name("x" * 62 + "b", REFERENCE)


@pytest.mark.parametrize(
    "reference", ["", "a:latest", "a@sha256:abc", f"a b@sha256:{HEX}", f"@sha256:{HEX}", f"a@sha256:{HEX}0", f"a@{HEX}"]
)
def test_it_holds_nothing_that_has_no_digest(reference: str) -> None:
    for call in (lambda: mark_of(reference), lambda: holder_set(replace(HOLDER, reference=reference))):
        with pytest.raises(Refused):
            call()


def test_it_runs_the_image_itself_without_any_power() -> None:
    made = pod()
    (container,) = made["containers"]

    assert (container["image"], container["imagePullPolicy"]) == (REFERENCE, "IfNotPresent")
    assert container["command"][:2] == ["/bin/sh", "-c"]
    assert made["automountServiceAccountToken"] is False and "serviceAccountName" not in made
    assert "volumes" not in made and "volumeMounts" not in container and "hostNetwork" not in made
    assert made["securityContext"]["runAsNonRoot"] is True and made["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert made["priorityClassName"] == "hearth-images"
    assert "imagePullSecrets" not in made
    assert pod(replace(HOLDER, pull_secrets=("reg",)))["imagePullSecrets"] == [{"name": "reg"}]


def test_it_mounts_the_image_where_that_is_possible() -> None:
    made = pod(replace(HOLDER, helper_image="hearth@sha256:1"), volume=True)
    (container,) = made["containers"]

    assert made["volumes"] == [{"name": "image", "image": {"reference": REFERENCE, "pullPolicy": "IfNotPresent"}}]
    assert container["image"] == "hearth@sha256:1" and container["volumeMounts"][0]["readOnly"] is True


def terms(holder: ImageHolder) -> list[dict[str, Any]]:
    required = pod(holder)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[dict[str, Any]] = required["nodeSelectorTerms"]
    return found


def test_it_is_on_the_nodes_that_are_named_and_on_no_other() -> None:
    names = [[one["values"] for one in term["matchFields"]] for term in terms(HOLDER)]
    assert names == [[["n-1"]], [["n-2"]]]
    (nowhere,) = terms(replace(HOLDER, nodes=()))
    assert [one["operator"] for one in nowhere["matchExpressions"]] == ["Exists", "DoesNotExist"]
    assert pod()["nodeSelector"] == {"kubernetes.io/os": "linux", POOL_LABEL: "gpu"}
    assert holder_set(HOLDER)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_it_puts_up_with_taints_as_it_is_told() -> None:
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    told = replace(HOLDER, tolerations=(Toleration("gpu", "yes", "NoSchedule"),))
    assert pod(told)["tolerations"] == [{"operator": "Equal", "key": "gpu", "value": "yes", "effect": "NoSchedule"}]


def test_it_reads_back_whether_the_volume_was_stored() -> None:
    sent = holder_set(replace(HOLDER, helper_image="h"), volume=True)
    assert keeps_volume(sent)

    sent["spec"]["template"]["spec"]["volumes"] = [{"name": "image", "emptyDir": {}}]  # what older servers make of it
    assert not keeps_volume(sent)
    assert not keeps_volume(holder_set(HOLDER))


@pytest.mark.parametrize(
    ("runtime", "able"),
    [
        ("containerd://1.6.20~ds1", False),
        ("containerd://1.7.27", False),
        ("containerd://2.0.5", False),
        ("containerd://2.1.0", True),
        ("containerd://v2.10.1", True),
        ("cri-o://1.30.9", False),
        ("cri-o://1.31.0", True),
        ("docker://27.0.1", False),
        ("", False),
        ("2.1", False),
    ],
)
def test_it_knows_which_runtimes_mount_images(runtime: str, able: bool) -> None:
    assert mounts_images(runtime, "v1.35.0") is able


@pytest.mark.parametrize(
    ("kubelet", "able"),
    [("v1.34.4", False), ("v1.35.0-rc.1", True), ("1.37.2", True), ("v2.0.0", True), ("", False), ("unknown", False)],
)
def test_an_older_kubelet_would_wait_for_the_volume_for_ever(kubelet: str, able: bool) -> None:
    assert mounts_images("containerd://2.1.0", kubelet) is able
