"""Capacity: refused with numbers before the first byte, promised as a sum, and a disk that fills up all the same."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent import safefs
from caches.agent.capacity import Ledger
from caches.agent.store import Store
from controlplane.clusters.documents import Action, EntryState, FileRecord, Limits, Reason
from controlplane.errors import Permanent
from tests.agent.world import FAST, KIB, World, noise


def test_it_refuses_a_model_that_cannot_fit_before_a_byte_moves(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.link.quota = (250 * KIB, 10 * KIB)
    with world:
        digest = world.model("m", {"a": noise(300 * KIB)})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INSUFFICIENT_CAPACITY)
        assert entry.message == (
            "It needs 300 KiB; 240 KiB are free, and running downloads have reserved 0 B. "
            "Of the disk's 250 KiB weights take 0 B and other files 10 KiB."
        )
        assert not world.requests and entry.bytes_moved == 0
        world.link.quota = (350 * KIB, 10 * KIB)
        world.becomes(digest, EntryState.READY)  # at once, not after the backoff


def test_it_keeps_under_the_high_watermark(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(high_watermark_bytes=200 * KIB))
    world.link.quota = (1000 * KIB, 50 * KIB)
    with world:
        digest = world.model("m", {"a": noise(151 * KIB)})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INSUFFICIENT_CAPACITY)
        assert "150 KiB are free under the high watermark of 200 KiB" in entry.message
        world.limits = Limits(high_watermark_bytes=201 * KIB)
        world.send()
        world.becomes(digest, EntryState.READY)


def test_it_does_not_admit_two_that_fit_alone_but_not_together(tmp_path: Path) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(file: FileRecord, position: int) -> None:
        held.set()
        go.wait(60)

    world = World(tmp_path, before=hold)
    world.link.quota = (500 * KIB, 0)
    with world:
        first = world.register("one", {"a": noise(300 * KIB)})
        second = world.register("two", {"b": noise(300 * KIB, 2)})
        world.want(second, "two", order=1, send=False)
        world.want(first, "one", order=0)
        entry = world.becomes(second, EntryState.FAILED, reason=Reason.INSUFFICIENT_CAPACITY)
        assert held.wait(60) and "running downloads have reserved 300 KiB" in entry.message
        assert {name for name, _, _ in world.requests} == {"a"}
        assert world.link.reports[-1].capacity.reserved_bytes == 300 * KIB
        go.set()
        world.becomes(first, EntryState.READY)
        world.want(first, action=Action.EVICT)
        world.becomes(second, EntryState.READY)
    assert world.link.reports[-1].capacity.reserved_bytes == 0


def test_it_stops_when_somebody_else_fills_the_disk_and_resumes_when_there_is_room(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(max_requests=1))
    world.link.quota = (1000 * KIB, 0)
    data = noise(512 * KIB)

    def fill(file: FileRecord, position: int) -> None:
        if position == 256 * KIB:
            world.link.quota = (1000 * KIB, 700 * KIB)

    world.before = fill
    with world:
        digest = world.model("m", {"a": data})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INSUFFICIENT_CAPACITY)
        assert 0 < entry.bytes_done < len(data)
        world.before = lambda file, position: None
        world.link.quota = (1000 * KIB, 0)
        ready = world.becomes(digest, EntryState.READY)
    assert ready.bytes_moved == len(data), "nothing was read twice"


def test_it_names_a_full_disk_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = True

    def write(fd: int, data: memoryview, offset: int) -> None:
        if full and offset >= 128 * KIB:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(fd, data, offset)

    monkeypatch.setattr(safefs, "write_all", write)
    with World(tmp_path, limits=Limits(max_requests=1)) as world:
        digest = world.model("m", {"a": noise(256 * KIB)})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INSUFFICIENT_CAPACITY)
        assert "It needs 128 KiB;" in entry.message and entry.retry_at
        full = False
        world.becomes(digest, EntryState.READY)


def test_it_names_a_broken_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(fd: int, data: memoryview, offset: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with World(tmp_path) as world:
        digest = world.register("m", {"a": noise(256 * KIB)})
        monkeypatch.setattr(safefs, "write_all", write)
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.NODE_UNAVAILABLE)
        assert "Input/output error" in entry.message
        monkeypatch.undo()
        world.becomes(digest, EntryState.READY)


def test_it_asks_statvfs_where_the_cluster_knows_no_quota(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    ledger = Ledger(store, lambda: None, FAST)
    info, status = os.statvfs(tmp_path), ledger.status()
    assert status.capacity_bytes == info.f_blocks * info.f_frsize and status.used_bytes == 0
    with pytest.raises(Permanent, match="It needs"):
        ledger.reserve("x", status.capacity_bytes, 0)
    claim = ledger.reserve("x", 1000, 400)
    claim.move(100)
    assert (claim.remaining, ledger.status().reserved_bytes) == (500, 500)
    ledger.release("x")
    assert ledger.status().reserved_bytes == 0


def test_it_promises_no_more_than_the_filesystem_below_a_quota_has(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    ledger = Ledger(store, lambda: (1 << 60, 0), FAST)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert not ledger.fits(free * 2)
    ledger.limits = replace(ledger.limits, high_watermark_bytes=0)
    assert not ledger.fits(1)
