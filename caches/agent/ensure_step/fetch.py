"""Fetching by the pod itself, with the agent's own machinery: the same checks, the same publication, another store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from caches.agent import verify
from caches.agent.capacity import Ledger
from caches.agent.ensure import Ensure, Tools
from caches.agent.ensure_step.options import PodSource
from caches.agent.jobs import Job
from caches.agent.limits import RequestGate, TokenBucket
from caches.agent.marker import Marker
from caches.agent.record import Meter
from caches.agent.store import Store
from caches.agent.tuning import Tuning
from caches.sources import open_source
from caches.sources.selection import manifest_of
from controlplane.clusters.documents import (
    Action,
    ArtifactKind,
    Desired,
    DesiredEntry,
    Limits,
    Manifest,
    NodeCacheStatus,
    Origin,
    Reason,
    SourceType,
)
from controlplane.clusters.gateway import NotFound
from controlplane.errors import Permanent

REQUESTS = 16  # at once: a pod that waits is alone with its node's network
TELL_SECONDS = 2.0


class PodLink:
    """NodeLink of a pod that has no cluster to ask: it knows one manifest and its own credentials."""

    node_name = node_uid = ""

    def __init__(self, manifest: Manifest, secret: Mapping[str, str]) -> None:
        self._manifest, self._secret = manifest, secret

    def manifest(self, digest: str) -> Manifest:
        return self._manifest

    def secret(self, name: str) -> Mapping[str, str]:
        return self._secret

    def event(self, reason: str, message: str) -> None:
        """Nobody listens."""

    def disk(self) -> tuple[int, int] | None:
        return None

    def desired(self) -> Desired | None:
        return None

    def wait(self, known_generation: int, timeout_seconds: float) -> bool:
        return False

    def origin(self, digest: str) -> Origin:
        raise NotFound(digest)

    def report(self, status: NodeCacheStatus) -> None:
        """Nobody reads it."""


def manifest_by_pod(source: PodSource, secret: Mapping[str, str], digest: str) -> Manifest:
    """The manifest as the store itself gives it; Permanent(SourceChanged) when it is not the one that is wanted."""
    manifest = manifest_of(open_source(source.connection, secret), source.uri, source.allow, source.ignore)
    if manifest.digest != digest:
        raise _changed(source, manifest, digest)
    return manifest


def _changed(source: PodSource, manifest: Manifest, digest: str) -> Permanent:
    """A pod knows no more of the version than its digest. The agent, which knows the manifest, compares the bytes of an
    object that was put back without its checksum; a pod would have to fetch everything to find out that it changed."""
    detail, step = f"{source.uri} holds {manifest.digest} now, not {digest}", "Register the version again, or put the"
    bare = [file.path for file in manifest.files if not file.algorithm.is_content]
    if not bare or source.connection.type is not SourceType.S3:
        detail, step = f"{detail}.", f"{step} files back."
    else:
        more = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
        detail = f"{detail}: other bytes, or the same ones without a checksum ({bare[0]}{more})."
        step = f"{step} files back with a CRC64NVME checksum, or let the node's agent fetch it, which can compare them."
    return Permanent("ensure:source:changed", detail, reason=Reason.SOURCE_CHANGED, next_step=step)


def has_begun(store: Store, digest: str) -> bool:
    """Whether anything of it is there. The empty folder that an earlier pod's mount made is nothing."""
    tree = store.tree(digest)
    return store.partial(digest).exists() or (store.is_folder(tree) and bool(os.listdir(tree)))


def whole(store: Store, digest: str) -> Marker | None:
    """The marker of a tree that is published and passes the cheap look; what was touched since is read."""
    with suppress(OSError):
        marker = store.marker(digest)
        if marker is not None:
            found = verify.look(store.tree(digest), marker.files)
            if found.touched and not found.wrong:
                found = verify.read_tree(store.tree(digest), marker, lambda _: None, only=frozenset(found.touched))
            return marker if not found.wrong else None
    return None


def fetch(
    store: Store,
    manifest: Manifest,
    source: PodSource,
    secret: Mapping[str, str],
    *,
    high_watermark: float,
    tell: Callable[[int, int], object],
) -> tuple[Marker, int]:
    """Publish the artifact in this store, whose lock the caller holds; the marker and the bytes that were read.

    Permanent(InsufficientCapacity) before the first byte where it would not fit under the share of the disk.
    """
    digest = manifest.digest
    disk = os.statvfs(store.base)
    tools = _tools(store, manifest, secret, int(disk.f_blocks * disk.f_frsize * high_watermark))
    # The name of a secret is what makes a source ask for credentials at all.
    connection = replace(source.connection, secret_name="pod" if secret else "")
    line = DesiredEntry(
        digest, ArtifactKind.WEIGHTS, Action.ENSURE, connection.name, source.uri, manifest.size_bytes, order=0
    )
    meter = Meter(store.state(digest) / "moved")
    before = meter.total
    work = Ensure(tools, line, connection, meter, repair=os.path.lexists(store.tree(digest)))
    job = Job("fetch", work.run, lambda: None)
    job.start()
    told = time.monotonic()
    while not job.done.wait(0.1):
        if work.download and time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            tell(work.download.board.bytes_done, manifest.size_bytes)
    moved = meter.total - before
    meter.close()
    if job.error is not None:
        raise job.error
    assert job.result is not None
    return job.result, moved


def _tools(store: Store, manifest: Manifest, secret: Mapping[str, str], ceiling: int) -> Tools:
    tuning = Tuning()
    ledger = Ledger(store, lambda: None, tuning)
    ledger.limits = Limits(high_watermark_bytes=ceiling)
    return Tools(
        link=PodLink(manifest, secret),
        store=store,
        ledger=ledger,
        open_source=open_source,
        tuning=tuning,
        gate=RequestGate(REQUESTS),
        bucket=TokenBucket(None),
        scrub_bucket=TokenBucket(None),
        clock=lambda: datetime.now(UTC),
        wake=lambda: None,
    )


def has_agent_store(folder: Path) -> bool:
    """Whether an agent has ever kept its store here: an empty folder that a mount made is none."""
    parts = [folder / name for name in ("weights", "partial", "state")]
    return all(part.is_dir() and not part.is_symlink() for part in parts)
