"""Is a tree on disk what it should be? The cheap look (names, kinds, sizes, modes) and the deep one (every byte)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from caches.agent import marker as markers
from caches.agent import safefs
from caches.agent.marker import MarkedFile, Marker
from caches.agent.tuning import MIB
from caches.sources.checksums import crc64nvme, crc64nvme_value
from controlplane.clusters.documents import Algorithm, FileRecord, Manifest

Tick = Callable[[int], None]
_WRITABLE = 0o222


@dataclass(frozen=True, slots=True)
class Findings:
    """Relative paths in order. ``damaged`` need their bytes again, ``strange`` do not belong, ``modes`` are only
    writable where they must not be, ``touched`` have another mtime than when they were published: nobody knows what
    they hold until they are read. ``intact`` are those that were, and were right, each with the mtime that it had.
    ``folders`` are the folders of the tree, strange ones too; its own is "."."""

    damaged: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    folders: frozenset[str] = frozenset()
    intact: tuple[tuple[str, int], ...] = ()

    @property
    def doubtful(self) -> frozenset[str]:
        """Files of which nobody can say whether they are right."""
        return frozenset(self.touched) - {path for path, _ in self.intact} - {*self.damaged, *self.strange}

    @property
    def wrong(self) -> tuple[str, ...]:
        """The files, for people; a folder, with a slash at its end, only where no file is wrong."""
        found = {*self.damaged, *self.strange, *self.modes}
        return tuple(sorted(found - self.folders or {f"{path}/" for path in found}))


def file_crc(fd: int, start: int, end: int, tick: Tick, read_bytes: int = MIB) -> int | None:
    """CRC64NVME of [start, end) as it is on disk now; None when the file ends before. ``tick`` paces and may stop."""
    crc, at = 0, start
    while at < end:
        data = os.pread(fd, min(read_bytes, end - at), at)
        if not data:
            return None
        tick(len(data))
        crc, at = crc64nvme(data, crc), at + len(data)
    return crc


def file_sha256(fd: int, tick: Tick, read_bytes: int = MIB) -> str:
    """Hex SHA-256 of the whole file as it is on disk now."""
    digest, at = hashlib.sha256(), 0
    while data := os.pread(fd, read_bytes, at):
        tick(len(data))
        digest.update(data)
        at += len(data)
    return digest.hexdigest()


def file_git_sha1(fd: int, size_bytes: int, tick: Tick, read_bytes: int = MIB) -> str:
    """Hex id that git gives a blob of this content, as it is on disk now."""
    digest, at = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False), 0
    while data := os.pread(fd, read_bytes, at):
        tick(len(data))
        digest.update(data)
        at += len(data)
    return digest.hexdigest()


def stated_checksum(fd: int, record: FileRecord, tick: Tick) -> str | None:
    """What the bytes on disk give in the algorithm of the record's anchor, as the anchor is written; None where it is
    no checksum that is computed over the whole file at once."""
    if record.algorithm is Algorithm.SHA256:
        return file_sha256(fd, tick)
    if record.algorithm is Algorithm.GIT:
        return file_git_sha1(fd, record.size_bytes, tick)
    return None


def crc_text(crc: int) -> str:
    return f"{crc:016x}"


def anchor_crc(record: FileRecord) -> str | None:
    """The 16 hex digits that the source stated, None where the anchor is no CRC64NVME; "" when it cannot be read."""
    if record.algorithm is not Algorithm.CRC64NVME:
        return None
    try:
        return crc_text(crc64nvme_value(record.checksum))
    except ValueError:
        return ""


def look(tree: Path, files: Iterable[MarkedFile]) -> Findings:
    """The cheap look: one lstat for each name. Raises FileNotFoundError when the tree itself is gone."""
    wanted = {file.path: file for file in files}
    parents = {path[: path.index("/", at)] for path in wanted for at in _slashes(path)}
    damaged, strange, modes, touched, folders = set(wanted), [], [], [], {"."}
    if tree.lstat().st_mode & _WRITABLE:
        modes.append(".")
    for path, info in safefs.walk(tree):
        if path == markers.NAME:
            continue
        file = wanted.get(path)
        if stat.S_ISDIR(info.st_mode):
            folders.add(path)
        if file is None:
            if path not in parents or not stat.S_ISDIR(info.st_mode):
                strange.append(path)
            elif info.st_mode & _WRITABLE:
                modes.append(path)
            continue
        if not stat.S_ISREG(info.st_mode):
            strange.append(path)
            continue
        if info.st_size == file.size_bytes:
            damaged.discard(path)
        if info.st_mode & _WRITABLE:
            modes.append(path)
        if info.st_mtime_ns != file.mtime_ns:
            touched.append(path)
    return Findings(tuple(sorted(damaged)), tuple(strange), tuple(modes), tuple(touched), frozenset(folders - damaged))


def _slashes(path: str) -> list[int]:
    return [at for at, character in enumerate(path) if character == "/"]


def read_tree(tree: Path, marker: Marker, tick: Tick, *, only: frozenset[str] | None = None) -> Findings:
    """The deep look: the cheap one, and the CRC64NVME of every file (or of ``only`` those) as it is on disk now."""
    cheap = look(tree, marker.files)
    damaged, intact = set(cheap.damaged), []
    for file in marker.files:
        if file.path in damaged or (only is not None and file.path not in only):
            continue
        try:
            fd = safefs.open_file(tree, file.path, os.O_RDONLY)
        except OSError:
            damaged.add(file.path)
            continue
        try:
            before = os.fstat(fd).st_mtime_ns
            crc = file_crc(fd, 0, file.size_bytes, tick)
            unchanged = os.fstat(fd).st_mtime_ns == before
        except OSError:
            damaged.add(file.path)  # an unreadable sector is damage, not a fault of the agent
        else:
            if crc is None or crc_text(crc) != file.crc64nvme:
                damaged.add(file.path)
            elif unchanged and file.path in cheap.touched:
                intact.append((file.path, before))
        finally:
            os.close(fd)
    return replace(cheap, damaged=tuple(sorted(damaged)), intact=tuple(intact))


def recheck(
    tree: Path, manifest: Manifest, last: Marker | None, tick: Tick, *, only: frozenset[str] | None = None
) -> tuple[MarkedFile, ...]:
    """The files of a tree without a sound marker (or of ``only`` those) that are provably right: by the source's
    checksum, or, where the source stated none, by what was marked when the tree was last whole. All others must be
    fetched again."""
    marked = {file.path: file for file in last.files} if last else {}
    right = []
    for record in manifest.files:
        known = marked.get(record.path)
        if only is not None and record.path not in only:
            continue
        if known is None and not record.algorithm.is_content:
            continue
        try:
            fd = safefs.open_file(tree, record.path, os.O_RDONLY)
        except OSError:
            continue
        try:
            info = os.fstat(fd)
            crc = file_crc(fd, 0, record.size_bytes, tick) if info.st_size == record.size_bytes else None
            if crc is not None and _proven(fd, record, known, crc_text(crc), tick):
                right.append(MarkedFile(record.path, record.size_bytes, crc_text(crc), info.st_mtime_ns))
        except OSError:
            continue
        finally:
            os.close(fd)
    return tuple(right)


def _proven(fd: int, record: FileRecord, known: MarkedFile | None, crc: str, tick: Tick) -> bool:
    stated = anchor_crc(record)
    if stated is not None:
        return stated == crc
    whole = stated_checksum(fd, record, tick)
    if whole is not None:
        return whole == record.checksum.lower()
    return known is not None and known.crc64nvme == crc
