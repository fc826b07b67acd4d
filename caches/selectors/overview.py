"""The Overview: what is degraded, what is on its way, which disks fill up, and what people changed last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import Count, Q, QuerySet

from caches.models import CacheEntry, DriftState, ModelVersion, Pin, PoolLoop
from caches.selectors.audit import audit_list
from caches.selectors.coverage import PoolCoverage, pools_coverage
from caches.selectors.entries import UNKNOWN, entries_list
from caches.selectors.loop_words import next_step_of
from caches.selectors.nodes import Targets, clusters_list, nodes_list
from caches.selectors.operations import operations_list
from controlplane.accounts.access import targets_filter
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import Action, EntryState, NodeState
from controlplane.clusters.models import Cluster, Node
from controlplane.operations.models import ACTIVE_STATES, Operation

CLUSTER_SILENT = timedelta(seconds=60)
LOOP_LATE = timedelta(seconds=120)
NEARLY_FULL = 0.05  # this close below the pool's high watermark


class Severity(StrEnum):
    BAD = "bad"
    WARN = "warn"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing a person should know about. ``page`` and ``query`` say where to look (a page's name and parameters)."""

    severity: Severity
    sentence: str
    count: int
    page: str
    query: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class FullDisk:
    """A node whose disk is near its pool's high watermark; ``fraction`` counts what running downloads will write."""

    node: Node
    fraction: float
    watermark: float
    committed_bytes: int


def troubles(
    *, now: datetime, targets: Targets = None, covered: Sequence[PoolCoverage] | None = None
) -> tuple[Trouble, ...]:
    """Everything that is degraded, worst first, in five queries, and those of coverage while a node is silent.

    ``covered`` is pools_coverage for the same reader and moment, where it is known anyway.
    """
    found = [
        *_entry_troubles(now, targets),
        *_silent_troubles(now, targets, covered),
        *_node_troubles(now, targets),
        *_loop_troubles(now, targets),
        *_drift_troubles(targets),
    ]
    order = list(Severity)
    return tuple(sorted(found, key=lambda trouble: order.index(trouble.severity)))


def stale_reason(*, now: datetime, targets: Targets = None) -> str:
    """Why what pages show is old, or "" while every cluster is being watched."""
    reasons = (_unwatched(cluster, now) for cluster in clusters_list(targets=targets))
    return next((reason for reason in reasons if reason), "")


def _unwatched(cluster: Cluster, now: datetime) -> str:
    if cluster.error:
        return f"{cluster.name} cannot be watched: {cluster.error}"
    if cluster.observed_at is None:
        return f"{cluster.name} was never reached"
    if now - cluster.observed_at > CLUSTER_SILENT:
        return f"the watcher last heard from {cluster.name} at {cluster.observed_at:%H:%M:%S} UTC"
    return ""


def cluster_state(cluster: Cluster, *, now: datetime) -> str:
    """Unreachable with an error of the watcher, Unknown when it has not been heard lately, otherwise Reachable."""
    if cluster.error:
        return "Unreachable"
    heard = cluster.observed_at is not None and now - cluster.observed_at <= CLUSTER_SILENT
    return "Reachable" if heard else UNKNOWN


def _entry_troubles(now: datetime, targets: Targets) -> Iterator[Trouble]:
    wanted = entries_list(targets=targets, now=now).filter(node__lost_at__isnull=True, desired=Action.ENSURE)
    states = _counted(wanted)
    if failed := states.get(EntryState.FAILED):
        yield Trouble(Severity.BAD, f"{_many(failed, 'copy', 'copies')} failed", failed, "entries", "state=Failed")
    if repairing := states.get(EntryState.REPAIRING):
        sentence = f"{_many(repairing, 'copy', 'copies')} damaged and being repaired"
        yield Trouble(Severity.WARN, sentence, repairing, "entries", "state=Repairing")


@dataclass(frozen=True, slots=True)
class _Silent:
    """Live nodes of pools that are not heard: those that ``never`` reported, those that ``stopped``, and those of
    clusters that are not watched themselves (why, how many), of which nobody knows whether they report."""

    never: int = 0
    stopped: int = 0
    unwatched: tuple[tuple[str, int], ...] = ()

    @property
    def words(self) -> str:
        if self.unwatched or (self.never and self.stopped):
            return "are not heard"
        return "have not reported yet" if self.never else "stopped reporting"


def _silent(now: datetime, targets: Targets) -> _Silent:
    # A node of no pool has no agent, and nothing is wanted of it.
    nodes: QuerySet[Any] = nodes_list(targets=targets, now=now)
    nodes = nodes.filter(silent=True, lost_at__isnull=True, pool__isnull=False).order_by()
    counts = nodes.values("cluster").annotate(total=Count("id"), never=Count("id", filter=Q(reported_at=None)))
    found = {pk: (total, never) for pk, total, never in counts.values_list("cluster", "total", "never")}
    if not found:
        return _Silent()
    reasons = {row.pk: _unwatched(row, now) for row in Cluster.objects.filter(pk__in=found).order_by("name")}
    heard = [counted for pk, counted in found.items() if not reasons.get(pk)]
    never = sum(never for _, never in heard)
    unwatched = tuple((reason, found[pk][0]) for pk, reason in reasons.items() if reason)
    return _Silent(never, sum(total for total, _ in heard) - never, unwatched)


def _silent_troubles(now: datetime, targets: Targets, covered: Sequence[PoolCoverage] | None) -> Iterator[Trouble]:
    """The wanted copies that coverage counts as unknown: the same number as in the tables, which the Fleet page has;
    and the very nodes on which they are."""
    silent = _silent(now, targets)
    if silent == _Silent():
        return
    for reason, count in silent.unwatched:
        sentence = f"{reason}; {count:,} of its nodes {'is' if count == 1 else 'are'} Unknown"
        yield Trouble(Severity.UNKNOWN, sentence, count, "fleet")
    pools = pools_coverage(now=now, targets=targets) if covered is None else covered
    unknown = sum(pool.coverage.unknown for pool in pools)
    if unknown:
        sentence = f"{_many(unknown, 'wanted copy', 'wanted copies')} on nodes that {silent.words}"
        yield Trouble(Severity.UNKNOWN, sentence, unknown, "fleet")
    if never := silent.never:
        sentence = f"{_many(never, 'node')} {'has' if never == 1 else 'have'} not reported yet"
        yield Trouble(Severity.UNKNOWN, sentence, never, "fleet")
    if silent.stopped:
        yield Trouble(Severity.UNKNOWN, f"{_many(silent.stopped, 'node')} stopped reporting", silent.stopped, "fleet")


def _node_troubles(now: datetime, targets: Targets) -> Iterator[Trouble]:
    live = nodes_list(targets=targets, now=now).filter(lost_at__isnull=True, pool__isnull=False)
    if broken := _counted(live).get(NodeState.NOT_READY):
        yield Trouble(Severity.BAD, f"{_many(broken, 'node')} not ready", broken, "fleet")


def _counted(rows: QuerySet[Any]) -> dict[str, int]:
    """Rows by ``shown_state``, an annotation that the type checker does not see."""
    return dict(rows.order_by().values("shown_state").annotate(total=Count("id")).values_list("shown_state", "total"))


def _loop_troubles(now: datetime, targets: Targets) -> Iterator[Trouble]:
    visible = targets_filter(targets, cluster="pool__cluster__name", pool="pool__name")
    for loop in PoolLoop.objects.filter(visible).select_related("pool__cluster"):
        name = loop.pool.full_name
        pins = {str(refusal.get("artifact", "")) for refusal in (loop.plan or {}).get("refusals", [])}
        if pins:
            sentence = f"No room in {name} for {', '.join(sorted(pins))}"
            yield Trouble(Severity.BAD, sentence, len(pins), "pool", name)
        if loop.error:
            sentence = f"Planning {name} has problems: {loop.error}"
            yield Trouble(Severity.BAD, sentence, 1, "pool", name, next_step_of(loop.error))
        elif _is_late(loop, now):
            yield Trouble(Severity.UNKNOWN, f"{name} was not planned since it changed", 1, "pool", name)


def _is_late(loop: PoolLoop, now: datetime) -> bool:
    waiting = loop.wanted_round > loop.done_round and loop.wanted_at is not None
    return waiting and now - loop.wanted_at > LOOP_LATE  # type: ignore[operator]  # checked above


def _drift_troubles(targets: Targets) -> Iterator[Trouble]:
    visible = targets_filter(targets, cluster="pools__cluster__name", pool="pools__name")
    pinned = Pin.objects.filter(visible, removed_at__isnull=True).values("version")
    rows = ModelVersion.objects.filter(pk__in=pinned, drift=DriftState.DRIFTED).select_related("model")
    for version in rows:
        sentence = f"{version.full_name} changed at its source"
        yield Trouble(Severity.WARN, sentence, 1, "version", f"{version.model.name}/{version.version}")


def operations_in_flight(*, targets: Targets = None, limit: int = 8) -> Sequence[Operation]:
    """Operations that have not ended, newest first."""
    return list(operations_list(targets=targets).filter(state__in=ACTIVE_STATES)[:limit])


@dataclass(frozen=True, slots=True)
class Flow:
    """What the agents measure right now."""

    transfers: int
    queued: int
    bytes_per_second: float
    bytes_left: int

    @property
    def eta_seconds(self) -> float | None:
        """From the rate of all together; None when nothing is measured."""
        return self.bytes_left / self.bytes_per_second if self.bytes_per_second else None


def flow(*, now: datetime, targets: Targets = None) -> Flow:
    """Running and queued transfers of nodes that report, with their measured rate."""
    running = (EntryState.DOWNLOADING, EntryState.VERIFYING, EntryState.REPAIRING, EntryState.QUEUED)
    entries: QuerySet[Any] = entries_list(targets=targets, now=now)
    rows = entries.filter(shown_state__in=running, node__lost_at__isnull=True)
    values = rows.order_by().values_list("state", "bytes_done", "bytes_total", "rate_bytes_per_second")
    found: list[tuple[Any, ...]] = list(values)
    queued = sum(state == EntryState.QUEUED for state, *_ in found)
    return Flow(
        transfers=len(found) - queued,
        queued=queued,
        bytes_per_second=sum(rate or 0.0 for *_, rate in found),
        bytes_left=sum(max(0, total - done) for _, done, total, _ in found),
    )


def disks_filling(*, now: datetime, targets: Targets = None, limit: int = 8) -> tuple[FullDisk, ...]:
    """Live nodes at or near their pool's high watermark, fullest first."""
    rows = nodes_list(targets=targets, now=now).filter(lost_at__isnull=True, capacity_bytes__gt=0, pool__isnull=False)
    found = []
    for node in rows:
        committed = node.used_bytes + node.other_bytes + node.reserved_bytes
        fraction = committed / (node.capacity_bytes or 1)
        if fraction >= node.pool.high_watermark - NEARLY_FULL:  # type: ignore[union-attr]  # filtered
            found.append(FullDisk(node, fraction, node.pool.high_watermark, committed))  # type: ignore[union-attr]
    return tuple(sorted(found, key=lambda disk: -disk.fraction)[:limit])


def last_changes(*, targets: Targets = None, limit: int = 10) -> Sequence[AuditEvent]:
    """What was changed last and by whom. Signing in changes nothing, and an operation's end belongs to its start."""
    noise = Q(object_type="SignIn") | Q(action__startswith="operation.")
    return list(audit_list(targets=targets).exclude(noise)[:limit])


def has_anything() -> bool:
    """False on a control plane that has neither versions nor entries: pages then say how to begin."""
    return ModelVersion.objects.exists() or CacheEntry.objects.exists()


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
