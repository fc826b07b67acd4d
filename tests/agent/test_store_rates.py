"""A store's rate on one node: only reads from that store pay for it, and lifting it is felt at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from controlplane.clusters.documents import ConnectionSpec, EntryState, SourceType
from tests.agent.world import KIB, World, noise


def test_it_slows_reads_from_one_store_and_no_others(tmp_path: Path) -> None:
    slow = ConnectionSpec("slow", SourceType.FILESYSTEM, allowed=(str(tmp_path / "origin"),), bytes_per_second=KIB)
    world = World(tmp_path, connections=(replace(slow, name="disk", bytes_per_second=None), slow))
    with world:
        # One request: a limited store keeps the node's shared request slots busy for longer, which is not asked here.
        limited = world.register("limited", {"a": noise(60 * KIB)})
        world.want(limited, "limited", connection="slow")
        world.becomes(limited, EntryState.DOWNLOADING)
        free = world.model("free", {"a": noise(600 * KIB, 2)})
        world.becomes(free, EntryState.READY)
        entry = world.entry(limited)
        assert entry is not None and entry.state is EntryState.DOWNLOADING
        world.connections = (world.connections[0], replace(slow, bytes_per_second=None))
        world.send()
        world.becomes(limited, EntryState.READY)
    assert EntryState.FAILED not in world.states(limited)
