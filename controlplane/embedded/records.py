"""Which processes are ours: written down at start, checked before anything is ended.

A pid alone proves nothing, the system reuses it. So a record also holds when the process started, and every
process carries a random mark in its environment that its own children inherit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

MARK = "HEARTH_RUN"
_LINUX = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class Record:
    """One child process as it was started: ``stop_signal`` asks it to end, and it gets ``grace`` seconds for it."""

    name: str
    pid: int
    started: str
    mark: str
    stop_signal: int
    grace: float


def started_at(pid: int) -> str:
    """A text that differs between two processes that had the same pid; empty when there is no such process."""
    if not _LINUX:
        asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return asked.stdout.strip()
    try:
        # The name in parentheses may itself hold spaces and parentheses; the fields after it do not.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def is_alive(record: Record) -> bool:
    """Whether the very process of the record runs."""
    return bool(record.started) and started_at(record.pid) == record.started


def write(folder: Path, record: Record) -> None:
    """Store a record so that a reader sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{record.name}"
    unfinished.write_text(json.dumps(asdict(record)))
    unfinished.rename(folder / f"{record.name}.json")


def read(folder: Path) -> list[Record]:
    """Every readable record; a damaged one is nobody's proof and is ignored."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Record(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError):
            continue
    return found


def remove(folder: Path, name: str) -> None:
    """Forget one record."""
    (folder / f"{name}.json").unlink(missing_ok=True)


def end_all(folder: Path, marks: Iterable[str] = ()) -> list[str]:
    """End every recorded process and what it left behind, in good order where it obeys; returns their names.

    What carries one of the extra ``marks`` is killed as well.
    """
    found = read(folder)
    alive = [record for record in found if is_alive(record)]
    asked = time.monotonic()
    for record in alive:
        signal_group(record.pid, record.stop_signal)
    for record in sorted(alive, key=lambda record: record.grace):
        wait_until(partial(_is_gone, record), asked + record.grace - time.monotonic())
        if is_alive(record):
            signal_group(record.pid, signal.SIGKILL)
    _kill_marked({record.mark for record in found}.union(marks))
    for record in found:
        remove(folder, record.name)
    return [record.name for record in alive]


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group a process leads; nothing happens when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_marked(marks: set[str]) -> None:
    """Kill what still carries one of the marks, in whatever group it hides. Repeats, because they may fork."""
    marks.discard("")
    for _ in range(5):
        pids = list(_marked(marks))
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        wait_until(partial(_all_gone, pids), 1.0)


def _marked(marks: set[str]) -> Iterable[int]:
    if not marks or not _LINUX:
        return
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = next((line for line in environment if line.startswith(f"{MARK}=".encode())), b"")
        held = set(mine.decode(errors="replace").partition("=")[2].split(":"))
        pid = int(process.name)
        if pid != os.getpid() and not marks.isdisjoint(held) and started_at(pid):
            yield pid


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Ask ``done`` until it says yes or the time is up; returns its last answer."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def _is_gone(record: Record) -> bool:
    return not is_alive(record)


def _all_gone(pids: list[int]) -> bool:
    return not any(started_at(pid) for pid in pids)
