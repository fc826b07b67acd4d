"""The Deployment and the Service that are made of an endpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from caches.domain.endpoints.workload import Served, deployment, node_affinity, service
from caches.domain.labels import ready_label
from tests.domain.endpoints import GONE, config, jumpstart, spec_of

DIGEST = "sha256:" + "ab" * 32
SERVED = Served(image="registry/vllm@sha256:" + "1" * 64, ensure_image="hearth", host_path="/mnt/nvme/", digest=DIGEST)


def pod(document: dict[str, Any], served: Served = SERVED) -> dict[str, Any]:
    found: dict[str, Any] = deployment(spec_of(document), served)["spec"]["template"]["spec"]
    return found


def test_the_served_container_sees_one_artifact_and_cannot_write_it() -> None:
    made = pod(config())
    [server] = made["containers"]
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert mounts["/hearth/weights"] == {
        "name": "hearth-store", "mountPath": "/hearth/weights", "readOnly": True,
        "subPath": f"weights/sha256-{'ab' * 32}",
    }  # fmt: skip
    assert mounts["/opt/ml/model"]["readOnly"]
    volumes = {volume["name"]: volume for volume in made["volumes"]}
    assert volumes["hearth-store"]["hostPath"] == {"path": "/mnt/nvme/hearth", "type": "DirectoryOrCreate"}
    assert set(volumes) == {mount["name"] for mount in server["volumeMounts"]} | {"hearth-tmp"}
    assert not made["automountServiceAccountToken"]


def reading(root: str, **connection: Any) -> Served:
    """Pods that may fetch from a folder below the root."""
    told = {"name": "fs", "type": "Filesystem", "allowed": ["/elsewhere", root], **connection}
    return replace(SERVED, source=json.dumps({"connection": told, "uri": f"file://{root}/llms/a"}))


@pytest.mark.parametrize("path", ["/fsx", "/tmp/fsx", "/mnt/a b"])
def test_the_ensure_step_reads_a_file_system_that_its_nodes_have_mounted(path: str) -> None:
    made = pod(config(), reading(path))
    volumes = {volume["name"]: volume for volume in made["volumes"]}
    assert volumes["hearth-source"] == {"name": "hearth-source", "hostPath": {"path": path}}, (
        "of no type: a pod that is warm starts without it"
    )
    [ensure] = made["initContainers"]
    [mount] = [one for one in ensure["volumeMounts"] if one["name"] == "hearth-source"]
    assert (mount["mountPath"], mount["readOnly"]) == (path, True)
    assert not [m for c in made["containers"] for m in c["volumeMounts"] if m["name"] == "hearth-source"]


@pytest.mark.parametrize("path", ["/", "/tmp", "/hearth", "/model", "/mnt/a:b"])
def test_no_file_system_hides_what_the_ensure_step_needs(path: str) -> None:
    made = pod(config(), reading(path))
    assert "hearth-source" not in {volume["name"] for volume in made["volumes"]}


def test_what_is_asked_over_the_network_is_mounted_nowhere() -> None:
    for served in (SERVED, reading("/fsx", type="S3"), reading("/fsx", allowed=["/fsx2"])):
        assert "hearth-source" not in {volume["name"] for volume in pod(config(), served)["volumes"]}


def test_every_mount_has_its_volume_and_every_volume_a_name_of_its_own() -> None:
    volumes = [{"name": "data", "emptyDir": {}}]
    extra = {"volumes": volumes, "initContainers": [{"name": "x", "volumeMounts": [{"name": "data"}]}]}
    for document in (config(spec__kubernetes=extra), jumpstart(), config(spec__worker__modelVolumeMount={"name": "m"})):
        made = pod(document, reading("/fsx"))
        names = [volume["name"] for volume in made["volumes"]]
        used = {m["name"] for c in (*made["initContainers"], *made["containers"]) for m in c.get("volumeMounts", ())}
        assert len(set(names)) == len(names) and used <= set(names)


def test_warm_nodes_are_preferred_and_never_required() -> None:
    affinity = node_affinity(spec_of(config()), SERVED)
    assert affinity == {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": [{"key": ready_label(DIGEST), "operator": "Exists"}]}}
        ]
    }
    assert pod(config())["nodeSelector"] == {"node.kubernetes.io/instance-type": "ml.g5.24xlarge"}


def test_switching_a_cache_replaces_no_pod() -> None:
    switches: list[dict[str, Any]] = [{"weightsCache": {"enabled": True}}, {"imageCache": {"enabled": True}}, {}]
    first, *others = [deployment(spec_of(config(spec__modelCacheConfig=one)), SERVED) for one in switches]
    assert all(other == first for other in others)


def test_without_weights_of_its_own_no_node_is_preferred() -> None:
    assert "affinity" not in pod(config(), Served(image="i", ensure_image="h", host_path="/x"))


def test_instance_types_are_preferred_in_their_order() -> None:
    types = ["ml.p5.48xlarge", "ml.g6.48xlarge", "ml.g5.48xlarge"]
    affinity = node_affinity(
        spec_of(config(spec__instanceType=GONE, spec__instanceTypes=types)), Served("i", "h", "/x", DIGEST)
    )
    *weights, warm = [term["weight"] for term in affinity["preferredDuringSchedulingIgnoredDuringExecution"]]
    assert weights == sorted(weights, reverse=True) and len(set(weights)) == 3 and min(weights) >= 1
    assert warm > max(weights), "a warm node of a later type comes before a cold one of the first"
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == types


def test_an_affinity_of_the_document_stays_whole() -> None:
    given = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "preference": {}}],
    }
    document = config(spec__instanceType=GONE, spec__nodeAffinity=given)
    affinity = node_affinity(spec_of(document), SERVED)
    assert (
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        == given["requiredDuringSchedulingIgnoredDuringExecution"]
    )
    assert [t["weight"] for t in affinity["preferredDuringSchedulingIgnoredDuringExecution"]] == [7, 100]
    assert len(document["spec"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]) == 1, "not changed"


def test_images_run_by_digest_without_asking_the_registry() -> None:
    made = pod(config())
    assert made["containers"][0]["image"].endswith("@sha256:" + "1" * 64)
    assert {c["imagePullPolicy"] for c in (*made["containers"], *made["initContainers"])} == {"IfNotPresent"}


def test_it_asks_the_vendor_s_path_whether_a_pod_is_ready_unless_told_otherwise() -> None:
    assert pod(config())["containers"][0]["readinessProbe"] == {"httpGet": {"path": "/ping", "port": 8000}}
    probe = {"exec": {"command": ["true"]}}
    [server] = pod(config(spec__worker__probes={"readinessProbe": probe, "startupProbe": probe}))["containers"]
    assert (server["readinessProbe"], server["startupProbe"]) == (probe, probe)


def test_credentials_of_the_pod_reach_the_ensure_step_alone() -> None:
    document = config(metadata__annotations={"hearth.dev/source-secret": "reader"})
    made = pod(document)
    names = {variable["name"] for variable in made["initContainers"][0]["env"]}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= names
    assert "env" not in made["containers"][0]
    references = [v["valueFrom"]["secretKeyRef"] for v in made["initContainers"][0]["env"] if "AWS" in v["name"]]
    assert all(reference["optional"] and reference["name"] == "reader" for reference in references)


def test_a_volume_of_the_pod_needs_no_store() -> None:
    volumes = [{"name": "model-weights", "persistentVolumeClaim": {"claimName": "models"}}]
    document = config(
        spec__modelSourceConfig={"modelSourceType": "kubernetesVolume"}, spec__kubernetes={"volumes": volumes}
    )
    made = pod(document, Served(image="i", ensure_image="h", host_path="/x"))
    assert made["initContainers"] == [] and [v["name"] for v in made["volumes"]] == ["shm", "model-weights"]
    assert "hostPath" not in str(made["volumes"])


def test_a_pod_that_goes_answers_until_everybody_has_heard_of_it() -> None:
    made = pod(config())
    drain = made["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert drain >= 5 and made["terminationGracePeriodSeconds"] >= drain + 30


def test_no_replica_goes_before_its_successor_serves() -> None:
    made = deployment(spec_of(config(spec__replicas=3)), SERVED)
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert (made["spec"]["replicas"], made["spec"]["progressDeadlineSeconds"]) == (3, 3600)


def test_pods_are_selected_by_what_never_changes() -> None:
    first = deployment(spec_of(config()), SERVED)
    other = deployment(spec_of(config(spec__worker__image="x:2")), Served("i", "h", "/x", "sha256:" + "cd" * 32))
    assert (
        first["spec"]["selector"]
        == other["spec"]["selector"]
        == {"matchLabels": {"app": "chat-small", "hearth.dev/endpoint": "chat-small"}}
    )
    labels = first["spec"]["template"]["metadata"]["labels"]
    assert first["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["hearth.dev/version"] == "ab" * 6
    made = service(spec_of(config()))
    assert made["spec"]["selector"].items() <= labels.items()
    assert made["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": 8000}]


def test_it_belongs_to_its_endpoint() -> None:
    owner = {"apiVersion": "v1", "kind": "InferenceEndpointConfig", "name": "chat-small", "uid": "u"}
    for made in (deployment(spec_of(config()), SERVED, owner=owner), service(spec_of(config()), owner=owner)):
        assert made["metadata"]["ownerReferences"] == [owner]
        assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("chat-small", "default")
