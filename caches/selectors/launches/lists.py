"""Launches for pages and REST: one, many, and which of them a reader may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q, QuerySet

from caches.domain.launches.period import Part, Period
from caches.domain.launches.words import Trials, is_trial
from caches.models import Launch, LaunchCount, LaunchHour
from caches.models.launches import OF_TRIALS
from caches.selectors.nodes import Targets
from controlplane.accounts.access import targets_filter

# What a row of LaunchCount tells apart beside its cluster, by LaunchCount.by; those with the fewest rows first.
TOLD_APART = {
    "Nothing": (),
    "Class": ("event_class", "weights"),
    "Names": ("pool_name", "version_name"),
    "Digest": ("version_name", "digest", "weights"),
    "Pool": ("pool_name", "event_class", "weights"),
    "Place": ("pool_name", "endpoint_name"),
    "Version": ("pool_name", "version_name", "digest", "event_class", "weights", "image"),
    "Endpoint": ("pool_name", "version_name", "digest", "event_class", "weights", "image", "endpoint_name"),
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which launches: a period, and what they have in common; "" is any. ``pool`` is ``cluster.pool``, ``endpoint``
    its namespace/name. ``trial`` as Trials has it, "" without; whoever names a trial's endpoint means its launches."""

    period: Period
    pool: str = ""
    version: str = ""
    event_class: str = ""
    weights: str = ""
    image: str = ""
    endpoint: str = ""
    trial: str = ""

    @property
    def trials(self) -> Trials:
        return Trials.WITH if is_trial(self.endpoint) else Trials(self.trial or Trials.WITHOUT)


def visible(targets: Targets) -> Q:
    """Launches and counts that the reader may see; where no pool is known, those who see the whole cluster."""
    return targets_filter(targets, cluster="cluster__name", pool="pool_name")


def launches_list(*, targets: Targets = None) -> QuerySet[Launch]:
    """Launches, newest first."""
    return Launch.objects.filter(visible(targets)).select_related("cluster").defer("phases")


def launch_rows(selection: Selection, targets: Targets) -> QuerySet[Launch]:
    """The launches themselves of a selection."""
    period = selection.period
    rows = launches_list(targets=targets).filter(began_at__gte=period.since, began_at__lt=period.until)
    return rows.filter(_alike(selection), _of_trials(selection, OF_TRIALS))


def count_rows(selection: Selection, targets: Targets, *, told_apart: Collection[str] = ()) -> QuerySet[LaunchCount]:
    """The counts of a selection, coarse as they may be: rows tell apart ``told_apart`` (columns of LaunchCount) and
    whatever is asked for. Days are read where nothing of them waits to be counted."""
    return _count_rows(selection, targets, told_apart, selection.period.parts)


def step_rows(selection: Selection, targets: Targets) -> QuerySet[LaunchCount]:
    """The counts of a selection, no row in two of its period's steps."""
    return _count_rows(selection, targets, (), selection.period.chart_parts)


def _count_rows(
    selection: Selection, targets: Targets, told_apart: Collection[str], parts_of: Callable[..., list[Part]]
) -> QuerySet[LaunchCount]:
    waiting = LaunchHour.objects.filter(step="Day", start__lt=selection.period.until).values_list("start", flat=True)
    return rows_of_parts(selection, targets, told_apart, parts_of(uncounted=frozenset(waiting)))


def rows_of_parts(
    selection: Selection, targets: Targets, told_apart: Collection[str], parts: Sequence[Part]
) -> QuerySet[LaunchCount]:
    """The counts of these hours and days, at least one, whatever the selection's period is."""
    spans = [Q(step=part.step, start__gte=part.since, start__lt=part.until) for part in parts]
    rows = LaunchCount.objects.filter(reduce(or_, spans), by=_coarsest(selection, targets, told_apart))
    return rows.filter(visible(targets) & _alike(selection), _of_trials(selection, Q(trial=True))).order_by()


def _coarsest(selection: Selection, targets: Targets, told_apart: Collection[str]) -> str:
    """Which rows are fewest and still tell apart what is asked for."""
    wanted = {*told_apart}
    wanted |= {name for name in ("event_class", "weights", "image") if getattr(selection, name)}
    wanted |= {"version_name"} if selection.version else set()
    wanted |= {"endpoint_name"} if selection.endpoint else set()
    wanted |= {"pool_name"} if selection.pool or targets is not None else set()
    return next(by for by, names in TOLD_APART.items() if wanted <= {*names})


def hours_waiting(period: Period, *, targets: Targets) -> int:
    """How many hours of the period are to be counted again, in any of the reader's clusters: one or two for a moment,
    many after an update."""
    rows = LaunchHour.objects.filter(step="Hour", start__gte=period.since, start__lt=period.until)
    if targets is not None:
        rows = rows.filter(cluster__name__in={target.partition(".")[0] for target in targets})
    return rows.order_by().values("start").distinct().count()


def uncounted_before(selection: Selection) -> datetime | None:
    """Since when counts know what is asked for, where the period has counts of before that do not: those of releases
    that counted nothing by endpoint, and trials among the rest. None where all of them do."""
    if not selection.endpoint and selection.trials is not Trials.ONLY:
        return None
    hours = LaunchCount.objects.filter(step="Hour").order_by("start").values_list("start", flat=True)
    since = hours.filter(by="Endpoint").first() or selection.period.until
    before = min(since, selection.period.until)
    return since if hours.filter(by="Nothing", start__gte=selection.period.since, start__lt=before).exists() else None


def choices(selection: Selection, targets: Targets) -> dict[str, list[str]]:
    """Pools, endpoints and versions that launches of the period have, for the filters. ``namesakes`` are endpoints
    that several clusters have: a selection is of all of them, unless it names a pool."""
    every = Selection(selection.period, trial=selection.trial)
    rows = count_rows(every, targets, told_apart=["pool_name", "endpoint_name"])
    places = sorted(rows.values_list("cluster__name", "pool_name", "endpoint_name").distinct())
    versions = count_rows(every, targets, told_apart=["version_name"])
    versions = versions.exclude(version_name="").order_by("version_name")
    clusters = Counter(endpoint for _, endpoint in {(cluster, endpoint) for cluster, _, endpoint in places})
    return {
        "namesakes": sorted(endpoint for endpoint, count in clusters.items() if endpoint and count > 1),
        "pools": list(dict.fromkeys(f"{cluster}.{pool}" for cluster, pool, _ in places if pool)),
        "endpoints": sorted({endpoint for _, _, endpoint in places if endpoint}),
        "versions": list(versions.values_list("version_name", flat=True).distinct()),
    }


def _alike(selection: Selection) -> Q:
    wanted: dict[str, Any] = {
        "version_name": selection.version,
        "event_class": selection.event_class,
        "weights": selection.weights,
        "image": selection.image,
        "endpoint_name": selection.endpoint,
    }
    cluster, _, pool = selection.pool.partition(".")
    wanted |= {"cluster__name": cluster, "pool_name": pool}
    return Q(**{name: value for name, value in wanted.items() if value})


def _of_trials(selection: Selection, are: Q) -> Q:
    """``are``: how rows say that they are of trials."""
    return {Trials.WITHOUT: ~are, Trials.WITH: Q(), Trials.ONLY: are}[selection.trials]
