"""Pins that an endpoint has: of weights and image of each version that it serves, comes to, or may go back to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from caches.domain.endpoints.specs import EndpointSpec
from caches.models import CacheEntry, GateType, Image, ModelVersion, Pin
from caches.selectors.endpoint_targets import CacheTargets
from caches.selectors.image_demand import holds_images
from caches.selectors.pin_artifacts import gate_name, pin_artifacts, pins_of
from caches.services.admission import CapacityClash
from caches.services.pin_specs import PinSpec
from caches.services.pins import pin_create, pin_remove, spec_of
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.documents import Action, ArtifactKind, EntryState
from controlplane.errors import Clash, HearthError
from controlplane.serving.models import Endpoint


@dataclass(frozen=True, slots=True)
class Pinned:
    """``pin`` None: there is nothing to warm, or ``no_room`` says what does not fit, with numbers."""

    pin: Pin | None = None
    no_room: str = ""


def pin_ensure(*, endpoint: Endpoint, spec: EndpointSpec, version: ModelVersion, targets: CacheTargets) -> Pinned:
    """The endpoint's pin of a version's weights, made where it is missing, and moved where its targets are others."""
    wanted = PinSpec(
        version_id=version.pk,
        pool_ids=tuple(sorted(pool.pk for pool in targets.pools)),
        node_selector=dict(targets.selector),
        gate_type=GateType(spec.options.gate.type.value),
        gate_value=spec.options.gate.value,
    )
    pinned = _ensure(endpoint, wanted)
    if pinned.no_room and version.model.name != spec.model_name:
        # Registered first by somebody else, whose name for it is nobody's business here.
        return Pinned(no_room=pinned.no_room.replace(version.full_name, spec.source.text))
    return pinned


def image_pin_ensure(
    *, endpoint: Endpoint, version: ModelVersion | None, image: Image, targets: CacheTargets
) -> Pinned:
    """Its pin of the image that serves the version (None: weights that no version has): of its own, so that each cache
    is switched by itself, and the images of two rollouts of the same weights stand side by side."""
    wanted = PinSpec(
        version_id=version.pk if version is not None else None,
        pool_ids=tuple(sorted(pool.pk for pool in targets.pools if holds_images(pool))),
        artifacts=(ArtifactKind.IMAGE,),
        image_id=image.pk,
        node_selector=dict(targets.selector),
    )
    return _ensure(endpoint, wanted)


def _ensure(endpoint: Endpoint, wanted: PinSpec) -> Pinned:
    same = _live(endpoint).filter(version=wanted.version_id, image=wanted.image_id).prefetch_related("pools")
    pin = same.first()
    if pin is not None and _same(spec_of(pin), wanted):
        return Pinned(pin)
    try:
        # A pin's pools and selector decide what is admitted; a pin with others is another pin. Where that one does not
        # fit, the pin there is stays: it may hold what serves.
        with transaction.atomic():
            if pin is not None:
                pin_remove(actor=SYSTEM, pin_id=pin.pk, endpoint_id=endpoint.pk)
            made, _ = pin_create(actor=SYSTEM, spec=wanted, endpoint_id=endpoint.pk)
    except CapacityClash as error:
        return Pinned(no_room=error.detail)
    except Clash as error:
        return Pinned(no_room=f"{error.detail} {error.next_step}".strip())
    return Pinned(same.get(pk=made.pk))


def pins_release(
    *, endpoint: Endpoint, keep: Collection[UUID], images: Collection[tuple[UUID | None, UUID | None]] = ()
) -> int:
    """Remove the endpoint's pins of the weights of all versions but those in ``keep``, and of all images but those in
    ``images`` (version, image), and ask for the eviction of what nobody else has pinned; what a pod still uses goes
    after it, and what is on a node that is down when that comes back."""
    removed = 0
    for pin in _live(endpoint).prefetch_related("pools"):
        if pin.version_id in keep if pin.image_id is None else (pin.version_id, pin.image_id) in images:
            continue
        try:
            with transaction.atomic():
                pin_remove(actor=SYSTEM, pin_id=pin.pk, endpoint_id=endpoint.pk)
                _evict(endpoint, pin)
            removed += 1
        except HearthError:
            continue  # somebody was first, or the next round tries again
    return removed


def _evict(endpoint: Endpoint, pin: Pin) -> None:
    now = timezone.now()
    for artifact in pin_artifacts(pin):
        # One without pools holds nothing, and to the database no row is outside of what has a NULL in it.
        others = pins_of(artifact.pk).filter(pools__isnull=False)
        present = CacheEntry.objects.filter(
            node__pool__in=pin.pools.all(), node__lost_at__isnull=True, artifact=artifact, evict_requested_at=None
        ).exclude(node__pool__in=others.values("pools"))
        present = present.exclude(Q(state__in=(EntryState.ABSENT, EntryState.LOST)) & ~Q(desired=Action.ENSURE))
        asked = present.update(evict_requested_at=now, updated_at=now)
        if asked:
            audit_write(
                actor=SYSTEM,
                action="endpoint.evict",
                object_type="endpoint",
                object_id=str(endpoint.pk),
                object_name=endpoint.full_name,
                before={"artifact": gate_name(pin), "digest": artifact.digest, "nodes": asked},
                after={"pools": sorted(pool.full_name for pool in pin.pools.select_related("cluster"))},
                message="Its last pin here ended: nodes are asked to remove it once nothing uses it.",
            )


def _live(endpoint: Endpoint) -> QuerySet[Pin]:
    rows = Pin.objects.filter(endpoint=endpoint, removed_at__isnull=True)
    rows = rows.select_related("version__model", "version__artifact", "image__artifact")
    return rows.defer("version__artifact__manifest", "image__artifact__manifest")


def _same(stored: PinSpec, wanted: PinSpec) -> bool:
    """Suspension is somebody's pause of the transfer, and no other pin."""
    return replace(stored, suspended=False) == wanted
