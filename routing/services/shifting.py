"""Putting wanted weights in force, once those that get more of the requests are ready. Part of each publication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from controlplane.audit.services import SYSTEM, audit_write
from controlplane.serving.models import Variant
from routing.domain.publishing import Copy
from routing.domain.shifting import Shift, shifted
from routing.models import RoutedVariant
from routing.selectors.routers import InFlight, in_flight


def shift(
    states: Sequence[RoutedVariant], variants: Mapping[UUID, Variant], copies: Mapping[UUID, Sequence[Copy]]
) -> None:
    """Where something else is wanted than what is so. ``variants`` by their pk, ``copies`` by endpoint. In the
    transaction of a publication, whose lock keeps whoever wants something else out."""
    of_endpoint: dict[UUID, list[RoutedVariant]] = defaultdict(list)
    for state in states:
        of_endpoint[variants[state.variant_id].endpoint_id].append(state)
    pending = {
        endpoint_id: mine
        for endpoint_id, mine in of_endpoint.items()
        if any(state.wanted_weight is not None for state in mine)
    }
    flight = in_flight() if pending else InFlight()
    for endpoint_id, mine in pending.items():
        names = {state.variant_id: variants[state.variant_id].name for state in mine}
        ready = {
            names[state.variant_id]: sum(
                not flight.left_out(one.id) for one in copies.get(state.source or endpoint_id, ())
            )
            for state in mine
        }
        found = step(mine, names, ready)
        if not found.waits_for:
            _put_in_force(mine, names, found, variants[mine[0].variant_id])


def step(states: Sequence[RoutedVariant], names: Mapping[UUID, str], ready: Mapping[str, int]) -> Shift:
    """What is to be of the variants of one endpoint. ``names`` by variant, ``ready`` instances by name."""
    now = {names[state.variant_id]: state.weight for state in states}
    wanted = {
        names[state.variant_id]: state.weight if state.wanted_weight is None else state.wanted_weight
        for state in states
    }
    return shifted(now, wanted, ready)


def _put_in_force(states: Sequence[RoutedVariant], names: Mapping[UUID, str], found: Shift, variant: Variant) -> None:
    before = {names[state.variant_id]: state.weight for state in states}
    for state in states:
        state.weight, state.wanted_weight = found.weights[names[state.variant_id]], None
        state.save(update_fields=["weight", "wanted_weight", "updated_at"])
    audit_write(
        actor=SYSTEM,
        action="routing.shifted",
        object_type="endpoint",
        object_id=str(variant.endpoint_id),
        object_name=variant.endpoint.full_name,
        before={"weights": before},
        after={"weights": dict(found.weights)},
    )
