"""What a person asks a pin to be, and every reason why it cannot be that, field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.models import GateType, Image, ImageState, ModelVersion, Pin, VersionState
from caches.selectors.image_demand import holds_images
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, FieldError, Invalid

MAX_RETENTION_SECONDS = 366 * 86400
MAX_SPREAD_LABEL = 200
MAX_NUMBER = 2**31 - 1  # of a column


@dataclasses.dataclass(frozen=True, slots=True)
class PinSpec:
    """The editable fields of a pin. ``gate_value``: nodes for Count, percent for Percent, seconds for Timeout."""

    version_id: UUID | None  # None: of an endpoint's image alone
    pool_ids: tuple[UUID, ...]
    artifacts: tuple[ArtifactKind, ...] = (ArtifactKind.WEIGHTS,)
    image_id: UUID | None = None  # what Image among the artifacts means; None: the version's own
    priority: int = 500
    placement: Placement = dataclasses.field(default_factory=Placement)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    window: DailyWindow | None = None
    needed_at: datetime | None = None
    suspended: bool = False
    retention_seconds: int = 0
    gate_type: GateType = GateType.ALL
    gate_value: int = 100


def spec_of(pin: Pin) -> PinSpec:
    """The spec a pin's row states; the base for changing some of its fields."""
    window = None
    if pin.window_start is not None and pin.window_end is not None:
        window = DailyWindow(pin.window_start, pin.window_end, pin.window_time_zone)
    return PinSpec(
        version_id=pin.version_id,
        pool_ids=tuple(sorted(pool.pk for pool in pin.pools.all())),
        artifacts=tuple(ArtifactKind(kind) for kind in pin.artifacts),
        image_id=pin.image_id,
        priority=pin.priority,
        placement=Placement(PlacementType(pin.placement_type), pin.placement_value, pin.spread_label),
        node_selector=pin.node_selector,
        window=window,
        needed_at=pin.needed_at,
        suspended=pin.suspended,
        retention_seconds=pin.retention_seconds,
        gate_type=GateType(pin.gate_type),
        gate_value=pin.gate_value,
    )


def spec_fields(spec: PinSpec) -> dict[str, Any]:
    """The spec as columns of Pin, without its pools."""
    window = spec.window
    return {
        "version_id": spec.version_id,
        "artifacts": [kind.value for kind in spec.artifacts],
        "image_id": spec.image_id,
        "priority": spec.priority,
        "placement_type": spec.placement.type.value,
        "placement_value": spec.placement.value,
        "spread_label": spec.placement.spread_label,
        "node_selector": dict(spec.node_selector),
        "window_start": window.start if window else None,
        "window_end": window.end if window else None,
        "window_time_zone": window.time_zone if window else "",
        "needed_at": spec.needed_at,
        "suspended": spec.suspended,
        "retention_seconds": spec.retention_seconds,
        "gate_type": spec.gate_type.value,
        "gate_value": spec.gate_value,
    }


def spec_document(spec: PinSpec, pools: list[NodePool]) -> dict[str, Any]:
    """The spec as JSON for the audit trail."""
    fields = spec_fields(spec)
    for name in ("window_start", "window_end", "needed_at"):
        fields[name] = fields[name].isoformat() if fields[name] is not None else None
    fields["version_id"] = str(spec.version_id) if spec.version_id else None
    fields["image_id"] = str(spec.image_id) if spec.image_id else None
    return {"pools": sorted(pool.full_name for pool in pools), **fields}


def spec_check(spec: PinSpec) -> tuple[ModelVersion | None, list[NodePool]]:
    """The version (None: of an image alone) and pools of a valid spec, in id order. Raises Invalid with every wrong
    field, or Clash."""
    rows = ModelVersion.objects.select_related("model", "artifact")
    version = rows.filter(pk=spec.version_id).first() if spec.version_id is not None else None
    pools = list(NodePool.objects.select_related("cluster").filter(pk__in=spec.pool_ids).order_by("pk"))
    errors = list(_field_errors(spec))
    image_alone = spec.version_id is None and spec.image_id is not None and spec.artifacts == (ArtifactKind.IMAGE,)
    if version is None and not image_alone:
        errors.append(FieldError("version", "pin:user:no-such-version", "There is no such version."))
    if len(pools) != len(set(spec.pool_ids)):
        errors.append(FieldError("pools", "pin:user:no-such-pool", "At least one of the pools does not exist."))
    if errors:
        raise Invalid(
            "pin:user:invalid",
            " ".join(error.detail for error in errors),
            next_step="Correct the fields listed in errors and send the request again.",
            errors=errors,
        )
    if version is not None and (version.state != VersionState.AVAILABLE or version.artifact is None):
        raise Clash(
            "pin:user:version-not-available",
            f"{version.full_name} is {version.state}, so nothing of it can be warmed yet.",
            next_step="Wait until its registration has succeeded, or register it again.",
        )
    _image_check(version, spec, pools)
    return version, pools


def _image_check(version: ModelVersion | None, spec: PinSpec, pools: list[NodePool]) -> None:
    """Clash where the spec names Image and there is none that may be warmed, or nodes that hold none."""
    if ArtifactKind.IMAGE not in spec.artifacts:
        return
    folders = [pool.full_name for pool in pools if not holds_images(pool)]
    if folders:
        raise Clash(
            "pin:user:images-not-applicable",
            f"The nodes of {', '.join(folders)} are folders: they hold no images.",
            next_step="Pin the weights alone there.",
        )
    key = spec.image_id or (version.image_id if version is not None else None)
    image = Image.objects.filter(pk=key).first() if key is not None else None
    if image is None:
        raise Clash(
            "pin:user:no-image",
            f"No image serves {version.full_name if version is not None else 'it'}, so none can be warmed.",
            next_step="Say which image serves the version, or pin its weights alone.",
        )
    if image.state != ImageState.AVAILABLE:
        raise Clash(
            "pin:user:image-not-available",
            f"{image.reference} is {image.state}, so it cannot be warmed yet.",
            next_step="Wait until its registration has succeeded, or register it again.",
        )
    if image.revoked_at is not None and not _wants_already(version, spec):
        raise Clash(
            "pin:user:image-revoked",
            f"The digest of {image.reference} was revoked: {image.revoked_reason}",
            next_step="Say which other image serves the version, or pin its weights alone.",
        )


def _wants_already(version: ModelVersion | None, spec: PinSpec) -> bool:
    """Whether a pin of the version (or of none) wants this image already: a revocation is for new pins."""
    live = Pin.objects.filter(version=version, removed_at__isnull=True, artifacts__contains=[ArtifactKind.IMAGE])
    return live.filter(image=spec.image_id).exists()


def _field_errors(spec: PinSpec) -> Iterator[FieldError]:
    def wrong(field: str, code: str, detail: str) -> FieldError:
        return FieldError(field, f"pin:user:{code}", detail)

    if not spec.pool_ids:
        yield wrong("pools", "no-pools", "Name at least one pool.")
    if not 0 <= spec.priority <= 1000:
        yield wrong("priority", "priority-range", "The priority must be between 0 and 1000.")
    if not spec.artifacts or len(set(spec.artifacts)) != len(spec.artifacts):
        yield wrong("artifacts", "artifacts-unsupported", "A pin warms Weights, Image, or both.")
    if not 0 <= spec.retention_seconds <= MAX_RETENTION_SECONDS:
        yield wrong("retention", "retention-range", "The retention must be between 0 seconds and 366 days.")
    if spec.needed_at is not None and spec.needed_at.tzinfo is None:
        yield wrong("needed_at", "time-zone-missing", "The time must say its time zone.")
    if not all(name and len(name) <= 253 and len(value) <= 253 for name, value in spec.node_selector.items()):
        yield wrong("node_selector", "selector-invalid", "The node selector maps label names to label values.")
    if len(spec.placement.spread_label) > MAX_SPREAD_LABEL:
        yield wrong("placement", "spread-label-invalid", f"A label's name has at most {MAX_SPREAD_LABEL} characters.")
    yield from _count_errors("placement", spec.placement.type.value, spec.placement.value)
    yield from _count_errors("gate", spec.gate_type.value, spec.gate_value)
    if spec.window is not None:
        yield from _window_errors(spec.window)


_RANGES = {"Count": (1, 100_000), "Percent": (1, 100), "Timeout": (1, 7 * 86400)}


def _count_errors(field: str, type_name: str, value: int) -> Iterator[FieldError]:
    lowest, highest = _RANGES.get(type_name, (0, MAX_NUMBER))
    if not lowest <= value <= highest:
        detail = f"The value of a {field} of type {type_name} must be between {lowest} and {highest}."
        yield FieldError(field, f"pin:user:{field}-range", detail)


def _window_errors(window: DailyWindow) -> Iterator[FieldError]:
    try:
        ZoneInfo(window.time_zone)
    except (ValueError, OSError, LookupError):
        yield FieldError("window.time_zone", "pin:user:time-zone-unknown", f"No time zone {window.time_zone!r}.")
    if window.start == window.end:
        yield FieldError("window.end", "pin:user:window-empty", "The window must end at another time than it starts.")
