"""What a document would do, and what of it a round would refuse. The rounds' own code says it; all of it is undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from caches.domain.endpoints.specs import EndpointReading, EndpointSpec
from caches.domain.plans import Plan
from caches.models import ModelVersion
from caches.selectors.endpoint_targets import CacheTargets, cache_targets
from caches.selectors.endpoints import namesake
from caches.services.endpoints.asking import Answer, Finding
from caches.services.endpoints.bringing import image_as_registered, plans_of, room, unknown_room
from caches.services.endpoints.documents import document_read
from caches.services.endpoints.images import endpoint_image
from caches.services.endpoints.jumpstart import served_spec
from caches.services.endpoints.looking import answers, worker_told
from caches.services.endpoints.pins import pin_ensure
from caches.services.endpoints.rollouts import rollout_begin
from caches.services.endpoints.serving import name_taken
from caches.services.endpoints.versions import Registered, version_of
from controlplane.clusters.gateway import Conflict, NotApplicable
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.clusters.registry import gateway_for
from controlplane.serving.models import Endpoint


@dataclass(frozen=True, slots=True)
class Obstacle:
    """``what`` does not go: "endpoint" (nothing is served), "weights" or "image"; ``why`` with what to do about it."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class EndpointPreview:
    """What a document would do. ``plans`` are what of its pools' would be about its weights and its image, as far as
    those are known and would be warmed; ``obstacles`` what the first round would say in the endpoint's status, as far
    as it is known now; ``findings`` what cluster, registry and source answered, who were only asked."""

    reading: EndpointReading
    targets: CacheTargets
    digest: str
    plans: tuple[Plan, ...]
    obstacles: tuple[Obstacle, ...] = ()
    findings: tuple[Finding, ...] = ()


def endpoint_preview(*, cluster: Cluster, document: Mapping[str, Any]) -> EndpointPreview:
    """What it would do. Writes nothing; cluster, registry, and the source of what nobody has registered yet are asked
    for a few seconds, but for what takes an endpoint's token. Invalid with every field that is refused."""
    reading, spec = document_read(document)
    targets, now = cache_targets(cluster, spec), timezone.now()
    findings = (*answers(cluster=cluster, spec=spec, document=document), *worker_told(cluster))
    asked = {one.about: one for one in findings}
    registered = Registered()
    if "source" not in asked or asked["source"].answer is not Answer.UNKNOWN:
        with _undone():
            # Before anything is locked, and not where its source takes its time.
            registered = version_of(cluster=cluster, spec=spec, with_token=False)
    version = registered.version
    obstacles = [*_closed(cluster, document), *_found(findings), *_unregistered(registered)]
    with _undone():
        served, about = served_spec(spec, version), asked.get("image")
        image = image_as_registered(served, about.image if about is not None else None)
        plans = plans_of(served, version, image, targets, now)
        obstacles += _rounds(_endpoint(cluster, spec, document, now), spec, version, targets, now)
    digest = version.artifact.digest if version is not None and version.artifact is not None else ""
    warmed = spec.cache.weights and bool(targets.pools)
    awaited = warmed and registered.wanted and version is None and not registered.refused
    findings = (*findings, *unknown_room(served, image, targets, awaited=awaited, asked=about), *room(plans))
    return EndpointPreview(reading, targets, digest, plans, tuple(obstacles), findings)


def _closed(cluster: Cluster, document: Mapping[str, Any]) -> Iterator[Obstacle]:
    """A cluster that takes no documents at all; others are not asked by the process that serves pages."""
    if cluster.type != ClusterType.LOCAL:
        return
    try:
        gateway_for(cluster).apply_endpoint(document, dry_run=True)
    except NotApplicable as error:
        yield Obstacle("endpoint", str(error))


def _found(findings: Sequence[Finding]) -> Iterator[Obstacle]:
    """What nothing would be served by, and an image that the registry does not have."""
    for one in findings:
        if one.answer is Answer.PROBLEM and one.about != "source":  # registering says that itself
            yield Obstacle("image" if one.about == "image" else "endpoint", one.said)


def _unregistered(registered: Registered) -> Iterator[Obstacle]:
    if registered.refused:
        yield Obstacle("weights", registered.refused)


def _rounds(
    endpoint: Endpoint, spec: EndpointSpec, version: ModelVersion | None, targets: CacheTargets, now: datetime
) -> Iterator[Obstacle]:
    try:
        name_taken(namesake(endpoint))
    except Conflict as error:
        yield Obstacle("endpoint", str(error))
    if version is not None and spec.cache.weights and targets.pools:
        pinned = pin_ensure(endpoint=endpoint, spec=spec, version=version, targets=targets)
        if pinned.no_room:
            yield Obstacle("weights", pinned.no_room)
    rollout = rollout_begin(endpoint=endpoint, spec=spec)
    image = endpoint_image(
        endpoint=endpoint,
        spec=served_spec(spec, version),
        rollout=rollout,
        version=version,
        targets=targets,
        now=now,
    )
    if image.cache is not None and image.cache.state == "Failed":
        yield Obstacle("image", image.cache.message)


def _endpoint(cluster: Cluster, spec: EndpointSpec, document: Mapping[str, Any], now: datetime) -> Endpoint:
    """The one that the document would change, with what it says; or a new one. Only for what is undone."""
    names = {"cluster": cluster, "kind": spec.kind.value, "namespace": spec.namespace, "name": spec.name}
    found = Endpoint.objects.filter(**names, gone_at__isnull=True, deleting_at__isnull=True).order_by("-pk").first()
    if found is None:
        found = Endpoint.objects.create(**names, uid="preview", observed_at=now)
    found.document = dict(document["spec"])
    return found


@contextmanager
def _undone() -> Iterator[None]:
    """Whatever is written inside is taken back, and what would be sent when it commits is not."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
