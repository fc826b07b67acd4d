"""The folders that are nodes' disks: a new incarnation gets an empty one, a removed node's goes with all it held."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from controlplane.clusters.local.nodes import node_folder, valid_name


def disk_prepare(fleet: Path, name: str, uid: str) -> Path:
    """The disk of this incarnation; another one's is wiped first. Only while no agent runs on it."""
    folder, owner = node_folder(fleet, name), _owner_file(fleet, name)
    if not folder.is_dir() or _owner(owner) != uid:
        _wipe(fleet, folder)
        folder.mkdir(parents=True, mode=0o700)
        owner.write_text(uid)
    return folder


def disk_bytes(fleet: Path, name: str, uid: str) -> int:
    """Bytes that the files of this incarnation's disk take; a hole in a sparse file takes none."""
    if _owner(_owner_file(fleet, name)) != uid:
        return 0  # it is wiped before this incarnation starts
    total = 0
    for parent, _, files in os.walk(node_folder(fleet, name)):
        for file in files:
            with suppress(FileNotFoundError):  # its agent is at work meanwhile
                info = os.lstat(os.path.join(parent, file))
                total += min(info.st_size, info.st_blocks * 512)
    return total


def disks_sweep(fleet: Path, keep: Collection[str]) -> list[str]:
    """Wipe the disks of nodes that are neither known nor running, and what earlier wipes left; the wiped names."""
    _remove(fleet / "trash")
    root = fleet / "nodes"
    gone = [
        path for path in (root.iterdir() if root.is_dir() else ()) if valid_name(path.name) and path.name not in keep
    ]
    for path in gone:
        _wipe(fleet, path)
        _owner_file(fleet, path.name).unlink(missing_ok=True)
    return [path.name for path in gone]


def _owner_file(fleet: Path, name: str) -> Path:
    return fleet / "nodes" / f".{name}.uid"


def _owner(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _wipe(fleet: Path, folder: Path) -> None:
    if folder.is_symlink():  # somebody's shortcut: what it points to is not ours to remove
        folder.unlink()
    elif folder.exists():
        trash = fleet / "trash"
        trash.mkdir(exist_ok=True)
        # First out of the way in one step, so that a crash in the middle leaves no half-empty disk in use.
        moved = folder.rename(trash / secrets.token_hex(8))
        _remove(moved)


def _remove(tree: Path) -> None:
    """Published trees are read-only, so every folder is opened up first. What fails is left for the next sweep."""
    if tree.is_dir():
        tree.chmod(stat.S_IRWXU)
    for parent, folders, _ in os.walk(tree):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(tree, ignore_errors=True)
