"""From a pin's body to the service's PinSpec: names become rows, and a name that is none is named back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.models import GateType, ModelVersion, Pin
from caches.selectors.nodes import Targets, pools_list
from caches.services.pins import PinSpec, spec_of
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.models import NodePool
from controlplane.errors import FieldError, Invalid


def pin_spec(body: Mapping[str, Any], *, targets: Targets) -> tuple[PinSpec, Sequence[NodePool]]:
    """The spec of a new pin and its pools. Raises errors.Invalid for names that do not exist (or are not visible)."""
    version_id = (
        ModelVersion.objects.filter(model__name=body["model"], version=body["version"])
        .values_list("id", flat=True)
        .first()
    )
    if version_id is None:
        raise _no_such("version", f"There is no version {body['version']} of a model {body['model']}.", "Register it.")
    changes, pools = pin_changes(body, targets=targets)
    return PinSpec(version_id=version_id, **changes), pools


def pin_changes(body: Mapping[str, Any], *, targets: Targets) -> tuple[dict[str, Any], Sequence[NodePool]]:
    """The fields of PinSpec that the body sets, and the pools that it names."""
    changes: dict[str, Any] = {
        name: body[name] for name in ("priority", "node_selector", "needed_at", "suspended") if name in body
    }
    pools: Sequence[NodePool] = ()
    if "pools" in body:
        pools = _pools(body["pools"], targets)
        changes["pool_ids"] = tuple(sorted({pool.id for pool in pools}))
    if "artifacts" in body:
        changes["artifacts"] = tuple(ArtifactKind(kind) for kind in dict.fromkeys(body["artifacts"]))
    if "placement" in body:
        asked = body["placement"]
        changes["placement"] = Placement(PlacementType(asked["type"]), asked["value"], asked["spread_label"])
    if "window" in body:
        changes["window"] = DailyWindow(**body["window"]) if body["window"] else None
    if "retention" in body:
        changes["retention_seconds"] = body["retention"]["seconds"]
    if "gate" in body:
        changes |= {"gate_type": GateType(body["gate"]["type"]), "gate_value": body["gate"]["value"]}
    return changes, pools


def spec_with(pin: Pin, changes: Mapping[str, Any]) -> PinSpec:
    """The pin's spec after the changes."""
    return dataclasses.replace(spec_of(pin), **changes)


def existing_pin(spec: PinSpec) -> UUID | None:
    """The live pin of the same version, which a preview must not count twice; those of endpoints stay beside it."""
    mine = Pin.objects.filter(version=spec.version_id, removed_at__isnull=True, endpoint__isnull=True)
    return mine.values_list("id", flat=True).first()


def _pools(names: Sequence[str], targets: Targets) -> Sequence[NodePool]:
    visible = {pool.full_name: pool for pool in pools_list(targets=targets)}
    for index, name in enumerate(names):
        if name not in visible:
            raise _no_such(f"pools.{index}", f"There is no node pool {name}.", "Name pools as cluster.pool.")
    return [visible[name] for name in dict.fromkeys(names)]


def _no_such(field: str, detail: str, next_step: str) -> Invalid:
    return Invalid("pin:user:no-such-name", detail, next_step=next_step, errors=[FieldError(field, "unknown", detail)])
