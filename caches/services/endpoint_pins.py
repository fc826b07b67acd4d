"""Pins that an endpoint has: one for each version that it serves, is on its way to, or may go back to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from caches.domain.endpoint_specs import EndpointSpec
from caches.models import CacheEntry, GateType, ModelVersion, Pin
from caches.selectors.endpoint_targets import CacheTargets
from caches.services.admission import CapacityClash
from caches.services.pin_specs import PinSpec
from caches.services.pins import pin_create, pin_remove, spec_of
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Action, EntryState
from controlplane.errors import Clash, HearthError
from controlplane.serving.models import Endpoint


@dataclass(frozen=True, slots=True)
class Pinned:
    """``pin`` None: there is nothing to warm, or ``no_room`` says what does not fit, with numbers."""

    pin: Pin | None = None
    no_room: str = ""


def pin_ensure(*, endpoint: Endpoint, spec: EndpointSpec, version: ModelVersion, targets: CacheTargets) -> Pinned:
    """The endpoint's pin of a version, made where it is missing, and moved where its targets are others now."""
    wanted = PinSpec(
        version_id=version.pk,
        pool_ids=tuple(sorted(pool.pk for pool in targets.pools)),
        node_selector=dict(targets.selector),
        gate_type=GateType(spec.options.gate.type.value),
        gate_value=spec.options.gate.value,
    )
    pin = _live(endpoint).filter(version=version).prefetch_related("pools").first()
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
    return Pinned(_live(endpoint).prefetch_related("pools").get(pk=made.pk))


def pins_release(*, endpoint: Endpoint, keep: Collection[UUID]) -> int:
    """Remove the endpoint's pins of all versions but those in ``keep``, and ask for the eviction of what nobody else
    has pinned; what a pod still uses goes after it, and what is on a node that is down when that comes back."""
    removed = 0
    for pin in _live(endpoint).exclude(version_id__in=list(keep)).prefetch_related("pools"):
        try:
            with transaction.atomic():
                pin_remove(actor=SYSTEM, pin_id=pin.pk, endpoint_id=endpoint.pk)
                _evict(pin)
            removed += 1
        except HearthError:
            continue  # somebody was first, or the next round tries again
    return removed


def _evict(pin: Pin) -> None:
    now, artifact = timezone.now(), pin.version.artifact
    others = Pin.objects.filter(version__artifact=artifact, removed_at__isnull=True).values("pools")
    present = CacheEntry.objects.filter(
        node__pool__in=pin.pools.all(), node__lost_at__isnull=True, artifact=artifact, evict_requested_at__isnull=True
    ).exclude(node__pool__in=others)
    present.exclude(Q(state__in=(EntryState.ABSENT, EntryState.LOST)) & ~Q(desired=Action.ENSURE)).update(
        evict_requested_at=now, updated_at=now
    )


def _live(endpoint: Endpoint) -> QuerySet[Pin]:
    return Pin.objects.filter(endpoint=endpoint, removed_at__isnull=True).select_related("version__artifact")


def _same(stored: PinSpec, wanted: PinSpec) -> bool:
    """Suspension is somebody's pause of the transfer, and no other pin."""
    return replace(stored, suspended=False, artifacts=wanted.artifacts) == wanted
