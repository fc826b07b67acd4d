"""The supervisor: named child processes with logs, readiness, restarts with backoff, and an end in order.

Nothing it starts outlives it. Ctrl-C stops the children in reverse order; when the supervisor itself is killed,
the kernel's parent-death signal and the guardian end them; and what even survives that (a power cut in between,
both killed) is found by the next start through its records.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from controlplane.embedded import ends, records, spawn
from controlplane.embedded.problems import EmbeddedError, tail

ROOT = Path(__file__).resolve().parents[2]
_MOST_LOG = 20_000_000  # bytes kept of one process's log when it starts again
_CALM = 30.0  # seconds of life after which a restart counts as the first again
_ATTEMPTS = 3  # deaths before the first readiness that are forgiven


@dataclass(frozen=True, slots=True)
class Spec:
    """A process to keep running. ``ready`` is asked until it says yes; times are seconds.

    It inherits the descriptors ``fds``, each time it starts: whoever made them keeps them open.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = ROOT
    identity: spawn.Identity | None = None
    ready: Callable[[], bool] | None = None
    ready_within: float = 90.0
    stop_signal: int = signal.SIGTERM
    stop_within: float = 10.0
    fds: Collection[int] = ()


@dataclass(slots=True)
class Child:
    """A running (or for the moment not running) process of a Spec."""

    spec: Spec
    process: subprocess.Popen[bytes]
    started: float
    restarts: int = 0
    failures: int = 0
    next_start: float | None = None


class AlreadyRunning(EmbeddedError):
    """Another supervisor holds this state."""


class Supervisor:
    """Keeps processes of one state folder. Use as a context manager, from one thread: leaving it stops them all."""

    def __init__(self, state: Path, *, label: str = "Hearth") -> None:
        self.state = state.absolute()
        self.label = label
        self._pids = self.state / "pids"
        self._children: dict[str, Child] = {}
        self._batches: list[list[Child]] = []
        self._mark = secrets.token_hex(8)
        self._lock: IO[str] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            # A database that may not run as root walks through this folder to its own.
            self.state.chmod(0o711 if os.geteuid() == 0 else 0o700)
            (self.state / "logs").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(
                f"{self.state} cannot be written ({error.strerror}). Fix its permissions, or choose another folder: "
                "HEARTH_STATE_DIR=/path make run"
            ) from error
        self._claim()
        try:
            records.end_all(self._pids)
            self._guard()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def log(self, name: str) -> Path:
        """Where the output of a process goes."""
        return self.state / "logs" / f"{name}.log"

    def start(self, *specs: Spec) -> None:
        """Start processes side by side and wait until every one is ready; EmbeddedError with its log if not."""
        self.begin(*specs)
        self.await_ready(*(spec.name for spec in specs))

    def begin(self, *specs: Spec) -> None:
        """Start processes side by side without waiting; ``await_ready`` them before anybody relies on them."""
        batch: list[Child] = []
        self._batches.append(batch)
        for spec in specs:
            if self.log(spec.name).exists() and self.log(spec.name).stat().st_size > _MOST_LOG:
                self.log(spec.name).rename(self.log(f"{spec.name}.old"))
            child = Child(spec, self._spawn(spec), time.monotonic())
            self._children[spec.name] = child
            batch.append(child)

    def await_ready(self, *names: str) -> None:
        """Wait until each of these processes is ready; EmbeddedError with its last words if one will not be."""
        for name in names:
            self._await_ready(self._children[name])

    def check(self, *, but: Collection[str] = ()) -> list[str]:
        """Restart what died, later each time; returns a sentence for each event. Call it about every half second.

        Those named in ``but`` stay as they are: somebody wants them dead.
        """
        said: list[str] = []
        now = time.monotonic()
        for child in self._children.values():
            name = child.spec.name
            if name in but:
                continue
            if child.next_start is None and child.process.poll() is not None:
                if now - child.started > _CALM:
                    child.failures = 0
                pause = min(30.0, 0.5 * 2 ** min(child.failures, 10))
                child.failures += 1
                child.next_start = now + pause
                code = child.process.returncode
                said.append(f"{name} ended ({_reason(code)}); starting it again. Log: {self.log(name)}")
            if child.next_start is not None and now >= child.next_start:
                self._restart(child)
        return said

    def pid(self, name: str) -> int:
        """The pid of a process; for tests and faults."""
        return self._children[name].process.pid

    def kill(self, name: str) -> None:
        """End a process and its group without warning, as a fault; ``check`` starts it again."""
        child = self._children[name]
        _kill(child.process)

    def forget(self, name: str) -> None:
        """End a process and its group without warning, and for good."""
        child = self._children.pop(name)
        self._batches = [[other for other in batch if other is not child] for batch in self._batches]
        _kill(child.process)
        records.remove(self._pids, name)

    def restart(self, name: str) -> None:
        """Stop a process in good order if it runs, start it again and wait until it is ready."""
        child = self._children[name]
        self._end([child])
        self._restart(child)
        self._await_ready(child)

    def stop(self) -> None:
        """End everything, the last call of ``start`` first. Safe to call twice."""
        while self._batches:
            self._end(self._batches.pop())
        self._children.clear()
        # What was being started when an interrupt came is not among the children yet; its mark finds it.
        records.end_all(self._pids, marks={self._mark})
        self._release()

    # -- one child ---------------------------------------------------------------------------------------------

    def _spawn(self, spec: Spec) -> subprocess.Popen[bytes]:
        marks = [mark for mark in (os.environ.get(records.MARK), self._mark) if mark]
        env = {**os.environ, **spec.env, records.MARK: ":".join(marks)}
        argv = spawn.command(spec.argv, identity=spec.identity, dies_by=spec.stop_signal)
        process = spawn.start(argv, env=env, cwd=spec.cwd, log=self.log(spec.name), fds=spec.fds)
        started = records.started_at(process.pid)
        record = records.Record(spec.name, process.pid, started, self._mark, spec.stop_signal, spec.stop_within)
        records.write(self._pids, record)
        return process

    def _restart(self, child: Child) -> None:
        # A leader that died may have left members of its group behind, still holding its port.
        records.signal_group(child.process.pid, signal.SIGKILL)
        child.process = self._spawn(child.spec)
        child.started = time.monotonic()
        child.next_start = None
        child.restarts += 1

    def _await_ready(self, child: Child) -> None:
        spec = child.spec
        until = time.monotonic() + spec.ready_within
        deaths = 0
        while True:
            if child.process.poll() is not None:
                deaths += 1
                if deaths >= _ATTEMPTS or spec.ready is None:
                    raise EmbeddedError(
                        f"{spec.name} did not start ({_reason(child.process.returncode)}). Its last words, from "
                        f"{self.log(spec.name)}:\n{tail(self.log(spec.name))}"
                    )
                time.sleep(0.3 * deaths)
                self._restart(child)
            if spec.ready is None or spec.ready():
                return
            if time.monotonic() > until:
                raise EmbeddedError(
                    f"{spec.name} was not ready within {spec.ready_within:.0f} s. Its last words, from "
                    f"{self.log(spec.name)}:\n{tail(self.log(spec.name))}"
                )
            time.sleep(0.05)

    def _end(self, children: Sequence[Child]) -> None:
        """Ask all at once, then wait for each; what does not listen is killed, with what is left of its group."""
        for child in children:
            if not ends.has_ended(child.process):
                records.signal_group(child.process.pid, child.spec.stop_signal)
        asked = time.monotonic()
        for child in children:
            left = asked + child.spec.stop_within - time.monotonic()
            records.wait_until(partial(ends.has_ended, child.process), left)
            _kill(child.process)

    # -- the state as a whole ----------------------------------------------------------------------------------

    def _claim(self) -> None:
        lock = _lock_file(self.state).open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise AlreadyRunning(
                f"{self.label} already runs with the state in {self.state} (process {holder(self.state)}). "
                "Use that one, or stop it with Ctrl-C first; a second one needs its own HEARTH_STATE_DIR and port."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock
        self._await_guardian()

    def _await_guardian(self) -> None:
        """An earlier supervisor's guardian may still be ending its processes; at most half a minute."""
        until = time.monotonic() + 30
        with (self.state / "guardian.lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if time.monotonic() > until:
                        self._release()
                        raise EmbeddedError(
                            f"Processes of an earlier run in {self.state} do not end. List them with "
                            f"'cat {self._pids}/*.json', end them, then start again."
                        ) from None
                    time.sleep(0.1)

    def _guard(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", "controlplane.embedded.guardian", str(self.state)],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guardian.stdout is not None
        if self._guardian.stdout.readline() != b"ready\n":
            raise EmbeddedError("The guardian process did not start; its message stands above.")

    def _release(self) -> None:
        if self._guardian is not None:
            self._guardian.communicate(timeout=30)
            self._guardian = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def holder(state: Path) -> int | None:
    """The pid of the supervisor that holds a state now, or None."""
    try:
        with _lock_file(state.absolute()).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read().strip() or 0)
    except (OSError, ValueError):
        pass
    return None


def _lock_file(state: Path) -> Path:
    return state / "supervisor.lock"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and what is left of its group; EmbeddedError if it stays."""
    records.signal_group(process.pid, signal.SIGKILL)
    ends.await_end(process)


def _reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
