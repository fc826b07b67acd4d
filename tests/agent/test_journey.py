"""From a line in the spec to a read-only tree on disk, and away again."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent.marker import NAME
from controlplane.clusters.documents import Action, Algorithm, EntryState, Limits
from tests.agent.world import KIB, World, noise

FILES = {"config.json": b"{}", "empty": b"", "deep/er/weights.bin": noise(300 * KIB), "b.bin": noise(70 * KIB, 2)}


@pytest.mark.parametrize("algorithm", [Algorithm.CRC64NVME, Algorithm.SHA256, Algorithm.STAT])
def test_it_publishes_a_verified_read_only_tree(tmp_path: Path, algorithm: Algorithm) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES, algorithm)
        entry = world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES
    size = sum(map(len, FILES.values()))
    assert (entry.bytes_done, entry.bytes_total, entry.bytes_moved) == (size, size, size)
    assert entry.ready_at and entry.verified_at and entry.started_at and not entry.reason and entry.attempts == 0
    tree = world.tree(digest)
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in tree.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.lstat().st_mode) for path in [tree, *tree.rglob("*")] if path.is_dir()}
    assert (modes, folders) == ({0o444}, {0o555})
    marker = json.loads((tree / NAME).read_bytes())
    assert marker["digest"] == digest and marker["witness"] == entry.witness
    assert not list((world.store.base / "partial").iterdir())
    assert not world.store.journal(digest).exists()


def test_it_reports_capacity_before_any_spec_exists(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.link.quota = (1000, 300)
        world.until(lambda: world.link.reports and world.link.reports[-1].capacity.other_bytes == 300)
        assert world.link.reports[-1].capacity.capacity_bytes == 1000
        assert world.link.reports[-1].observed_generation == 0


def test_it_is_ready_at_once_after_a_restart_and_reads_nothing_again(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        first = world.becomes(digest, EntryState.READY)
    world.requests.clear()
    world.link.reports.clear()
    with world:
        again = world.becomes(digest, EntryState.READY)
    assert world.states(digest) == [EntryState.READY]
    assert not world.requests
    assert (again.bytes_moved, again.verified_at) == (first.bytes_moved, first.verified_at)


def test_it_evicts_files_and_record_and_says_absent(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT, bytes_moved=0)
        assert not world.tree(digest).exists() and not list((world.store.base / "trash").iterdir())
        assert not list((world.store.base / "state").iterdir())
        world.want(digest, action=Action.ENSURE)
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES


def test_it_evicts_before_it_downloads(tmp_path: Path) -> None:
    """Both do not fit together: the new one is admitted because the old one goes first."""
    with World(tmp_path) as world:
        world.link.quota = (500 * KIB, 0)
        old = world.model("old", {"a": noise(400 * KIB)})
        world.becomes(old, EntryState.READY)
        new = world.register("new", {"b": noise(400 * KIB, 5)})
        world.want(old, action=Action.EVICT, order=9, send=False)
        world.want(new, "new", order=0)
        world.becomes(new, EntryState.READY)
    assert EntryState.FAILED not in world.states(new)


def test_it_removes_nothing_without_an_evict_line(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        world.unwant(digest)
        world.until(lambda: world.link.reports[-1].orphans)
        orphan = world.link.reports[-1].orphans[0]
        assert (orphan.name, orphan.partial) == (digest.replace(":", "-"), False)
        assert orphan.bytes >= sum(map(len, FILES.values()))
        world.link.current = None
        count = len(world.link.reports)
        world.until(lambda: len(world.link.reports) > count + 2)
    assert world.content(digest) == FILES


def test_it_ignores_the_spec_of_another_incarnation(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        assert world.link.current is not None
        spec = replace(world.link.current.spec, node_uid="uid-2")
        evict = replace(spec.desired[0], action=Action.EVICT)
        world.link.current = replace(world.link.current, generation=99, spec=replace(spec, desired=(evict,)))
        count = len(world.link.reports)
        world.until(lambda: len(world.link.reports) > count + 2)
    assert world.content(digest) == FILES


def test_it_stops_for_good_when_the_node_was_replaced(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.until(lambda: world.link.reports)
        world.link.replaced = True
        world.until(lambda: world.error is not None)
    assert type(world.error).__name__ == "Replaced"


def test_it_goes_on_while_the_cluster_does_not_answer(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        world.link.reachable = False
        count = len(world.link.reports)
        (world.tree(digest) / "b.bin").chmod(0o644)
        world.quiet(0.5)
        assert len(world.link.reports) == count and not world.error
        world.link.reachable = True
        world.until(lambda: len(world.link.reports) > count)
        world.becomes(digest, EntryState.READY)


def test_it_keeps_order_and_the_number_of_downloads(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(max_downloads=1, max_requests=2))
    digests = [world.register(f"m{n}", {"a": noise(200 * KIB, n)}) for n in range(3)]
    for place, digest in enumerate(digests):
        world.want(digest, f"m{place}", order=2 - place, send=False)
    world.send()
    with world:
        for digest in digests:
            world.becomes(digest, EntryState.READY)
    order: dict[str, object] = {}
    for report in world.link.reports:
        busy = [entry for entry in report.entries if entry.state in (EntryState.DOWNLOADING, EntryState.VERIFYING)]
        assert len(busy) <= 1
        for entry in report.entries:
            if entry.state is EntryState.READY:
                order.setdefault(entry.digest, entry.ready_at)
    assert sorted(order, key=lambda digest: str(order[digest])) == digests[::-1]


def test_it_writes_a_report_for_a_change_and_a_heartbeat_otherwise(tmp_path: Path) -> None:
    world = World(tmp_path, status_interval_seconds=60.0)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    kinds = [(entry.state) for report in world.link.reports for entry in report.entries]
    assert len(kinds) <= 5, kinds  # queued, downloading, verifying, ready: no chatter in between
