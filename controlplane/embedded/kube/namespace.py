"""A mount namespace for each node: what is mounted inside, only its processes see, and it ends with them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from controlplane.embedded import spawn
from controlplane.embedded.kube import mounts
from controlplane.embedded.kube.machine import MOUNT_POINTS
from controlplane.embedded.kube.runtime import KUBELET_ROOT

# Empty on every node: sockets, logs and leftovers of programs that let nobody choose where they go.
_OWN = ("/run", "/var/log", *(point for point in MOUNT_POINTS if point != KUBELET_ROOT))
_MOST_MEMORY = "4g"


def create(folder: Path, *, binds: dict[Path, str], memory: Path, hide: Sequence[Path]) -> Path:
    """Make a namespace and return the file that keeps it; unmounting below ``folder`` lets it go.

    ``binds`` are folders that the node sees at other paths; ``memory`` is one that it keeps in memory; what is mounted
    on ``hide`` is not there for it.
    """
    folder.mkdir(parents=True)
    # The file of a namespace can only be mounted where mounts do not spread into others.
    _run(["mount", "--bind", str(folder), str(folder)], "Preparing a mount namespace")
    _run(["mount", "--make-private", str(folder)], "Preparing a mount namespace")
    kept = folder / "mnt"
    kept.touch()
    lines = ["set -e", "mount --make-rprivate /"]
    lines += [f"umount --lazy {shlex.quote(point)}" for path in hide for point in mounts.under(str(path))]
    lines += [f"mount -t tmpfs -o mode=0755 hearth {path}" for path in _OWN]
    lines.append(f"mount -t tmpfs -o mode=0700,size={_MOST_MEMORY} hearth {shlex.quote(str(memory))}")
    lines += [f"mount --bind {shlex.quote(str(source))} {shlex.quote(target)}" for source, target in binds.items()]
    # Containers that ask for mounts of their node to spread to them get it, as on a machine of its own.
    lines += ["mount --make-rshared /", "mkdir -p /run/lock"]
    _run(
        ["unshare", f"--mount={kept}", "--propagation", "private", "sh", "-c", "\n".join(lines)],
        "Making a node's mount namespace",
    )
    return kept


def inside(kept: Path, argv: Sequence[str]) -> list[str]:
    """``argv`` as a process of the namespace."""
    return ["nsenter", f"--mount={kept}", "--", *argv]


def _run(argv: list[str], what: str) -> None:
    spawn.run(argv, cwd=Path("/"), what=what)
