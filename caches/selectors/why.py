"""Plans as people read them: for each node, whether a version fits, what must go first, or why it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from caches.domain.plans import Eviction, Move, Plan, Refusal, Wait, WaitReason


@dataclass(frozen=True, slots=True)
class NodeFit:
    """One node of a preview. ``verdict``: Kept, Fits, Evicts, Waits or CannotFit; ``bytes`` still to be moved."""

    pool: str
    node: str
    node_uid: str
    verdict: str
    bytes: int = 0
    seconds: float | None = None
    evictions: tuple[Eviction, ...] = ()
    refusal: Refusal | None = None
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a pin would do over all its pools. ``seconds`` None: nothing measured yet, or nothing to move."""

    nodes: tuple[NodeFit, ...]
    bytes: int
    seconds: float | None
    basis: int  # measured transfers behind the estimate
    notes: tuple[str, ...]

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        return tuple(eviction for node in self.nodes for eviction in node.evictions)

    @property
    def refused(self) -> int:
        return sum(node.verdict == "CannotFit" for node in self.nodes)

    def counted(self, verdict: str) -> int:
        return sum(node.verdict == verdict for node in self.nodes)


def pin_fits(plans: Sequence[Plan], digest: str, pools: Sequence[str] = ()) -> Preview:
    """The lines of the plans that concern one artifact, node by node; ``pools`` are the plans' full names."""
    nodes: list[NodeFit] = []
    times: list[float | None] = []
    for plan, pool in zip(plans, pools or [plan.pool for plan in plans], strict=True):
        fits = list(_pool_fits(plan, digest, pool))
        nodes += fits
        times += _times(plan, fits)
    return Preview(
        nodes=tuple(sorted(nodes, key=lambda node: (node.pool, node.node))),
        bytes=sum(node.bytes for node in nodes if node.verdict != "CannotFit"),
        # One pool that nothing was measured for leaves the whole without a time.
        seconds=max((time for time in times if time is not None), default=None) if None not in times else None,
        basis=max((plan.estimate_basis for plan in plans), default=0),
        notes=tuple(note for plan in plans for note in plan.notes),
    )


def _times(plan: Plan, fits: Sequence[NodeFit]) -> list[float | None]:
    """How long the pool takes: nothing where nothing moves, None where that was never measured."""
    moving = [fit for fit in fits if fit.bytes and fit.verdict in ("Fits", "Evicts", "Waits")]
    # Only what waits for its turn is in the plan's estimate: nobody knows what the others will find.
    timed = [fit for fit in moving if fit.wait is None or fit.wait.reason is WaitReason.PACING]
    if timed and plan.estimated_seconds is not None:
        return [plan.estimated_seconds]
    return [fit.seconds for fit in timed]


def _pool_fits(plan: Plan, digest: str, pool: str) -> Iterable[NodeFit]:
    moves = {move.node_uid: move for move in plan.moves if move.digest == digest}
    waits = {wait.node_uid: wait for wait in plan.waits if wait.digest == digest}
    refusals = {refusal.node_uid: refusal for refusal in plan.refusals if refusal.digest == digest}
    lines: tuple[Move | Wait | Refusal | Eviction, ...] = (*plan.moves, *plan.waits, *plan.refusals, *plan.evictions)
    names = {line.node_uid: line.node for line in lines}
    kept = {
        uid
        for uid, items in plan.desired.items()
        if any(item.digest == digest and item.pin_id for item in items) and not {uid} & {*moves, *waits, *refusals}
    }
    for uid in {*moves, *waits, *refusals, *kept}:
        evictions = tuple(one for one in plan.evictions if one.node_uid == uid and one.room_for == digest)
        yield _fit(pool, names.get(uid, uid), uid, moves.get(uid), waits.get(uid), refusals.get(uid), evictions)


def _fit(
    pool: str,
    node: str,
    uid: str,
    move: Move | None,
    wait: Wait | None,
    refusal: Refusal | None,
    evictions: tuple[Eviction, ...],
) -> NodeFit:
    if refusal is not None:
        return NodeFit(pool, node, uid, "CannotFit", bytes=refusal.need_bytes, refusal=refusal)
    if move is not None:
        verdict = "Evicts" if evictions or move.after_evictions else "Fits"
        return NodeFit(pool, node, uid, verdict, move.bytes, move.estimated_seconds, evictions)
    if wait is not None:
        return NodeFit(pool, node, uid, "Evicts" if evictions else "Waits", wait.bytes, None, evictions, wait=wait)
    return NodeFit(pool, node, uid, "Kept")


def named(preview: Preview, names: dict[str, str]) -> Preview:
    """The preview with node names where a plan only knew the uid (nodes on which nothing has to happen)."""
    nodes = tuple(replace(node, node=names.get(node.node_uid, node.node)) for node in preview.nodes)
    return replace(preview, nodes=tuple(sorted(nodes, key=lambda node: (node.pool, node.node))))
