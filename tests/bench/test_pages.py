"""What the pages of a large fleet cost the server: CPU seconds, statements and bytes of each. Asserts nothing of time.

``HEARTH_BENCH_NODES`` changes the number of nodes, ``HEARTH_BENCH_PROFILE`` names a folder for profiles.
"""

from __future__ import annotations

import cProfile
import os
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.models import CacheEntry, Pin
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import Node
from tests import factories
from tests.services.willing import all_ready, willing_pool

pytestmark = [pytest.mark.bench, pytest.mark.django_db]

NODES, ARTIFACTS = int(os.environ.get("HEARTH_BENCH_NODES", "500")), 40
PROFILES = os.environ.get("HEARTH_BENCH_PROFILE", "")


def test_pages_of_a_large_fleet(capsys: pytest.CaptureFixture[str], settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    client = Client()
    client.force_login(factories.user(username="ada", role="Admin"))
    figures = []
    with willing_pool(NODES, ARTIFACTS) as (pool, _):
        _warm(pool)
        for path in (
            "/",
            "/fleet",
            f"/fleet/{pool.full_name}",
            "/pins",
            "/entries",
            f"/pins/{Pin.objects.order_by('id')[0].pk}",
        ):
            figures.append(_page(client, path))
    with capsys.disabled():
        print(f"\n{NODES} nodes x {ARTIFACTS} artifacts, the best of three")
        for line in figures:
            print(f"  {line}")


def _warm(pool: Any) -> None:
    nodes, now = list(Node.objects.filter(pool=pool)), timezone.now()
    pins = list(Pin.objects.select_related("version__artifact").defer("version__artifact__manifest"))
    CacheEntry.objects.bulk_create(
        [
            CacheEntry(
                node=node,
                artifact=factories.version_of(pin).artifact,
                desired=Action.ENSURE,
                state=EntryState.ABSENT,
                state_since=now,
                wanted_at=now,
            )
            for node in nodes
            for pin in pins
        ],
        batch_size=2000,
    )
    all_ready(pool)


def _page(client: Client, path: str) -> str:
    best = None
    for _ in range(3):
        profile = cProfile.Profile(time.process_time) if PROFILES else None
        with CaptureQueriesContext(connection) as captured:
            wall, cpu = time.perf_counter(), time.process_time()
            if profile is not None:
                profile.enable()
            answer = client.get(path, follow=True)
            if profile is not None:
                profile.disable()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        inside = sum(float(query["time"]) for query in captured)
        found = (cpu, wall, len(captured), inside, len(answer.content), answer.status_code)
        best = found if best is None else min(best, found)
        if profile is not None:
            profile.dump_stats(Path(PROFILES) / f"page{path.replace('/', '-')[:12]}.prof")
    assert best is not None
    return (
        f"{path[:40]:42} {best[0]:5.2f} s CPU {best[1]:5.2f} s {best[2]:3} statements ({best[3]:.2f} s) "
        f"{best[4] / 1024:7.0f} KiB  {best[5]}"
    )
