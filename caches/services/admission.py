"""What a pin would do, and whether its gate can be met with the room there is. The planner decides; this only asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.utils import timezone

from caches.domain.gating import GateState, GateType, Target, gate
from caches.domain.planning import plan
from caches.domain.plans import Plan, Refusal
from caches.domain.text import plural, second_text, size_text
from caches.models import Artifact, CacheEntry, ModelVersion, Pin
from caches.selectors.entries import artifact_name
from caches.selectors.image_demand import holds_images, image_of
from caches.selectors.pin_artifacts import gate_artifact, gate_name, wants_weights
from caches.selectors.pool_view import pin_view, pool_view
from caches.services.pin_specs import PinSpec, spec_fields
from controlplane.clusters.documents import ArtifactKind, EntryState, Reason
from controlplane.clusters.models import Node, NodePool
from controlplane.errors import Clash
from controlplane.operations.services import TargetSpec


class CapacityClash(Clash):
    """Refused for lack of room; ``plans`` are the plans whose refusals say where and how much."""

    def __init__(self, detail: str, *, next_step: str, plans: tuple[Plan, ...]) -> None:
        super().__init__(
            "pin:user:insufficient-capacity",
            detail,
            reason=Reason.INSUFFICIENT_CAPACITY,
            next_step=next_step,
        )
        self.plans = plans


def draft_pin(spec: PinSpec, *, now: datetime, pin: Pin | None = None) -> Pin:
    """An unsaved pin of this spec; a change keeps the identity and the age of the pin it replaces."""
    draft = Pin(**spec_fields(spec))
    draft.created_at = now
    if pin is not None:
        draft.pk, draft.created_at = pin.pk, pin.created_at
    return draft


def plans_with(
    draft: Pin, version: ModelVersion | None, pools: Iterable[NodePool], *, now: datetime, without: Iterable[UUID] = ()
) -> tuple[Plan, ...]:
    """One plan for each pool as if ``draft`` existed and the pins in ``without`` did not."""
    draft.version = version
    extra = []
    if version is not None and wants_weights(draft):
        assert version.artifact is not None
        extra = [pin_view(draft, digest=version.artifact.digest)]
    image = image_of(draft)
    images = (
        ()
        if image is None or image.artifact is None
        else (pin_view(draft, digest=image.artifact.digest, kind=ArtifactKind.IMAGE),)
    )
    gone = {draft.pk, *without}
    return tuple(
        plan(
            pool_view(pool, now=now, extra_pins=(*extra, *(images if holds_images(pool) else ())), without_pins=gone),
            now,
        )
        for pool in pools
    )


def admit(pin: Pin, plans: tuple[Plan, ...]) -> None:
    """Raise CapacityClash when too many targets lack the room for the pin's gate. Other waits do not refuse."""
    refusals, now = _refusals(pin, plans), timezone.now()
    if not can_open(pin, plans):
        targets = _targets(pin, plans)
        # Waiting is no advice while one node needs more than that; otherwise the last one says how long.
        lasting = [one for one in refusals if one.until is None]
        advice = lasting[0] if lasting else max(refusals, key=lambda one: one.until or now)
        raise CapacityClash(_no_room(pin, refusals, len(targets)), next_step=advice.next_step, plans=plans)


def can_open(pin: Pin, plans: tuple[Plan, ...]) -> bool:
    """Whether the room there is lets the pin's gate open."""
    refusals = _refusals(pin, plans)
    if not refusals:
        return True
    without_room = {refusal.node_uid for refusal in refusals}
    uids = _targets(pin, plans)
    targets = [Target(uid, EntryState.QUEUED, refused=uid in without_room) for uid in sorted(uids)]
    if GateType(pin.gate_type) is GateType.TIMEOUT:
        return not without_room >= uids
    now = timezone.now()
    decision = gate(GateType(pin.gate_type), pin.gate_value, targets, started_at=now, now=now)
    return decision.state is not GateState.FAILED


def _refusals(pin: Pin, plans: Iterable[Plan]) -> list[Refusal]:
    digest = _artifact(pin).digest
    return [refusal for one in plans for refusal in one.refusals if refusal.digest == digest]


def _targets(pin: Pin, plans: Iterable[Plan]) -> set[str]:
    digest = _artifact(pin).digest
    return {uid for one in plans for uid in target_uids(one, digest)}


def _artifact(pin: Pin) -> Artifact:
    found = gate_artifact(pin)
    assert found is not None  # spec_check lets no other pin exist
    return found


def target_uids(plan: Plan, digest: str) -> frozenset[str]:
    """Uids of the nodes on which a pin of this plan wants the artifact: there, coming, waiting or refused."""
    lines = {uid for uid, items in plan.desired.items() for item in items if item.digest == digest and item.pin_id}
    return frozenset(
        lines
        | {wait.node_uid for wait in plan.waits if wait.digest == digest}
        | {refusal.node_uid for refusal in plan.refusals if refusal.digest == digest}
    )


def target_specs(plans: Sequence[Plan], pin: Pin, pools: Sequence[NodePool]) -> list[TargetSpec]:
    """The targets of a warming Operation: one for each node, keyed by the node's row id."""
    artifact = _artifact(pin)
    found: list[TargetSpec] = []
    for one, pool in zip(plans, pools, strict=True):
        uids = target_uids(one, artifact.digest)
        nodes = Node.objects.filter(pool=pool, lost_at__isnull=True, uid__in=uids).values_list("pk", "name")
        found += [TargetSpec(str(pk), f"{pool.full_name}/{name}", artifact.size_bytes) for pk, name in nodes]
    return found


def node_name(node: Node) -> str:
    """``cluster.pool/node``, as operations name their targets."""
    return f"{node.pool.full_name}/{node.name}" if node.pool else node.name


def entry_name(entry: CacheEntry) -> str:
    """``model version on node``, as operations and the audit trail name an entry; its digest where no version does."""
    return f"{artifact_name(entry)} on {entry.node.name}"[:300]


def _no_room(pin: Pin, refusals: Sequence[Refusal], targets: int) -> str:
    worst = max(refusals, key=lambda refusal: refusal.need_bytes - refusal.free_bytes + refusal.reserved_bytes)
    return (
        f"{gate_name(pin)} does not fit on {len(refusals)} of {plural(targets, 'node')}. On {worst.node} it needs "
        f"{size_text(worst.need_bytes)}, {size_text(worst.free_bytes)} are free and "
        f"{size_text(worst.reserved_bytes)} of them are reserved."
    ) + _enough_later(refusals)


def _enough_later(refusals: Sequence[Refusal]) -> str:
    ends = [refusal.until for refusal in refusals if refusal.until is not None]
    if len(ends) < len(refusals):
        return ""
    return f" Until {second_text(max(ends))} the eviction grace or a hold keeps what would make the room."
