"""When the launches of a class moved, with the changes that were made before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from caches.domain.launch_attribution import MOST_CHANGES, Change, Move, Point, earliest, moves, suspects
from caches.domain.launch_resampling import ENOUGH
from caches.domain.launch_words import EventClass
from caches.selectors.audit import audit_list
from caches.selectors.launch_samples import MOST, points
from caches.selectors.launches import Selection, launch_rows
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
    kinds = [EventClass(selection.event_class)] if selection.event_class else list(EventClass)
    found = [
        Attributed(kind, move, _before(move, targets))
        for kind in kinds
        for move in moves(_points(selection, kind, targets, most, counts))
    ]
    return sorted(found, key=_latest, reverse=True)


def _latest(one: Attributed) -> tuple[datetime, str]:
    return one.move.first_after, one.event_class.value


def _points(
    selection: Selection, kind: EventClass, targets: Targets, most: int, counts: Mapping[EventClass, int] | None
) -> Sequence[Point]:
    rows = launch_rows(replace(selection, event_class=kind.value), targets).filter(ready_seconds__isnull=False)
    count = counts.get(kind, 0) if counts is not None else rows.order_by().count()
    return points(rows, count, most) if count >= 2 * ENOUGH else ()


def _before(move: Move, targets: Targets) -> tuple[AuditEvent, ...]:
    rows = audit_list(targets=targets).filter(at__gte=earliest(move), at__lte=move.first_after)
    known = {str(event.pk): event for event in rows.exclude(object_type__in=NO_CHANGES).order_by("-at")[:MOST_CHANGES]}
    changes = [Change(event.at, key) for key, event in known.items()]
    return tuple(known[one.key] for one in suspects(move, changes))
