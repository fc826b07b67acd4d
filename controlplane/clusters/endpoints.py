"""Endpoints as a cluster stores them, and what a cluster can be asked and told about them. Imports no Django."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

FINALIZER = "hearth.dev/endpoint"
IMAGE_CACHES_NAMESPACE = "hyperpod-inference-system"  # where people look for the mirrors of image caches
ROLLOUT_ANNOTATION = "hearth.dev/rollout"  # of a Deployment's template: the number of the rollout that it is about


class EndpointOwner(StrEnum):
    """Who reconciles the endpoint kinds of a cluster. Hearth never fights over them: those of others it observes."""

    NOBODY = "Nobody"  # the cluster has no such kinds
    HEARTH = "Hearth"
    OTHER = "Other"


class MirrorKind(StrEnum):
    """Read-only kinds that show caches to kubectl, in the spellings of the chart and of the launch article."""

    WEIGHTS = "ModelWeightsCacheConfig"
    DATA = "ModelDataCacheConfig"
    IMAGE = "ModelImageCache"
    INFERENCE_IMAGE = "InferenceImageCache"


@dataclass(frozen=True, slots=True)
class EndpointName:
    """Which endpoint: ``kind`` is InferenceEndpointConfig or JumpStartModel."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ObservedEndpoint:
    """An endpoint as stored: ``generation`` counts changes of spec."""

    of: EndpointName
    uid: str
    generation: int
    spec: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleting_at: datetime | None = None

    @property
    def document(self) -> dict[str, Any]:
        """As it would be applied."""
        return {
            "apiVersion": "inference.sagemaker.aws.amazon.com/v1",
            "kind": self.of.kind,
            "metadata": {
                "name": self.of.name,
                "namespace": self.of.namespace,
                "annotations": dict(self.annotations),
            },
            "spec": dict(self.spec),
        }


@dataclass(frozen=True, slots=True)
class WorkloadStatus:
    """A Deployment as its controller reports it. ``rollout`` is the annotation of the template that was applied last;
    ``observed`` says whether the numbers speak about it. ``failed``: it made no progress within its time."""

    uid: str
    observed: bool
    rollout: str = ""
    wanted: int = 0
    total: int = 0
    updated: int = 0
    available: int = 0
    ready: int = 0
    failed: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)  # the whole status, for those who read it as it is


@dataclass(frozen=True, slots=True)
class CacheMirror:
    """What one of the mirror kinds shows."""

    kind: MirrorKind
    namespace: str
    name: str
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class EndpointCalls(Protocol):
    """Part of ClusterGateway. NotApplicable where the cluster has no such kinds (the local fleet)."""

    def endpoint_owner(self) -> EndpointOwner: ...

    def apply_endpoint(self, document: Mapping[str, Any], *, dry_run: bool = False) -> None:
        """Server-side apply with Hearth's manager, never forced: Conflict names who else holds a field."""
        ...

    def set_endpoint_cache(self, of: EndpointName, uid: str, config: Mapping[str, Any]) -> None:
        """``spec.modelCacheConfig`` of an endpoint that somebody else reconciles, and nothing else of it: never forced,
        by a field manager of its own. Conflict when another one holds what would change; Refused for another uid."""
        ...

    def delete_endpoint(self, of: EndpointName, uid: str) -> None: ...
    def set_endpoint_finalizer(self, of: EndpointName, uid: str, present: bool) -> None:
        """Hearth's own finalizer. No error when it is as wanted, or when the object is gone."""
        ...

    def set_endpoint_status(self, of: EndpointName, uid: str, status: Mapping[str, Any]) -> None: ...

    def apply_served(self, deployment: Mapping[str, Any], service: Mapping[str, Any]) -> None:
        """Apply both; replicas that somebody else (an autoscaler) holds stay theirs."""
        ...

    def delete_served(self, namespace: str, name: str) -> None:
        """Both, if they are Hearth's. No error when there is none."""
        ...

    def workload_status(self, namespace: str, name: str) -> WorkloadStatus | None: ...
    def service_is_ours(self, namespace: str, name: str) -> bool | None:
        """Whether Hearth made the Service of that name; None where there is none."""
        ...

    def endpoint_secret(self, namespace: str, name: str, key: str) -> str:
        """What a Secret beside an endpoint has under a key, for the endpoint's own use; never to be stored or shown.
        NotFound when there is none; Refused where whoever manages the namespace has not allowed it to Hearth."""
        ...

    def apply_cache_mirror(self, mirror: CacheMirror) -> None: ...
    def delete_cache_mirror(self, kind: MirrorKind, namespace: str, name: str) -> None: ...
