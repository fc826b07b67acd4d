"""Work and its trail in two pools of two clusters, on the catalogue, and on what is gone."""

from __future__ import annotations

from dataclasses import dataclass

from caches.models import Pin
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.models import Node, NodePool
from controlplane.operations.models import Operation, OperationKind
from controlplane.operations.services import TargetSpec, operation_start
from tests import factories

ADA = Actor(name="ada", via=Via.API)
GONE = "00000000-0000-7000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Reach:
    """``mine`` is near.gpu, ``other`` is far.secret. ``wide`` is a pin on both, ``removed`` one that was on mine."""

    mine: NodePool
    other: NodePool
    nodes: tuple[Node, Node]
    wide: Pin


def started(kind: OperationKind, type: str, key: object, name: str, *nodes: Node) -> Operation:
    """An operation with one audit event of the same subject."""
    operation = operation_start(
        actor=ADA,
        kind=kind,
        subject_type=type,
        subject_id=str(key),
        subject_name=name,
        targets=[TargetSpec(str(node.pk), node.name) for node in nodes],
    )
    traced(type, key, name, operation=operation)
    return operation


def traced(type: str, key: object, name: str, *, operation: Operation | None = None, **facts: object) -> AuditEvent:
    return audit_write(
        actor=ADA,
        action=f"{type}.change",
        object_type=type,
        object_id=str(key),
        object_name=name,
        operation_id=operation.pk if operation else None,
        **facts,  # type: ignore[arg-type]  # before and after
    )


def reach_world() -> Reach:
    """Subjects' names say where they are: ``mine …`` or ``other …``; ``all …`` belongs to no pool."""
    mine = factories.pool(of=factories.cluster(name="near"), name="gpu")
    other = factories.pool(of=factories.cluster(name="far"), name="secret")
    here, there = factories.node(of=mine, name="n-mine"), factories.node(of=other, name="n-other")
    wide = factories.pin(pools=(mine, other))
    for pool, node, word in ((mine, here, "mine"), (other, there, "other")):
        pin = factories.pin(pools=(pool,))
        entry = factories.entry(on=node)
        started(OperationKind.PIN_WARM, "pin", pin.pk, f"{word} pin", node)
        started(OperationKind.ENTRY_EVICT, "entry", entry.pk, f"{word} entry", node)
        started(OperationKind.POOL_DELETE, "pool", pool.pk, pool.full_name, node)
        traced("NodePool", pool.pk, pool.full_name)
        traced("node", node.pk, f"{word} node")
        traced("Cluster", pool.cluster_id, pool.cluster.name)
    Pin.objects.filter(pools=mine).exclude(pk=wide.pk).update(removed_at=mine.created_at)
    version = factories.version()
    started(OperationKind.MODEL_REGISTER, "version", version.pk, "all version")
    traced("connection", version.connection_id, "all connection")
    started(OperationKind.PIN_WARM, "pin", wide.pk, "other and mine pin", here, there)
    started(OperationKind.PIN_REMOVE, "pin", GONE, "other gone pin", there)
    for type in ("Token", "SignIn", "User", "Webhook"):
        traced(type, GONE, f"other {type}")
    return Reach(mine, other, (here, there), wide)
