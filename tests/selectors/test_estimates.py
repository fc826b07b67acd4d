"""Measured rates and shares: medians of what moved lately, nothing where nothing was measured, a fair part for each."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from caches.domain.pool_view import Throughput
from caches.models import CacheEntry, ModelVersion, SourceConnection, Transfer
from caches.selectors.store_rates import FLOOR, store_rates_shared
from caches.selectors.transfers import SAMPLES, SMALLEST_BYTES, throughput_by_connection
from controlplane.clusters.documents import ConnectionSpec, EntryState, SourceType
from tests import factories
from tests.factories import MIB

DAY = timedelta(days=1)


@pytest.fixture
def store(now: datetime) -> SourceConnection:
    return factories.connection(name="lake")


@pytest.fixture
def entry(now: datetime) -> CacheEntry:
    return factories.entry()


def moved(entry: CacheEntry, store: SourceConnection, *rates: float, at: datetime, size: int = 100 * MIB) -> None:
    Transfer.objects.bulk_create(
        Transfer(entry=entry, connection=store, bytes_moved=size, seconds=size / rate, ended_at=at) for rate in rates
    )


def test_nothing_measured_is_no_rate(now: datetime) -> None:
    assert throughput_by_connection(now=now) == {}


@pytest.mark.parametrize(
    ("rates", "median"), [([5.0], 5.0), ([1.0, 9.0], 5.0), ([1.0, 2.0, 90.0], 2.0), ([4.0, 1.0, 3.0, 2.0], 2.5)]
)
def test_the_rate_is_the_median(
    now: datetime, entry: CacheEntry, store: SourceConnection, rates: list[float], median: float
) -> None:
    moved(entry, store, *(rate * MIB for rate in rates), at=now - DAY)
    [found] = throughput_by_connection(now=now).values()
    assert found.bytes_per_second == pytest.approx(median * MIB)
    assert found.samples == len(rates)


def test_only_the_last_transfers_count(now: datetime, entry: CacheEntry, store: SourceConnection) -> None:
    moved(entry, store, *[100.0 * MIB] * SAMPLES, at=now - 2 * DAY)
    moved(entry, store, *[1.0 * MIB] * SAMPLES, at=now - DAY)
    assert throughput_by_connection(now=now) == {"lake": Throughput(pytest.approx(1.0 * MIB), SAMPLES)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("age", "size", "counts"),
    [
        (7 * DAY, 100 * MIB, True),
        (7 * DAY + timedelta(seconds=1), 100 * MIB, False),
        (DAY, SMALLEST_BYTES, True),
        (DAY, SMALLEST_BYTES - 1, False),  # that measured the latency
    ],
)
def test_old_and_tiny_transfers_say_nothing(
    now: datetime, entry: CacheEntry, store: SourceConnection, age: timedelta, size: int, counts: bool
) -> None:
    moved(entry, store, 5.0 * MIB, at=now - age, size=size)
    assert bool(throughput_by_connection(now=now)) == counts


def test_a_transfer_that_took_no_time_divides_nothing(
    now: datetime, entry: CacheEntry, store: SourceConnection
) -> None:
    Transfer.objects.create(entry=entry, connection=store, bytes_moved=100 * MIB, seconds=0, ended_at=now)
    assert throughput_by_connection(now=now) == {}


def test_sources_are_measured_apart_in_one_query(
    now: datetime, entry: CacheEntry, django_assert_num_queries: Any
) -> None:
    for number in range(1, 6):
        moved(entry, factories.connection(name=f"s{number}"), number * MIB, at=now)
    with django_assert_num_queries(1):
        found = throughput_by_connection(now=now)
    assert {name: rate.bytes_per_second for name, rate in found.items()} == {
        f"s{number}": pytest.approx(number * MIB) for number in range(1, 6)
    }


def spec(name: str, rate: int | None) -> ConnectionSpec:
    return ConnectionSpec(name=name, type=SourceType.S3, bytes_per_second=rate)


def shares(**limits: int | None) -> dict[str, int | None]:
    specs = {name: spec(name, rate) for name, rate in limits.items()}
    return {name: found.bytes_per_second for name, found in store_rates_shared(specs).items()}


def read_from(version: ModelVersion, count: int, *, state: EntryState = EntryState.DOWNLOADING, **node: Any) -> None:
    for _ in range(count):
        factories.entry(on=factories.node(**node), of=version.artifact, state=state)


@pytest.mark.parametrize(("readers", "share"), [(0, 1000_000), (1, 1000_000), (3, 333_333), (2000, FLOOR)])
def test_each_reading_node_gets_an_equal_part_and_never_nothing(
    readers: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caches.selectors.store_rates._readers", lambda: {"lake": set(range(readers))})
    assert shares(lake=1000_000) == {"lake": share}


def test_nodes_of_every_pool_and_cluster_read_from_one_store(store: SourceConnection) -> None:
    version = factories.version(connection=store)
    read_from(version, 2)
    read_from(version, 1, state=EntryState.QUEUED)
    read_from(version, 1, state=EntryState.ABSENT)  # wanted, and about to begin
    assert shares(lake=1000_000) == {"lake": 250_000}


def test_a_node_that_reads_two_artifacts_is_one_reader(store: SourceConnection) -> None:
    node = factories.node()
    for _ in range(2):
        version = factories.version(connection=store)
        factories.entry(on=node, of=version.artifact, state=EntryState.DOWNLOADING)
    assert shares(lake=1000_000) == {"lake": 1000_000}


def test_what_is_ready_unwanted_lost_or_elsewhere_takes_no_part(store: SourceConnection, now: datetime) -> None:
    version = factories.version(connection=store)
    read_from(version, 1)
    read_from(version, 1, state=EntryState.READY)
    read_from(version, 1, lost_at=now)
    factories.entry(of=version.artifact, state=EntryState.DOWNLOADING, desired="")
    read_from(factories.version(connection=factories.connection(name="other")), 1)
    assert shares(lake=900, other=None) == {"lake": FLOOR, "other": None}
    assert shares(lake=9000) == {"lake": 9000}


def test_no_limit_asks_the_database_nothing(store: SourceConnection, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert shares(lake=None) == {"lake": None}
        assert shares() == {}
