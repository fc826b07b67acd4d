"""What every node of a pool holds of every version: the matrix behind the heatmap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from caches.models import Image, ModelVersion, Pin
from caches.selectors.coverage_rows import GONE, EntryRow, counted_state, entry_rows, live_nodes
from caches.selectors.entries import UNKNOWN
from caches.selectors.image_demand import holds_images
from caches.selectors.live_pins import Want, images_wanted, is_everywhere, live_pins, weights_wanted
from caches.selectors.nodes import belongs
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.models import Node, NodePool


class MatrixCell(NamedTuple):
    """One version or image on one node: a shown EntryState, Unknown, or "" where it is neither there nor wanted."""

    state: str
    bytes_done: int
    bytes_total: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """Nodes (rows) by versions and then images (columns); ``lines`` are each node's cells in that order."""

    nodes: tuple[Node, ...]
    versions: tuple[ModelVersion, ...]
    images: tuple[Image, ...]
    lines: Mapping[UUID, tuple[MatrixCell, ...]]
    marks: Mapping[UUID, NodeState]  # of nodes of which more is to be said than their cells do: NotReady and the like

    @property
    def columns(self) -> tuple[ModelVersion | Image, ...]:
        return (*self.versions, *self.images)

    def cell(self, node_id: UUID, artifact_id: UUID | None) -> MatrixCell:
        """One of them; KeyError where there is none."""
        found = dict(zip((column.artifact_id for column in self.columns), self.lines[node_id], strict=True))
        return found[artifact_id]


def pool_matrix(pool: NodePool, *, now: datetime) -> Matrix:
    """What every live node of the pool holds of every version or image that is pinned there or present anywhere."""
    live, pins, rows = live_nodes([pool])[pool.id], live_pins([pool])[pool.id], entry_rows([pool])
    states = {node.id: counted_state(node, pool, now) for node in live}
    present = {row.artifact_id for node in live for row in rows[node.id] if row.state not in GONE}
    wants = [*weights_wanted(pins), *(images_wanted(pins) if holds_images(pool) else [])]
    shown = present | {want.artifact.pk for want in wants}
    versions = _versions(shown)
    images = _images(shown - {version.artifact_id for version in versions}, wants)
    columns = [_column(version, wants) for version in versions] + [_column(image, wants) for image in images]
    lines = {node.id: tuple(_line(node, states[node.id], rows[node.id], columns)) for node in live}
    plain = (NodeState.READY, NodeState.UNKNOWN)  # what is unknown is hatched
    marks = {key: state for key, state in states.items() if state not in plain}
    return Matrix(tuple(live), versions, images, lines, marks)


class _Column(NamedTuple):
    """A version; ``everywhere``: some pin wants it on every node, so that the others need not be asked."""

    artifact_id: UUID
    size_bytes: int
    everywhere: bool
    pins: Sequence[Pin]


def _column(column: ModelVersion | Image, wants: Iterable[Want]) -> _Column:
    assert column.artifact is not None  # found by it
    mine = [want.pin for want in wants if want.artifact.pk == column.artifact_id]
    return _Column(column.artifact.id, column.artifact.size_bytes, any(map(is_everywhere, mine)), mine)


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


def _images(artifact_ids: Iterable[UUID | None], wants: Iterable[Want]) -> tuple[Image, ...]:
    """One image for each digest, by reference: the one that a pin names before others of the same digest."""
    missing = set(artifact_ids)
    if not missing:
        return ()
    found = {want.artifact.pk: want.image for want in reversed(list(wants)) if want.image is not None}
    if left := missing - found.keys():
        rows = Image.objects.filter(artifact__in=left).select_related("artifact").defer("artifact__manifest")
        for image in rows.order_by("reference", "pk"):
            found.setdefault(image.artifact_id, image)  # type: ignore[arg-type]  # filtered by it
    return tuple(sorted((found[key] for key in missing if key in found), key=lambda image: image.reference))
