"""The node's store: everything the agent owns on a node lies under ``<root>/hearth`` and it touches nothing else.

    weights/<name>/…     published trees, read-only, each with its marker
    partial/<name>/…     trees that are being downloaded or repaired
    state/<name>/        record.json, moved, used, journal, marker.json (a second copy of the tree's marker)
    trash/…              trees on their way out; emptied at start and after each eviction
    lock                 held by the one agent that may write

``<name>`` is the digest with ":" replaced by "-".
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from caches.agent import marker as markers
from caches.agent import safefs
from caches.agent.marker import Marker
from controlplane.clusters.documents import Reason
from controlplane.errors import Permanent

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_NAME = re.compile(r"sha256-[0-9a-f]{64}\Z")
_FOLDERS = ("weights", "partial", "state", "trash")


class StoreBusy(Exception):
    """Another agent holds the store."""


def name_of(digest: str) -> str:
    """The folder name of a digest; Permanent(InvalidRequest) for anything that is not a SHA-256 digest."""
    if not _DIGEST.match(digest):
        raise Permanent("agent:user:digest", f"{digest!r} is not a SHA-256 digest.", reason=Reason.INVALID_REQUEST)
    return digest.replace(":", "-")


class Store:
    """Paths and whole-tree steps. Only the thread that runs the loop renames trees."""

    def __init__(self, root: Path) -> None:
        self.base = root / "hearth"

    @classmethod
    def at(cls, folder: Path) -> Store:
        """The store whose own folder this is, under whatever name it is mounted."""
        store = cls(folder.parent)
        store.base = folder
        return store

    def prepare(self) -> None:
        """Make the folders; OSError when one of them is a link or not a folder."""
        for path in (self.base, *(self.base / name for name in _FOLDERS)):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "the store must be a real folder, not a link", str(path))

    @contextmanager
    def lock(self, wait_seconds: float, stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the store alone. Waits, then raises StoreBusy; a dead holder's lock is free at once."""
        fd = os.open(self.base / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + wait_seconds
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if stop() or time.monotonic() >= deadline:
                        raise StoreBusy(f"another agent holds {self.base}") from None
                    time.sleep(0.1)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            yield
        finally:
            os.close(fd)

    def tree(self, digest: str) -> Path:
        return self.base / "weights" / name_of(digest)

    def partial(self, digest: str) -> Path:
        return self.base / "partial" / name_of(digest)

    def state(self, digest: str) -> Path:
        """The artifact's state folder, made when missing."""
        path = self.base / "state" / name_of(digest)
        path.mkdir(mode=0o755, exist_ok=True)
        return path

    def journal(self, digest: str) -> Path:
        return self.state(digest) / "journal"

    def marker(self, digest: str) -> Marker | None:
        """The tree's marker when it is whole and equal to the copy outside the tree, otherwise None."""
        try:
            fd = safefs.open_file(self.tree(digest), markers.NAME, os.O_RDONLY)
            with os.fdopen(fd, "rb") as file:
                data = file.read()
            copy = (self.base / "state" / name_of(digest) / "marker.json").read_bytes()
        except OSError:
            return None
        return markers.marker_decode(data, digest) if data == copy else None

    def last_marker(self, digest: str) -> Marker | None:
        """The copy: what the tree held when it was last whole, also while the tree has no marker."""
        try:
            data = (self.base / "state" / name_of(digest) / "marker.json").read_bytes()
        except OSError:
            return None
        return markers.marker_decode(data, digest)

    def unmark(self, digest: str) -> None:
        """Take the marker away: from now on, also after a crash, the tree exists for nobody until it is whole."""
        with suppress(FileNotFoundError), safefs.writable(self.tree(digest)) as fd:
            os.unlink(markers.NAME, dir_fd=fd)

    def is_folder(self, path: Path) -> bool:
        """A real folder, not a link to one."""
        try:
            return stat.S_ISDIR(path.lstat().st_mode)
        except OSError:
            return False

    def discard(self, path: Path) -> bool:
        """Rename a tree of this store into the trash. False when there is none."""
        if path.parent not in (self.base / "weights", self.base / "partial") or not _NAME.match(path.name):
            raise ValueError(f"{path} is not a tree of this store")
        try:
            info = path.lstat()
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(info.st_mode):
            path.chmod(0o700)  # a folder that changes its parent must be writable itself
        os.rename(path, self.base / "trash" / f"{path.name}.{secrets.token_hex(4)}")
        safefs.fsync_folder(path.parent)
        return True

    def empty_trash(self, stop: Callable[[], bool] = lambda: False) -> None:
        trash = self.base / "trash"
        for name in os.listdir(trash):
            safefs.remove_tree(trash, name, stop=stop)

    def forget(self, digest: str) -> None:
        """Remove what was remembered of an artifact, if anything, after its files are gone."""
        safefs.remove_tree(self.base / "state", name_of(digest))

    def names(self, kind: str) -> list[str]:
        """Folder names under ``weights`` or ``partial``, strangers included."""
        return sorted(os.listdir(self.base / kind))

    def last_used_at(self, digest: str) -> datetime | None:
        """The time of ``state/<name>/used``, which an ensure step touches."""
        try:
            return datetime.fromtimestamp((self.base / "state" / name_of(digest) / "used").stat().st_mtime, UTC)
        except OSError:
            return None

    def touch_used(self, digest: str) -> None:
        (self.state(digest) / "used").touch()
