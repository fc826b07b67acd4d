"""When the launches of a class moved, with the changes that were made before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_

from django.db.models import Count, Q, QuerySet

from caches.domain.launches.attribution import MOST_CHANGES, Change, Move, Point, earliest, moves, suspects
from caches.domain.launches.resampling import ENOUGH
from caches.domain.launches.words import Cached, EventClass
from caches.models import Launch
from caches.selectors.audit import audit_list
from caches.selectors.launches.lists import Selection, launch_rows
from caches.selectors.launches.samples import COLUMNS, MOST, bound_of, point_of, time_of
from caches.selectors.nodes import Targets
from controlplane.audit.models import AuditEvent

# Who came and went says nothing of launches.
NO_CHANGES = ("Token", "User", "Webhook", "RoleGrant")


@dataclass(frozen=True, slots=True)
class Attributed:
    """One move of a class. ``events`` were before it, the latest first; they are what is known, not what is proven."""

    event_class: EventClass
    move: Move
    events: tuple[AuditEvent, ...]


def launch_moves(
    selection: Selection,
    *,
    targets: Targets = None,
    most: int = MOST,
    counts: Mapping[EventClass, int] | None = None,
) -> list[Attributed]:
    """Of every class of the selection, the latest first. ``most`` launches of each class are looked at; ``counts`` are
    the ready launches of each class, where the caller knows them."""
    rows = launch_rows(selection, targets).filter(ready_seconds__isnull=False).order_by()
    if counts is None:
        grouped = rows.values("event_class").annotate(count=Count("pk")).values_list("event_class", "count")
        counts = {EventClass(name): count for name, count in grouped}
    found = [
        Attributed(kind, move, _before(move, targets))
        for kind, points in _points(rows, {kind: n for kind, n in counts.items() if n >= 2 * ENOUGH}, most).items()
        for move in moves(points)
    ]
    return sorted(found, key=_latest, reverse=True)


def _latest(one: Attributed) -> tuple[datetime, str]:
    return one.move.first_after, one.event_class.value


def _points(
    rows: QuerySet[Launch], counts: Mapping[EventClass, int], most: int
) -> Mapping[EventClass, Sequence[Point]]:
    """About ``most`` of each class in the order of time, by one statement."""
    found: dict[EventClass, list[Point]] = {kind: [] for kind in EventClass if kind in counts}
    if found:
        bounds = {kind: bound_of(counts[kind], most) for kind in found}
        parts = [Q(event_class=kind) & (Q(pk__lt=bound) if bound else Q()) for kind, bound in bounds.items()]
        # Said once more for all, and every hit or miss there is: each lets an index serve that has more before the id.
        known = [bound for bound in bounds.values() if bound is not None]
        for_all = Q(pk__lt=max(known)) if len(known) == len(bounds) else Q()
        rows = rows.filter(reduce(or_, parts), for_all, weights__in=list(Cached))
        for kind, *columns in rows.values_list("event_class", *COLUMNS):
            found[EventClass(kind)].append(point_of(*columns))
    return {kind: sorted(points, key=time_of) for kind, points in found.items()}


def _before(move: Move, targets: Targets) -> tuple[AuditEvent, ...]:
    rows = audit_list(targets=targets).filter(at__gte=earliest(move), at__lte=move.first_after)
    known = {str(event.pk): event for event in rows.exclude(object_type__in=NO_CHANGES).order_by("-at")[:MOST_CHANGES]}
    changes = [Change(event.at, key) for key, event in known.items()]
    return tuple(known[one.key] for one in suspects(move, changes))
