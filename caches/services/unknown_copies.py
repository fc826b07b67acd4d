"""What nodes hold or are told to hold although this database does not know it: noted, shown, and left alone.

A control plane that starts with a fresh database beside a running cluster would otherwise tell every node to want
nothing. The lines it finds stay as they are, and their labels too, until somebody adopts the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.text import plural
from caches.models import Artifact, NodeProjection, UnknownCopy
from caches.services.loop.pool_rounds import pools_mark_dirty
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.gateway import ClusterGateway, Kind, ObservedNodeCache
from controlplane.clusters.models import Cluster, Node

LONGEST_DIGEST = 80
_GONE = (EntryState.ABSENT, EntryState.LOST)


def unknown_copies_record(*, cluster_id: UUID, caches: Sequence[ObservedNodeCache]) -> int:
    """Note what is unknown on the nodes of these NodeCaches, and forget what is not any more; returns how many
    copies are unknown there. Pools are marked when that changed."""
    found = {cache.node_uid: _named(cache) for cache in caches}
    digests = {digest for named in found.values() for digest in named}
    known = set(Artifact.objects.filter(digest__in=digests).values_list("digest", flat=True))
    nodes = Node.objects.filter(cluster_id=cluster_id, uid__in=list(found), lost_at=None)
    now = timezone.now()
    with transaction.atomic():
        rows = {row.pk: row for row in nodes.select_for_update(no_key=True).order_by("pk")}
        before = {(row.node_id, row.digest): row for row in UnknownCopy.objects.filter(node__in=list(rows))}
        wanted = {
            (node.pk, digest): UnknownCopy(
                node=node, digest=digest, state=state, bytes_done=done, wanted=asked, observed_at=now
            )
            for node in rows.values()
            for digest, (state, done, asked) in found[node.uid].items()
            if digest not in known
        }
        gone = [row.pk for key, row in before.items() if key not in wanted]
        news = [row for key, row in wanted.items() if key not in before or _facts(before[key]) != _facts(row)]
        UnknownCopy.objects.filter(pk__in=gone).delete()
        UnknownCopy.objects.bulk_create(
            news,
            update_conflicts=True,
            unique_fields=["node", "digest"],
            update_fields=["state", "bytes_done", "wanted", "observed_at"],
            batch_size=1000,
        )
        changed = {rows[key[0]].pool_id for key in before.keys() ^ wanted.keys()}
        pools_mark_dirty(pool_ids=[pool_id for pool_id in changed if pool_id is not None])
    return len(wanted)


def unknown_labels(nodes: Collection[Node]) -> set[tuple[UUID, str]]:
    """Node and digest of the copies that are Ready as their nodes say: their labels tell the truth."""
    rows = UnknownCopy.objects.filter(node__in=list(nodes), state=EntryState.READY)
    return set(rows.values_list("node_id", "digest"))


def nodes_held(*, cluster: Cluster, nodes: Collection[Node], gateway: ClusterGateway) -> tuple[set[UUID], list[str]]:
    """Nodes whose specs must stay as somebody else wrote them, with the sentence that says so.

    Only before this database has written a spec of theirs. A database that has written none at all asks the cluster
    first: the watcher may not have told yet.
    """
    if not NodeProjection.objects.filter(node__cluster=cluster).exists():
        caches = [item for item in gateway.list(Kind.NODE_CACHE).items if isinstance(item, ObservedNodeCache)]
        unknown_copies_record(cluster_id=cluster.pk, caches=caches)
    copies = UnknownCopy.objects.filter(
        node__in=list(nodes), wanted=True, released=False, node__projection__isnull=True
    )
    found = list(copies.values_list("node_id", "digest"))
    if not found:
        return set(), []
    held, digests = {node_id for node_id, _ in found}, {digest for _, digest in found}
    return held, [
        f"This database does not know {plural(len(digests), 'artifact')} that {plural(len(held), 'node')} of the pool "
        f"were told to hold. They stay as they are until the cluster is adopted: manage.py adopt {cluster.name}"
    ]


def _named(cache: ObservedNodeCache) -> dict[str, tuple[str, int, bool]]:
    """State, bytes and whether a line asks for it, by digest."""
    asked = {line.digest for line in cache.spec.desired if line.action is Action.ENSURE}
    named = dict.fromkeys(asked, ("", 0, True))
    if cache.status is not None and cache.status.node_uid == cache.node_uid:
        for entry in cache.status.entries:
            if entry.state not in _GONE:
                size = min(max(entry.bytes_done, 0), 2**63 - 1)
                named[entry.digest] = (entry.state, size, entry.digest in asked)
    return {digest: facts for digest, facts in named.items() if len(digest) <= LONGEST_DIGEST and "\0" not in digest}


def _facts(row: UnknownCopy) -> tuple[str, int, bool]:
    return str(row.state), row.bytes_done, row.wanted
