"""Launches at size: observations taken in and assembled, and the Cold starts page over many. Asserts nothing of time.

``HEARTH_BENCH_LAUNCHES`` changes how many launches are stored for the page (the product's figure is the default).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.models import Launch, LaunchCount
from caches.services.launches.assembly import launches_assemble
from caches.services.launches.counts import hours_count
from caches.services.launches.ingest import sightings_record
from controlplane.serving.models import Instance
from tests import factories
from tests.bench.launches import DAYS, put_launches
from tests.services.launches import ready_pod

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

LAUNCHES = int(os.environ.get("HEARTH_BENCH_LAUNCHES", "1000000"))
STARTS, NODES, BEFORE = 4000, 40, 20_000
TIMES = 20
FORTNIGHTS = "a_since=now-30d&a_until=now-15d&b_since=now-15d&b_until=now"
POLLED = [("30 days, asked again", "/launches?since=now-30d"), ("report, asked again", "/launches/report")]


def test_observations_are_taken_in_and_assembled(capsys: pytest.CaptureFixture[str]) -> None:
    pool = factories.pool()
    nodes = [factories.node(of=pool, joined_at=timezone.now() - timedelta(days=2)) for _ in range(NODES)]
    endpoint, version = factories.endpoint(of=pool.cluster), factories.version()
    assert version.artifact is not None
    put_launches(pool.cluster, BEFORE, timezone.now())
    began, digest = timezone.now() - timedelta(hours=1), version.artifact.digest
    items = [
        ready_pod(pool.cluster, f"pod-{n}", 60.0 + n % 40, at=began, node=nodes[n % NODES], digest=digest, found="miss")
        for n in range(STARTS)
    ]
    Instance.objects.bulk_create(
        Instance(endpoint=endpoint, uid=f"pod-{n}", name=f"chat-{n}", digest=digest, observed_at=began)
        for n in range(STARTS)
    )
    count = sum(len(item.observations) for item in items)
    taken = _timed(lambda: sightings_record(items=items))
    repeated = _timed(lambda: sightings_record(items=items))
    assembled = _timed(_assemble_all)
    with capsys.disabled():
        print(f"\n{count} observations of {STARTS} launches, {BEFORE} stored before; load {os.getloadavg()[0]:.1f}")
        print(f"  taken in  {count / taken:>8,.0f} observations a second, repeats {count / repeated:,.0f}")
        print(f"  assembled {STARTS / assembled:>8,.0f} launches a second, {count / assembled:,.0f} observations")


def test_the_pages_of_a_million(capsys: pytest.CaptureFixture[str], settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    Client().get("/login")  # whatever is imported once
    cluster = factories.cluster(name="lab")
    stored = _timed(lambda: put_launches(cluster, LAUNCHES, timezone.now()))
    counted = _timed(_count_all)
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {LaunchCount._meta.db_table}")
    admin, reader = Client(), Client()
    admin.force_login(factories.user(username="ada", role="Admin"))
    reader.force_login(factories.user(username="bob", role="Viewer", target="lab.pool-0"))
    with capsys.disabled():
        print(f"\n{LAUNCHES:,} launches in {DAYS} days stored in {stored:.0f} s, counted in {counted:.0f} s:", end=" ")
        print(f"{LaunchCount.objects.count():,} counts")
        for name, client, address in _pages(admin, reader):
            print(f"  {name:<44} {_said(partial(_get, client, address))}", flush=True)
        for name, address in POLLED:
            tag = admin.get(address, headers={"X-Hearth-Live": "1"})["ETag"]
            print(f"  {name:<44} {_said(partial(_poll, admin, address, tag))}", flush=True)
        print(f"  memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", end=", ")
        print(f"load {os.getloadavg()[0]:.1f}")


def _pages(admin: Client, reader: Client) -> list[tuple[str, Client, str]]:
    row = Launch.objects.all()[LAUNCHES // 2]
    slow = Launch.objects.filter(ready_seconds__isnull=False).order_by("-ready_seconds")[LAUNCHES // 3]
    seen = Launch.objects.filter(observations__isnull=False)[0]
    deep, month = f"list_after={row.began_at.isoformat()}~{row.pk}".replace("+", "%2B"), "/launches?since=now-30d"
    return [
        ("30 days", admin, month),
        ("30 days, days of another zone", admin, f"{month}&tz=Europe/Zurich"),
        ("30 days beside the 30 days before", admin, f"{month}&compare=previous"),
        ("30 days of one pool", admin, f"{month}&pool=lab.pool-3"),
        ("30 days of one version", admin, f"{month}&version=llama+v3"),
        ("30 days of one endpoint", admin, f"{month}&endpoint=default/chat-3-1"),
        ("30 days of one endpoint in one pool", admin, f"{month}&endpoint=default/chat-3-1&pool=lab.pool-3"),
        ("30 days, trials alone", admin, f"{month}&trial=Only"),
        ("30 days, misses only", admin, f"{month}&weights=Miss"),
        ("30 days by who may see one pool", reader, month),
        ("24 hours", admin, "/launches"),
        ("7 days", admin, "/launches?since=now-7d"),
        ("the list half a million launches deep", admin, f"{month}&{deep}"),
        ("the list, slowest first", admin, f"{month}&list_sort=-ready_seconds"),
        ("the same, deep", admin, f"{month}&list_sort=-ready_seconds&list_after={slow.ready_seconds!r}~{slow.pk}"),
        ("one launch with its evidence", admin, f"/launches/{seen.pk}"),
        ("compare, a day with the day before", admin, "/launches/compare"),
        ("compare, 15 days with the 15 before", admin, f"/launches/compare?{FORTNIGHTS}"),
        ("report, 24 hours", admin, "/launches/report?since=now-24h"),
        ("report, 30 days", admin, "/launches/report"),
        ("report, 30 days of one endpoint", admin, "/launches/report?endpoint=default/chat-3-1"),
    ]


def _get(client: Client, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 200, answer.content[:300]


def _poll(client: Client, address: str, tag: str) -> None:
    answer = client.get(address, headers={"X-Hearth-Live": "1", "If-None-Match": tag})
    assert answer.status_code == 304, "nothing changed"


def _said(work: Callable[[], None]) -> str:
    """Times as they pass, and what of them is work: on a machine that does other things as well they differ."""
    with CaptureQueriesContext(connection) as queries:
        work()
    count = len(queries)  # a request that follows forgets them
    python, postgres = time.process_time(), _backend_seconds()
    seconds = sorted(_timed(work) for _ in range(TIMES))
    python, postgres = (1000 * (now - then) / TIMES for now, then in (
        (time.process_time(), python), (_backend_seconds(), postgres)
    ))  # fmt: skip
    p50, p95 = (1000 * seconds[TIMES * share // 100 - 1] for share in (50, 95))
    return f"p50 {p50:>5.0f} p95 {p95:>5.0f} ms; CPU {python:>4.0f} + {postgres:>3.0f} ms; {count:>2} statements"


def _backend_seconds() -> float:
    """Processor time of the server's side of this connection; 0 where it does not run here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        stat = Path(f"/proc/{cursor.fetchone()[0]}/stat")
    try:
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _assemble_all() -> None:
    while launches_assemble():
        pass


def _count_all() -> None:
    while hours_count():
        pass
