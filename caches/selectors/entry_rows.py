"""The rows of a pool as a round reads them: once, as tuples, with the columns that plans, specs and labels need.

A pool of a thousand nodes has tens of thousands of entries: as model instances with all their columns, reading them
would take longer than planning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from caches.models import CacheEntry
from controlplane.clusters.models import Node, NodePool


class EntryRow(NamedTuple):
    """One CacheEntry, and what of its artifact says what it is."""

    pk: UUID
    node_id: UUID
    digest: str
    kind: str
    size_bytes: int
    witness: str
    desired: str
    state: str
    reason: str
    attempts: int
    bytes_done: int
    retry_at: datetime | None
    ready_at: datetime | None
    last_used_at: datetime | None
    evict_requested_at: datetime | None
    hold_reason: str
    hold_until: datetime | None
    verify_round: int
    retry_round: int
    labeled_at: datetime | None
    unlabeled_at: datetime | None


Entries = Mapping[UUID, dict[str, EntryRow]]  # by node, then by digest


@dataclass(frozen=True, slots=True)
class PoolRows:
    """The live nodes of a pool by name, and all their entries in the order in which they were made."""

    nodes: Sequence[Node]
    entries: Entries


OF_ARTIFACT = ("digest", "kind", "size_bytes", "witness")
_COLUMNS = [f"artifact__{name}" if name in OF_ARTIFACT else name for name in EntryRow._fields]


def pool_rows(pool: NodePool) -> PoolRows:
    """Two queries, whatever the size of the pool."""
    nodes = list(Node.objects.filter(pool=pool, lost_at__isnull=True).order_by("name"))
    return PoolRows(nodes, entry_rows(nodes))


def entry_rows(nodes: Sequence[Node]) -> Entries:
    """Every entry of these nodes, whatever its state; nodes without entries have an empty mapping."""
    found: dict[UUID, dict[str, EntryRow]] = {node.pk: {} for node in nodes}
    rows = CacheEntry.objects.filter(node__in=nodes).order_by("pk").values_list(*_COLUMNS)
    for values in rows:
        row = EntryRow._make(values)
        found[row.node_id][row.digest] = row
    return found
