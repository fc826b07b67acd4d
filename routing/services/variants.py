"""Which variants an endpoint has, who serves them and which share of the requests they are to get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from controlplane.audit.services import Actor, audit_write
from controlplane.errors import Clash, FieldError, Invalid, Missing, Stale
from controlplane.locks import transaction_lock
from controlplane.serving.models import Endpoint, Instance, Variant
from routing.domain.shifting import WantedVariant, wrong_with
from routing.models import RoutedVariant
from routing.selectors.routers import in_flight
from routing.selectors.variants import variant_states, variants_document, variants_tag
from routing.services.publishing import publish_soon

DEFAULT = "default"


def variants_set(
    *, actor: Actor, endpoint_id: UUID, wanted: Sequence[WantedVariant], if_tag: str | None = None
) -> Endpoint:
    """``wanted`` is all of them: one that is not among them goes. The weights take effect all at once, when every
    variant that gets more has a ready instance; until then requests go where they went. The same again changes nothing.

    Raises errors.Missing; Invalid; Clash for one that goes and still gets requests; Stale when ``variants_tag`` is
    another by now than ``if_tag``.
    """
    with transaction.atomic():
        transaction_lock("routing:publish")  # nothing takes effect meanwhile
        endpoint = Endpoint.objects.select_related("cluster").filter(pk=endpoint_id, gone_at__isnull=True).first()
        if endpoint is None:
            raise Missing("endpoint:user:not-found", f"There is no endpoint {endpoint_id}.")
        before = variants_document(endpoint)
        if if_tag is not None and variants_tag(endpoint) != if_tag:
            raise Stale(
                "request:user:stale",
                "Somebody changed the variants since you read them.",
                next_step="Read them again, look at what changed, and send the change with the new ETag.",
            )
        _check(endpoint, wanted)
        _remove(endpoint, {one.name for one in wanted})
        for one in wanted:
            _want(endpoint, one)
        after = variants_document(endpoint)
        if after != before:
            audit_write(
                actor=actor,
                action="routing.variants",
                object_type="endpoint",
                object_id=str(endpoint.pk),
                object_name=endpoint.full_name,
                before={"variants": before},
                after={"variants": after},
            )
            publish_soon()
    return endpoint


def _check(endpoint: Endpoint, wanted: Sequence[WantedVariant]) -> None:
    states = variant_states(endpoint)
    found = wrong_with(wanted, DEFAULT) + _served_by_nobody(endpoint, wanted, states)
    rows = Endpoint.objects.filter(cluster=endpoint.cluster_id, gone_at__isnull=True, deleting_at__isnull=True)
    sources = set(rows.filter(pk__in=[one.source for one in wanted if one.source]).values_list("pk", flat=True))
    for number, one in enumerate(wanted):
        if (state := states.get(one.name)) is not None and state.source == one.source:
            continue  # as it is: also one that is gone by now, whose requests somebody has to take back
        if one.source is not None and one.source not in sources:
            found.append((f"variants.{number}.endpoint_id", "no endpoint of this cluster"))
        elif one.source == endpoint.pk:
            found.append((f"variants.{number}.endpoint_id", "leave it out: these are its own instances"))
    if found:
        raise Invalid(
            "routing:variants:wrong",
            " ".join(f"{field}: {detail}." for field, detail in found)[:900],
            next_step="Correct the fields named in errors.",
            errors=[FieldError(field, "routing:variants:wrong", detail) for field, detail in found],
        )


def _served_by_nobody(
    endpoint: Endpoint, wanted: Sequence[WantedVariant], states: Mapping[str, RoutedVariant]
) -> list[tuple[str, str]]:
    """Variants that get requests and would be handed at once to who has nothing ready: weights wait, this would not."""
    sources = {one.source or endpoint.pk for one in wanted} | {one.source or endpoint.pk for one in states.values()}
    there = Instance.objects.filter(endpoint__in=sources, ready=True).exclude(address="")
    flight = in_flight()
    ready = {endpoint_id for endpoint_id, uid in there.values_list("endpoint_id", "uid") if not flight.left_out(uid)}
    found = []
    for number, one in enumerate(wanted):
        state = states.get(one.name)
        if state is None or state.source == one.source or state.weight <= 0:
            continue
        if (state.source or endpoint.pk) in ready and (one.source or endpoint.pk) not in ready:
            detail = "nothing of it is ready: give it a variant of its own, and that the weight"
            found.append((f"variants.{number}.endpoint_id", detail))
    return found


def _remove(endpoint: Endpoint, kept: set[str]) -> None:
    for variant in endpoint.variants.exclude(name__in=kept).select_related("routed"):
        state = _state(variant)
        if state.weight > 0 or state.wanted_weight:
            raise Clash(
                "routing:variants:in-use",
                f"{variant.name} gets requests; they would be refused.",
                next_step="Give it the weight 0 first, and take it away once that is in force.",
            )
        variant.delete()


def _want(endpoint: Endpoint, one: WantedVariant) -> None:
    variant, made = Variant.objects.get_or_create(endpoint=endpoint, name=one.name)
    state = _state(variant, new=made)
    fields: dict[str, Any] = {
        "source": one.source,
        "wanted_weight": one.weight if one.weight != state.weight else None,
    }
    if any(getattr(state, name) != value for name, value in fields.items()):
        RoutedVariant.objects.filter(pk=state.pk).update(**fields)


def _state(variant: Variant, *, new: bool = False) -> RoutedVariant:
    """A new one gets nothing until its weight is in force."""
    found, _ = RoutedVariant.objects.get_or_create(variant=variant, defaults={"weight": 0.0 if new else 1.0})
    return found
