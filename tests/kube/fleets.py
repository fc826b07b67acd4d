"""What tests and measurements of large fleets do alike: many versions on many simulated nodes, timed step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from caches.models import CacheEntry
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from tests import factories
from tests.kube.world import KubeWorld
from tests.services.world import MIB, version_of

Figures = dict[str, str]


def pin_versions(world: KubeWorld, count: int) -> list[Any]:
    """``count`` versions of one MiB from one store, each pinned to the whole pool."""
    store = factories.connection(name="fleet-store", type="S3", allowed=["models"])
    versions = [version_of(MIB, connection=store, uri=f"s3://models/{number}") for number in range(count)]
    for version in versions:
        pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    return versions


def ready(world: KubeWorld) -> int:
    return CacheEntry.objects.filter(node__pool=world.pool, state=EntryState.READY).count()


@contextmanager
def measured(world: KubeWorld, what: str, figures: Figures) -> Iterator[None]:
    """Seconds by the clock and of this process's CPU, SQL statements, and Hearth's own requests to the API server."""
    assert isinstance(world.gateway, KubernetesGateway)
    client = world.gateway.client
    statements = 0

    def count(execute: Any, *call: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*call)

    before, started, cpu = sum(client.requests().values()), time.monotonic(), time.process_time()
    with connection.execute_wrapper(count):
        yield
    seconds, sent = time.monotonic() - started, sum(client.requests().values()) - before
    figures[what] = (
        f"{seconds:6.2f} s {time.process_time() - cpu:6.2f} s CPU {statements:5} statements "
        f"{sent:6} requests {sent / max(seconds, 0.001):6.0f}/s"
    )
