"""What rounds of a large pool cost by themselves: rows and plans, with a cluster that answers at once, keeps nothing.

``HEARTH_BENCH_NODES`` changes the size, ``HEARTH_BENCH_PROFILE`` names a folder for profiles. CPU seconds of this
process and SQL statements, because both are the same on a busy machine.
"""

from __future__ import annotations

import cProfile
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection

from caches.models import CacheEntry
from caches.services.loop import pool_reconcile
from controlplane.clusters.documents import EntryState
from controlplane.clusters.gateway import Kind, Listing
from controlplane.clusters.models import ClusterType, Node
from controlplane.clusters.registry import override_gateway
from tests import factories
from tests.services.world import MIB, version_of

pytestmark = [pytest.mark.bench, pytest.mark.django_db]

NODES = int(os.environ.get("HEARTH_BENCH_NODES", "1000"))
ARTIFACTS = 20
PROFILES = os.environ.get("HEARTH_BENCH_PROFILE", "")


class Willing:
    """A cluster that does all that it is told and remembers only the labels."""

    def __init__(self) -> None:
        self.calls = 0
        self.labels: dict[str, dict[str, str]] = {}

    def list(self, kind: Kind, node_name: str = "") -> Listing:
        return Listing((), "1")

    def apply_node_cache(self, spec: Any, *, take_over: bool = False) -> int:
        self.calls += 1
        return 1

    def set_node_labels(self, name: str, uid: str, labels: dict[str, str | None]) -> None:
        self.calls += 1
        had = self.labels.setdefault(uid, {})
        for key, value in labels.items():
            had.pop(key, None)
            if value is not None:
                had[key] = value

    def __getattr__(self, name: str) -> Callable[..., None]:
        def answer(*args: Any, **kwargs: Any) -> None:
            self.calls += 1

        return answer


@pytest.fixture
def fleet(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Willing]]:
    settings.AGENT_IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
    settings.SCHEDULING_LAG_SECONDS = 0.0
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids, countdown=0.0: True)
    cluster, gateway = factories.cluster(type=ClusterType.KUBERNETES), Willing()
    pool = factories.pool(of=cluster, max_downloads=100_000, max_downloads_per_node=64, evict_grace_seconds=0)
    now = datetime.now(UTC)
    Node.objects.bulk_create(
        Node(
            cluster=cluster,
            pool=pool,
            name=f"n-{number:04}",
            uid=f"uid-{number}",
            labels=dict(pool.selector),
            ready=True,
            joined_at=now - timedelta(hours=1),
            observed_at=now,
            reported_at=now,
            capacity_bytes=1000 * MIB,
        )
        for number in range(NODES)
    )
    store = factories.connection(name="fleet-store", type="S3", allowed=["models"])
    for number in range(ARTIFACTS):
        version = version_of(MIB, connection=store, uri=f"s3://models/{number}")
        factories.pin(of=version, pools=(pool,))
    override_gateway(cluster.pk, gateway)  # type: ignore[arg-type]
    yield pool, gateway
    override_gateway(cluster.pk, None)


def test_rounds_of_a_large_pool(fleet: tuple[Any, Willing], capsys: pytest.CaptureFixture[str]) -> None:
    pool, gateway = fleet
    figures: list[str] = []

    def rounds(what: str) -> None:
        with _measured(what, gateway, figures):
            assert pool_reconcile(pool_id=pool.pk) is not None

    rounds("first round")
    rounds("a quiet round while all download")
    _all_ready(pool)
    rounds("second round: ready-labels")
    for node in Node.objects.filter(pool=pool):
        node.labels = node.labels | gateway.labels[node.uid]
        node.save(update_fields=["labels"])
    rounds("a quiet round")
    one = CacheEntry.objects.filter(node__pool=pool).first()
    assert one is not None
    CacheEntry.objects.filter(pk=one.pk).update(state=EntryState.ABSENT)
    rounds("after one change")
    with capsys.disabled():
        print(f"\n{NODES} nodes x {ARTIFACTS} artifacts, rows and plans only")
        for line in figures:
            print(f"  {line}")
    assert CacheEntry.objects.filter(node__pool=pool).count() == NODES * ARTIFACTS


def _all_ready(pool: Any) -> None:
    now = datetime.now(UTC)
    CacheEntry.objects.filter(node__pool=pool).update(
        state=EntryState.READY, bytes_done=MIB, bytes_total=MIB, ready_at=now, verified_at=now, observed_at=now
    )
    Node.objects.filter(pool=pool).update(reported_at=now, observed_at=now)


@contextmanager
def _measured(what: str, gateway: Willing, figures: list[str]) -> Iterator[None]:
    statements: dict[str, int] = {}
    sql_seconds = 0.0

    def count(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        nonlocal sql_seconds
        statements[sql[:60]] = statements.get(sql[:60], 0) + 1
        started = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            sql_seconds += time.perf_counter() - started

    profile = cProfile.Profile(time.process_time) if PROFILES else None
    calls, wall, cpu = gateway.calls, time.perf_counter(), time.process_time()
    with connection.execute_wrapper(count):
        if profile is not None:
            profile.enable()
        yield
        if profile is not None:
            profile.disable()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if profile is not None:
        profile.dump_stats(Path(PROFILES) / f"{what.replace(' ', '-').replace(':', '')}.prof")
    figures.append(
        f"{what:36} {cpu:6.2f} s CPU {wall:6.2f} s {sum(statements.values()):6} statements "
        f"({sql_seconds:.2f} s) {gateway.calls - calls:6} calls"
    )
