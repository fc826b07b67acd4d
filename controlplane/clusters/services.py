"""Writing clusters, pools and nodes. Node rows from observations live in node_rows.py and assignment.py."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.assignment import cluster_lock, node_assign_pools
from controlplane.clusters.models import Cluster, ClusterType, NodePool
from controlplane.clusters.node_rows import (
    cluster_contacted,
    cluster_failed,
    cluster_identified,
    node_statuses,
    nodes_changed,
    nodes_relisted,
)
from controlplane.clusters.pool_rules import FIELDS, pool_problems, store_problem, valid_name
from controlplane.clusters.registry import address_problem, cluster_answer
from controlplane.clusters.sinks import tell_pools_changed
from controlplane.errors import Clash, FieldError, Invalid, Missing, Stale

__all__ = [
    "cluster_contacted",
    "cluster_create",
    "cluster_failed",
    "cluster_identified",
    "cluster_pause",
    "cluster_try",
    "node_assign_pools",
    "node_statuses",
    "nodes_changed",
    "nodes_relisted",
    "pool_create",
    "pool_update",
]


def cluster_create(*, actor: Actor, name: str, type: str, address: str) -> Cluster:
    """A new cluster; the watcher starts looking at it by itself. Invalid, or Clash when the name is taken."""
    problems = []
    if not valid_name(name):
        problems.append(FieldError("name", "invalid", "must be lower case letters, digits and dashes, at most 63"))
    if type not in ClusterType.values:
        problems.append(FieldError("type", "invalid", f"must be one of {', '.join(ClusterType.values)}"))
    if not 0 < len(address) <= 500 or not address.isprintable():
        detail = "must be a folder (Local), or <kubeconfig>[#<context>] or in-cluster (Kubernetes)"
        problems.append(FieldError("address", "invalid", detail))
    elif problem := address_problem(type, address):
        problems.append(FieldError("address", "unusable", f"cannot be used: {problem}"))
    _refuse("cluster", problems)
    with transaction.atomic():
        cluster, created = Cluster.objects.get_or_create(name=name, defaults={"type": type, "address": address})
        if not created:
            raise _taken("cluster", name)
        _audit(actor, "cluster.create", "Cluster", cluster.pk, name, None, {"type": type, "address": address})
    return cluster


def cluster_try(*, cluster_id: UUID) -> Cluster:
    """Ask a cluster that is new once, so that what is wrong with it is seen at once; the watcher goes on asking."""
    cluster = Cluster.objects.get(pk=cluster_id)
    if error := cluster_answer(cluster):
        cluster_failed(cluster_id=cluster_id, error=error)
        cluster.refresh_from_db()
    return cluster


def cluster_pause(*, actor: Actor, cluster_id: UUID, paused: bool) -> Cluster:
    """Stop (or allow again) new transfers in the whole cluster; what runs or is Ready stays. Twice is once."""
    with transaction.atomic():
        cluster = _cluster(cluster_id)
        if cluster.paused != paused:
            before, cluster.paused = {"paused": cluster.paused}, paused
            cluster.save(update_fields=["paused", "updated_at"])
            action = "cluster.pause" if paused else "cluster.resume"
            _audit(actor, action, "Cluster", cluster.pk, cluster.name, before, {"paused": paused})
            tell_pools_changed(cluster.pools.values_list("pk", flat=True))
    return cluster


def pool_create(
    *,
    actor: Actor,
    cluster_id: UUID,
    name: str,
    selector: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
) -> NodePool:
    """A new pool; matching nodes join it at once. ``settings`` are other fields of pool_rules.FIELDS."""
    given = {**(settings or {}), "selector": selector}
    with transaction.atomic():
        cluster = _cluster(cluster_id)
        pool_create_check(cluster=cluster, name=name, given=given)
        pool = NodePool.objects.create(cluster=cluster, name=name, **{**given, "selector": dict(selector)})
        _audit(actor, "pool.create", "NodePool", pool.pk, pool.full_name, None, _values(pool))
        node_assign_pools(cluster_id=cluster.pk)
        tell_pools_changed([pool.pk])
    pool.refresh_from_db()
    return pool


def pool_create_check(*, cluster: Cluster, name: str, given: Mapping[str, Any]) -> None:
    """Refuse, as pool_create does, what cannot become a pool. Writes nothing."""
    problems = list(pool_problems(given, {**_values(NodePool()), **given}))
    if not valid_name(name):
        problems.append(FieldError("name", "invalid", "must be lower case letters, digits and dashes, at most 63"))
    _refuse("pool", problems)
    others = dict(NodePool.objects.filter(cluster=cluster).values_list("name", "cache_path"))
    if problem := store_problem(given.get("cache_path", NodePool().cache_path), others):
        _refuse("pool", [FieldError("cache_path", "invalid", problem)])
    if NodePool.objects.filter(cluster=cluster, name=name).exists():
        raise _taken("pool", f"{cluster.name}.{name}")


def pool_update_check(*, pool: NodePool, changes: Mapping[str, Any], if_updated_at: datetime | None = None) -> None:
    """Refuse, as pool_update does, what the pool cannot become. Writes nothing."""
    if if_updated_at is not None and if_updated_at != pool.updated_at:
        raise Stale(
            "pool:user:stale",
            f"Pool {pool.full_name} was changed since you read it.",
            next_step="Read it again and repeat the change if it is still wanted.",
        )
    _refuse("pool", list(pool_problems(changes, {**_values(pool), **changes})))


def pool_update(
    *, actor: Actor, pool_id: UUID, changes: Mapping[str, Any], if_updated_at: datetime | None = None
) -> NodePool:
    """Change settings of a pool. Stale when it was changed since ``if_updated_at``; no change writes nothing."""
    with transaction.atomic():
        found = NodePool.objects.filter(pk=pool_id).values_list("cluster_id", flat=True).first()
        if found is None:
            raise Missing("pool:user:missing", "There is no such pool.", next_step="List the pools and choose one.")
        cluster_lock(found)
        pool = NodePool.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=pool_id)
        pool_update_check(pool=pool, changes=changes, if_updated_at=if_updated_at)
        values = _values(pool)
        after = {name: value for name, value in changes.items() if value != values[name]}
        if after:
            _pool_write(actor, pool, values, after)
    pool.refresh_from_db()
    return pool


def _pool_write(actor: Actor, pool: NodePool, values: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name, value in after.items():
        setattr(pool, name, dict(value) if name == "selector" else value)
    pool.save(update_fields=[*after, "updated_at"])
    before = {name: values[name] for name in after}
    _audit(actor, "pool.update", "NodePool", pool.pk, pool.full_name, before, after)
    if after.keys() & {"selector", "priority"}:
        node_assign_pools(cluster_id=pool.cluster_id)
    tell_pools_changed([pool.pk])


def _values(pool: NodePool) -> dict[str, Any]:
    return {name: getattr(pool, name) for name in FIELDS}


def _cluster(cluster_id: UUID) -> Cluster:
    try:
        return cluster_lock(cluster_id)
    except Cluster.DoesNotExist:
        step = "List the clusters and choose one."
        raise Missing("cluster:user:missing", "There is no such cluster.", next_step=step) from None


def _taken(what: str, name: str) -> Clash:
    step = "Look at the one that is there, or choose another name."
    return Clash(f"{what}:user:name-taken", f"There is a {what} {name} already.", next_step=step)


def _refuse(what: str, problems: list[FieldError]) -> None:
    if problems:
        told = "; ".join(f"{problem.field} {problem.detail}" for problem in problems)
        raise Invalid(
            f"{what}:user:invalid",
            f"This {what} is not possible: {told}.",
            next_step="Correct the named fields.",
            errors=problems,
        )


def _audit(
    actor: Actor,
    action: str,
    object_type: str,
    object_id: UUID,
    name: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type=object_type,
        object_id=str(object_id),
        object_name=name,
        before=before,
        after=after,
    )
