"""Endpoints over the local fleet of a World: nodes, plans and gates are real, the cluster's own controllers are played.

The real API server stands in tests/kube; here a Deployment is what was applied, and ``serve`` is its controller.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import LazySettings

from caches.models import CacheEntry, ModelVersion, Pin, Rollout, SourceConnection
from caches.services.endpoints.rounds import endpoints_round
from controlplane.clusters.documents import SourceType
from controlplane.clusters.endpoints import (
    ROLLOUT_ANNOTATION,
    CacheMirror,
    EndpointName,
    EndpointOwner,
    MirrorKind,
    ObservedEndpoint,
    WorkloadStatus,
)
from controlplane.clusters.gateway import EventType, GatewayError, Kind, NotFound, Refused, Unreachable, WatchEvent
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.registry import override_gateway
from controlplane.serving.models import Endpoint
from controlplane.serving.sinks import ServingSink
from tests import factories
from tests.domain.endpoints import GONE, config
from tests.services.world import MIB, World, version_of

SINK = ServingSink()


class ServingGateway(LocalGateway):
    """The local fleet that also has endpoints. ``stop`` makes every call of this part Unreachable."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.owner = EndpointOwner.HEARTH
        self.work: WorkloadStatus | None = None
        self.service: bool | None = None  # whether one of its name is Hearth's
        self.deployments: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []
        self.mirrors: dict[tuple[MirrorKind, str], CacheMirror] = {}
        self.finalizer = False
        self.caches_set: list[tuple[EndpointName, str, Mapping[str, Any]]] = []
        self.applied: list[Mapping[str, Any]] | None = None  # documents, where it takes any
        self.problem: GatewayError | None = None
        self.document_problem: GatewayError | None = None  # what it says of documents alone
        self.secrets: dict[tuple[str, str], dict[str, str]] = {}  # by namespace and name
        self.secrets_allowed = True
        self.secrets_read = 0

    def _answer(self) -> None:
        if self.problem is not None:
            raise self.problem

    def endpoint_owner(self) -> EndpointOwner:
        self._answer()
        return self.owner

    def apply_endpoint(self, document: Mapping[str, Any], *, dry_run: bool = False) -> None:
        if self.applied is None:
            return super().apply_endpoint(document, dry_run=dry_run)
        self._answer()
        if self.document_problem is not None:
            raise self.document_problem
        self.applied.append(document)

    def set_endpoint_cache(self, of: EndpointName, uid: str, config: Mapping[str, Any]) -> None:
        self._answer()
        self.caches_set.append((of, uid, config))

    def set_endpoint_finalizer(self, of: EndpointName, uid: str, present: bool) -> None:
        self._answer()
        self.finalizer = present

    def set_endpoint_status(self, of: EndpointName, uid: str, status: Mapping[str, Any]) -> None:
        self._answer()
        self.statuses.append(dict(status))

    def apply_served(self, deployment: Mapping[str, Any], service: Mapping[str, Any]) -> None:
        self._answer()
        self.deployments.append(copy.deepcopy(dict(deployment)))
        number = deployment["spec"]["template"]["metadata"]["annotations"][ROLLOUT_ANNOTATION]
        before = self.work or WorkloadStatus("d", False)
        self.work = replace(before, observed=False, rollout=number, wanted=deployment["spec"]["replicas"])

    def delete_served(self, namespace: str, name: str) -> None:
        self._answer()
        self.work = None

    def workload_status(self, namespace: str, name: str) -> WorkloadStatus | None:
        self._answer()
        return self.work

    def service_is_ours(self, namespace: str, name: str) -> bool | None:
        self._answer()
        return self.service

    def endpoint_secret(self, namespace: str, name: str, key: str) -> str:
        self._answer()
        self.secrets_read += 1
        if not self.secrets_allowed:
            raise Refused("The API server does not allow this to Hearth's account.")
        if key not in (found := self.secrets.get((namespace, name), {})):
            raise NotFound(name)
        return found[key]

    def apply_cache_mirror(self, mirror: CacheMirror) -> None:
        self._answer()
        self.mirrors[mirror.kind, mirror.name] = mirror

    def delete_cache_mirror(self, kind: MirrorKind, namespace: str, name: str) -> None:
        self._answer()
        self.mirrors.pop((kind, name), None)


class EndpointWorld:
    """One endpoint ``default/chat-small`` over two nodes of one pool, with the bucket ``models``."""

    def __init__(self, world: World, settings: LazySettings) -> None:
        settings.AGENT_IMAGE = "registry.invalid/hearth:1"
        self.world = world
        self.gateway = ServingGateway(world.folder)
        override_gateway(world.cluster.pk, self.gateway)
        self.connection: SourceConnection = factories.connection(
            name="store", type=SourceType.S3, allowed=["models"], endpoint="http://127.0.0.1:9"
        )
        self.generation = 0
        self.seen: ObservedEndpoint | None = None

    def close(self) -> None:
        override_gateway(self.world.cluster.pk, None)

    def version(self, location: str = "llms/chat-small", size: int = 100 * MIB) -> ModelVersion:
        """What is registered of a place in the bucket."""
        made: ModelVersion = version_of(size, connection=self.connection, uri=f"s3://models/{location}")
        return made

    def apply(self, **changes: Any) -> None:
        """As kubectl does, and the watcher sees it."""
        document = config(**{"spec__instanceType": GONE, **changes})
        self.generation += 1
        finalizers = ("hearth.dev/endpoint",) if self.gateway.finalizer else ()
        status = Endpoint.objects.get().status if self.seen else {}
        self.seen = ObservedEndpoint(
            EndpointName("InferenceEndpointConfig", "default", "chat-small"),
            "uid-1",
            self.generation,
            document["spec"],
            document["metadata"].get("annotations", {}),
            status,
            finalizers,
        )
        self.tell(EventType.MODIFIED, self.seen)

    def delete(self) -> None:
        """Its deletion is asked for; finalizers hold it."""
        assert self.seen is not None
        self.seen = replace(self.seen, deleting_at=datetime.now(UTC), finalizers=("hearth.dev/endpoint",))
        self.tell(EventType.MODIFIED, self.seen)

    def tell(self, type_: EventType, seen: ObservedEndpoint) -> None:
        event = WatchEvent(type_, Kind.ENDPOINT, "t", seen)
        SINK.changed(str(self.world.cluster.pk), (event,), datetime.now(UTC))

    def round(self) -> int:
        return endpoints_round(cluster_id=self.world.cluster.pk)

    def warm(self, *nodes: str) -> None:
        """The planner plans, these nodes (none named: all) do as they are told, and the watcher sees it."""
        self.world.reconcile()
        self.world.obey(*nodes)
        self.world.observe()

    def serve(self, *, available: int | None = None, failed: str = "") -> None:
        """The Deployment's controller and its pods have done their work."""
        work = self.gateway.work
        assert work is not None
        count = work.wanted if available is None else available
        self.gateway.work = replace(
            work, observed=True, total=work.wanted, updated=work.wanted, available=count, failed=failed
        )

    def until_served(self) -> None:
        self._until_made()
        self.serve()
        self.round()

    def until_failed(self, why: str = "It made no progress.") -> None:
        """Its gate opens, and none of its pods serves."""
        self._until_made()
        self.serve(available=0, failed=why)
        self.round()
        assert self.rollout.state == "Failed"

    def _until_made(self) -> None:
        self.round()
        self.warm()
        self.round()

    # -- what is there

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.objects.get()

    @property
    def rollout(self) -> Rollout:
        found = Rollout.objects.order_by("-number").first()
        assert found is not None
        return found

    @property
    def pins(self) -> list[Pin]:
        return list(Pin.objects.filter(removed_at=None).order_by("created_at"))

    @property
    def status(self) -> dict[str, Any]:
        return self.gateway.statuses[-1]

    def condition(self, type_: str) -> tuple[str, str, str]:
        [found] = [one for one in self.status["conditions"] if one["type"] == type_]
        return found["status"], found["reason"], found["message"]

    def entries(self, version: ModelVersion) -> dict[str, str]:
        rows = CacheEntry.objects.filter(artifact=version.artifact)
        return dict(rows.values_list("node__name", "state"))


def unreachable() -> Unreachable:
    return Unreachable("The API server does not answer.")
