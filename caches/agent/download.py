"""One artifact (or only its damaged files) from its source into a partial tree: resumable, checked, unpublished."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from caches.agent import safefs
from caches.agent.capacity import Claim, Ledger
from caches.agent.fetch import Lane, Reader, fetch_range
from caches.agent.journal import Journal, Segment, journal_origin, journal_read, journal_write, origin_of
from caches.agent.limits import Stopped
from caches.agent.marker import MarkedFile
from caches.agent.record import Meter
from caches.agent.segments import Board, Piece, pieces_of
from caches.agent.verify import anchor_crc, crc_text, file_crc, stated_checksum
from controlplane.clusters.documents import FileRecord, Manifest, Reason
from controlplane.errors import Permanent


@dataclass(slots=True)
class Download:
    """Call ``run`` once, in a thread of its own; ``lane.stopped`` ends it. The figures may be read at any time."""

    reader: Reader
    uri: str
    manifest: Manifest
    numbers: tuple[int, ...]  # which files of the manifest, by position
    partial: Path
    journal_path: Path
    lane: Lane
    ledger: Ledger
    claim: Claim
    meter: Meter
    board: Board = field(init=False, default_factory=lambda: Board(()))
    threads: list[threading.Thread] = field(init=False, default_factory=list)
    left_to_read_back: set[Segment] = field(init=False, default_factory=set)  # of what an earlier attempt fetched
    _journal: Journal = field(init=False)
    _error: BaseException | None = field(init=False, default=None)
    _error_lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    @property
    def bytes_total(self) -> int:
        return sum(self.manifest.files[number].size_bytes for number in self.numbers)

    @property
    def alive(self) -> bool:
        """A request thread may still write; nobody else may start on this partial tree."""
        return any(thread.is_alive() for thread in self.threads)

    def settle(self, segment: Segment, crc: int) -> None:
        """A journal line needs no sync of its own: it is a claim that is checked on resume, whatever was lost."""
        self._journal.append(segment, crc)
        self.board.settle(segment, crc)

    def fetch(self) -> None:
        """Every byte on disk and in the journal. Raises Stopped, HearthError, OSError; what is done stays done."""
        self.partial.mkdir(mode=0o700, exist_ok=True)
        _open_up(self.partial)
        self._clear_strangers()
        sizes = {number: self.manifest.files[number].size_bytes for number in self.numbers}
        pieces = tuple(pieces_of(sizes, self._claims(), self.lane.tuning.segment_bytes))
        self.left_to_read_back = {piece.segment for piece in pieces if piece.claimed is not None}
        self.board = Board(pieces)
        for number in self.numbers:
            self._make(self.manifest.files[number])
        self._journal = Journal(self.journal_path)
        try:
            self._run_threads()
        finally:
            if not self.alive:
                self._journal.close()

    def _claims(self) -> dict[Segment, int]:
        """What an earlier attempt left, without the bytes of another revision where no checksum would tell a mix."""
        claims, origin = journal_read(self.journal_path), origin_of(self.manifest.files)
        if origin and journal_origin(self.journal_path) != origin:
            proven = {number for number in self.numbers if self.manifest.files[number].algorithm.is_content}
            dropped = [segment for segment in claims if segment.file not in proven]
            self.claim.move(-sum(segment.size_bytes for segment in dropped))
            for segment in dropped:
                del claims[segment]
            journal_write(self.journal_path, claims, origin)
        return claims

    def _run_threads(self) -> None:
        while True:
            wanted = min(self.lane.gate.limit, self.board.open_count)
            running = [thread for thread in self.threads if thread.is_alive()]
            if self.lane.stopped.is_set() or self._error is not None or (not running and not self.board.open_count):
                break
            for number in range(len(running), wanted):
                thread = threading.Thread(target=self._work, name=f"read-{number}", daemon=True)
                self.threads.append(thread)
                thread.start()
            for thread in running[:1]:
                thread.join(0.05)
        if self._error is not None:
            self.lane.stopped.set()
            for thread in self.threads:
                thread.join(self.lane.tuning.stall_seconds)
            raise self._error
        if self.lane.stopped.is_set():
            raise Stopped

    def _work(self) -> None:
        try:
            while not self.lane.stopped.is_set() and (piece := self.board.take()):
                self._settle(piece)
        except Stopped:
            pass
        except BaseException as error:  # carried to the download's own thread
            with self._error_lock:
                self._error = self._error or error
            self.lane.stopped.set()

    def _settle(self, piece: Piece) -> None:
        file, segment = self.manifest.files[piece.segment.file], piece.segment
        fd = safefs.open_file(self.partial, file.path, os.O_RDWR)
        try:
            if piece.claimed is not None:
                is_right = file_crc(fd, segment.start, segment.end, self._tick) == piece.claimed
                self.left_to_read_back.discard(segment)
                if is_right:
                    self.board.settle(segment, piece.claimed)
                    return
                self.claim.move(-segment.size_bytes)
            fetch_range(
                reader=self.reader, uri=self.uri, file=file, start=segment.start, end=segment.end, fd=fd,
                lane=self.lane, progress=_Numbered(self, segment.file), before=self.ledger.check,
            )  # fmt: skip
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _tick(self, count: int) -> None:
        if self.lane.stopped.is_set():
            raise Stopped

    def _make(self, file: FileRecord) -> None:
        fd = safefs.open_file(self.partial, file.path, os.O_RDWR, create=True)
        try:
            if os.fstat(fd).st_size > file.size_bytes:
                os.ftruncate(fd, file.size_bytes)
        finally:
            os.close(fd)

    def _clear_strangers(self) -> None:
        """A partial tree may have been tampered with, or hold the marker of a publication that a crash cut short."""
        wanted = {self.manifest.files[number].path for number in self.numbers}
        parents = {parent for path in wanted for parent in _parents(path)}
        for path, info in list(safefs.walk(self.partial)):
            keep = _is_own(info) if path in wanted else path in parents and stat.S_ISDIR(info.st_mode)
            if not keep:
                parent, name = safefs.split(path)
                with suppress(FileNotFoundError):
                    safefs.remove_tree(self.partial / parent, name)

    def check(self) -> tuple[MarkedFile, ...]:
        """The files as they will be marked. Permanent(IntegrityMismatch) names the first wrong one, whose segments
        are forgotten, so that the next attempt reads it again."""
        self._check_revisions()
        marked, wrong = [], {}
        for number in self.numbers:
            file = self.manifest.files[number]
            crc = crc_text(self.board.crc_of(number))
            fd = safefs.open_file(self.partial, file.path, os.O_RDONLY)
            try:
                problem = self._problem(fd, file, crc)
                if problem:
                    wrong[number] = f"{file.path}: {problem}"
                marked.append(MarkedFile(file.path, file.size_bytes, crc, os.fstat(fd).st_mtime_ns))
            finally:
                os.close(fd)
        if wrong:
            self.forget(frozenset(wrong))
            raise Permanent(
                "agent:source:integrity", f"The bytes are not what was registered. {next(iter(wrong.values()))}",
                reason=Reason.INTEGRITY_MISMATCH,
                next_step="Check the source, then register the version again if it was changed on purpose.",
            )  # fmt: skip
        return tuple(marked)

    def _check_revisions(self) -> None:
        """A store that serves by name may have slipped an overwrite into a stream that was already open. Where no
        checksum would tell, ask once more for the revision: SourceChanged when it is another one now."""
        for number in self.numbers:
            file = self.manifest.files[number]
            if not file.algorithm.is_content and file.size_bytes > self.lane.tuning.recheck_bytes:
                with self.lane.gate.request(self.lane.stopped.is_set):
                    # Not on the meter: it counts what arrives, and this byte has arrived before.
                    for _ in self.reader.read_range(self.uri, file, 0, 1, stall_seconds=self.lane.tuning.stall_seconds):
                        pass

    def _problem(self, fd: int, file: FileRecord, crc: str) -> str:
        size = os.fstat(fd).st_size
        if size != file.size_bytes:
            return f"{size} bytes on disk instead of {file.size_bytes}"
        stated = anchor_crc(file)
        if stated is not None and stated != crc:
            return f"CRC64NVME is {crc}, registered {stated or file.checksum}"
        found = stated_checksum(fd, file, self._tick)
        if found is not None and found != file.checksum.lower():
            return f"{file.algorithm} is {found}, registered {file.checksum}"
        return ""

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop these files' segments from the journal, all others stay."""
        journal_write(self.journal_path, self.board.claims(without=frozenset(numbers)), origin_of(self.manifest.files))


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Progress of one request, which knows its file by number."""

    download: Download
    number: int

    def moved(self, count: int) -> None:
        self.download.meter.add(count)

    def written(self, count: int) -> None:
        self.download.claim.move(count)

    def finished(self, start: int, end: int, crc: int) -> None:
        self.download.settle(Segment(self.number, start, end), crc)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_own(info: os.stat_result) -> bool:
    """A regular file without another name: what is written to a hard link would be written to somebody else's file."""
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def _open_up(root: Path) -> None:
    """Make a sealed partial tree writable again: a crash may have come between sealing and the rename."""
    with safefs.folder(root) as fd:
        os.fchmod(fd, 0o700)
    for path, info in safefs.walk(root):
        if stat.S_ISDIR(info.st_mode):
            with safefs.folder(root, path) as fd:
                os.fchmod(fd, 0o700)
        elif _is_own(info) and not info.st_mode & 0o200:
            fd = safefs.open_file(root, path, os.O_RDONLY)
            os.fchmod(fd, 0o600)
            os.close(fd)
