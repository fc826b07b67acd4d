"""Agent processes: started so that none outlives its supervisor, and ended politely first."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 5.0  # between SIGTERM and SIGKILL
CALM_SECONDS = 30.0  # a process that lived this long starts its backoff anew
LONGEST_BACKOFF_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
# What an agent has no business to know.
_WITHHELD = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "HEARTH_METRICS_TOKEN", "DJANGO_SETTINGS_MODULE")


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An agent's environment: ours without the control plane's own credentials."""
    withheld = {*_WITHHELD, *(f"{name}_FILE" for name in _WITHHELD)}
    return {name: value for name, value in environment.items() if name not in withheld}


def start_bound(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when the calling thread's process ends, however that ends (Linux).

    Call it from the main thread of a process without others. What it writes goes to the descriptor ``output``, or where
    ours goes. OSError when it cannot start.
    """
    return subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone
        preexec_fn=_bind_to(os.getpid()) if sys.platform == "linux" else None,
    )


def _bind_to(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we were bound to it
            os._exit(1)

    return bind


@dataclass(slots=True)
class Agent:
    """One process that is kept running, or is between two attempts: a node incarnation's agent, or an engine."""

    name: str
    uid: str
    what: str = "agent of"
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    next_start: float = 0.0
    ending_since: float | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: int | None = None) -> None:
        self.started = time.monotonic()
        self.process = start_bound(argv, env=env, cwd=cwd, output=output)

    def note_end(self) -> str | None:
        """Record an unexpected end and plan the next attempt; a sentence about it, or None when nothing ended."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        self.process = None
        if time.monotonic() - self.started > CALM_SECONDS:
            self.failures = 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{self.what} {self.name} {how}; starting it again in {self.back_off():g} s"

    def kill(self) -> None:
        """End it as a crash would: at once, and to be started again."""
        if self.process is not None:
            self.process.kill()

    def back_off(self) -> float:
        """Put the next attempt off, each time longer; the seconds until it."""
        pause: float = min(LONGEST_BACKOFF_SECONDS, 0.5 * 2 ** min(self.failures, 10))
        self.failures += 1
        self.next_start = time.monotonic() + pause
        return pause

    def end(self, patience: float = PATIENCE_SECONDS) -> bool:
        """Ask it to end, after ``patience`` seconds make it; True once it is gone. Never waits."""
        if self.process is None or self.process.poll() is not None:
            self.process, self.ending_since = None, None
            return True
        now = time.monotonic()
        if self.ending_since is None:
            self.ending_since = now
            self.process.terminate()
        elif now - self.ending_since > patience:
            self.process.kill()
        return False
