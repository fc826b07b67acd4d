"""A folder as a source: an FSx mount, a network share, a disk. It states no checksums, so nothing in it is anchored.

Symlinks to files are followed while they stay inside the connection's root (snapshot folders that link to blobs);
links that leave it, linked folders and everything that is no regular file are refused.

A file is what was registered while its size, modification time and inode are the same. The change time is no part of
that: a change of mode or owner, a hard link or a snapshot moves it too. It only binds the reads of one download, so
that a file which is written over with its modification time restored is never published as a mix of both.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from caches.domain.manifests import path_problem
from caches.sources import allowed, problems
from caches.sources.base import CHUNK_BYTES, PAGE_SIZE, STALL_SECONDS, Chunk, ListedFile, Page, Resolved, Terms
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord, Reason
from controlplane.errors import Permanent

_GONE = {errno.ENOENT, errno.ENOTDIR}
_DENIED = {errno.EACCES, errno.EPERM}
_LINK_LOOP = {errno.ELOOP}


class FilesystemSource:
    """See base.Source. A hung mount blocks the calling thread: the kernel offers no timeout for it."""

    def __init__(self, spec: ConnectionSpec) -> None:
        self.spec = spec

    def probe(self) -> None:
        for root in self.spec.allowed:
            self.list_page(f"file://{root}", page_size=1)

    def resolve(self, uri: str) -> Resolved:
        """A folder has no revision: every file carries its own."""
        allowed.folder_of(uri, self.spec)
        return Resolved(uri)

    def terms(self, uri: str) -> Terms | None:
        return None

    def check(self, uri: str) -> None:
        folder, root = allowed.folder_of(uri, self.spec)
        with _errors(uri, gone=problems.empty_place(uri)):
            first = next(_walk(folder, root, ""), None)
            if first is None:
                raise problems.empty_place(uri)
            try:
                with _opened(folder, root, first.path):
                    pass
            except Permanent as error:
                # Whether an unsafe file matters depends on the patterns of whoever registers.
                if error.reason != Reason.INVALID_REQUEST:
                    raise

    def list_page(self, uri: str, token: str = "", page_size: int = PAGE_SIZE) -> Page:
        folder, root = allowed.folder_of(uri, self.spec)
        files: list[ListedFile] = []
        with _errors(uri, gone=problems.empty_place(uri)):
            for file in _walk(folder, root, _after(token)):
                if len(files) == page_size:
                    return Page(tuple(files), _token(files[-1].path))
                files.append(file)
        return Page(tuple(files))

    def describe(self, uri: str, path: str) -> FileRecord:
        folder, root = allowed.folder_of(uri, self.spec)
        with _errors(path, gone=problems.changed(path, "It is no longer there.")), _opened(folder, root, path) as file:
            facts = os.fstat(file)
        scope = f"{self.spec.name}:{folder}"
        return FileRecord(path, facts.st_size, Algorithm.STAT, _identity(facts), _identity(facts), scope=scope)

    def bind(self, uri: str, file: FileRecord) -> FileRecord:
        folder, root = allowed.folder_of(uri, self.spec)
        with (
            _errors(file.path, gone=problems.changed(file.path, "It is no longer there.")),
            _opened(folder, root, file.path) as handle,
        ):
            return replace(file, revision=_state(handle, file))

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = STALL_SECONDS
    ) -> Iterator[Chunk]:
        folder, root = allowed.folder_of(uri, self.spec)
        with (
            _errors(file.path, gone=problems.changed(file.path, "It is no longer there.")),
            _opened(folder, root, file.path) as handle,
        ):
            state = _state(handle, file, file.revision)
            buffer = memoryview(bytearray(min(CHUNK_BYTES, max(1, end - start))))
            while start < end:
                count = os.preadv(handle, [buffer[: end - start]], start)
                if count == 0:
                    raise problems.changed(file.path, "It became shorter.")
                # Before the chunk is handed over: what was read may be half of an overwrite.
                _state(handle, file, state)
                start += count
                yield buffer[:count]

    def read_head(self, uri: str, file: FileRecord, length: int) -> bytes:
        return b"".join(bytes(chunk) for chunk in self.read_range(uri, file, 0, min(length, file.size_bytes)))

    def close(self) -> None:
        """Nothing is kept open."""


def _token(path: str) -> str:
    """Names need not be text on a filesystem, tokens must be."""
    return base64.urlsafe_b64encode(os.fsencode(path)).decode("ascii")


def _after(token: str) -> str:
    return os.fsdecode(base64.urlsafe_b64decode(token))


def _walk(folder: Path, root: Path, after: str) -> Iterator[ListedFile]:
    """Files in the order of their path's parts, beginning after the path ``after``; cost follows what is left."""
    skip = tuple(after.split("/")) if after else ()
    yield from _walk_folder(folder, root, folder, (), skip)


def _walk_folder(
    folder: Path, root: Path, base: Path, parts: tuple[str, ...], skip: tuple[str, ...]
) -> Iterator[ListedFile]:
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if skip and entry.name < skip[0]:
            continue
        inner = skip[1:] if skip and entry.name == skip[0] else ()
        here = (*parts, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_folder(folder / entry.name, root, base, here, inner)
        elif not (skip and entry.name == skip[0]):
            yield _listed(entry, "/".join(here), base, root)


def _listed(entry: os.DirEntry[str], path: str, base: Path, root: Path) -> ListedFile:
    """Unsafe entries are named too: they are refused when they are opened, and not when a pattern leaves them out."""
    facts = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        real = Path(os.path.realpath(base / path))
        if real.is_relative_to(root):
            with suppress(OSError):
                facts = os.stat(real)
    return ListedFile(path, facts.st_size, _identity(facts))


def _inside(path: Path, root: Path, shown: str) -> Path:
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        raise problems.unsafe_file(shown, "it is a link that leads outside the connection's root.")
    return real


@contextmanager
def _opened(folder: Path, root: Path, path: str) -> Iterator[int]:
    if problem := path_problem(path):
        raise problems.unsafe_file(path, problem)
    real = _inside(folder / path, root, path)
    # NONBLOCK: a named pipe put there meanwhile must not hang the thread before it is recognised.
    handle = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise problems.unsafe_file(path, "it is not a regular file.")
        link = f"/proc/self/fd/{handle}"
        if os.path.exists(link):
            # A folder on the way may have become a link between the look and the opening.
            _inside(Path(link), root, path)
        yield handle
    finally:
        os.close(handle)


def _identity(facts: os.stat_result) -> str:
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}"


def _state(handle: int, file: FileRecord, bound: str = "") -> str:
    """What an open file is now: its identity and its change time, which nobody can set back. SourceChanged when it is
    not the registered one, Transient when it is no longer in the state ``bound``."""
    facts = os.fstat(handle)
    identity = _identity(facts)
    # Older registrations hold a change time too. Without a name it was deleted or replaced.
    if not facts.st_nlink or not f"{file.revision}-".startswith(f"{identity}-"):
        raise problems.changed(file.path)
    state = f"{identity}-{facts.st_ctime_ns}"
    if bound not in ("", identity, state):
        raise problems.touched(file.path)
    return state


@contextmanager
def _errors(place: str, *, gone: Exception) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _GONE:
            raise gone from error
        if error.errno in _DENIED:
            raise problems.access_denied(place, "the process may not read it.") from error
        if error.errno in _LINK_LOOP:
            raise problems.unsafe_file(place, "it is a link that leads nowhere.") from error
        raise problems.unavailable(place, os.strerror(error.errno or errno.EIO)) from error
