"""From checked files to a tree that exists: sync, seal, marker last, one rename. And the same for a repaired tree."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from caches.agent import marker as markers
from caches.agent import safefs
from caches.agent.marker import MarkedFile, Marker
from caches.agent.store import Store
from caches.agent.verify import look
from controlplane.clusters.documents import Reason
from controlplane.errors import Transient


def _seal_files(root: Path, files: Iterable[MarkedFile]) -> None:
    for file in files:
        fd = safefs.open_file(root, file.path, os.O_RDONLY)
        try:
            os.fchmod(fd, safefs.FILE_MODE)
            os.fsync(fd)
        finally:
            os.close(fd)


Commit = Callable[[], AbstractContextManager[None]]


def publish(store: Store, digest: str, files: tuple[MarkedFile, ...], now: datetime, commit: Commit) -> Marker:
    """Make the partial tree the tree. A crash at any line leaves either a partial tree or a whole one.

    ``commit()`` is entered around the rename and may raise: an eviction that came first has taken the tree away.
    """
    partial, tree = store.partial(digest), store.tree(digest)
    marker = markers.marker_build(digest, files, now)
    data = markers.marker_encode(marker)
    _seal_files(partial, files)
    safefs.write_atomically(store.state(digest), "marker.json", data)
    safefs.write_atomically(partial, markers.NAME, data, mode=safefs.FILE_MODE)
    safefs.seal(partial)
    with commit():
        os.rename(partial, tree)
    safefs.fsync_folder(tree.parent)
    safefs.fsync_folder(partial.parent)
    with safefs.folder(tree) as fd:
        os.fchmod(fd, safefs.FOLDER_MODE)
    store.journal(digest).unlink(missing_ok=True)
    return marker


def republish(
    store: Store, digest: str, fresh: tuple[MarkedFile, ...], kept: Iterable[MarkedFile], now: datetime, commit: Commit
) -> Marker:
    """Swap freshly read files into a damaged tree, sweep out what does not belong there, and mark it anew.

    The tree has no marker while this runs (Store.unmark), so a crash leaves a tree that exists for nobody.
    """
    tree, partial = store.tree(digest), store.partial(digest)
    kept = tuple(kept)
    wanted = (*fresh, *kept)
    _seal_files(partial, fresh)
    with commit():
        for path in look(tree, wanted).strange:
            _sweep(store, tree, path)
        for file in fresh:
            _swap(partial, tree, file.path)
        for path in look(tree, wanted).modes:
            _mend_mode(tree, path)
        checked = [_as_it_was(tree, file) for file in kept]
        marker = markers.marker_build(digest, [*(_as_it_is(tree, file) for file in fresh), *checked], now)
        _mark(store, marker)
        store.discard(partial)
        store.journal(digest).unlink(missing_ok=True)
    return marker


def remark(store: Store, marker: Marker, times: Iterable[tuple[str, int]]) -> Marker:
    """Files that were touched, and read since and found right, are touched no more: the marker has their new mtimes."""
    fresh = replace(marker, files=markers.marked_at(marker.files, times))
    _mark(store, fresh)
    return fresh


def _mark(store: Store, marker: Marker) -> None:
    """A crash between the two leaves a tree that exists for nobody until it was read."""
    tree, data = store.tree(marker.digest), markers.marker_encode(marker)
    safefs.write_atomically(store.state(marker.digest), "marker.json", data)
    with safefs.writable(tree):
        safefs.write_atomically(tree, markers.NAME, data, mode=safefs.FILE_MODE)


def _as_it_was(tree: Path, file: MarkedFile) -> MarkedFile:
    """A file that is kept is the one that was looked at: whoever wrote to it since wrote what nobody has read."""
    if _as_it_is(tree, file) != file:
        raise Transient(
            "agent:node:touched", f"{file.path} was written to while the tree was repaired.",
            reason=Reason.NODE_UNAVAILABLE,
        )  # fmt: skip
    return file


def _as_it_is(tree: Path, file: MarkedFile) -> MarkedFile:
    fd = safefs.open_file(tree, file.path, os.O_RDONLY)
    try:
        return replace(file, mtime_ns=os.fstat(fd).st_mtime_ns)
    finally:
        os.close(fd)


def _sweep(store: Store, tree: Path, path: str) -> None:
    parent, name = safefs.split(path)
    with suppress(FileNotFoundError, NotADirectoryError), safefs.writable(tree, parent) as fd:
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            with safefs.folder(tree, path) as strange:
                os.fchmod(strange, 0o700)
        os.rename(name, store.base / "trash" / f"stranger.{secrets.token_hex(8)}", src_dir_fd=fd)


def _swap(partial: Path, tree: Path, path: str) -> None:
    parent, name = safefs.split(path)
    at = ""
    for part in [part for part in parent.split("/") if part]:
        with safefs.writable(tree, at) as fd, suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=fd)
        at = f"{at}/{part}" if at else part
    with safefs.folder(partial, parent) as source, safefs.writable(tree, parent) as target:
        os.replace(name, name, src_dir_fd=source, dst_dir_fd=target)


def _mend_mode(tree: Path, path: str) -> None:
    with suppress(NotADirectoryError), safefs.folder(tree, path) as fd:
        os.fchmod(fd, safefs.FOLDER_MODE)
        return
    fd = safefs.open_file(tree, path, os.O_RDONLY)
    try:
        os.fchmod(fd, safefs.FILE_MODE)
    finally:
        os.close(fd)
