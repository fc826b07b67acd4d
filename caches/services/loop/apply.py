"""Projecting a plan: manifests and secrets first, then each NodeCache that changed, then the ready-labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from uuid import UUID

from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView
from caches.models import NodeProjection, SourceConnection
from caches.selectors.entry_rows import Entries, PoolRows
from caches.selectors.store_rates import store_rates_shared
from caches.services.connections import connection_spec
from caches.services.images.holders import image_holders_apply
from caches.services.loop.desired import desired_write
from caches.services.loop.labels import labels_apply
from caches.services.loop.round_budget import RoundBudget
from caches.services.loop.specs import SpecDesk
from caches.services.loop.taints import cold_taints_remove
from caches.services.projecting import Wanted, node_caches_apply
from caches.services.publishing import artifacts_publish, secrets_read
from caches.services.unknown_copies import nodes_held
from controlplane.clusters.documents import Action, ConnectionSpec
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.models import Node, NodePool

PUBLISHING = 0.5  # of what is left of a round: what is published and told to no node warms nobody
_NEVER = datetime.min.replace(tzinfo=UTC)


def plan_apply(
    *,
    pool: NodePool,
    rows: PoolRows,
    view: PoolView,
    plan: Plan,
    gateway: ClusterGateway,
    now: datetime,
    leaving: AbstractSet[tuple[str, str]] = frozenset(),
    budget: RoundBudget | None = None,
) -> list[str]:
    """Make the cluster want what the plan wants. ``rows`` are those that the view was made of; ``leaving`` (node uid,
    digest) gets no ready-label although it stays for the moment. Returns what could not be done, as sentences; a
    cluster that does not answer raises GatewayError, and everything is repeated in the next round."""
    nodes = [node for node in rows.nodes if node.uid in plan.desired]
    entries = desired_write(nodes=nodes, rows=rows.entries, plan=plan, now=now)
    connections = store_rates_shared(_connections(view))
    secrets, problems = secrets_read(connections)
    held: AbstractSet[UUID] = frozenset()
    if pool.deleting_at is None:
        held, sentences = nodes_held(cluster=pool.cluster, nodes=nodes, gateway=gateway)
        problems += sentences
    changed = _changed(nodes, entries, plan, SpecDesk(pool, view, connections, secrets), held)
    # Before any node is told to fetch it, with the credentials for that.
    told = {line.digest for item in changed for line in item.spec.desired if line.action is Action.ENSURE}
    share = budget.share(PUBLISHING) if budget else None
    sentences, unpublished = artifacts_publish(cluster=pool.cluster, gateway=gateway, now=now, first=told, budget=share)
    problems += sentences
    sent = [item for item in changed if not _names_any(item, unpublished)]
    problems += node_caches_apply(wanted=sent, gateway=gateway, now=now, budget=budget)
    problems += image_holders_apply(pool=pool, nodes=nodes, view=view, plan=plan, gateway=gateway, now=now)
    problems += labels_apply(nodes=nodes, rows=entries, leaving=leaving, gateway=gateway, now=now, budget=budget)
    if pool.startup_taint:
        problems += cold_taints_remove(nodes=nodes, view=view, plan=plan, gateway=gateway, budget=budget)
    return list(dict.fromkeys(problems))  # a secret that nobody can read is missed by specs and by manifests


def _names_any(item: Wanted, digests: AbstractSet[str]) -> bool:
    return any(line.digest in digests for line in item.spec.desired if line.action is Action.ENSURE)


def _changed(
    nodes: Sequence[Node], entries: Entries, plan: Plan, desk: SpecDesk, held: AbstractSet[UUID]
) -> list[Wanted]:
    """The specs that are not what was applied last, those first whose nodes have waited longest."""
    known: dict[UUID, tuple[str, datetime]] = {
        node_id: (spec_hash, applied_at)
        for node_id, spec_hash, applied_at in NodeProjection.objects.filter(node__in=nodes).values_list(
            "node_id", "spec_hash", "applied_at"
        )
    }
    changed = []
    for node in nodes:
        if node.pk in held:
            continue
        spec = desk.spec(node, plan.desired[node.uid], entries[node.pk])
        spec_hash = desk.spec_hash(spec)
        if known.get(node.pk, ("", _NEVER))[0] != spec_hash:
            changed.append(Wanted(node, spec, spec_hash))
    return sorted(changed, key=lambda item: known.get(item.node.pk, ("", _NEVER))[1])


def _connections(view: PoolView) -> Mapping[str, ConnectionSpec]:
    names = {facts.connection for facts in view.artifacts.values()}
    return {row.name: connection_spec(row) for row in SourceConnection.objects.filter(name__in=names)}
