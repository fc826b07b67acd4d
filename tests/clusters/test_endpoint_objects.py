"""Endpoints and their workloads between JSON and what the program knows."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.clusters.endpoints import ROLLOUT_ANNOTATION, EndpointName, EndpointOwner
from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes.endpoint_objects import (
    endpoint_path,
    observed_endpoint,
    owner_of,
    workload_status,
)

ITEM: dict[str, Any] = {
    "metadata": {
        "name": "a", "namespace": "n", "uid": "u", "generation": 3, "finalizers": ["hearth.dev/endpoint"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"hearth.dev/gate": "All", "kubectl.kubernetes.io/last-applied-configuration": "{…}"},
    },
    "spec": {"modelName": "m"},
}  # fmt: skip


def test_it_reads_an_endpoint_and_forgets_the_notes_of_other_tools() -> None:
    seen = observed_endpoint(ITEM, "InferenceEndpointConfig")
    assert seen.of == EndpointName("InferenceEndpointConfig", "n", "a")
    assert (seen.uid, seen.generation, seen.status) == ("u", 3, {})
    assert dict(seen.annotations) == {"hearth.dev/gate": "All"}
    assert seen.deleting_at is not None and seen.deleting_at.tzinfo is not None
    assert seen.document["metadata"] == {"name": "a", "namespace": "n", "annotations": {"hearth.dev/gate": "All"}}


@pytest.mark.parametrize(
    "of",
    [
        EndpointName("Pod", "n", "a"),
        EndpointName("JumpStartModel", "../kube-system", "a"),
        EndpointName("JumpStartModel", "n", "a/status"),
        EndpointName("JumpStartModel", "", "a"),
    ],
)
def test_nothing_but_names_becomes_part_of_a_path(of: EndpointName) -> None:
    with pytest.raises(NotFound):
        endpoint_path(of)


def test_it_tells_hearths_kinds_from_the_vendors() -> None:
    ours = {"resources": [{"name": "inferenceendpointconfigs", "categories": ["hearth"]}]}
    theirs = {"resources": [{"name": "inferenceendpointconfigs"}]}
    assert (owner_of(ours), owner_of(theirs)) == (EndpointOwner.HEARTH, EndpointOwner.OTHER)
    assert owner_of({"resources": [{"name": "other"}]}) is owner_of({}) is EndpointOwner.NOBODY


DEPLOYMENT: dict[str, Any] = {
    "metadata": {"uid": "d", "generation": 4},
    "spec": {"replicas": 3, "template": {"metadata": {"annotations": {ROLLOUT_ANNOTATION: "7"}}}},
    "status": {"observedGeneration": 4, "replicas": 4, "updatedReplicas": 2, "availableReplicas": 3},
}


def test_it_reads_a_deployments_numbers() -> None:
    seen = workload_status(DEPLOYMENT)
    assert (seen.observed, seen.rollout, seen.wanted, seen.total, seen.updated, seen.available) == (
        True, "7", 3, 4, 2, 3,
    )  # fmt: skip
    assert not workload_status({**DEPLOYMENT, "metadata": {"uid": "d", "generation": 5}}).observed
    fresh = workload_status({"metadata": {"uid": "d", "generation": 1}, "spec": {"replicas": 0}})
    assert (fresh.observed, fresh.wanted, fresh.rollout) == (False, 0, "")


@pytest.mark.parametrize(
    ("condition", "failed"),
    [
        ({"type": "Progressing", "reason": "ProgressDeadlineExceeded", "status": "False", "message": "slow"}, "slow"),
        ({"type": "ReplicaFailure", "status": "True", "message": "quota"}, "quota"),
        ({"type": "ReplicaFailure", "status": "False", "message": "quota"}, ""),
        ({"type": "Progressing", "reason": "NewReplicaSetAvailable", "status": "True"}, ""),
    ],
)
def test_it_says_why_a_deployment_gave_up(condition: dict[str, str], failed: str) -> None:
    document = {**DEPLOYMENT, "status": {**DEPLOYMENT["status"], "conditions": [condition]}}
    assert workload_status(document).failed == failed
