"""The Overview: what is degraded, what is on its way, which disks fill up, and what people changed last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, Count, F, Q, QuerySet, When

from caches.models import CacheEntry, DriftState, ModelVersion, Pin, PoolLoop
from caches.selectors.audit import audit_list
from caches.selectors.coverage import SUSPENDED, PoolCoverage, unknown_copies
from caches.selectors.entries import UNKNOWN, entries_list
from caches.selectors.loop_words import next_step_of
from caches.selectors.nodes import Targets, broken_nodes, clusters_seen, nodes_list, silent_nodes
from caches.selectors.operations import operations_list
from controlplane.accounts.access import targets_filter
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import Action, EntryState
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
    *,
    now: datetime,
    targets: Targets = None,
    covered: Sequence[PoolCoverage] | None = None,
    unwatched: Mapping[UUID, str] | None = None,
) -> tuple[Trouble, ...]:
    """Everything that is degraded, worst first, in five queries, and those of unknown copies while a node is silent.

    Every page asks for it, so each query counts in the database and makes no rows. ``covered`` is pools_coverage and
    ``unwatched`` is unwatched_clusters for the same reader and moment, where they are known anyway.
    """
    reasons = unwatched_clusters(now=now, targets=targets) if unwatched is None else unwatched
    nodes = _nodes_counted(now, targets)
    found = [
        *_entry_troubles(now, targets),
        *_silent_troubles(now, nodes, reasons, covered),
        *_node_troubles(nodes),
        *_loop_troubles(now, targets),
        *_drift_troubles(targets),
    ]
    order = list(Severity)
    return tuple(sorted(found, key=lambda trouble: order.index(trouble.severity)))


def unwatched_clusters(*, now: datetime, targets: Targets = None) -> Mapping[UUID, str]:
    """Why what is shown of each cluster is old, by name; nothing while every one is being watched."""
    rows = clusters_seen(targets).only("name", "error", "observed_at").order_by("name")
    return {row.pk: reason for row in rows if (reason := _unwatched(row, now))}


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
    visible = targets_filter(targets, cluster="node__cluster__name", pool="node__pool__name")
    bad = CacheEntry.objects.filter(visible, state__in=(EntryState.FAILED, EntryState.REPAIRING))
    wanted = bad.filter(~silent_nodes(now, "node__"), node__lost_at__isnull=True, desired=Action.ENSURE)
    states = dict(wanted.order_by().values_list("state").annotate(total=Count("id")))
    if failed := states.get(EntryState.FAILED):
        yield Trouble(Severity.BAD, f"{_many(failed, 'copy', 'copies')} failed", failed, "entries", "state=Failed")
    if repairing := states.get(EntryState.REPAIRING):
        sentence = f"{_many(repairing, 'copy', 'copies')} damaged and being repaired"
        yield Trouble(Severity.WARN, sentence, repairing, "entries", "state=Repairing")


class _Counted(NamedTuple):
    """Live nodes of one pool: those that are not heard, those of them that never reported, those that are down."""

    cluster: UUID
    pool: UUID
    silent: int
    never: int
    broken: int


def _nodes_counted(now: datetime, targets: Targets) -> Sequence[_Counted]:
    # A node of no pool has no agent, and nothing is wanted of it.
    visible = targets_filter(targets, cluster="cluster__name", pool="pool__name")
    rows = Node.objects.filter(visible, lost_at__isnull=True, pool__isnull=False).order_by()
    counts = rows.values_list("cluster", "pool").annotate(
        silent=Count("id", filter=silent_nodes(now)),
        never=Count("id", filter=Q(reported_at=None)),
        broken=Count("id", filter=broken_nodes(now)),
    )
    return [_Counted(*row) for row in counts]


def _silent_troubles(
    now: datetime, nodes: Sequence[_Counted], unwatched: Mapping[UUID, str], covered: Sequence[PoolCoverage] | None
) -> Iterator[Trouble]:
    """The wanted copies that coverage counts as unknown: the same number as in the tables, which the Fleet page has;
    and the very nodes on which they are. Of clusters that are not watched nobody knows whether their nodes report."""
    silent = {one.pool: one.silent for one in nodes if one.silent}
    if not silent:
        return
    for cluster, reason in unwatched.items():
        if count := sum(one.silent for one in nodes if one.cluster == cluster):
            sentence = f"{reason}; {count:,} of its nodes {'is' if count == 1 else 'are'} Unknown"
            yield Trouble(Severity.UNKNOWN, sentence, count, "fleet")
    heard = [one for one in nodes if one.silent and one.cluster not in unwatched]
    never = sum(one.never for one in heard)
    stopped = sum(one.silent for one in heard) - never
    known = None if covered is None else sum(pool.coverage.unknown for pool in covered)
    if unknown := unknown_copies(silent, now=now) if known is None else known:
        words = "have not reported yet" if never else "stopped reporting"
        if (never and stopped) or any(one.silent for one in nodes if one.cluster in unwatched):
            words = "are not heard"
        sentence = f"{_many(unknown, 'wanted copy', 'wanted copies')} on nodes that {words}"
        yield Trouble(Severity.UNKNOWN, sentence, unknown, "fleet")
    if never:
        sentence = f"{_many(never, 'node')} {'has' if never == 1 else 'have'} not reported yet"
        yield Trouble(Severity.UNKNOWN, sentence, never, "fleet")
    if stopped:
        yield Trouble(Severity.UNKNOWN, f"{_many(stopped, 'node')} stopped reporting", stopped, "fleet")


def _node_troubles(nodes: Sequence[_Counted]) -> Iterator[Trouble]:
    if broken := sum(one.broken for one in nodes):
        yield Trouble(Severity.BAD, f"{_many(broken, 'node')} not ready", broken, "fleet")


def _loop_troubles(now: datetime, targets: Targets) -> Iterator[Trouble]:
    visible = targets_filter(targets, cluster="pool__cluster__name", pool="pool__name")
    waits = Q(wanted_round__gt=F("done_round"), wanted_at__lt=now - LOOP_LATE)
    rows = PoolLoop.objects.filter(visible, waits | ~Q(error="") | Q(plan__refusals__0__isnull=False))
    rows = rows.annotate(late=Case(When(waits, then=True), default=False))
    for cluster, pool, plan, error, late in rows.values_list(
        "pool__cluster__name", "pool__name", "plan", "error", "late"
    ):
        name = f"{cluster}.{pool}"
        pins = {str(refusal.get("artifact", "")) for refusal in (plan or {}).get("refusals", [])}
        if pins:
            sentence = f"No room in {name} for {', '.join(sorted(pins))}"
            yield Trouble(Severity.BAD, sentence, len(pins), "pool", name)
        if error:
            sentence = f"Planning {name} has problems: {error}"
            yield Trouble(Severity.BAD, sentence, 1, "pool", name, next_step_of(error))
        elif late:
            yield Trouble(Severity.UNKNOWN, f"{name} was not planned since it changed", 1, "pool", name)


def _drift_troubles(targets: Targets) -> Iterator[Trouble]:
    visible = targets_filter(targets, cluster="pools__cluster__name", pool="pools__name")
    pinned = Pin.objects.filter(visible, removed_at__isnull=True).values("version")
    rows = ModelVersion.objects.filter(pk__in=pinned, drift=DriftState.DRIFTED)
    for model, version in rows.values_list("model__name", "version"):
        yield Trouble(Severity.WARN, f"{model} {version} changed at its source", 1, "version", f"{model}/{version}")


@dataclass(frozen=True, slots=True)
class Missing:
    """Wanted copies that are neither ready nor on their way, ``suspended`` of them as their pins are."""

    copies: int
    suspended: int


def copies_missing(pools: Sequence[PoolCoverage]) -> Missing:
    """Of weights and images. What nobody has begun yet is no trouble by itself, but is not said to be under way."""
    found = [(one, one.missing) for pool in pools for one in (*pool.unique, *pool.images)]
    suspended = sum(count for one, count in found if one.state == SUSPENDED)
    return Missing(sum(count for _, count in found), suspended)


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
