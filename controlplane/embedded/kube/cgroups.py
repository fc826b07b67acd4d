"""A control group for each node, so that all its processes can be counted, limited, and ended together.

Both layouts are known: one tree of everything (version 2), and a tree for each controller (version 1).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from controlplane.embedded import records
from controlplane.embedded.problems import EmbeddedError

ROOT = Path("/sys/fs/cgroup")
# What a kubelet asks for in version 1, and the tree without controllers that may stand beside them.
_TREES = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "hugetlb", "unified")
_PATIENCE = 60.0  # seconds until killed processes must be gone


def create(name: str) -> None:
    """Make the group in every tree; a kubelet then makes its own below."""
    if _unified():
        (ROOT / name).mkdir(exist_ok=True)
        for controller in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb"):
            with contextlib.suppress(OSError):  # not offered here; the kubelet names what it misses
                (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    for tree in _trees():
        (tree / name).mkdir(exist_ok=True)
    cpuset = ROOT / "cpuset"
    if cpuset.is_dir():
        # A new group of this tree has no processors and no memory, and nothing can enter it.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            (cpuset / name / setting).write_text((cpuset / setting).read_text())


def entry(name: str) -> Path:
    """The file through which a process joins the group."""
    if not _unified():
        # One tree is enough to find it again; in the others it stays unlimited.
        return ROOT / "pids" / name / "cgroup.procs"
    # Only a leaf may hold processes.
    leaf = ROOT / name / "node"
    leaf.mkdir(exist_ok=True)
    return leaf / "cgroup.procs"


def processes(name: str) -> set[int]:
    """Every process in the group or below."""
    found: set[int] = set()
    for tree in _trees():
        # Groups come and go meanwhile: what os.walk cannot read any more it leaves out, where a glob would raise.
        for path, _, files in os.walk(tree / name):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found.update(int(line) for line in (Path(path) / "cgroup.procs").read_text().split())
    return found


def kill(name: str) -> None:
    """End every process of the group; EmbeddedError if one stays."""

    def killed() -> bool:
        pids = processes(name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    if not records.wait_until(killed, _PATIENCE):
        raise EmbeddedError(f"processes {sorted(processes(name))} do not end")


def remove(name: str) -> None:
    """End what runs in the group and remove it everywhere."""
    kill(name)

    def removed() -> bool:
        left = [tree for tree in _trees() if not _remove_tree(tree / name)]
        return not left

    if not records.wait_until(removed, _PATIENCE):
        raise EmbeddedError(f"the control group {name} cannot be removed")


def _remove_tree(group: Path) -> bool:
    for path, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return not group.exists()


def _unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _trees() -> list[Path]:
    if _unified():
        return [ROOT]
    return [ROOT / tree for tree in _TREES if (ROOT / tree).is_dir()]
