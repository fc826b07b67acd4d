"""What rounds of a large pool cost by themselves: rows and plans, with a cluster that answers at once, keeps nothing.

``HEARTH_BENCH_NODES`` changes the size, ``HEARTH_BENCH_PROFILE`` names a folder for profiles. CPU seconds of this
process and SQL statements, because both are the same on a busy machine.
"""

from __future__ import annotations

import cProfile
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection

from caches.models import CacheEntry
from caches.services.loop.rounds import pool_reconcile
from controlplane.clusters.documents import EntryState
from tests.services.willing import Willing, all_ready, willing_pool

pytestmark = [pytest.mark.bench, pytest.mark.django_db]

NODES = int(os.environ.get("HEARTH_BENCH_NODES", "1000"))
ARTIFACTS = 20
PROFILES = os.environ.get("HEARTH_BENCH_PROFILE", "")


def test_rounds_of_a_large_pool(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.AGENT_IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
    monkeypatch.setattr("caches.services.loop.rounds.publish", lambda task, *ids, countdown=0.0: True)
    figures: list[str] = []
    with willing_pool(NODES, ARTIFACTS) as (pool, gateway):

        def rounds(what: str) -> None:
            with _measured(what, gateway, figures):
                assert pool_reconcile(pool_id=pool.pk) is not None

        rounds("first round")
        rounds("a quiet round while all download")
        all_ready(pool)
        rounds("second round: ready-labels")
        rounds("a quiet round")
        one = CacheEntry.objects.filter(node__pool=pool).first()
        assert one is not None
        CacheEntry.objects.filter(pk=one.pk).update(state=EntryState.ABSENT)
        rounds("after one change")
        assert CacheEntry.objects.filter(node__pool=pool).count() == NODES * ARTIFACTS
    with capsys.disabled():
        print(f"\n{NODES} nodes x {ARTIFACTS} artifacts, rows and plans only")
        for line in figures:
            print(f"  {line}")


@contextmanager
def _measured(what: str, gateway: Willing, figures: list[str]) -> Iterator[None]:
    statements: Counter[str] = Counter()
    inside = 0.0

    def count(execute: Any, sql: Any, *call: Any) -> Any:
        nonlocal inside
        statements[str(sql)[:60]] += 1
        started = time.perf_counter()
        try:
            return execute(sql, *call)
        finally:
            inside += time.perf_counter() - started

    profile = cProfile.Profile(time.process_time) if PROFILES else None
    calls, wall, cpu = gateway.total, time.perf_counter(), time.process_time()
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
        f"{what:36} {cpu:6.2f} s CPU {wall:6.2f} s {statements.total():6} statements "
        f"({inside:.2f} s) {gateway.total - calls:6} calls"
    )
