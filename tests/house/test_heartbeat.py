"""The file whose age is health, and how a worker beyond help is ended: neither ever fails who calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import LazySettings

from controlplane import heartbeat, worker_end
from tests.waiting import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since the machine started; the first beat was long ago."""
    now = [1000.0]
    monkeypatch.setattr(heartbeat, "_last", 0.0)
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_it_is_touched_once_a_second_at_most(tmp_path: Path, settings: LazySettings, clock: list[float]) -> None:
    file = tmp_path / "beat"
    settings.HEARTBEAT_FILE = str(file)
    for seconds, touched in ((0.0, True), (0.5, False), (0.999, False), (1.0, True), (1.5, False), (2.0, True)):
        file.unlink(missing_ok=True)
        clock[0] = 1000.0 + seconds
        heartbeat.beat()
        assert file.exists() is touched, seconds


def test_an_old_file_gets_young_and_keeps_what_is_in_it(
    tmp_path: Path, settings: LazySettings, clock: list[float]
) -> None:
    file = tmp_path / "beat"
    file.write_text("kept")
    os.utime(file, (1, 1))
    settings.HEARTBEAT_FILE = str(file)
    heartbeat.beat()
    assert file.stat().st_mtime > 1 and file.read_text() == "kept"


def test_a_folder_that_is_missing_fails_nobody_and_is_tried_again(
    tmp_path: Path, settings: LazySettings, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    settings.HEARTBEAT_FILE = str(tmp_path / "not-yet" / "beat")
    heartbeat.beat()
    heartbeat.beat()
    assert [record.getMessage() for record in caplog.records] == [
        "the heartbeat file cannot be touched: No such file or directory"
    ]
    (tmp_path / "not-yet").mkdir()
    clock[0] += 1
    heartbeat.beat()
    assert Path(settings.HEARTBEAT_FILE).exists()


def test_without_a_file_nothing_happens(settings: LazySettings, clock: list[float]) -> None:
    settings.HEARTBEAT_FILE = ""
    heartbeat.beat()
    assert heartbeat._last == 0.0


@pytest.mark.parametrize(("code", "ended"), [(None, False), (0, False), (1, True), (70, True)])
def test_only_a_worker_that_ends_with_an_error_is_hurried(
    code: int | None, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(worker_end, "end", told.append)
    worker: Any = SimpleNamespace(exitcode=code)
    worker_end.EndSoon(worker).close(worker)
    until(lambda: not any(thread.name == "end-soon" for thread in threading.enumerate()), "it was hurried, or not")
    assert told == ([code] if ended else [])


PROGRAM = """
import os, signal, sys, time
import billiard
from controlplane import worker_end

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    time.sleep(600)

worker_end.PATIENCE_SECONDS = 0.0
child = billiard.get_context("fork").Process(target=hang)
child.start()
sys.stdin.readline()
import threading
threading.Thread(target=worker_end.end, args=(7,), daemon=True).start()
time.sleep(600)  # as a pool that waits for its task
"""


def test_it_ends_with_its_code_and_takes_a_child_along_that_ignores_being_told(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    with program:
        try:
            assert program.stdin is not None and program.stdout is not None
            child = int(program.stdout.readline())
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.wait(60) == 7
            until(lambda: not _is_alive(child), "its child ends too")
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False
