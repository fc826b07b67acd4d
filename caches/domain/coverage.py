"""How much of what pins ask for is there: by required copies and by bytes, with the unknown counted apart.

Unknown never counts as ready. A copy that is required on several grounds is required once.
"""

from __future__ import annotations

from dataclasses import dataclass

from caches.domain.demand import by_value, required_count, selects
from caches.domain.pool_view import EntryView, NodeView, PlacementType, PoolView
from caches.domain.states import is_in_flight
from controlplane.clusters.documents import EntryState, NodeState


@dataclass(frozen=True, slots=True)
class Coverage:
    """Copies and bytes. ``ready + unknown <= required``; ``bytes_arrived`` adds what running transfers have written."""

    required: int = 0
    ready: int = 0
    unknown: int = 0
    bytes_required: int = 0
    bytes_ready: int = 0
    bytes_unknown: int = 0
    bytes_arrived: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.required + other.required,
            self.ready + other.ready,
            self.unknown + other.unknown,
            self.bytes_required + other.bytes_required,
            self.bytes_ready + other.bytes_ready,
            self.bytes_unknown + other.bytes_unknown,
            self.bytes_arrived + other.bytes_arrived,
        )

    @property
    def fraction(self) -> float | None:
        """Ready bytes of required bytes, 0..1; None where nothing is required."""
        return self.bytes_ready / self.bytes_required if self.bytes_required else None

    @property
    def complete(self) -> bool:
        """Every required copy is known to be ready. False where nothing is required."""
        return self.required > 0 and self.ready == self.required


def of_artifact(view: PoolView, digest: str) -> Coverage:
    """Coverage of one artifact in the pool over all the pins that name it."""
    facts = view.artifacts.get(digest)
    pins = [pin for pin in by_value(view.pins) if pin.digest == digest]
    if facts is None or not pins:
        return Coverage()
    nodes = [node for node in view.nodes if node.state is not NodeState.LOST]
    entries = {node.uid: _entry(node, digest) for node in nodes}
    # Pins for all nodes first: their copies serve the pins that only want some.
    wanted: dict[str, NodeView] = {}
    missing = 0
    for pin in sorted(pins, key=lambda pin: pin.placement.type is not PlacementType.ALL):
        matching = [node for node in nodes if selects(pin.node_selector, node.labels)]
        need = required_count(pin.placement, len(matching))
        best = sorted(matching, key=lambda node: (node.uid not in wanted, *_quality(node, entries[node.uid])))
        wanted.update((node.uid, node) for node in best[:need])
        if pin.placement.type is PlacementType.COUNT:
            missing = max(missing, pin.placement.value - len(matching))
    # Copies that were asked for and have no node to be on are required all the same.
    total = Coverage(required=missing, bytes_required=missing * facts.size_bytes)
    for uid, node in wanted.items():
        total += _copy(node, entries[uid], facts.size_bytes)
    return total


_ABSENT = 3


def _entry(node: NodeView, digest: str) -> EntryView | None:
    return next((entry for entry in node.entries if entry.digest == digest), None)


def _quality(node: NodeView, entry: EntryView | None) -> tuple[int, int, str]:
    """Sorts the copies that count most to the front: ready, perhaps ready, arriving, none."""
    if entry is None or entry.state in (EntryState.ABSENT, EntryState.LOST, EntryState.EVICTING):
        return (_ABSENT, 0, node.uid)
    if entry.state is EntryState.READY:
        return (1 if node.state is NodeState.UNKNOWN else 0, 0, node.uid)
    return (2, -entry.bytes_on_disk, node.uid)


def _copy(node: NodeView, entry: EntryView | None, size: int) -> Coverage:
    if node.state is NodeState.UNKNOWN:
        return Coverage(required=1, unknown=1, bytes_required=size, bytes_unknown=size)
    if entry is not None and entry.state is EntryState.READY:
        return Coverage(required=1, ready=1, bytes_required=size, bytes_ready=size, bytes_arrived=size)
    arriving = entry is not None and (is_in_flight(entry.state) or entry.state is EntryState.REPAIRING)
    arrived = min(size, entry.bytes_on_disk) if entry is not None and arriving else 0
    return Coverage(required=1, bytes_required=size, bytes_arrived=arrived)
