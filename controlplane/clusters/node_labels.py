"""What Hearth itself has changed of a node's labels and taints, known before the watcher tells of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from uuid import UUID

from django.db import connection, transaction

from controlplane.clusters.models import Node


def node_labels_told(patches: Mapping[UUID, Mapping[str, str | None]]) -> int:
    """The cluster has taken these labels (None: removed) for the nodes with these ids; returns how many rows know it.

    Without it, a round that follows at once would say everything again. What the watcher hears later counts for more.
    """
    if not patches:
        return 0
    table = connection.ops.quote_name(Node._meta.db_table)
    with transaction.atomic(), connection.cursor() as cursor:
        # Locked in the order of ids, as the mirror of statuses does, so that two callers never wait for each other.
        locked = Node.objects.select_for_update(no_key=True).filter(pk__in=list(patches), lost_at=None).order_by("pk")
        ids = list(locked.values_list("pk", flat=True))
        cursor.execute(
            f"UPDATE {table} AS node SET labels = jsonb_strip_nulls(node.labels || told.patch) "
            "FROM unnest(%s::uuid[], %s::jsonb[]) AS told (id, patch) WHERE node.id = told.id",
            [ids, [json.dumps(patches[key]) for key in ids]],
        )
    return len(ids)


def node_taints_told(*, node_id: UUID, taints: Sequence[str]) -> None:
    """The cluster has left the node these taints."""
    Node.objects.filter(pk=node_id, lost_at=None).update(taints=list(taints))
