"""What every node of a pool holds of every version: the matrix behind the heatmap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from caches.models import ModelVersion, Pin
from caches.selectors.coverage_rows import GONE, EntryRow, counted_state, entry_rows, live_nodes
from caches.selectors.entries import UNKNOWN
from caches.selectors.live_pins import live_pins
from caches.selectors.nodes import belongs
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.models import Node, NodePool


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One version on one node: a shown EntryState, Unknown, or "" where it is neither there nor wanted."""

    state: str
    bytes_done: int
    bytes_total: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """Nodes (rows) by versions (columns); ``cells`` by (node id, artifact id)."""

    nodes: tuple[Node, ...]
    versions: tuple[ModelVersion, ...]
    cells: Mapping[tuple[UUID, UUID], MatrixCell]
    marks: Mapping[UUID, NodeState]  # of nodes of which more is to be said than their cells do: NotReady and the like


def pool_matrix(pool: NodePool, *, now: datetime) -> Matrix:
    """What every live node of the pool holds of every version that is pinned there or present anywhere in it."""
    live, pins, rows = live_nodes([pool])[pool.id], live_pins([pool]), entry_rows([pool])
    states = {node.id: counted_state(node, pool, now) for node in live}
    found = {(row.node_id, row.artifact_id): row for node in live for row in rows[node.id]}
    present = {row.artifact_id for row in found.values() if row.state not in GONE}
    versions = _versions(present | {pin.version.artifact_id for pin in pins[pool.id] if pin.version.artifact_id})
    asking: dict[UUID | None, list[Pin]] = defaultdict(list)
    for pin in pins[pool.id]:
        asking[pin.version.artifact_id].append(pin)
    cells = {}
    for node in live:
        for version in versions:
            assert version.artifact is not None  # found by it
            row = found.get((node.id, version.artifact.id))
            desired = row.desired if row is not None else ""
            wanted = any(belongs(pin, node.labels, desired=desired) for pin in asking[version.artifact.id])
            cell = _cell(row, states[node.id], wanted, version.artifact.size_bytes)
            cells[node.id, version.artifact.id] = cell
    plain = (NodeState.READY, NodeState.UNKNOWN)  # what is unknown is hatched
    return Matrix(tuple(live), versions, cells, {key: state for key, state in states.items() if state not in plain})


def _cell(row: EntryRow | None, state: NodeState, wanted: bool, size: int) -> MatrixCell:
    there = row if row is not None and row.state not in GONE else None
    if state is NodeState.UNKNOWN and (there is not None or wanted):
        return MatrixCell(UNKNOWN, there.bytes_done if there else 0, size, wanted)
    if there is None:
        return MatrixCell(EntryState.ABSENT.value if wanted else "", 0, size, wanted)
    return MatrixCell(there.state.value, there.bytes_done, size, wanted)


def _versions(artifact_ids: Iterable[UUID]) -> tuple[ModelVersion, ...]:
    """One version for each artifact: those that share bytes share the column of the first."""
    rows = ModelVersion.objects.filter(artifact__in=list(artifact_ids)).select_related("model", "artifact")
    found: dict[UUID | None, ModelVersion] = {}
    for version in rows.defer("artifact__manifest").order_by("model__name", "version"):
        found.setdefault(version.artifact_id, version)
    return tuple(found.values())
