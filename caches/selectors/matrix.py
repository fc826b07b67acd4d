"""What every node of a pool holds of every version: the matrix behind the heatmap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from caches.models import ModelVersion, Pin
from caches.selectors.coverage_rows import GONE, EntryRow, counted_state, entry_rows, live_nodes
from caches.selectors.entries import UNKNOWN
from caches.selectors.live_pins import is_everywhere, live_pins
from caches.selectors.nodes import belongs
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.models import Node, NodePool


class MatrixCell(NamedTuple):
    """One version on one node: a shown EntryState, Unknown, or "" where it is neither there nor wanted."""

    state: str
    bytes_done: int
    bytes_total: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """Nodes (rows) by versions (columns); ``lines`` are each node's cells in the order of the versions."""

    nodes: tuple[Node, ...]
    versions: tuple[ModelVersion, ...]
    lines: Mapping[UUID, tuple[MatrixCell, ...]]
    marks: Mapping[UUID, NodeState]  # of nodes of which more is to be said than their cells do: NotReady and the like

    def cell(self, node_id: UUID, artifact_id: UUID | None) -> MatrixCell:
        """One of them; KeyError where there is none."""
        found = dict(zip((version.artifact_id for version in self.versions), self.lines[node_id], strict=True))
        return found[artifact_id]


def pool_matrix(pool: NodePool, *, now: datetime) -> Matrix:
    """What every live node of the pool holds of every version that is pinned there or present anywhere in it."""
    live, pins, rows = live_nodes([pool])[pool.id], live_pins([pool])[pool.id], entry_rows([pool])
    states = {node.id: counted_state(node, pool, now) for node in live}
    present = {row.artifact_id for node in live for row in rows[node.id] if row.state not in GONE}
    versions = _versions(present | {pin.version.artifact_id for pin in pins if pin.version.artifact_id})
    columns = [_column(version, pins) for version in versions]
    lines = {node.id: tuple(_line(node, states[node.id], rows[node.id], columns)) for node in live}
    plain = (NodeState.READY, NodeState.UNKNOWN)  # what is unknown is hatched
    return Matrix(tuple(live), versions, lines, {key: state for key, state in states.items() if state not in plain})


class _Column(NamedTuple):
    """A version; ``everywhere``: some pin wants it on every node, so that the others need not be asked."""

    artifact_id: UUID
    size_bytes: int
    everywhere: bool
    pins: Sequence[Pin]


def _column(version: ModelVersion, pins: Iterable[Pin]) -> _Column:
    assert version.artifact is not None  # found by it
    mine = [pin for pin in pins if pin.version.artifact_id == version.artifact_id]
    return _Column(version.artifact.id, version.artifact.size_bytes, any(map(is_everywhere, mine)), mine)


def _line(node: Node, state: NodeState, rows: Iterable[EntryRow], columns: Iterable[_Column]) -> Iterator[MatrixCell]:
    found = {row.artifact_id: row for row in rows}
    for artifact_id, size, everywhere, pins in columns:
        row = found.get(artifact_id)
        desired = row.desired if row is not None else ""
        wanted = everywhere or any(belongs(pin, node.labels, desired=desired) for pin in pins)
        yield _cell(row, state, wanted, size)


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
