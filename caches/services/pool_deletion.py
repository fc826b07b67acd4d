"""Deleting a pool: everything of it leaves the nodes first, then its agents and documents, then its row.

Two-phase: the pool is marked, its plan wants nothing any more, and the Operation waits until every node has reported an
empty store. A node that is down is waited for, because its files can only be removed once it is back; one that is gone
for good is not. What is in use stays until nobody uses it. Where no agent of the pool was ever let in, nothing of it is
on any node, and nobody is waited for.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from caches.domain.planning import plan
from caches.domain.plans import Plan
from caches.domain.text import plural
from caches.models import CacheEntry, NodeProjection, Pin, PoolLoop
from caches.selectors.pin_artifacts import pin_name
from caches.selectors.pool_view import has_leftovers, pool_view
from caches.services.admission import node_name
from caches.services.loop.pool_rounds import pools_mark_dirty
from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.clusters.documents import POOL_LABEL, ArtifactKind, EntryState
from controlplane.clusters.gateway import ClusterGateway, GatewayError, NotApplicable
from controlplane.clusters.models import Cluster, ClusterType, Node, NodePool
from controlplane.clusters.registry import gateway_for
from controlplane.errors import Clash, Missing, Transient
from controlplane.locks import advisory_lock, deadlock_retried
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState, TargetState
from controlplane.operations.services import (
    TargetSpec,
    operation_acknowledge,
    operation_progress,
    operation_start,
    operation_succeed,
    target_update,
)

_GONE = (EntryState.ABSENT, EntryState.LOST)


def pool_delete_preview(*, pool_id: UUID) -> Plan:
    """What would leave the nodes; Clash where pins still want something there. Writes nothing."""
    pool = _get(pool_id)
    _refuse_pinned(pool)
    now = timezone.now()
    changed = copy.copy(pool)
    changed.deleting_at = now
    return plan(pool_view(changed, now=now), now)


@deadlock_retried
def pool_delete(*, actor: Actor, pool_id: UUID) -> Operation:
    """Mark the pool and start the Operation that empties it; again answers with the one that runs."""
    with transaction.atomic():
        pools_mark_dirty(pool_ids=[_get(pool_id).pk])
        PoolLoop.objects.select_for_update(no_key=True).get(pool_id=pool_id)  # as the admission of pins does
        pool = _get(pool_id)
        _refuse_pinned(pool)
        now = timezone.now()
        if NodePool.objects.filter(pk=pool_id, deleting_at=None).update(deleting_at=now, updated_at=now) != 1:
            return _running(pool)
        operation = _start(actor, pool)
        _audit(actor, pool, "pool.delete", {"deleting": False}, {"deleting": True}, operation)
    return operation


def delete_step(operation_id: UUID) -> bool:
    """PoolDelete: done when every node reports that it holds nothing any more."""
    operation = Operation.objects.get(pk=operation_id)
    pool = NodePool.objects.select_related("cluster").filter(pk=operation.params["pool_id"]).first()
    if pool is None:
        return _end(operation)
    if operation.state == OperationState.CANCELING:
        return operation_acknowledge(operation_id=operation_id, message="The pool stays; what is gone is not restored.")
    waiting = _record(operation, pool)
    if waiting:
        operation_progress(operation_id=operation_id, message=f"Waiting for {plural(len(waiting), 'node')}.")
        return True
    with advisory_lock(f"pool:{pool.pk}") as mine:
        if mine and _finish(operation, pool, gateway_for(pool.cluster)):
            operation.refresh_from_db()
            return _end(operation)
    return True


def delete_canceled(operation: Operation, actor: Actor) -> None:
    """The pool stays and is planned again."""
    _mark(operation, actor, deleting=False)


def delete_retried(operation: Operation, actor: Actor) -> None:
    _refuse_pinned(_get(UUID(operation.params["pool_id"])))
    _mark(operation, actor, deleting=True)


def _record(operation: Operation, pool: NodePool) -> list[Node]:
    """Write down how far each node is; those that are waited for."""
    nodes = list(Node.objects.filter(pool=pool, lost_at=None).order_by("name"))
    live = {str(node.pk) for node in nodes}
    for target in operation.targets.exclude(key__in=live):
        target_update(operation_id=operation.pk, key=target.key, state=TargetState.SKIPPED, detail="Its node is gone.")
    told = set(NodeProjection.objects.filter(node__in=nodes).values_list("node_id", flat=True))
    # An image that nothing holds any more stays for as long as its node likes: nobody waits for that.
    let_go = Q(artifact__kind=ArtifactKind.IMAGE, state=EntryState.EVICTING)
    held = set(
        CacheEntry.objects.filter(node__in=nodes)
        .exclude(state__in=_GONE)
        .exclude(let_go)
        .values_list("node_id", flat=True)
    )
    waiting, never = [], _never_had_agents(pool)
    for node in nodes:
        state, detail = TargetState.SUCCEEDED, "Nothing of the pool is left here."
        if never:
            detail = "No agent of the pool was ever let in here. What the node holds of another pool stays."
        elif not _has_reported(node, pool) and (node.reported_at is not None or node.pk in told):
            state, detail = TargetState.RUNNING, "Waiting for the node to report."
        elif node.pk in held or has_leftovers(node):
            state, detail = TargetState.RUNNING, "Files are being removed, once nobody uses them."
        if state is TargetState.RUNNING:
            waiting.append(node)
        target_update(operation_id=operation.pk, key=str(node.pk), state=state, detail=detail)
    return waiting


def _never_had_agents(pool: NodePool) -> bool:
    """The cluster refused them from the first, as it does for a folder that is not on its list."""
    applied = PoolLoop.objects.filter(pool=pool).exclude(agent_applied_at=None)
    return pool.cluster.type != ClusterType.LOCAL and not applied.exists()


def _has_reported(node: Node, pool: NodePool) -> bool:
    return node.reported_at is not None and pool.deleting_at is not None and node.reported_at > pool.deleting_at


def _finish(operation: Operation, pool: NodePool, gateway: ClusterGateway) -> bool:
    """Under the pool's lock, so that no round applies again what is taken away here. With its row ends whatever could
    bring its agents back; what they write before they have ended is taken away after them. False where a cancel came
    first."""
    nodes = list(Node.objects.filter(pool=pool, lost_at=None))
    with _answering():
        for node in nodes:
            if POOL_LABEL in node.labels:
                gateway.set_node_labels(node.name, node.uid, {POOL_LABEL: None})
        with suppress(NotApplicable):  # something else starts the agents there
            gateway.delete_agent(pool.name)
        for node in nodes:
            gateway.delete_node_cache(node.name, node.uid)
    with transaction.atomic():
        NodeProjection.objects.filter(node__in=nodes).delete()
        params = {**operation.params, "cluster_id": str(pool.cluster_id), "pool": pool.name}
        if not operation_progress(operation_id=operation.pk, message="Its agents are being ended.", params=params):
            return False
        _audit(SYSTEM, pool, "pool.deleted", {"deleting": True}, None, operation)
        NodePool.objects.filter(pk=pool.pk).delete()
    return True


def _end(operation: Operation) -> bool:
    """The pool's row is gone. Nothing of it is left once none of its agents can write any more."""
    cluster = Cluster.objects.filter(pk=operation.params.get("cluster_id")).first()
    if cluster is not None:
        gateway = gateway_for(cluster)
        with _answering(), suppress(NotApplicable):
            if gateway.has_agents(operation.params["pool"]):
                return True
        keys = list(operation.targets.values_list("key", flat=True))
        for node in Node.objects.filter(pk__in=keys, pool=None, lost_at=None).order_by("name"):
            with _answering():
                gateway.delete_node_cache(node.name, node.uid)
    if operation.state == OperationState.CANCELING:
        return operation_acknowledge(operation_id=operation.pk, message="It came too late: the pool is gone.")
    return operation_succeed(operation_id=operation.pk, message="The pool is gone.")


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except NotApplicable:
        raise
    except GatewayError as error:
        raise Transient(
            "pool:cluster:unreachable", f"The cluster does not answer: {error}", next_step="It is tried again."
        ) from error


def _start(actor: Actor, pool: NodePool) -> Operation:
    nodes: Sequence[Node] = list(Node.objects.filter(pool=pool, lost_at=None).select_related("pool__cluster"))
    return operation_start(
        actor=actor,
        kind=OperationKind.POOL_DELETE,
        subject_type="pool",
        subject_id=str(pool.pk),
        subject_name=pool.full_name,
        params={"pool_id": str(pool.pk)},
        targets=[TargetSpec(str(node.pk), node_name(node)) for node in nodes],
    )


def _mark(operation: Operation, actor: Actor, *, deleting: bool) -> None:
    pool, now = _get(UUID(operation.params["pool_id"])), timezone.now()
    rows = NodePool.objects.filter(pk=pool.pk, deleting_at__isnull=deleting)
    if rows.update(deleting_at=now if deleting else None, updated_at=now) != 1:
        return
    action = "pool.delete" if deleting else "pool.delete-canceled"
    _audit(actor, pool, action, {"deleting": not deleting}, {"deleting": deleting}, operation)
    pools_mark_dirty(pool_ids=[pool.pk])


def _get(pool_id: UUID) -> NodePool:
    pool = NodePool.objects.select_related("cluster").filter(pk=pool_id).first()
    if pool is None:
        raise Missing("pool:user:missing", "There is no such pool.", next_step="List the pools and choose one.")
    return pool


def _refuse_pinned(pool: NodePool) -> None:
    pins = Pin.objects.filter(pools=pool, removed_at=None).select_related("version__model", "image").order_by("id")[:6]
    names = [pin_name(pin) for pin in pins]
    if names:
        more = " and others" if len(names) > 5 else ""
        raise Clash(
            "pool:user:pinned",
            f"Pins still want something on {pool.full_name}: {', '.join(names[:5])}{more}.",
            next_step="Remove these pins, or the pool from them, then delete the pool.",
        )


def _running(pool: NodePool) -> Operation:
    rows = Operation.objects.filter(kind=OperationKind.POOL_DELETE, subject_id=str(pool.pk), state__in=ACTIVE_STATES)
    operation = rows.first()
    if operation is None:
        raise Clash("pool:user:deleting", f"{pool.full_name} is being deleted.", next_step="Follow its operation.")
    return operation


def _audit(
    actor: Actor,
    pool: NodePool,
    action: str,
    before: dict[str, object],
    after: dict[str, object] | None,
    operation: Operation,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="NodePool",
        object_id=str(pool.pk),
        object_name=pool.full_name,
        before=before,
        after=after,
        operation_id=operation.pk,
    )
