"""Making one artifact present: manifest, room, bytes, checks, publication. Also the repair of a damaged tree."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from caches.agent import capacity, marker, publish, verify
from caches.agent.capacity import Ledger
from caches.agent.download import Download
from caches.agent.fetch import Lane
from caches.agent.jobs import Commit
from caches.agent.limits import RequestGate, Stopped, TokenBucket
from caches.agent.link import NodeLink
from caches.agent.marker import MarkedFile, Marker
from caches.agent.record import Meter
from caches.agent.store import Store, name_of
from caches.agent.tuning import Tuning
from caches.domain.manifests import case_collisions, manifest_digest, path_problem
from caches.domain.states import NO_MANIFEST
from caches.sources.base import Source
from controlplane.clusters.documents import ConnectionSpec, DesiredEntry, EntryState, FileRecord, Manifest, Reason
from controlplane.clusters.gateway import GatewayError, NotFound
from controlplane.errors import Permanent, Transient

OpenSource = Callable[[ConnectionSpec, Mapping[str, str]], Source]
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class Tools:
    """What every job of one agent shares."""

    link: NodeLink
    store: Store
    ledger: Ledger
    open_source: OpenSource
    tuning: Tuning
    gate: RequestGate
    bucket: TokenBucket
    scrub_bucket: TokenBucket
    clock: Callable[[], datetime]
    wake: Callable[[], None]
    store_buckets: dict[str, TokenBucket] = field(default_factory=dict)  # by connection name
    beat: Callable[[], None] = lambda: None  # called by the loop's thread alone: it comes round

    def store_bucket(self, connection: str) -> TokenBucket:
        """What all reads from one store on this node take from."""
        return self.store_buckets.setdefault(connection, TokenBucket(None))

    def event(self, reason: str, message: str) -> None:
        """A line for people; whoever cannot be told is not waited for."""
        with suppress(GatewayError):
            self.link.event(reason, message)


@dataclass(slots=True)
class Ensure:
    """``run`` returns the marker of the published tree. ``kept`` is given with ``repair``: the files of the tree that
    are known to be right, save for the ``doubtful`` ones, or None when that must be found out first."""

    tools: Tools
    line: DesiredEntry
    connection: ConnectionSpec | None
    meter: Meter
    repair: bool = False
    kept: tuple[MarkedFile, ...] | None = None
    doubtful: frozenset[str] = frozenset()
    phase: EntryState = field(init=False)
    thorough: bool = field(init=False)  # no byte of the tree is taken for right without having been read
    refused: int | None = field(init=False, default=None)  # bytes needed, when there was no room before the first one
    damaged: tuple[str, ...] = field(init=False, default=())
    download: Download | None = field(init=False, default=None)
    dropped: bool = field(init=False, default=False)  # what was fetched is off the disk again
    stopped: threading.Event = field(init=False, default_factory=threading.Event)
    commit: Commit = field(init=False)

    def __post_init__(self) -> None:
        self.phase = EntryState.REPAIRING if self.repair else EntryState.DOWNLOADING
        self.thorough = not self.repair or not self.kept
        self.commit = Commit(self.stopped)

    def run(self) -> Marker:
        """Raises Stopped, Permanent or Transient with a reason; anything else is a bug."""
        try:
            return self._run()
        except OSError as error:
            raise self._disk_problem(error) from error
        except Permanent as error:
            if error.reason == Reason.SOURCE_CHANGED:
                self._drop_partial()
            raise
        finally:
            self.tools.ledger.release(name_of(self.line.digest))

    def _run(self) -> Marker:
        tools, digest = self.tools, self.line.digest
        manifest = self._manifest()
        if self.repair and (self.kept is None or self.doubtful):
            tree, last = tools.store.tree(digest), tools.store.last_marker(digest)
            only = self.doubtful if self.kept is not None else None
            self.kept = (*(self.kept or ()), *verify.recheck(tree, manifest, last, self._tick, only=only))
        kept = {file.path for file in self.kept or ()}
        numbers = tuple(number for number, file in enumerate(manifest.files) if file.path not in kept)
        fresh: tuple[MarkedFile, ...] = ()
        if self.repair:
            self.damaged = tuple(manifest.files[number].path for number in numbers)
            tools.wake()
        if numbers or not self.repair:
            fresh = self._fetch(manifest, numbers)
        self._check_witness((*fresh, *(self.kept or ())))
        if self.repair:
            self._check_repaired((*fresh, *(self.kept or ())))
        if self.repair:
            return publish.republish(tools.store, digest, fresh, self.kept or (), tools.clock(), self.commit)
        return publish.publish(tools.store, digest, fresh, tools.clock(), self.commit)

    def _fetch(self, manifest: Manifest, numbers: tuple[int, ...]) -> tuple[MarkedFile, ...]:
        tools, name = self.tools, name_of(self.line.digest)
        total = sum(manifest.files[number].size_bytes for number in numbers)
        partial = tools.store.partial(self.line.digest)
        if not tools.store.is_folder(partial):
            tools.store.discard(partial)  # a link or a file that somebody put there; what it leads to stays
        with ExitStack() as stack:
            on_disk = min(total, capacity.tree_bytes(partial, allocated=True))
            try:
                claim = tools.ledger.reserve(name, total, on_disk)
            except Permanent:
                self.refused = total - on_disk
                raise
            source = self._source()
            store_bucket = tools.store_bucket(self.line.connection)
            stack.callback(lambda: None if self.download and self.download.alive else source.close())
            manifest = self._bound(source, manifest, numbers)
            lane = Lane(tools.gate, tools.bucket, tools.tuning, self.stopped, store_bucket)
            download = Download(
                reader=source, uri=self.line.uri, manifest=manifest, numbers=numbers, partial=partial,
                journal_path=tools.store.journal(self.line.digest), lane=lane, ledger=tools.ledger, claim=claim,
                meter=self.meter,
            )  # fmt: skip
            self.download = download
            download.fetch()
            if not self.repair:
                self.phase = EntryState.VERIFYING
                tools.wake()
            return download.check()

    def _bound(self, source: Source, manifest: Manifest, numbers: Iterable[int]) -> Manifest:
        """Files that no checksum would prove, each bound to one state from here to the last byte."""
        files = list(manifest.files)
        for number in numbers:
            if self.stopped.is_set():
                raise Stopped
            if not files[number].algorithm.is_content:
                files[number] = source.bind(self.line.uri, files[number])
        return replace(manifest, files=tuple(files))

    def _source(self) -> Source:
        if self.connection is None:
            raise Permanent(
                "agent:hearth:no-connection", f"The node was not told how to reach {self.line.connection!r}.",
                reason=Reason.INVALID_REQUEST,
            )  # fmt: skip
        secret: Mapping[str, str] = {}
        if self.connection.secret_name:
            try:
                secret = self.tools.link.secret(self.connection.secret_name)
            except NotFound as error:
                raise Permanent(
                    "agent:user:no-secret", f"There is no secret {self.connection.secret_name!r} on this node.",
                    reason=Reason.ACCESS_DENIED, next_step="Store the credentials under this name.",
                ) from error  # fmt: skip
            except GatewayError as error:
                raise _unreachable(error) from error
        return self.tools.open_source(self.connection, secret)

    def _manifest(self) -> Manifest:
        """The manifest, proven to be the one that the digest names and safe to write."""
        try:
            manifest = self.tools.link.manifest(self.line.digest)
            found = manifest_digest(manifest.files)
        except NotFound as error:
            raise Transient("agent:hearth:no-manifest", NO_MANIFEST, reason=Reason.INTERNAL) from error
        except GatewayError as error:
            raise _unreachable(error) from error
        except ValueError as error:
            raise _bad_manifest(str(error)) from error
        if found != self.line.digest:
            raise _bad_manifest(f"its files give {found}")
        for file in manifest.files:
            if problem := _file_problem(file):
                raise _bad_manifest(f"{file.path!r}: {problem}")
        if case_collisions(file.path for file in manifest.files):
            raise _bad_manifest("two of its names cannot live side by side")
        return manifest

    def _check_witness(self, files: tuple[MarkedFile, ...]) -> None:
        found = marker.witness_of(files)
        if self.line.witness and found != self.line.witness:
            self._drop_partial()
            raise Permanent(
                "agent:source:witness", f"Other nodes hold other bytes: {self.line.witness}, here {found}.",
                reason=Reason.INTEGRITY_MISMATCH, next_step="Recheck the source, or register the version again.",
            )  # fmt: skip

    def _check_repaired(self, files: tuple[MarkedFile, ...]) -> None:
        """Where no checksum proves a file, the source may give other bytes today than when the tree was published; a
        tree of both would be a mix. What the cluster knows of the bytes outranks what this node had."""
        last = self.tools.store.last_marker(self.line.digest)
        if last is None or self.line.witness or marker.witness_of(files) == last.witness:
            return
        self._drop_partial()
        raise Permanent(
            "agent:source:repair", "The source gives other bytes than those that were published here.",
            reason=Reason.INTEGRITY_MISMATCH, next_step="Evict this copy, or restore the old content at the source.",
        )  # fmt: skip

    def _drop_partial(self) -> None:
        """So that no byte of what was refused can ever be mixed with another attempt."""
        store, digest = self.tools.store, self.line.digest
        self.dropped = True
        store.journal(digest).unlink(missing_ok=True)
        store.discard(store.partial(digest))
        store.empty_trash()

    def _disk_problem(self, error: OSError) -> Permanent | Transient:
        if self.stopped.is_set() and self.download is not None and error.errno == errno.ENOENT:
            return Transient("agent:node:taken-away", "The tree was taken away.", reason=Reason.CANCELED)
        if error.errno in _FULL:
            need = self.download.claim.remaining if self.download else 0
            return capacity.no_room(need, self.tools.ledger.status(fresh=True), self.tools.ledger.limits)
        what = os.strerror(error.errno) if error.errno else str(error)
        return Transient("agent:node:disk", f"The node's disk: {what}.", reason=Reason.NODE_UNAVAILABLE)

    def _tick(self, count: int) -> None:
        if self.stopped.is_set():
            raise Stopped
        self.tools.scrub_bucket.take(count, self.stopped.wait)


def _file_problem(file: FileRecord) -> str | None:
    return "negative size" if file.size_bytes < 0 else path_problem(file.path)


def _bad_manifest(what: str) -> Permanent:
    return Permanent("agent:hearth:manifest", f"The manifest is damaged: {what}.", reason=Reason.INTEGRITY_MISMATCH)


def _unreachable(error: GatewayError) -> Transient:
    return Transient("agent:cluster:unreachable", f"The cluster does not answer: {error}",
                     reason=Reason.NODE_UNAVAILABLE)  # fmt: skip
