"""Launches at size: observations taken in and assembled, and the Cold starts page over many. Asserts nothing of time.

``HEARTH_BENCH_LAUNCHES`` changes how many launches are stored for the page (1,000,000 is the product's figure).
"""

from __future__ import annotations

import os
import random
import time
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from caches.domain.launch_sketch import Sketch
from caches.domain.launch_words import EventClass
from caches.models import Launch, LaunchCount
from caches.services.launch_assembly import launches_assemble
from caches.services.launch_counts import hours_count
from caches.services.launch_ingest import sightings_record
from controlplane.clusters.models import Cluster
from tests import factories
from tests.services.launches import phase_seconds, ready_pod

pytestmark = [pytest.mark.bench, pytest.mark.django_db]

LAUNCHES = int(os.environ.get("HEARTH_BENCH_LAUNCHES", "20000"))
STARTS, VERSIONS, POOLS, DAYS = 1000, 10, 4, 30


def test_observations_are_taken_in(capsys: pytest.CaptureFixture[str]) -> None:
    node = factories.node()
    items = [ready_pod(node.cluster, f"pod-{n}", 60.0 + n % 40, node=node, found="miss") for n in range(STARTS)]
    count = sum(len(item.observations) for item in items)
    taken = _timed(lambda: sightings_record(items=items))
    repeated = _timed(lambda: sightings_record(items=items))
    assembled = _timed(_assemble_all)
    counted = _timed(hours_count)
    with capsys.disabled():
        print(f"\n{count} observations of {STARTS} launches")
        print(f"  taken in  {count / taken:>8.0f} a second, repeats {count / repeated:.0f} a second")
        print(f"  assembled {STARTS / assembled:>8.0f} launches a second, counted in {counted:.2f} s")


def test_the_page_of_many(capsys: pytest.CaptureFixture[str], settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    cluster = factories.cluster(name="lab")
    _put(cluster, timezone.now())
    client = Client()
    client.force_login(factories.user(username="ada", role="Admin"))
    client.get("/launches?since=now-30d")
    seconds = sorted(_timed(lambda: client.get("/launches?since=now-30d")) for _ in range(20))
    with capsys.disabled():
        print(f"\n{LAUNCHES} launches in {DAYS} days: the page of all, p50 {seconds[9]:.3f} s, p95 {seconds[18]:.3f} s")


def _timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _assemble_all() -> None:
    while launches_assemble():
        pass


def _put(cluster: Cluster, now: datetime) -> None:
    """Launches spread over the days, written as they are stored, and their counts by day."""
    chance = random.Random(7)
    cells: dict[tuple[Any, ...], Sketch] = {}
    for start in range(0, LAUNCHES, 5000):
        rows = []
        for number in range(start, min(LAUNCHES, start + 5000)):
            began = now - timedelta(seconds=chance.random() * DAYS * 86400)
            hit = chance.random() < 0.9
            seconds = chance.lognormvariate(3.0 if hit else 6.0, 0.4)
            kind = chance.choice([one.value for one in EventClass])
            names = (f"pool-{number % POOLS}", f"llama v{number % VERSIONS}", kind, "Hit" if hit else "Miss")
            day = began.replace(hour=0, minute=0, second=0, microsecond=0)
            cells.setdefault((day, *names), Sketch()).add(seconds)
            rows.append(_row(cluster, number, began, seconds, names))
        Launch.objects.bulk_create(rows)
    LaunchCount.objects.bulk_create(
        LaunchCount(
            cluster=cluster, step="Day", start=day, pool_name=pool, version_name=version, event_class=kind,
            weights=weights, image="Unknown", launches=sketch.count, ready=sketch.count, ended=0,
            sketch=sketch.to_json(),
        )
        for (day, pool, version, kind, weights), sketch in cells.items()
    )  # fmt: skip


def _row(cluster: Cluster, number: int, began: datetime, seconds: float, names: tuple[str, ...]) -> Launch:
    pool, version, kind, weights = names
    return Launch(
        id=uuid4(), cluster=cluster, pod_uid=f"u-{number}", container="engine", restart_count=0, began_at=began,
        started_at=began, state="Ready", ready_seconds=seconds, total_seconds=seconds, pool_name=pool,
        version_name=version, event_class=kind, weights=weights, phase_seconds=phase_seconds(seconds),
    )  # fmt: skip
