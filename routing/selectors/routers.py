"""Router processes, and what is in flight over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, QuerySet
from django.utils import timezone

from controlplane.errors import Missing
from controlplane.serving.models import Instance
from controlplane.serving.standing import RoutersSay, Standings
from routing.models import Configuration, RouterProcess
from routing.selectors.policies import Targets, clusters_of

HEARD_OF = timedelta(seconds=15)
TAKES_IN_WITHIN = timedelta(seconds=4)  # a publication, and says so: every router tells how it is every two seconds


@dataclass(frozen=True, slots=True)
class InFlight:
    """``known``: some router was heard of lately. ``counts`` by instance uid, without zeros; ``ejected``: how many
    routers leave an instance out for its failures, of ``routers`` that were heard of."""

    known: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    ejected: Mapping[str, int] = field(default_factory=dict)
    routers: int = 0

    def of(self, uid: str) -> int | None:
        """None when nobody knows."""
        return self.counts.get(uid, 0) if self.known else None

    def ejected_by(self, uid: str) -> int | None:
        """None when nobody knows."""
        return self.ejected.get(uid, 0) if self.known else None

    def left_out(self, uid: str) -> bool:
        """No router that was heard of sends it anything, because it fails."""
        return self.known and self.ejected.get(uid, 0) >= self.routers

    def said(self) -> RoutersSay:
        """The same for those who know routers by what they say alone."""
        if self.known:
            return RoutersSay(True, frozenset(uid for uid in self.ejected if self.left_out(uid)))
        last = RouterProcess.objects.aggregate(last=Max("seen_at"))["last"]
        return RoutersSay(silent_since=last + HEARD_OF if last is not None else None)


def published_version() -> int | None:
    """The newest version that routers were told; None before the first."""
    found: int | None = Configuration.objects.aggregate(newest=Max("version"))["newest"]
    return found


def routers_list() -> QuerySet[RouterProcess]:
    """Every process that was heard of in the last days."""
    return RouterProcess.objects.all()


def is_heard_of(row: RouterProcess, now: datetime) -> bool:
    return row.seen_at >= now - HEARD_OF


def in_flight() -> InFlight:
    """Summed over the routers that were heard of lately."""
    rows = RouterProcess.objects.filter(seen_at__gte=timezone.now() - HEARD_OF).values_list("figures", flat=True)
    counts: Counter[str] = Counter()
    ejected: Counter[str] = Counter()
    for figures in rows:
        ejected.update(figures.get("ejected", ()))
        for uid, count in figures.get("in_flight", {}).items():
            counts[uid] += int(count)
    return InFlight(bool(rows), counts, ejected, len(rows))


def routers_say() -> RoutersSay:
    """Whom every router leaves out, as far as routers were heard of lately."""
    return in_flight().said()


def instances_list(*, targets: Targets = None) -> QuerySet[Instance]:
    """Instances of the endpoints that the reader may see and that are still there."""
    rows = Instance.objects.select_related("endpoint__cluster", "node__pool").filter(endpoint__gone_at__isnull=True)
    names = clusters_of(targets)
    return rows if names is None else rows.filter(endpoint__cluster__name__in=names)


def instance_get(*, instance_id: Any, targets: Targets = None) -> Instance:
    """Raises errors.Missing, also for one that the reader may not see."""
    found = instances_list(targets=targets).filter(pk=instance_id).first()
    if found is None:
        raise Missing("routing:instance:not-found", f"There is no instance {instance_id}.", next_step="List them.")
    return found


def router_get(*, router_id: Any) -> RouterProcess:
    """Raises errors.Missing."""
    found = routers_list().filter(pk=router_id).first()
    if found is None:
        raise Missing("routing:router:not-found", f"There is no router {router_id}.", next_step="List the routers.")
    return found


def with_in_flight(rows: Sequence[Any]) -> Sequence[Any]:
    """The instances with ``in_flight``, ``ejected_by`` and ``standing`` set on each. ``ready`` becomes what it is now:
    None where nobody knows."""
    counts = in_flight()
    standings = Standings(now=timezone.now(), said=counts.said())
    for row in rows:
        row.in_flight = counts.of(row.uid)
        row.ejected_by = counts.ejected_by(row.uid)
        row.standing = standings.of_instance(row)
        row.ready = row.standing.ready
    return rows


def with_state(rows: Sequence[Any]) -> Sequence[Any]:
    """The routers with ``published_version``, ``current``, ``publishing`` and ``in_flight`` set on each.

    ``publishing``: what it said last it said too early to run the newest configuration by then."""
    found = Configuration.objects.order_by("-version").values_list("version", "created_at").first()
    newest, made_at = found or (None, None)
    now = timezone.now()
    for row in rows:
        heard = is_heard_of(row, now)
        row.published_version = newest
        row.publishing = made_at is not None and row.seen_at < made_at + TAKES_IN_WITHIN
        row.current = row.config_version >= (newest or 0) if heard else None
        row.in_flight = sum(row.figures.get("in_flight", {}).values()) if heard else None
    return rows
