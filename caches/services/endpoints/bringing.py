"""What a document would bring to nodes, counted by the planner, and of what nobody can say it yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from caches.domain.endpoints.specs import EndpointSpec
from caches.domain.images import parse_reference
from caches.domain.plans import Plan, WaitReason
from caches.domain.text import plural, size_text
from caches.models import Artifact, Image, ImageState, ModelVersion
from caches.selectors.endpoint_targets import CacheTargets
from caches.selectors.image_demand import holds_images
from caches.services.admission import draft_pin, plans_with
from caches.services.endpoints.asking import Answer, Finding
from caches.services.endpoints.images import known_image, registry_connection
from caches.services.images.catalogue import at_registry
from caches.services.images.resolver import ResolvedImage
from caches.services.pin_specs import PinSpec
from controlplane.clusters.documents import ArtifactKind


def image_as_registered(spec: EndpointSpec, found: ResolvedImage | None) -> Image | None:
    """The image that the document names as its registration would leave it, after what its registry ``found``; None
    where nobody knows it. Only for what is undone: its registration says more, and to more people."""
    if found is None or found.unpacked_bytes <= 0:
        return known_image(spec)
    parsed = parse_reference(spec.image)
    connection, now = registry_connection(parsed, namespace=spec.namespace), timezone.now()
    parsed = at_registry(parsed, connection)
    sizes = {"kind": ArtifactKind.IMAGE, "size_bytes": found.unpacked_bytes, "files_count": 0, "anchored": True}
    artifact, _ = Artifact.objects.get_or_create(digest=found.digest, defaults={**sizes, "manifest": b""})
    fields: dict[str, Any] = {
        "state": ImageState.AVAILABLE,
        "moved_to": "",
        "checked_at": now,
        "compressed_bytes": found.compressed_bytes,
    }
    names = {"registry": parsed.registry, "repository": parsed.repository, "tag": parsed.tag, "connection": connection}
    rows = Image.objects.filter(reference=str(parsed), state=ImageState.AVAILABLE)
    rows.exclude(artifact=artifact).update(moved_to=found.digest)
    made, _ = Image.objects.update_or_create(
        reference=str(parsed), artifact=artifact, defaults=fields, create_defaults={**names, **fields}
    )
    return made


def plans_of(
    spec: EndpointSpec, version: ModelVersion | None, image: Image | None, targets: CacheTargets, now: datetime
) -> tuple[Plan, ...]:
    """What of each pool's plan would be about the document's weights and image, as far as they are known."""
    if image is not None and (image.revoked_at is not None or not _keeps_images(spec, targets)):
        image = None
    weights = version is not None and spec.cache.weights
    kinds = [(ArtifactKind.WEIGHTS, weights), (ArtifactKind.IMAGE, image is not None)]
    artifacts = tuple(kind for kind, wanted in kinds if wanted)
    if not artifacts or not targets.pools:
        return ()
    wanted = PinSpec(
        version_id=version.pk if version is not None else None,
        pool_ids=tuple(pool.pk for pool in targets.pools),
        artifacts=artifacts,
        image_id=image.pk if image is not None else None,
        node_selector=dict(targets.selector),
    )
    artifact = version.artifact if version is not None and weights else None
    digests = {one.digest for one in (artifact, image.artifact if image is not None else None) if one is not None}
    return tuple(one.about(digests) for one in plans_with(draft_pin(wanted, now=now), version, targets.pools, now=now))


def unknown_room(
    spec: EndpointSpec, image: Image | None, targets: CacheTargets, *, awaited: bool, asked: Finding | None
) -> Iterator[Finding]:
    """Of what the room is not known. ``awaited``: weights that nobody has read yet; ``asked``: what the registry said
    of an image that nobody has registered."""
    if awaited:
        said = "How much room its weights need is known once they are registered, with the first round."
        yield Finding("room", Answer.UNKNOWN, said)
    if image is None and _keeps_images(spec, targets) and (asked is None or asked.answer is not Answer.PROBLEM):
        said = "How much room its image needs is known once its registry has said how large it is."
        yield Finding("room", Answer.UNKNOWN, f"{said} {asked.said}" if asked is not None else said)


def room(plans: Sequence[Plan]) -> Iterator[Finding]:
    """How much each pool would take in of the document's own, and whether it has the room."""
    for plan in plans:
        where = f"{plan.cluster}.{plan.pool}"
        if plan.refusals:
            first = plan.refusals[0]
            nodes = plural(len({refusal.node_uid for refusal in plan.refusals}), "node")
            yield Finding("room", Answer.PROBLEM, f"{where}: no room on {nodes}; {first.node} {first.detail}.")
        else:
            going = plural(len(plan.evictions), "eviction")
            said = f"{where}: {size_text(plan.total_bytes)} in {plural(plan.transfers, 'transfer')}, {going}."
            yield Finding("room", Answer.FINE, said + _held_up(plan))


def _held_up(plan: Plan) -> str:
    """What is to come and is in none of these numbers."""
    waits = [wait for wait in plan.waits if wait.reason is not WaitReason.PACING]
    if not waits:
        return ""
    size = size_text(sum(wait.bytes for wait in waits))
    return f" {plural(len(waits), 'more transfer')} of {size} would wait: on {waits[0].node} {waits[0].detail}."


def _keeps_images(spec: EndpointSpec, targets: CacheTargets) -> bool:
    return spec.cache.image and any(holds_images(pool) for pool in targets.pools)
