"""Short words for what contract tests look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controlplane.clusters.documents import (
    Action,
    ArtifactKind,
    CapacityStatus,
    Condition,
    ConnectionSpec,
    DesiredEntry,
    EntryState,
    EntryStatus,
    Limits,
    NodeCacheSpec,
    NodeCacheStatus,
    Orphan,
    SourceType,
)
from controlplane.clusters.gateway import ClusterGateway, EventType, Kind, WatchEvent

DIGEST = "sha256:" + "a1" * 32
OTHER = "sha256:" + "b2" * 32


def spec(name: str, uid: str, *digests: str, **fields: Any) -> NodeCacheSpec:
    """A spec with every field away from its default."""
    lines = tuple(
        DesiredEntry(
            digest=digest,
            kind=ArtifactKind.WEIGHTS,
            action=Action.ENSURE,
            connection="store",
            uri="s3://bucket/prefix",
            size_bytes=2**40 + rank,
            order=rank,
            verify_round=3,
            retry_round=4,
            witness="w",
        )
        for rank, digest in enumerate(digests)
    )
    connection = ConnectionSpec(
        name="store",
        type=SourceType.S3,
        endpoint="http://127.0.0.1:1",
        region="home",
        addressing="virtual",
        ca_bundle="PEM",
        secret_name="key",
        allowed=("bucket",),
    )
    given: dict[str, Any] = {
        "node_name": name,
        "node_uid": uid,
        "pool": "pool-a",
        "desired": lines,
        "connections": (connection,),
        "limits": Limits(3, 9, 10_000, 5_000_000_000, True),
        "status_interval_seconds": 2.5,
        "scrub_interval_seconds": 60.0,
    }
    return NodeCacheSpec(**(given | fields))


def status(name: str, uid: str, *, generation: int = 1, used: int = 5) -> NodeCacheStatus:
    """A status with every field away from its default."""
    now = datetime.now(UTC)
    return NodeCacheStatus(
        node_name=name,
        node_uid=uid,
        observed_generation=generation,
        reported_at=now,
        capacity=CapacityStatus(2**41, used, 7, 11),
        entries=(
            EntryStatus(
                digest=DIGEST,
                state=EntryState.REPAIRING,
                reason="IntegrityMismatch",
                message="möglich “quoted” ✓",
                attempts=2,
                retry_at=now,
                bytes_done=2**33,
                bytes_total=2**34,
                bytes_moved=2**35,
                rate_bytes_per_second=1.5e9,
                eta_seconds=0.25,
                started_at=now,
                ready_at=now,
                verified_at=now,
                last_used_at=now,
                verify_round=1,
                retry_round=2,
                witness="w",
                damaged=("a/b.safetensors",),
            ),
        ),
        orphans=(Orphan("sha256-ff", 9, True),),
        agent_version="1.2.3",
        conditions=(Condition("DiskFull", "False", "Fits", "there is room", now),),
    )


def changes(
    gateway: ClusterGateway,
    kind: Kind,
    token: str,
    seconds: float = 0.0,
    *,
    at_least: int = 0,
    last: EventType | None = None,
) -> list[WatchEvent]:
    """What happened since the token, bookmarks left out.

    A busy API server tells late what it has stored: a look that saw fewer than ``at_least`` changes, or does not end
    with one of type ``last``, is taken again.
    """
    deadline = time.monotonic() + 120.0
    while True:
        told = [event for event in gateway.watch(kind, token, seconds) if event.type is not EventType.BOOKMARK]
        enough = len(told) >= at_least and (last is None or [event.type for event in told[-1:]] == [last])
        if enough or time.monotonic() > deadline:
            return told


def first_change(
    gateway: ClusterGateway, kind: Kind, token: str, wanted: Callable[[WatchEvent], bool], seconds: float = 120.0
) -> WatchEvent:
    """The first change that is wanted, as soon as it is there."""
    for event in gateway.watch(kind, token, seconds):
        if event.object is not None and wanted(event):
            return event
    raise AssertionError(f"no such change of a {kind.value} within {seconds:g} s")
