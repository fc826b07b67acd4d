"""Sources that change, vanish, refuse, stall, lie or break: a reason, a retry time, and never a mixed tree."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.clusters.documents import (
    Algorithm,
    ConnectionSpec,
    EntryState,
    FileRecord,
    Limits,
    Reason,
    SourceType,
)
from controlplane.errors import Permanent, Transient
from tests.agent.world import KIB, World, noise, now

DATA = noise(512 * KIB)


def test_it_publishes_nothing_of_a_file_that_changed_under_the_download(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(max_requests=2))
    once = threading.Event()

    def overwrite(file: FileRecord, position: int) -> None:
        if position >= 256 * KIB and not once.is_set():
            once.set()
            (world.origin / "m" / "a").write_bytes(noise(512 * KIB, 9))

    world.before = overwrite
    with world:
        digest = world.model("m", {"a": DATA})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_CHANGED)
        assert entry.retry_at and entry.retry_at > now() and entry.attempts >= 1 and "a" in entry.message
        assert (entry.bytes_done, entry.bytes_total) == (0, len(DATA))  # nothing of it is on the disk any more
        assert not world.tree(digest).exists() and not world.store.partial(digest).exists()
        assert not world.store.journal(digest).exists()
    assert EntryState.READY not in world.states(digest)


@pytest.mark.parametrize("algorithm", [Algorithm.CRC64NVME, Algorithm.SHA256])
def test_it_refuses_bytes_that_are_not_what_was_registered(tmp_path: Path, algorithm: Algorithm) -> None:
    """The source's revision says unchanged and yet the content is another one: only the checksum can tell."""
    with World(tmp_path) as world:
        digest = world.register("m", {"a": DATA, "b": b"right"}, algorithm)
        manifest = world.link.manifests[digest]
        path = world.origin / "m" / "a"
        facts = path.stat()
        path.write_bytes(DATA[:-1] + b"\x00")
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        world.restate(digest, "m")
        assert manifest.files[0].revision.startswith(str(len(DATA)))
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
        assert "a: " in entry.message and not world.tree(digest).exists()
        path.write_bytes(DATA)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        world.restate(digest, "m")
        world.requests.clear()
        world.want(digest, retry_round=1)
        world.becomes(digest, EntryState.READY, retry_round=1, attempts=0)
        assert {name for name, _, _ in world.requests} == {"a"}  # what was right is kept
    assert world.content(digest) == {"a": DATA, "b": b"right"}


@pytest.mark.parametrize("witness", ["sha256:" + "0" * 64])
def test_it_refuses_bytes_that_differ_from_other_nodes(tmp_path: Path, witness: str) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": DATA}, Algorithm.STAT)
        world.want(digest, "m", witness=witness)
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
        assert witness in entry.message and not world.store.partial(digest).exists()
        world.want(digest, witness="", retry_round=1)
        right = world.becomes(digest, EntryState.READY).witness
        world.want(digest, witness=witness)
        world.becomes(digest, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
        assert not (world.tree(digest) / ".hearth-marker.json").exists()
        world.want(digest, witness=right, retry_round=2)
        world.becomes(digest, EntryState.READY, witness=right)
    assert world.content(digest) == {"a": DATA}


def test_it_names_a_vanished_source_and_recovers_by_itself(tmp_path: Path) -> None:
    calls = 0

    def vanish(file: FileRecord, position: int) -> None:
        nonlocal calls
        calls += 1
        if calls <= 7:
            raise Transient("source:source:gone", "no answer", reason=Reason.SOURCE_UNAVAILABLE)

    world = World(tmp_path, before=vanish, limits=Limits(max_requests=1))
    with world:
        digest = world.model("m", {"a": DATA})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_UNAVAILABLE)
        assert entry.retry_at and entry.retry_at - now() < timedelta(seconds=1)
        world.becomes(digest, EntryState.READY, reason="", attempts=0)
    assert calls > 7


def test_it_names_a_denied_source_and_reads_the_secret_anew_for_each_attempt(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.connections = (
        ConnectionSpec("disk", SourceType.FILESYSTEM, secret_name="key", allowed=(str(world.origin),)),
    )

    def refuse(file: FileRecord, position: int) -> None:
        if world.secrets_used[-1] != {"access_key_id": "new"}:
            raise Permanent("source:user:denied", "403", reason=Reason.ACCESS_DENIED)

    world.before = refuse
    with world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.FAILED, reason=Reason.ACCESS_DENIED, attempts=1)
        assert not world.secrets_used, "no secret of this name: nothing was asked"
        world.link.secrets["key"] = {"access_key_id": "old"}
        world.until(lambda: world.secrets_used)
        world.link.secrets["key"] = {"access_key_id": "new"}
        world.becomes(digest, EntryState.READY)
    assert not any("new" in text or "old" in text for event in world.link.events for text in event)


def test_it_asks_again_from_the_last_byte_and_forgives_what_progresses(tmp_path: Path) -> None:
    """Every read breaks after one chunk; attempts are limited to three without progress, and all goes through."""
    world = World(tmp_path, limits=Limits(max_requests=1))
    seen: set[int] = set()

    def break_once(file: FileRecord, position: int) -> None:
        if position not in seen and position % (16 * KIB) == 0 and position:
            seen.add(position)
            raise Transient("source:source:stall", "no byte for too long", reason=Reason.SOURCE_UNAVAILABLE)

    world.before = break_once
    with world:
        digest = world.model("m", {"a": DATA})
        entry = world.becomes(digest, EntryState.READY)
    assert entry.bytes_moved == len(DATA), "nothing was read twice"
    assert EntryState.FAILED not in world.states(digest)
    assert len(seen) == len(DATA) // (16 * KIB) - 1


def test_it_is_not_tripped_by_its_own_throttle(tmp_path: Path) -> None:
    """Slower than a chunk per stall timeout, and still one request for each segment."""
    world = World(tmp_path, limits=Limits(bytes_per_second=200 * KIB, max_requests=1))
    data = noise(160 * KIB)
    began = time.monotonic()
    with world:
        digest = world.model("m", {"a": data})
        world.becomes(digest, EntryState.READY)
    assert time.monotonic() - began >= 0.6
    assert len(world.requests) == 3


def test_it_stops_asking_while_paused_and_goes_on_afterwards(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(max_requests=1))
    held, go = threading.Event(), threading.Event()

    def hold(file: FileRecord, position: int) -> None:
        if position == 128 * KIB:
            held.set()
            go.wait(60)

    world.before = hold
    with world:
        digest = world.model("m", {"a": DATA})
        assert held.wait(60)
        other = world.register("other", {"b": DATA[: 64 * KIB]})
        world.limits = replace(world.limits, paused=True)
        world.want(other, "other")
        world.becomes(other, EntryState.QUEUED, message="Paused: no new byte is asked for.")
        go.set()
        world.until(lambda: (entry := world.entry(digest)) and entry.bytes_done >= 192 * KIB)
        seen = len(world.requests)
        world.quiet(0.5)
        assert len(world.requests) == seen
        world.limits = replace(world.limits, paused=False)
        world.send()
        world.becomes(digest, EntryState.READY)
        world.becomes(other, EntryState.READY)


def test_it_keeps_a_failure_over_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tuning = replace(world.tuning, permanent_first_seconds=60.0)
    with world:
        digest = world.model("m", {"a": DATA}, Algorithm.STAT)
        world.becomes(digest, EntryState.READY)
        other = world.register("n", {"a": DATA[:100]})
        del world.link.manifests[other]
        world.link.manifests[other] = replace(world.link.manifests[digest], digest=other)
        world.want(other, "n")
        entry = world.becomes(other, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
    world.link.reports.clear()
    with world:
        again = world.becomes(other, EntryState.FAILED)
        assert (again.retry_at, again.attempts) == (entry.retry_at, 1)
        assert world.states(other) == [EntryState.FAILED]


@pytest.mark.parametrize("path", ["../escape", "/etc/escape", "a/../../escape", ".hearth-marker.json", "a\x00b"])
def test_it_writes_no_unsafe_path_whatever_the_manifest_says(tmp_path: Path, path: str) -> None:
    from caches.domain.manifests import manifest_digest
    from controlplane.clusters.documents import Manifest

    with World(tmp_path) as world:
        good = world.register("m", {"a": b"x"})
        files = (replace(world.link.manifests[good].files[0], path=path),)
        digest = manifest_digest(files)
        world.link.manifests[digest] = Manifest(digest, files)
        world.want(digest, "m")
        world.becomes(digest, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
    assert not world.requests
    assert not list(tmp_path.rglob("*escape*"))
