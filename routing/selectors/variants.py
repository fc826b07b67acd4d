"""Variants of an endpoint: who serves each, its share of the requests, and what a shift waits for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from caches.selectors.endpoints import endpoints_list
from controlplane.errors import Missing
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance, Variant
from controlplane.serving.standing import Standings
from routing.domain.shifting import shifted
from routing.models import RoutedVariant
from routing.selectors.policies import Targets, clusters_of
from routing.selectors.routers import in_flight


@dataclass(frozen=True, slots=True)
class ShownVariant:
    """``weight`` in force, ``wanted_weight`` once ``waits_for`` is over (equal to it when nothing else is wanted).

    ``share`` of the requests that name no variant. ``endpoint_id`` and ``endpoint``: whose instances serve it, None and
    "" for its own. ``ready`` of ``instances``, those aside that every router leaves out; None while nobody knows.
    ``waits_for``: why the wanted weight is not in force, "" when it is.
    """

    name: str
    weight: float
    wanted_weight: float
    share: float
    endpoint_id: UUID | None
    endpoint: str
    ready: int | None
    instances: int
    waits_for: str


def routed_endpoint(*, endpoint_id: UUID, targets: Targets = None) -> Endpoint:
    """Raises errors.Missing, also for one that the reader may not see."""
    rows = Endpoint.objects.select_related("cluster")
    names = clusters_of(targets)
    found = (rows if names is None else rows.filter(cluster__name__in=names)).filter(pk=endpoint_id).first()
    if found is None:
        raise Missing(
            "endpoint:user:not-found", f"There is no endpoint {endpoint_id}.", next_step="List the endpoints."
        )
    return found


def static_endpoint(*, endpoint_id: UUID, targets: Targets = None) -> Endpoint:
    """Raises errors.Missing, also for one that the reader may not see, and for one that is of a cluster."""
    found = routed_endpoint(endpoint_id=endpoint_id, targets=targets)
    if found.kind != STATIC_KIND:
        raise Missing(
            "routing:static:not-found",
            f"{found.full_name} is of its cluster: its instances are those that run there.",
            next_step="Change its document instead.",
        )
    return found


def static_document(row: Endpoint) -> dict[str, Any]:
    """A static endpoint as it is sent and read."""
    instances = Instance.objects.filter(endpoint=row).order_by("name")
    return {
        "cluster": row.cluster.name,
        "name": row.name,
        "model": row.document.get("modelName", ""),
        "health_path": row.document.get("healthPath", ""),
        "addresses": [
            {"name": one.name, "url": f"{'https' if one.tls else 'http'}://{one.address}"} for one in instances
        ],
    }


def used_by(endpoint: Endpoint) -> list[str]:
    """Variants of other endpoints that it serves, by name."""
    rows = RoutedVariant.objects.filter(source=endpoint.pk).select_related("variant__endpoint")
    return sorted(f"{row.variant.name} of {row.variant.endpoint.full_name}" for row in rows)


def variants_document(endpoint: Endpoint) -> list[dict[str, Any]]:
    """What is wanted of each variant, by name."""
    states = variant_states(endpoint)
    return [
        {
            "name": name,
            "weight": state.weight if state.wanted_weight is None else state.wanted_weight,
            "endpoint_id": str(state.source) if state.source is not None else None,
        }
        for name, state in sorted(states.items())
    ]


def variants_tag(endpoint: Endpoint) -> str:
    """Another one when something else is wanted."""
    return hashlib.sha256(json.dumps(variants_document(endpoint)).encode()).hexdigest()[:16]


def variants_shown(endpoint: Endpoint) -> Sequence[ShownVariant]:
    """By name."""
    states = variant_states(endpoint)
    of = {name: state.source or endpoint.pk for name, state in states.items()}
    counts: dict[UUID, tuple[int, int]] = {}
    flight = in_flight()
    rows = Instance.objects.filter(endpoint__in=set(of.values()), leaving=False)
    for source, uid, ready, address in rows.values_list("endpoint_id", "uid", "ready", "address"):
        well, all_of_them = counts.get(source, (0, 0))
        counts[source] = (well + bool(ready and address and not flight.left_out(uid)), all_of_them + 1)
    sources = {row.pk: row for row in endpoints_list().filter(pk__in=set(of.values()))}
    standings = Standings(now=timezone.now(), said=flight.said())
    known = {
        pk: flight.known if row.kind == STATIC_KIND else standings.knows(row.cluster) for pk, row in sources.items()
    }
    now = {name: state.weight for name, state in states.items()}
    wanted = {name: now[name] if s.wanted_weight is None else s.wanted_weight for name, s in states.items()}
    lacking = shifted(now, wanted, {name: counts.get(of[name], (0, 0))[0] for name in states}).waits_for
    total = sum(now.values())
    pending = any(state.wanted_weight is not None for state in states.values())
    return [
        ShownVariant(
            name=name,
            weight=state.weight,
            wanted_weight=wanted[name],
            share=state.weight / total if total else 0.0,
            endpoint_id=state.source,
            endpoint=sources[state.source].full_name if state.source in sources else "",
            ready=counts.get(of[name], (0, 0))[0] if known.get(of[name]) else None,
            instances=counts.get(of[name], (0, 0))[1],
            waits_for=_why(state, lacking, pending, sources.get(of[name]), name),
        )
        for name, state in sorted(states.items())
    ]


def _why(state: RoutedVariant, lacking: Sequence[str], pending: bool, source: Any, name: str) -> str:
    if not pending:
        return ""
    if name in lacking:
        if source is None or source.gone_at is not None:
            return "The endpoint that serves it is gone."
        told = f" Its rollout is {source.rollout_state}. {source.rollout_message or ''}" if source.rollout_state else ""
        return f"No instance of {source.full_name} is ready.{told}".strip()
    if state.wanted_weight is None:
        return ""
    return f"It waits for {', '.join(lacking)}." if lacking else "It is put in force with the next publication."


def variant_states(endpoint: Endpoint) -> Mapping[str, RoutedVariant]:
    """By name; one that was never published is as it would be."""
    rows = Variant.objects.filter(endpoint=endpoint).select_related("routed")
    return {row.name: row.routed if hasattr(row, "routed") else RoutedVariant(variant=row) for row in rows}
