"""A worker whose pool is beyond help ends with an error, so that whoever watches it starts another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.embedded.processes import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def test_a_worker_that_cannot_replace_a_dead_child_ends_though_another_one_hangs(
    valkey_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.house.sick_worker"], cwd=ROOT, stdout=output, stderr=output
        )
    with worker:
        try:
            until(lambda: "ready" in log.read_text() or worker.poll() is not None, "it takes messages")
            dead, hanging = children(worker.pid)
            os.kill(hanging, signal.SIGSTOP)
            os.kill(dead, signal.SIGKILL)
            assert worker.wait(120) == 1, log.read_text()
            until(lambda: not is_alive(hanging), "none of its processes outlives it")
        finally:
            worker.kill()
    assert "it is ended" in log.read_text()
