"""A node for tests: an in-memory link, a real store on disk, a real filesystem source whose reads can be disturbed."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from caches.agent.runner import Runner
from caches.agent.store import Store
from caches.agent.tuning import Tuning
from caches.domain.manifests import manifest_build
from caches.sources.base import Chunk
from caches.sources.checksums import crc64nvme, crc64nvme_text
from caches.sources.filesystem import FilesystemSource
from controlplane.clusters.documents import (
    Action,
    Algorithm,
    ArtifactKind,
    ConnectionSpec,
    Desired,
    DesiredEntry,
    EntryState,
    EntryStatus,
    FileRecord,
    Limits,
    Manifest,
    NodeCacheSpec,
    NodeCacheStatus,
    Origin,
    SourceType,
)
from controlplane.clusters.gateway import Conflict, NotFound, Unreachable

KIB = 1024
FAST = Tuning(
    segment_bytes=64 * KIB,
    write_bytes=16 * KIB,
    stall_seconds=0.3,
    range_attempts=3,
    range_pause_seconds=0.01,
    transient_first_seconds=0.05,
    permanent_first_seconds=0.3,
    disk_cache_seconds=0.0,
    lock_wait_seconds=0.3,
    desired_wait_seconds=0.2,
    unassigned_interval_seconds=0.2,
)


class MemoryLink:
    """NodeLink over plain attributes; ``changed`` is notified of every report."""

    def __init__(self, uid: str = "uid-1") -> None:
        self.node_name, self.node_uid = "node-1", uid
        self.changed = threading.Condition()
        self.current: Desired | None = None
        self.manifests: dict[str, Manifest] = {}
        self.origins: dict[str, Origin] = {}
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.reports: list[NodeCacheStatus] = []
        self.events: list[tuple[str, str]] = []
        self.quota: tuple[int, int] | None = (1 << 40, 0)
        self.reachable = True
        self.replaced = False

    def _ask(self) -> None:
        if not self.reachable:
            raise Unreachable("unplugged")

    def desired(self) -> Desired | None:
        self._ask()
        return self.current

    def wait(self, known_generation: int, timeout_seconds: float) -> bool:
        self._ask()
        with self.changed:
            return self.changed.wait_for(
                lambda: self.current is not None and self.current.generation != known_generation, timeout_seconds
            )

    def manifest(self, digest: str) -> Manifest:
        self._ask()
        if digest not in self.manifests:
            raise NotFound(digest)
        return self.manifests[digest]

    def origin(self, digest: str) -> Origin:
        self._ask()
        if digest not in self.origins:
            raise NotFound(digest)
        return self.origins[digest]

    def secret(self, name: str) -> Mapping[str, str]:
        if name not in self.secrets:
            raise NotFound(name)
        return self.secrets[name]

    def report(self, status: NodeCacheStatus) -> None:
        self._ask()
        if self.replaced:
            raise Conflict("another incarnation")
        with self.changed:
            self.reports.append(status)
            self.changed.notify_all()

    def event(self, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def disk(self) -> tuple[int, int] | None:
        self._ask()
        return self.quota


class DisturbedSource(FilesystemSource):
    """The real source; ``before(file, position)`` is called ahead of every chunk and may block or raise."""

    chunk_bytes = 16 * KIB

    def __init__(self, spec: ConnectionSpec, world: World) -> None:
        super().__init__(spec)
        self._world = world

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = 30.0
    ) -> Iterator[Chunk]:
        self._world.requests.append((file.path, start, end))
        for chunk in super().read_range(uri, file, start, end, stall_seconds=stall_seconds):
            for offset in range(0, len(chunk), self.chunk_bytes):
                self._world.before(file, start + offset)
                part = chunk[offset : offset + self.chunk_bytes]
                yield part
            start += len(chunk)


@dataclass
class World:
    """Use as a context manager: the agent's loop runs in a thread until the end of the block."""

    tmp_path: Path
    tuning: Tuning = FAST
    limits: Limits = field(default_factory=Limits)
    link: MemoryLink = field(default_factory=MemoryLink)
    before: Callable[[FileRecord, int], None] = field(default=lambda file, position: None)
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    lines: dict[str, DesiredEntry] = field(default_factory=dict)
    scrub_interval_seconds: float = 86400.0
    status_interval_seconds: float = 0.2
    error: BaseException | None = None
    connections: tuple[ConnectionSpec, ...] = ()
    secrets_used: list[Mapping[str, str]] = field(default_factory=list)
    beat: Callable[[], None] = lambda: None
    _generation: int = 0

    def __post_init__(self) -> None:
        self.origin = self.tmp_path / "origin"
        self.origin.mkdir(exist_ok=True)
        self.root = self.tmp_path / "node"
        self.store = Store(self.root)
        self.connections = self.connections or (
            ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(self.origin),)),
        )

    def open_source(self, connection: ConnectionSpec, secret: Mapping[str, str]) -> Any:
        self.secrets_used.append(secret)
        return DisturbedSource(connection, self)

    def model(
        self, name: str, files: Mapping[str, bytes], algorithm: Algorithm = Algorithm.CRC64NVME, *, order: int = 0
    ) -> str:
        """Write the files to the source, publish their manifest and ask for them; the digest."""
        digest = self.register(name, files, algorithm)
        self.want(digest, name, order=order)
        return digest

    def register(self, name: str, files: Mapping[str, bytes], algorithm: Algorithm = Algorithm.CRC64NVME) -> str:
        source = FilesystemSource(self.connections[0])
        records = []
        for path, data in files.items():
            target = self.origin / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            record = source.describe(self.uri(name), path)
            if algorithm is Algorithm.CRC64NVME:
                record = replace(record, algorithm=algorithm, checksum=crc64nvme_text(crc64nvme(data)), scope="")
            elif algorithm is Algorithm.SHA256:
                record = replace(record, algorithm=algorithm, checksum=hashlib.sha256(data).hexdigest(), scope="")
            records.append(record)
        manifest = manifest_build(records)
        self.link.manifests[manifest.digest] = manifest
        return manifest.digest

    def restate(self, digest: str, name: str) -> None:
        """Publish the manifest anew with the revisions that the files have now; its digest does not cover them."""
        source, known = FilesystemSource(self.connections[0]), self.link.manifests[digest]
        files = tuple(
            replace(file, revision=source.describe(self.uri(name), file.path).revision) for file in known.files
        )
        self.link.manifests[digest] = replace(known, files=files)

    def uri(self, name: str) -> str:
        return (self.origin / name).as_uri()

    def want(self, digest: str, name: str = "", *, send: bool = True, **changes: Any) -> None:
        """Add or change the line of a digest and send the spec."""
        line = self.lines.get(digest) or DesiredEntry(
            digest=digest, kind=ArtifactKind.WEIGHTS, action=Action.ENSURE, connection="disk", uri=self.uri(name),
            size_bytes=self.link.manifests[digest].size_bytes, order=0,
        )  # fmt: skip
        self.lines[digest] = replace(line, **changes)
        if send:
            self.send()

    def unwant(self, digest: str) -> None:
        del self.lines[digest]
        self.send()

    def send(self) -> None:
        self._generation += 1
        spec = NodeCacheSpec(
            node_name="node-1", node_uid=self.link.node_uid, pool="pool", desired=tuple(self.lines.values()),
            connections=self.connections, limits=self.limits, status_interval_seconds=self.status_interval_seconds,
            scrub_interval_seconds=self.scrub_interval_seconds,
        )  # fmt: skip
        with self.link.changed:
            self.link.current = Desired(self._generation, spec)
            self.link.changed.notify_all()

    def start(self) -> Self:
        self.runner = Runner(
            link=self.link, store=self.store, open_source=self.open_source, tuning=self.tuning, beat=self.beat
        )
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        return self

    __enter__ = start

    def _main(self) -> None:
        try:
            self.runner.run()
        except BaseException as error:
            self.error = error

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def entry(self, digest: str) -> EntryStatus | None:
        """As last reported."""
        entries = self.link.reports[-1].entries if self.link.reports else ()
        return next((entry for entry in entries if entry.digest == digest), None)

    def until(self, condition: Callable[[], Any], what: str = "", seconds: float = 60.0) -> Any:
        """Wait until a report (or 20 ms) makes the condition true; its value."""
        deadline = time.monotonic() + seconds
        while True:
            if value := condition():
                return value
            assert time.monotonic() < deadline, f"never: {what}; last report {self.link.reports[-1:]}"
            with self.link.changed:
                self.link.changed.wait(0.02)

    def heard(self) -> None:
        """Wait until the last spec that was sent is acknowledged in a report."""
        self.until(lambda: self.link.reports and self.link.reports[-1].observed_generation == self._generation)

    def quiet(self, seconds: float) -> None:
        """Let time pass in which nothing is expected to be reported."""
        with self.link.changed:
            self.link.changed.wait(seconds)

    def becomes(self, digest: str, state: EntryState, **fields: Any) -> EntryStatus:
        """Wait until the entry is reported in this state with these field values."""

        def right() -> EntryStatus | None:
            entry = self.entry(digest)
            if entry is None or entry.state is not state:
                return None
            return entry if all(getattr(entry, name) == value for name, value in fields.items()) else None

        entry: EntryStatus = self.until(right, f"{digest} {state} {fields}")
        return entry

    def states(self, digest: str) -> list[EntryState]:
        """Every state reported of the entry, repeats left out."""
        found: list[EntryState] = []
        for report in self.link.reports:
            for entry in report.entries:
                if entry.digest == digest and found[-1:] != [entry.state]:
                    found.append(entry.state)
        return found

    def tree(self, digest: str) -> Path:
        return self.store.tree(digest)

    def content(self, digest: str) -> dict[str, bytes]:
        """What the published tree holds, without the marker."""
        tree = self.tree(digest)
        files = [path for path in tree.rglob("*") if path.is_file() and path.name != ".hearth-marker.json"]
        return {path.relative_to(tree).as_posix(): path.read_bytes() for path in files}


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def now() -> datetime:
    return datetime.now(UTC)
