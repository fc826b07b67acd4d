"""Policies of variants: the one in force, and those before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from controlplane.errors import Missing
from controlplane.serving.models import STATIC_KIND, Endpoint, Variant
from routing.domain.policies import SPELLINGS, PolicyRefused, read_policy
from routing.domain.policies import RoutingPolicy as Policy
from routing.models import RoutedVariant, RoutingPolicy

Targets = Collection[str] | None


def clusters_of(targets: Targets) -> set[str] | None:
    """The clusters of which the reader may see something; None: all."""
    return None if targets is None else {target.partition(".")[0] for target in targets}


def variants_list(*, targets: Targets = None) -> QuerySet[Variant]:
    """Variants of the endpoints that the reader may see."""
    rows = Variant.objects.select_related("endpoint__cluster", "endpoint__routed", "routed")
    names = clusters_of(targets)
    return rows if names is None else rows.filter(endpoint__cluster__name__in=names)


def variant_get(*, endpoint_id: UUID, name: str, targets: Targets = None) -> Variant:
    """Raises errors.Missing, also for one that the reader may not see."""
    found = variants_list(targets=targets).filter(endpoint_id=endpoint_id, name=name).first()
    if found is None:
        raise Missing(
            "routing:variant:not-found",
            f"There is no endpoint {endpoint_id} with a variant {name}.",
            next_step="List the endpoints; the variant of most is called default.",
        )
    return found


def served_by(variant: Variant) -> UUID:
    """The endpoint whose instances serve it: its own, unless somebody named another one."""
    state: RoutedVariant | None = getattr(variant, "routed", None)
    return state.source if state is not None and state.source is not None else variant.endpoint_id


def is_served_by_addresses(variant: Variant) -> bool:
    """Whether its instances are addresses that a person gave: nobody starts one there."""
    source = served_by(variant)
    if source == variant.endpoint_id:
        return variant.endpoint.kind == STATIC_KIND
    return Endpoint.objects.filter(pk=source, kind=STATIC_KIND).exists()


def policies_list(*, targets: Targets = None) -> QuerySet[RoutingPolicy]:
    """Every version of every policy, newest first."""
    rows = RoutingPolicy.objects.select_related("variant__endpoint__cluster").order_by("-created_at", "-version")
    names = clusters_of(targets)
    return rows if names is None else rows.filter(variant__endpoint__cluster__name__in=names)


def newest_policies(variant_ids: Collection[UUID]) -> Mapping[UUID, RoutingPolicy]:
    """The one in force of each variant that has one."""
    rows = RoutingPolicy.objects.filter(variant_id__in=list(variant_ids))
    return {row.variant_id: row for row in rows.order_by("variant_id", "-version").distinct("variant_id")}


def policy_in_force(variant: Variant) -> tuple[Policy, RoutingPolicy | None]:
    """The policy of a variant, and the row that says so: None while nobody has set one here."""
    row = RoutingPolicy.objects.filter(variant=variant).order_by("-version").first()
    return policy_of(variant.endpoint, row), row


def policy_of(endpoint: Endpoint, row: RoutingPolicy | None) -> Policy:
    """What the row says, or the endpoint's document without one, or the default. Never raises: routers need one."""
    document: Mapping[str, Any] = row.document if row is not None else _asked_by(endpoint)
    try:
        return read_policy(document)
    except PolicyRefused:
        return Policy()


def _asked_by(endpoint: Endpoint) -> Mapping[str, Any]:
    """HyperPod's ``intelligentRoutingSpec``, whose strategy is prefixaware unless it says another one."""
    spec = endpoint.document.get("intelligentRoutingSpec")
    if not isinstance(spec, Mapping) or spec.get("enabled") is not True:
        return {}
    asked = spec.get("routingStrategy", "prefixaware")
    return {"routingStrategy": asked} if isinstance(asked, str) and asked in SPELLINGS else {}
