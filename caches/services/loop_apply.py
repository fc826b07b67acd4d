"""Projecting a plan: manifests and secrets first, then each NodeCache that changed, then the ready-labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from uuid import UUID

import structlog
from django.db import transaction

from caches.domain.plans import DesiredItem, Plan
from caches.domain.pool_view import PoolView
from caches.models import Artifact, CacheEntry, NodeProjection, SourceConnection
from caches.selectors.store_rates import store_rates_shared
from caches.services.connections import connection_spec
from caches.services.loop_labels import labels_apply
from caches.services.loop_taints import cold_taints_remove
from caches.services.projecting import Wanted, node_caches_apply
from caches.services.publishing import artifacts_publish, secrets_read
from caches.services.unknown_copies import nodes_held
from controlplane.clusters.codec import dumps
from controlplane.clusters.documents import (
    Action,
    ConnectionSpec,
    DesiredEntry,
    Limits,
    NodeCacheSpec,
)
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.models import Node, NodePool

log = structlog.get_logger(__name__)


def plan_apply(
    *,
    pool: NodePool,
    view: PoolView,
    plan: Plan,
    gateway: ClusterGateway,
    now: datetime,
    leaving: AbstractSet[tuple[str, str]] = frozenset(),
) -> list[str]:
    """Make the cluster want what the plan wants. ``leaving`` (node uid, digest) gets no ready-label although it stays
    for the moment. Returns what could not be done, as sentences; a cluster that does not answer raises GatewayError,
    and everything is repeated in the next round."""
    nodes = list(Node.objects.filter(pool=pool, lost_at__isnull=True, uid__in=list(plan.desired)).order_by("name"))
    rows = _desired_write(nodes, plan, now)
    connections = store_rates_shared(_connections(view))
    projections = {p.node_id: p for p in NodeProjection.objects.filter(node__in=nodes)}
    secrets, problems = secrets_read(connections)
    held: AbstractSet[UUID] = frozenset()
    if pool.deleting_at is None:
        held, sentences = nodes_held(cluster=pool.cluster, nodes=nodes, gateway=gateway)
        problems += sentences
    changed: list[Wanted] = []
    for node in nodes:
        if node.pk in held:
            continue
        spec = _spec(node, pool, plan.desired[node.uid], rows[node.pk], view, connections)
        spec_hash = _hash(spec, secrets)
        known = projections.get(node.pk)
        if known is None or known.spec_hash != spec_hash:
            changed.append(Wanted(node, spec, spec_hash))
    # Before any node is told to fetch it, with the credentials for that.
    told = {line.digest for item in changed for line in item.spec.desired if line.action is Action.ENSURE}
    problems += artifacts_publish(cluster=pool.cluster, gateway=gateway, now=now, first=told)
    problems += node_caches_apply(wanted=changed, gateway=gateway, now=now)
    problems += labels_apply(nodes=nodes, rows=rows, leaving=leaving, gateway=gateway, now=now)
    if pool.startup_taint:
        problems += cold_taints_remove(nodes=nodes, view=view, plan=plan, gateway=gateway)
    return list(dict.fromkeys(problems))  # a secret that nobody can read is missed by specs and by manifests


def _desired_write(nodes: Sequence[Node], plan: Plan, now: datetime) -> Mapping[UUID, dict[str, CacheEntry]]:
    """Store what is desired of every entry, making rows for new ones; returns the rows by node and digest."""
    digests = {item.digest for node in nodes for item in plan.desired[node.uid]}
    artifacts = Artifact.objects.filter(digest__in=digests).defer("manifest").in_bulk(field_name="digest")
    with transaction.atomic():
        rows = _rows(nodes)
        missing = [
            CacheEntry(node=node, artifact=artifact, bytes_total=artifact.size_bytes)
            for node in nodes
            for item in plan.desired[node.uid]
            if item.action is Action.ENSURE and item.digest not in rows[node.pk]
            if (artifact := artifacts.get(item.digest)) is not None
        ]
        if missing:
            CacheEntry.objects.bulk_create(missing, ignore_conflicts=True)
            rows = _rows(nodes)
        wanted: dict[str, list[UUID]] = {"": [], Action.ENSURE: [], Action.EVICT: []}
        for node in nodes:
            actions = {item.digest: item.action for item in plan.desired[node.uid]}
            for digest, row in rows[node.pk].items():
                action = str(actions.get(digest, ""))
                if row.desired != action:
                    row.desired = action
                    wanted[action].append(row.pk)
        for action, ids in wanted.items():
            changes: dict[str, object] = {"desired": action, "updated_at": now}
            if action == Action.ENSURE:
                changes["wanted_at"] = now
            if ids:
                CacheEntry.objects.filter(pk__in=ids).update(**changes)
    return rows


def _rows(nodes: Sequence[Node]) -> dict[UUID, dict[str, CacheEntry]]:
    found: dict[UUID, dict[str, CacheEntry]] = {node.pk: {} for node in nodes}
    rows = CacheEntry.objects.filter(node__in=nodes).select_related("artifact").defer("artifact__manifest")
    for row in rows.order_by("pk"):
        found[row.node_id][row.artifact.digest] = row
    return found


def _spec(
    node: Node,
    pool: NodePool,
    items: Iterable[DesiredItem],
    rows: Mapping[str, CacheEntry],
    view: PoolView,
    connections: Mapping[str, ConnectionSpec],
) -> NodeCacheSpec:
    desired = tuple(_line(item, view, rows.get(item.digest)) for item in items)
    used = {line.connection for line in desired if line.action is Action.ENSURE}
    watermark = int(node.capacity_bytes * pool.high_watermark) if node.capacity_bytes is not None else None
    return NodeCacheSpec(
        node_name=node.name,
        node_uid=node.uid,
        pool=pool.name,
        desired=desired,
        connections=tuple(connections[name] for name in sorted(used) if name in connections),
        limits=Limits(
            max_downloads=pool.max_downloads_per_node,
            max_requests=pool.max_requests_per_node,
            bytes_per_second=pool.node_bytes_per_second,
            high_watermark_bytes=watermark,
            paused=view.policy.paused,
        ),
        status_interval_seconds=pool.status_interval_seconds,
        scrub_interval_seconds=pool.scrub_interval_seconds,
    )


def _line(item: DesiredItem, view: PoolView, row: CacheEntry | None) -> DesiredEntry:
    facts = view.artifacts[item.digest]
    return DesiredEntry(
        digest=item.digest,
        kind=facts.kind,
        action=item.action,
        connection=facts.connection,
        uri=facts.uri,
        size_bytes=facts.size_bytes,
        order=item.order,
        verify_round=row.verify_round if row else 0,
        retry_round=row.retry_round if row else 0,
        witness=facts.witness,
    )


def _connections(view: PoolView) -> dict[str, ConnectionSpec]:
    names = {facts.connection for facts in view.artifacts.values()}
    return {row.name: connection_spec(row) for row in SourceConnection.objects.filter(name__in=names)}


def _hash(spec: NodeCacheSpec, secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Over the spec and the credentials it needs, so that a rotated secret is published like any other change."""
    used = {c.secret_name: dict(secrets[c.secret_name]) for c in spec.connections if c.secret_name in secrets}
    return hashlib.sha256((dumps(spec) + json.dumps(used, sort_keys=True)).encode()).hexdigest()
