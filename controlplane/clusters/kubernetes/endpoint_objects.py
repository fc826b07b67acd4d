"""Endpoints, Deployments and mirrors as JSON. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controlplane.clusters.endpoints import (
    ROLLOUT_ANNOTATION,
    CacheMirror,
    EndpointName,
    EndpointOwner,
    MirrorKind,
    ObservedEndpoint,
    WorkloadStatus,
)
from controlplane.clusters.gateway import NotFound, Refused
from controlplane.clusters.kubernetes import names

Json = Mapping[str, Any]
API_VERSION = f"{names.ENDPOINT_GROUP}/v1"
API = f"/apis/{API_VERSION}"
PLURALS = {"InferenceEndpointConfig": names.CONFIGS, "JumpStartModel": names.JUMPSTART_MODELS}
MIRROR_PLURALS = {
    MirrorKind.WEIGHTS: "modelweightscacheconfigs",
    MirrorKind.DATA: "modeldatacacheconfigs",
    MirrorKind.IMAGE: "modelimagecaches",
    MirrorKind.INFERENCE_IMAGE: "inferenceimagecaches",
}
_VERSION = re.compile(r"v[a-z0-9]{1,20}")


def endpoint_path(of: EndpointName, api: str = API) -> str:
    """Where an endpoint lies; NotFound for what cannot be one."""
    if of.kind not in PLURALS:
        raise NotFound(f"{of.kind[:80]!r} is no kind of endpoint.")
    return object_path(api, PLURALS[of.kind], of.namespace, of.name)


def endpoint_api(version: str) -> str:
    """Where endpoints of an ``apiVersion`` lie; Refused for what is none of theirs."""
    group, _, word = version.partition("/")
    if group != names.ENDPOINT_GROUP or not _VERSION.fullmatch(word):
        raise Refused(f"{version!r:.120} is no version of {names.ENDPOINT_GROUP}.")
    return f"/apis/{version}"


def object_path(api: str, plural: str, namespace: str, name: str) -> str:
    """A path below a namespace; NotFound for what cannot be a name."""
    for part in (namespace, name):
        if not names.is_object_name(part):
            raise NotFound(f"{part!r:.80} cannot be the name of an object.")
    return f"{api}/namespaces/{namespace}/{plural}/{name}"


def observed_endpoint(item: Json, kind: str) -> ObservedEndpoint:
    """What Hearth remembers of one object. Notes of other tools about it are not."""
    metadata = item["metadata"]
    annotations = {
        str(name): str(value)
        for name, value in (metadata.get("annotations") or {}).items()
        if f".{str(name).rpartition('/')[0]}".endswith(".hearth.dev")
    }
    deleting = metadata.get("deletionTimestamp")
    return ObservedEndpoint(
        of=EndpointName(kind, metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        spec=item.get("spec") or {},
        annotations=annotations,
        status=item.get("status") or {},
        finalizers=tuple(metadata.get("finalizers") or ()),
        deleting_at=datetime.fromisoformat(deleting) if deleting else None,
    )


def owner_of(resources: Json) -> EndpointOwner:
    """Who brought the kinds, by the categories in the server's list of kinds."""
    for resource in resources.get("resources") or ():
        if resource.get("name") == names.CONFIGS:
            own = names.OWN_CATEGORY in (resource.get("categories") or ())
            return EndpointOwner.HEARTH if own else EndpointOwner.OTHER
    return EndpointOwner.NOBODY


def has_kind(resources: Json, plural: str) -> bool:
    return any(resource.get("name") == plural for resource in resources.get("resources") or ())


def workload_status(item: Json) -> WorkloadStatus:
    """The Deployment's own numbers, and the reason why it gave up if it did."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    failed = ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            failed = str(condition.get("message") or "The Deployment made no progress within its time.")
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            failed = failed or str(condition.get("message") or condition.get("reason") or "ReplicaFailure")
    template = (spec.get("template") or {}).get("metadata") or {}
    return WorkloadStatus(
        uid=metadata["uid"],
        observed=int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0),
        rollout=str((template.get("annotations") or {}).get(ROLLOUT_ANNOTATION, "")),
        wanted=int(spec.get("replicas", 1)),
        total=int(status.get("replicas") or 0),
        updated=int(status.get("updatedReplicas") or 0),
        available=int(status.get("availableReplicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        failed=failed,
        document=status,
    )


def mirror_path(kind: MirrorKind, namespace: str, name: str) -> str:
    return object_path(API, MIRROR_PLURALS[kind], namespace, name)


def mirror_document(mirror: CacheMirror) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": mirror.kind.value,
        "metadata": {"name": mirror.name, "namespace": mirror.namespace, "labels": dict(names.MANAGED_BY)},
        "spec": dict(mirror.spec),
    }
