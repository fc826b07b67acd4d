"""When the launches of a class moved, with the changes that were made before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Count, Q, QuerySet

from caches.domain.launches.attribution import Change, Move, Point, earliest, moves, suspects
from caches.domain.launches.resampling import ENOUGH
from caches.domain.launches.shifts import breaks
from caches.domain.launches.words import Cached, EventClass
from caches.models import Launch
from caches.selectors.audit import audit_list
from caches.selectors.launches.lists import Selection, launch_rows
from caches.selectors.launches.samples import COLUMNS, MOST, bound_of, point_of, time_of
from caches.selectors.nodes import Targets
from controlplane.audit.models import AuditEvent

# Who came and went says nothing of launches.
_MOST_READ = 200  # changes before a move: many may be the same again
NO_CHANGES = ("Token", "User", "Webhook", "RoleGrant")


@dataclass(frozen=True, slots=True)
class Attributed:
    """One move of a class. ``changes`` were before it, the latest first, each with how many times it was made in a row;
    they are what is known, not what is proven."""

    event_class: EventClass
    move: Move
    changes: tuple[tuple[AuditEvent, int], ...]

    @property
    def events(self) -> list[AuditEvent]:
        """The latest of each."""
        return [event for event, _ in self.changes]

    @property
    def times(self) -> int:
        return sum(times for _, times in self.changes)


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
    enough = {kind: count for kind, count in counts.items() if count >= 2 * ENOUGH}
    moved = {kind: enough[kind] for kind, seconds in _lengths(rows, enough, most).items() if breaks(seconds)}
    found = [(kind, move) for kind, points in _points(rows, moved, most).items() for move in moves(points)]
    events = _before([move for _, move in found], targets)
    attributed = [Attributed(kind, move, _suspected(move, events)) for kind, move in found]
    return sorted(attributed, key=_latest, reverse=True)


def _latest(one: Attributed) -> tuple[datetime, str]:
    return one.move.first_after, one.event_class.value


def _lengths(
    rows: QuerySet[Launch], counts: Mapping[EventClass, int], most: int
) -> Mapping[EventClass, Sequence[float]]:
    """The seconds of about ``most`` of each class in the order of time: most classes do not move, and of those nothing
    more is read."""
    if not counts:
        return {}
    listed = ArrayAgg("ready_seconds", order_by=("began_at", "ready_seconds"))
    found = _parts(rows, counts, most).values_list("event_class").annotate(listed=listed)
    return {EventClass(kind): seconds for kind, seconds in found}


def _points(
    rows: QuerySet[Launch], counts: Mapping[EventClass, int], most: int
) -> Mapping[EventClass, Sequence[Point]]:
    """About ``most`` of each class in the order of time, by one statement."""
    found: dict[str, list[Point]] = {kind.value: [] for kind in EventClass if kind in counts}
    if found:
        for kind, *columns in _parts(rows, counts, most).values_list("event_class", *COLUMNS):
            found[kind].append(point_of(*columns))
    return {EventClass(kind): sorted(points, key=time_of) for kind, points in found.items()}


def _parts(rows: QuerySet[Launch], counts: Mapping[EventClass, int], most: int) -> QuerySet[Launch]:
    """About ``most`` of each class that ``counts`` has, in no order."""
    bounds = {kind: bound_of(count, most) for kind, count in counts.items()}
    parts = [Q(event_class=kind) & (Q(pk__lt=bound) if bound else Q()) for kind, bound in bounds.items()]
    # Said once more for all, and every hit or miss there is: each lets an index serve that has more before the id.
    known = [bound for bound in bounds.values() if bound is not None]
    for_all = Q(pk__lt=max(known)) if len(known) == len(bounds) else Q()
    return rows.filter(reduce(or_, parts), for_all, weights__in=list(Cached))


def _before(found: Sequence[Move], targets: Targets) -> Mapping[str, AuditEvent]:
    """The latest changes before each move, by their keys: one statement for all moves."""
    rows = audit_list(targets=targets).exclude(object_type__in=NO_CHANGES).order_by("-at")
    each = [rows.filter(at__gte=earliest(move), at__lte=move.first_after)[:_MOST_READ] for move in found]
    if not each:
        return {}
    return {str(event.pk): event for event in each[0].union(*each[1:])}


def _suspected(move: Move, events: Mapping[str, AuditEvent]) -> tuple[tuple[AuditEvent, int], ...]:
    changes = [Change(event.at, key, _what(event)) for key, event in events.items()]
    return tuple((events[one.key], one.times) for one in suspects(move, changes))


def _what(event: AuditEvent) -> str:
    return "\n".join((event.action, event.object_type, event.object_name, event.actor))
