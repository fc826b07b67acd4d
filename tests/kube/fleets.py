"""What tests and measurements of large fleets do alike: many versions on many simulated nodes, timed step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from caches.models import CacheEntry, PoolLoop
from caches.services.loop.rounds import pool_reconcile
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from tests import factories
from tests.kube.world import KubeWorld
from tests.services.world import MIB, version_of
from tests.waiting import until

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


def rounds(world: KubeWorld, patience_seconds: float = 120.0) -> list[float]:
    """Rounds, as a worker runs them one after the other, until nothing is left over; how many seconds each took.

    One that the cluster did not answer, or that it asked to wait with, is begun again.
    """
    taken: list[float] = []

    def one() -> bool:
        started = time.monotonic()
        done = pool_reconcile(pool_id=world.pool.pk) is not None
        taken.extend([time.monotonic() - started] if done else [])
        return done

    while not taken or PoolLoop.objects.filter(pool=world.pool, wanted_round__gt=F("done_round")).exists():
        until(one, "a round", seconds=patience_seconds)
    return taken


@contextmanager
def stopping_after(world: KubeWorld, calls: int, stop: Callable[[], object]) -> Iterator[None]:
    """``stop`` when so many NodeCaches were applied, while others are on their way."""
    real, lock, told = world.gateway.apply_node_cache, threading.Lock(), 0

    def apply(spec: Any, *, take_over: bool = False) -> int:
        nonlocal told
        with lock:
            told += 1
            if told == calls:
                stop()
        return real(spec, take_over=take_over)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.gateway, "apply_node_cache", apply)
        yield
    assert told >= calls, "it was never stopped"
