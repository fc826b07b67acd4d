"""Prometheus figures, read from the rows when they are scraped: every web process answers the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from caches.models import CacheEntry, PoolLoop, Transfer, WebhookDelivery
from caches.selectors.coverage import pools_coverage
from caches.selectors.entries import entries_list
from controlplane.clusters.documents import EntryState
from controlplane.operations.models import ACTIVE_STATES, Operation
from controlplane.web.readiness import Finding

SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
LOOP_SILENT_SECONDS = 120
_POOL = ["cluster", "pool"]


class CachesCollector(Collector):
    """A few queries, however many pools there are."""

    def collect(self) -> Iterator[Metric]:
        """Every family; names end in their unit."""
        yield from _coverage()
        yield _entries()
        yield _moved()
        yield _histogram("hearth_transfer_seconds", "From the first byte to published.", "seconds")
        yield _histogram("hearth_transfer_queue_seconds", "From wanted to the first byte.", "queued_seconds")
        yield from _loop()
        yield _operations()
        yield _deliveries()

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask the database."""
        return iter(())


def loop_finding() -> Finding:
    """For /readyz: whether every pool was looked at lately."""
    now = timezone.now()
    late = []
    for loop in PoolLoop.objects.select_related("pool__cluster").defer("plan"):
        age = (now - (loop.reconciled_at or loop.created_at)).total_seconds()
        if age > LOOP_SILENT_SECONDS:
            why = f" ({loop.error})" if loop.error else ""
            when = f"last reconciled {int(age)} seconds ago" if loop.reconciled_at else "never reconciled"
            late.append(f"pool {loop.pool.full_name} was {when}{why}")
    if late:
        return Finding(False, "; ".join(late) + ". Are worker and beat running?")
    return Finding(True, "Every pool was reconciled lately.")


def _coverage() -> Iterator[Metric]:
    labels = [*_POOL, "model", "artifact"]
    required = GaugeMetricFamily("hearth_coverage_required", "Copies that pins ask for.", labels=labels)
    ready = GaugeMetricFamily("hearth_coverage_ready", "Required copies that are known to be ready.", labels=labels)
    unknown = GaugeMetricFamily("hearth_coverage_unknown", "Required copies on silent nodes.", labels=labels)
    wanted_bytes = GaugeMetricFamily("hearth_coverage_required_bytes", "Bytes that pins ask for.", labels=labels)
    ready_bytes = GaugeMetricFamily("hearth_coverage_ready_bytes", "Required bytes that are ready.", labels=labels)
    for covered in pools_coverage(now=timezone.now()):
        for one in covered.unique:
            assert one.version is not None and one.version.artifact is not None  # only Available versions are counted
            found = one.coverage
            names = (covered.pool.cluster.name, covered.pool.name, one.version.full_name)
            values = [*names, one.version.artifact.digest]
            required.add_metric(values, found.required)
            ready.add_metric(values, found.ready)
            unknown.add_metric(values, found.unknown)
            wanted_bytes.add_metric(values, found.bytes_required)
            ready_bytes.add_metric(values, found.bytes_ready)
    yield from (required, ready, unknown, wanted_bytes, ready_bytes)


def _entries() -> Metric:
    text = "Cache entries by state; Unknown on silent nodes."
    family = GaugeMetricFamily("hearth_entries", text, labels=[*_POOL, "state", "reason"])
    entries: QuerySet[Any] = entries_list()  # annotated with shown_state
    rows = (
        entries.filter(node__lost_at__isnull=True, node__pool__isnull=False)
        .exclude(state=EntryState.LOST)
        .values_list("node__pool__cluster__name", "node__pool__name", "shown_state", "reason")
        .annotate(count=Count("id"))
        .order_by("node__pool__cluster__name", "node__pool__name", "shown_state", "reason")
    )
    for cluster, pool, state, reason, count in rows:
        family.add_metric([cluster, pool, state, reason], count)
    return family


def _moved() -> Metric:
    family = CounterMetricFamily("hearth_moved_bytes", "Bytes read from sources by nodes.", labels=_POOL)
    rows = (
        CacheEntry.objects.filter(node__pool__isnull=False)
        .values_list("node__pool__cluster__name", "node__pool__name")
        .annotate(total=Sum("bytes_moved"))
        .order_by("node__pool__cluster__name", "node__pool__name")
    )
    for cluster, pool, total in rows:
        family.add_metric([cluster, pool], total or 0)
    return family


def _histogram(name: str, text: str, column: str) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["connection"])
    bounds: dict[str, Any] = {f"le_{le}": Count("id", filter=Q(**{f"{column}__lte": le})) for le in SECONDS}
    rows: Iterable[Mapping[str, Any]] = (
        Transfer.objects.values("connection__name")
        .annotate(count=Count("id"), total=Sum(column), **bounds)
        .order_by("connection__name")
    )
    for row in rows:
        buckets: Sequence[tuple[str, float]] = [
            *((str(float(le)), float(row[f"le_{le}"])) for le in SECONDS),
            ("+Inf", float(row["count"])),
        ]
        family.add_metric([row["connection__name"]], buckets, row["total"] or 0.0)
    return family


def _loop() -> Iterator[Metric]:
    lag = GaugeMetricFamily("hearth_loop_lag_seconds", "From a change to the round that answered it.", labels=_POOL)
    waiting = GaugeMetricFamily("hearth_loop_waiting_seconds", "Age of the oldest unanswered change.", labels=_POOL)
    failing = GaugeMetricFamily("hearth_loop_failing", "1 while the last round had a problem.", labels=_POOL)
    now = timezone.now()
    for loop in PoolLoop.objects.select_related("pool__cluster").defer("plan"):
        labels = [loop.pool.cluster.name, loop.pool.name]
        if loop.lag_seconds is not None:  # nothing was answered yet: unknown, which is not 0
            lag.add_metric(labels, loop.lag_seconds)
        dirty = loop.wanted_round > loop.done_round and loop.wanted_at is not None
        age = (now - loop.wanted_at).total_seconds() if dirty and loop.wanted_at else 0.0
        waiting.add_metric(labels, max(0.0, age))
        failing.add_metric(labels, 1.0 if loop.error else 0.0)
    yield from (lag, waiting, failing)


def _operations() -> Metric:
    family = GaugeMetricFamily("hearth_operations_active", "Operations that have not ended.", labels=["kind", "state"])
    rows = Operation.objects.filter(state__in=ACTIVE_STATES).values_list("kind", "state")
    for kind, state, count in rows.annotate(count=Count("id")).order_by("kind", "state"):
        family.add_metric([kind, state], count)
    return family


def _deliveries() -> Metric:
    family = GaugeMetricFamily("hearth_webhook_deliveries", "Announcements by state.", labels=["state"])
    rows = WebhookDelivery.objects.values_list("state").annotate(count=Count("id")).order_by("state")
    for state, count in rows:
        family.add_metric([state], count)
    return family
