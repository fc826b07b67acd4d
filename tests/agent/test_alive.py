"""The agent's sign of life comes from its loop and from nothing else."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caches.agent import alive
from controlplane.clusters.documents import ConnectionSpec, Desired, EntryState, SourceType
from tests.agent.process import Node
from tests.agent.world import KIB, MemoryLink, World, noise
from tests.waiting import until


def age(file: Path) -> float:
    """Seconds since the last sign of life; a day where there was none."""
    return time.monotonic() - file.stat().st_mtime if file.exists() else 86400.0


def test_it_touches_its_file_once_a_second_at_most(tmp_path: Path) -> None:
    clock, file = [50.0], tmp_path / "heartbeat"
    beat = alive.Heartbeat(str(file), lambda: clock[0])
    beat()
    clock[0] += 0.9
    beat()
    assert file.stat().st_mtime == 50.0, "the monotonic clock's time, which nobody sets"
    clock[0] += 0.2
    beat()
    assert file.stat().st_mtime == pytest.approx(51.1)


def test_it_never_fails_the_agent_for_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = [50.0]
    beat = alive.Heartbeat(str(tmp_path / "no" / "folder"), lambda: clock[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            beat()
            clock[0] += 2.0
    assert [record.getMessage() for record in caplog.records] == [
        "the heartbeat file cannot be written: No such file or directory"
    ], "said once"
    alive.heartbeat({})()
    alive.heartbeat({alive.VARIABLE: ""})()
    assert not list(tmp_path.iterdir())


class Beats:
    """Counts signs of life and the threads that gave them."""

    def __init__(self) -> None:
        self.count, self.threads = 0, set[str]()

    def __call__(self) -> None:
        self.count += 1
        self.threads.add(threading.current_thread().name)

    def go_on(self) -> Callable[[], bool]:
        """Whether three more came from now on."""
        before = self.count
        return lambda: self.count >= before + 3


def test_a_long_checksum_a_silent_source_and_a_silent_cluster_are_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, release, reached = Beats(), threading.Event(), threading.Event()

    def held(*_: object) -> None:
        reached.set()
        release.wait(60)

    with World(tmp_path, beat=beats) as world:
        try:
            digest = world.model("m", {"a.bin": noise(64 * KIB)})
            world.becomes(digest, EntryState.READY)
            monkeypatch.setattr("caches.agent.scrub.Scrub._tick", held)
            world.want(digest, verify_round=1)
            world.until(reached.is_set, "the scrub reads")
            world.until(beats.go_on(), "the loop comes round while a checksum takes its time")
            reached.clear()
            world.before = held
            world.model("n", {"b.bin": noise(64 * KIB, 2)})
            world.until(reached.is_set, "the download waits for its source")
            world.until(beats.go_on(), "the loop comes round while a source is silent")
            world.link.reachable = False
            world.until(beats.go_on(), "the loop comes round while nobody answers")
        finally:
            release.set()
            world.link.reachable = True
    assert len(beats.threads) == 1, "jobs that go on without the loop are no sign of life"


class Hanging(MemoryLink):
    """Answers no more once it was told to hang, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.hang, self.hung, self.release = threading.Event(), threading.Event(), threading.Event()

    def desired(self) -> Desired | None:
        if self.hang.is_set() and threading.current_thread().name != "listen":
            self.hung.set()
            self.release.wait(60)
        return super().desired()


def test_a_loop_that_hangs_gives_no_sign_though_its_jobs_go_on(tmp_path: Path) -> None:
    beats, link, moved = Beats(), Hanging(), threading.Event()
    with World(tmp_path, link=link, beat=beats) as world:
        try:
            world.before = lambda *_: moved.set() if link.hung.wait(60) else None
            world.model("m", {"a.bin": noise(64 * KIB)})
            world.until(lambda: world.requests, "it is on its way")
            link.hang.set()
            world.until(link.hung.is_set, "the loop hangs")
            count = beats.count
            world.until(moved.is_set, "the download goes on")
            assert beats.count == count
        finally:
            link.release.set()


@pytest.mark.e2e
@pytest.mark.faults
def test_a_frozen_process_grows_old_and_a_thawed_one_is_young_again(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    node = Node(tmp_path / "fleet", ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(tmp_path / "origin"),)))
    file = tmp_path / "heartbeat"
    process = node.start(environ={alive.VARIABLE: str(file)})
    try:
        until(lambda: age(file) < 60, "it beats")
        first = file.stat().st_mtime
        until(lambda: file.stat().st_mtime > first, "again and again")
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: age(file) > 3, "nothing of it beats any more")
        stopped = file.stat().st_mtime
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: file.stat().st_mtime > stopped, "it goes on")
    finally:
        node.close()
