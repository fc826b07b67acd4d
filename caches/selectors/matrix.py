"""What every node of a pool holds of every version: the matrix behind the heatmap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from caches.models import ModelVersion
from caches.selectors.coverage import UNKNOWN, EntryRow, counted_state, entry_rows, live_nodes, live_pins
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


def pool_matrix(pool: NodePool, *, now: datetime) -> Matrix:
    """What every live node of the pool holds of every version that is pinned there or present anywhere in it."""
    live, pins, rows = live_nodes([pool])[pool.id], live_pins([pool]), entry_rows([pool])
    states = {node.id: counted_state(node, pool, now) for node in live}
    present = {row.artifact_id for node in live for row in rows[node.id]}
    versions = _versions(present | {pin.version.artifact_id for pin in pins[pool.id] if pin.version.artifact_id})
    wanted = {
        (node.id, pin.version.artifact_id)
        for pin in pins[pool.id]
        for node in live
        if all(node.labels.get(label) == value for label, value in pin.node_selector.items())
    }
    sizes = {version.artifact_id: version.artifact.size_bytes for version in versions if version.artifact}
    found = {(row.node_id, row.artifact_id): row for node in live for row in rows[node.id]}
    cells = {}
    for node in live:
        for version in versions:
            key = (node.id, version.artifact_id)
            row = found.get(key)  # type: ignore[arg-type]  # versions here have an artifact
            cells[key] = _cell(row, states[node.id], key in wanted, sizes[version.artifact_id])
    return Matrix(tuple(live), versions, cells)  # type: ignore[arg-type]


def _cell(row: EntryRow | None, state: NodeState, wanted: bool, size: int) -> MatrixCell:
    if state is NodeState.UNKNOWN and (row is not None or wanted):
        return MatrixCell(UNKNOWN, row.bytes_done if row else 0, size, wanted)
    if row is None:
        return MatrixCell(EntryState.ABSENT.value if wanted else "", 0, size, wanted)
    return MatrixCell(row.state.value, row.bytes_done, size, wanted)


def _versions(artifact_ids: Iterable[UUID]) -> tuple[ModelVersion, ...]:
    """One version for each artifact: those that share bytes share the column of the first."""
    rows = ModelVersion.objects.filter(artifact__in=list(artifact_ids)).select_related("model", "artifact")
    found: dict[UUID | None, ModelVersion] = {}
    for version in rows.defer("artifact__manifest").order_by("model__name", "version"):
        found.setdefault(version.artifact_id, version)
    return tuple(found.values())
