"""File operations that cannot be led out of a folder: every component is opened from its parent, never through a link.

Paths are relative POSIX paths as manifests hold them. A link anywhere on the way raises OSError (ELOOP or ENOTDIR).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE_MODE = 0o444
FOLDER_MODE = 0o555
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def folder(root: Path, path: str = "", *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder ``path`` under ``root``; with ``create`` missing folders are made (0700)."""
    current = os.open(root, _FOLDER)
    try:
        for part in [part for part in path.split("/") if part not in ("", ".")]:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=current)
            child = os.open(part, _FOLDER, dir_fd=current)
            os.close(current)
            current = child
        yield current
    finally:
        os.close(current)


def split(path: str) -> tuple[str, str]:
    """("a/b", "c") of "a/b/c"."""
    parent, _, name = path.rpartition("/")
    return parent, name


def open_file(root: Path, path: str, flags: int, *, create: bool = False) -> int:
    """A descriptor of the regular file ``path`` under ``root``. A link, pipe or device raises OSError."""
    parent, name = split(path)
    with folder(root, parent, create=create) as parent_fd:
        fd = os.open(
            name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600,
            dir_fd=parent_fd,
        )  # fmt: skip
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file")
    return fd


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """pwrite until everything is written."""
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def write_atomically(root: Path, path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path`` by a complete and durable file, or leave it as it was."""
    parent, name = split(path)
    fresh = f".hearth-new-{name}"
    with folder(root, parent, create=True) as parent_fd:
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=parent_fd)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent_fd)
        try:
            write_all(fd, memoryview(data), 0)
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        os.fsync(parent_fd)


def fsync_folder(root: Path, path: str = "") -> None:
    with folder(root, path) as fd:
        os.fsync(fd)


def walk(root: Path, path: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Everything below ``path`` (relative path, lstat), a folder before its content; links are listed, not followed."""
    with folder(root, path) as fd, os.scandir(fd) as entries:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    for name, info in sorted(found, key=lambda item: item[0]):
        below = f"{path}/{name}" if path else name
        yield below, info
        if stat.S_ISDIR(info.st_mode):
            yield from walk(root, below)


def seal(root: Path) -> None:
    """Folders below ``root`` read-only and durable. ``root`` itself is left writable, because it is to be renamed."""
    folders = [path for path, info in walk(root) if stat.S_ISDIR(info.st_mode)]
    for path in reversed(folders):
        with folder(root, path) as fd:
            os.fchmod(fd, FOLDER_MODE)
            os.fsync(fd)
    fsync_folder(root)


@contextmanager
def writable(root: Path, path: str = "") -> Iterator[int]:
    """The folder with its owner's write bit for as long as the block runs; made durable and read-only afterwards."""
    with folder(root, path) as fd:
        os.fchmod(fd, 0o755)
        try:
            yield fd
        finally:
            os.fsync(fd)
            os.fchmod(fd, FOLDER_MODE)


def remove_tree(parent: Path, name: str, *, stop: Callable[[], bool] = lambda: False) -> bool:
    """Remove ``name`` (file, link or tree) in ``parent``. False when ``stop`` said so: the rest is still there."""
    with folder(parent) as fd:
        return _remove(fd, name, stop)


def _remove(parent_fd: int, name: str, stop: Callable[[], bool]) -> bool:
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent_fd)
            return True
        fd = os.open(name, _FOLDER, dir_fd=parent_fd)
    except FileNotFoundError:
        return True
    try:
        os.fchmod(fd, 0o700)
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for child in names:
            if stop() or not _remove(fd, child, stop):
                return False
    finally:
        os.close(fd)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent_fd)
    return True
