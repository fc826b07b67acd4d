"""Start one child process: own group, own log, bound to our life, and not as root where the program refuses root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.embedded.problems import EmbeddedError


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a child runs as. ``bypass`` lets it through folders that only root may enter, such as /root."""

    name: str
    uid: int
    gid: int
    bypass: bool


def unprivileged(*must_reach: Path) -> Identity | None:
    """Somebody who is not root and reaches every given path; None when we are not root anyway.

    Accounts that every system has are used, none is created. Raises EmbeddedError where that cannot work.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        bypass = not all(_open_to_everybody(path) for path in must_reach)
        return Identity(name=name, uid=entry.pw_uid, gid=entry.pw_gid, bypass=bypass)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and this system has neither a user postgres nor nobody. "
        "Run make as another user."
    )


def command(argv: Sequence[str], *, identity: Identity | None = None, dies_by: int = 0) -> list[str]:
    """``argv`` behind util-linux's setpriv: as ``identity``, and sent ``dies_by`` when its parent dies.

    Where there is no setpriv (macOS) nothing is bound to the parent's death; the guardian ends the child instead.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if identity is not None:
            raise EmbeddedError(
                "setpriv is missing, so PostgreSQL cannot be started by root. Run make as another user."
            )
        return list(argv)
    options: list[str] = []
    if identity is not None:
        options += [f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups"]
        if identity.bypass:
            # Without the last option access(2) would still refuse what open(2) then allows.
            options += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"]
    if dies_by:
        options.append(f"--pdeathsig={signal.Signals(dies_by).name.removeprefix('SIG')}")
    return [setpriv, *options, "--", *argv] if options else list(argv)


def start(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, fds: Collection[int] = ()
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in a group of its own, so that Ctrl-C reaches the supervisor alone; output goes to ``log``.

    It inherits the descriptors ``fds`` under the same numbers, and no others.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=fds,
        )


def run(argv: Sequence[str], *, identity: Identity | None = None, cwd: Path, what: str, within: float = 120.0) -> None:
    """Run a short program to its end; raises EmbeddedError with its words when it fails."""
    try:
        done = subprocess.run(
            command(argv, identity=identity), cwd=cwd, capture_output=True, text=True, check=False, timeout=within
        )
    except subprocess.TimeoutExpired:
        raise EmbeddedError(f"{what} took longer than {within:.0f} s. Is the disk very slow, or full?") from None
    if done.returncode:
        raise EmbeddedError(f"{what} failed: {(done.stderr or done.stdout).strip()[-1500:]}")


def _open_to_everybody(path: Path) -> bool:
    """Whether any user may walk down to ``path``."""
    return all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents)
