"""Launches for pages and REST: one, many, and which of them a reader may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from caches.domain.launch_period import Period
from caches.models import Launch, LaunchCount
from caches.selectors.nodes import Targets
from controlplane.accounts.access import targets_filter

Found = TypeVar("Found", bound=Model)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which launches: a period, and what they have in common; "" is any. ``pool`` is ``cluster.pool``."""

    period: Period
    pool: str = ""
    version: str = ""
    event_class: str = ""
    weights: str = ""
    image: str = ""


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
    return rows.filter(_alike(selection))


def count_rows(selection: Selection, targets: Targets) -> QuerySet[LaunchCount]:
    """The counts of a selection, in the steps of its period."""
    period = selection.period
    rows = LaunchCount.objects.filter(step=period.step_name, start__gte=period.since, start__lt=period.until)
    return rows.filter(visible(targets) & _alike(selection))


def choices(selection: Selection, targets: Targets) -> dict[str, list[str]]:
    """Pools and versions that launches of the period have, for the filters."""
    rows = count_rows(Selection(selection.period), targets)
    pools = rows.exclude(pool_name="").order_by("cluster__name", "pool_name")
    versions = rows.exclude(version_name="").order_by("version_name")
    return {
        "pools": [f"{cluster}.{pool}" for cluster, pool in pools.values_list("cluster__name", "pool_name").distinct()],
        "versions": list(versions.values_list("version_name", flat=True).distinct()),
    }


def _alike(selection: Selection) -> Q:
    wanted: dict[str, Any] = {
        "version_name": selection.version,
        "event_class": selection.event_class,
        "weights": selection.weights,
        "image": selection.image,
    }
    cluster, _, pool = selection.pool.partition(".")
    wanted |= {"cluster__name": cluster, "pool_name": pool}
    return Q(**{name: value for name, value in wanted.items() if value})
