"""The report on caching: each model version's launches with and without, what its copies cost, and scaling out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from uuid import UUID

from django.db.models import Count, F, Min, Q, Sum

from caches.domain.launches.attribution import Point
from caches.domain.launches.bursts import Added, ScaleOut, scale_out
from caches.domain.launches.labels import was_unprepared
from caches.domain.launches.words import TRIAL_NAME, TRIAL_SHORT_NAMES, Cached, EventClass, LaunchState, Trials
from caches.domain.launches.worth import Cost, Judged, judge
from caches.models import CacheEntry, Pin, Transfer
from caches.models.launches import OF_TRIALS
from caches.selectors.launches.lists import Selection, launch_rows
from caches.selectors.launches.samples import COLUMNS, bound_of, point_of
from caches.selectors.launches.totals import totals_by
from caches.selectors.nodes import Targets
from controlplane.accounts.access import targets_filter
from controlplane.clusters.documents import ArtifactKind, EntryState
from controlplane.clusters.models import ClusterType

# Launches that are looked at: of all versions together, and of each at most, and wherever there are so many. Intervals
# of more are hardly narrower.
MOST_LAUNCHES, MOST_EACH, LEAST_EACH = 6_000, 1_000, 200
MOST_VERSIONS = 50
MOST_ADDED = 5_000
TRIAL_NODES = TRIAL_SHORT_NAMES.removesuffix("$") + "-[0-9]+$"  # services.launches.trial_fleet
Key = tuple[str, str]  # name and digest of a version


@dataclass(frozen=True, slots=True)
class Counted:
    """All launches of a version in the period, whatever is drawn of them."""

    launches: int = 0
    ready: int = 0
    ended: int = 0
    hits: int = 0
    missed: int = 0
    ready_hits: int = 0

    def __add__(self, other: Counted) -> Counted:
        return Counted(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class VersionReport:
    """``name`` is "" for launches whose version nobody knows. ``drawn`` of ``counted.ready`` were looked at."""

    name: str
    digest: str
    pinned_at: datetime | None
    counted: Counted
    cost: Cost
    judged: Judged
    drawn: int


@dataclass(frozen=True, slots=True)
class Report:
    """``versions`` by the number of their launches, the most first."""

    selection: Selection
    versions: tuple[VersionReport, ...]
    scaling: ScaleOut
    left_out: int


def launch_report(selection: Selection, *, targets: Targets = None) -> Report:
    """Of what the reader may see. Its statements: six, whatever the number of versions."""
    counted = _counted(selection, targets)
    listed = sorted(counted, key=lambda key: (-counted[key].launches, key))[:MOST_VERSIONS]
    digests = {digest for _, digest in listed if digest}
    points = _points(selection, targets, {key: counted[key].ready for key in listed})
    pinned, costs = _pinned(digests, targets), _costs(digests, selection, targets)
    versions = tuple(
        _version(key, counted[key], points[key], pinned.get(key[1]), costs.get(key[1], Cost())) for key in listed
    )
    return Report(selection, versions, launches_scaling(selection, targets=targets), len(counted) - len(listed))


def _version(
    key: Key, counted: Counted, points: Sequence[Point], pinned_at: datetime | None, cost: Cost
) -> VersionReport:
    judged = judge(points, pinned_at=pinned_at, cost=cost, ready_hits=counted.ready_hits)
    return VersionReport(*key, pinned_at, counted, cost, judged, len(points))


def launches_scaling(selection: Selection, *, targets: Targets = None) -> ScaleOut:
    """What the latest MOST_ADDED launches that added capacity found: restarts add none, and trials are no demand."""
    rows = launch_rows(selection, targets).exclude(event_class=EventClass.WARM_RESTART)
    # As the index has them: of a million the latest are read, and no others.
    rows = rows.exclude(OF_TRIALS).order_by(F("began_at").desc(nulls_last=True), "-pk")
    columns = rows.values_list("endpoint_name", "began_at", "ready_at", "weights", "image", "cluster__name", "state")
    return scale_out(_added(*row) for row in columns[:MOST_ADDED])


def _added(
    endpoint: str, began_at: datetime, ready_at: datetime | None, weights: str, image: str, cluster: str, state: str
) -> Added:
    hit = None if weights == Cached.UNKNOWN else weights == Cached.HIT
    unprepared = was_unprepared(Cached(weights), Cached(image))
    return Added(endpoint, began_at, ready_at, hit, unprepared, cluster, state == LaunchState.STARTING)


def _counted(selection: Selection, targets: Targets) -> Mapping[Key, Counted]:
    """Exact, from counts: a million launches are not read for it."""
    found: dict[Key, Counted] = defaultdict(Counted)
    for (name, digest, weights), one in totals_by(selection, targets, ("version_name", "digest", "weights")).items():
        hits = one.launches if weights == Cached.HIT else 0
        missed = one.launches if weights in (Cached.MISS, Cached.PARTIAL) else 0
        ready = one.ready if weights == Cached.HIT else 0
        found[name, digest] += Counted(one.launches, one.ready, one.ended, hits, missed, ready)
    return found


def _points(selection: Selection, targets: Targets, ready: Mapping[Key, int]) -> Mapping[Key, list[Point]]:
    """Of each version with so many ``ready`` launches all of them, or about as many as are looked at, by chance."""
    found: dict[Key, list[Point]] = defaultdict(list)
    if not ready:
        return found
    each = max(LEAST_EACH, min(MOST_EACH, MOST_LAUNCHES // len(ready)))
    rows = launch_rows(selection, targets).filter(ready_seconds__isnull=False).order_by()
    parts = [_part(key, bound_of(count, each)) for key, count in ready.items()]
    # Every class there is, said once more: it lets the index serve that has it before the id.
    rows = rows.filter(reduce(or_, parts), event_class__in=list(EventClass))
    for name, digest, *columns in rows.values_list("version_name", "digest", *COLUMNS):
        found[name, digest].append(point_of(*columns))
    return found


def _part(key: Key, bound: UUID | None) -> Q:
    name, digest = key
    return Q(version_name=name, digest=digest) & (Q() if bound is None else Q(pk__lt=bound))


def _pinned(digests: Collection[str], targets: Targets) -> Mapping[str, datetime]:
    """When the weights were first pinned on a pool that the reader may see, also by a pin that is gone."""
    rows = Pin.objects.filter(
        targets_filter(targets, cluster="pools__cluster__name", pool="pools__name"),
        version__artifact__digest__in=digests,
        artifacts__contains=[ArtifactKind.WEIGHTS],
    ).order_by()
    return dict(rows.values_list("version__artifact__digest").annotate(first=Min("created_at")))


def _costs(digests: Collection[str], selection: Selection, targets: Targets) -> Mapping[str, Cost]:
    """Copies that are there now, and transfers that ended within the period, on nodes that the reader may see; those of
    trials as their launches are counted."""
    period = selection.period
    where = _nodes("node", selection, targets)
    held = CacheEntry.objects.filter(where, artifact__digest__in=digests, state=EntryState.READY)
    held = held.filter(node__lost_at__isnull=True).order_by()
    there = {
        digest: (copies, size or 0)
        for digest, copies, size in held.values_list("artifact__digest").annotate(
            copies=Count("pk"), size=Sum("artifact__size_bytes")
        )
    }
    moved = Transfer.objects.filter(
        _nodes("entry__node", selection, targets),
        entry__artifact__digest__in=digests,
        ended_at__gte=period.since,
        ended_at__lt=period.until,
    ).order_by()
    sums = moved.values_list("entry__artifact__digest").annotate(
        size=Sum("bytes_moved"), took=Sum("seconds"), count=Count("pk")
    )
    done = {digest: (size, took, count) for digest, size, took, count in sums}
    return {digest: Cost(*there.get(digest, (0, 0)), *done.get(digest, (0, 0.0, 0))) for digest in {*there, *done}}


def _nodes(path: str, selection: Selection, targets: Targets) -> Q:
    names = {"cluster": f"{path}__cluster__name", "pool": f"{path}__pool__name"}
    cluster, _, pool = selection.pool.partition(".")
    asked = {names["cluster"]: cluster, names["pool"]: pool} if selection.pool else {}
    return targets_filter(targets, **names) & Q(**asked) & _of_trials(path, selection.trials)


def _of_trials(path: str, trials: Trials) -> Q:
    """A trial has nodes of its own, which are called after it."""
    named = {f"{path}__name__startswith": TRIAL_NAME, f"{path}__name__regex": TRIAL_NODES}
    of_trials = Q(**named, **{f"{path}__cluster__type": ClusterType.LOCAL})
    return {Trials.WITHOUT: ~of_trials, Trials.WITH: Q(), Trials.ONLY: of_trials}[trials]
