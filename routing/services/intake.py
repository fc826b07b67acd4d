"""What routers tell, into windows: read once, stored with how far was read, in one transaction.

A crash repeats what was not stored. A message that a router sent twice is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import redis
import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.locks import advisory_lock
from controlplane.serving.answers import Answered, tell_answers
from controlplane.serving.models import Variant
from routing.domain.figures import Figures
from routing.domain.hotset import Counted, merged
from routing.domain.told import NotTold, Told, read_told
from routing.models import Intake, RouterProcess, RoutingWindow
from routing.services import broker
from routing.services.hot_sets import hot_sets_follow

log = structlog.get_logger(__name__)

BATCH = 500  # messages in one transaction
# Seconds of a window, and how long such windows are kept.
KEPT: Mapping[int, timedelta] = {10: timedelta(hours=2), 60: timedelta(days=3), 3600: timedelta(days=400)}
ROUTER_KEPT = timedelta(days=1)
LATEST = timedelta(minutes=1)  # after now; a clock that is further ahead is not believed


@dataclass(slots=True)
class _Batch:
    """What several messages come to."""

    windows: dict[tuple[UUID, int, int], Figures] = field(default_factory=dict)
    counted: dict[UUID, list[Counted]] = field(default_factory=dict)
    routers: dict[str, tuple[Told, datetime]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)  # by the instance that they were sent to
    firsts: dict[str, datetime] = field(default_factory=dict)


def figures_take() -> int:
    """Read what is new. How many messages there were; 0 also where another worker is at it or nobody answers."""
    with advisory_lock("routing:intake") as mine:
        if not mine:
            return 0
        place, _ = Intake.objects.get_or_create(name="figures")
        try:
            with broker.client() as connection:
                messages = broker.told_after(connection, place.last_id, BATCH)
        except (redis.RedisError, OSError) as error:
            log.warning("routing.figures_unread", error=str(error)[:200])
            return 0
        with transaction.atomic():
            batch = _added_up(messages)
            _store(batch)
            if messages:
                place.last_id = messages[-1][0]
                place.save(update_fields=["last_id", "updated_at"])
        hot_sets_follow(counted={pk: merged(some) for pk, some in batch.counted.items()}, now=timezone.now())
        return len(messages)


def _added_up(messages: list[broker.Message]) -> _Batch:
    batch = _Batch()
    variants = {
        (name, variant): pk for name, variant, pk in Variant.objects.values_list("endpoint__routed__name", "name", "pk")
    }
    numbers = dict(RouterProcess.objects.values_list("name", "number"))
    for message_id, document in messages:
        try:
            told = read_told(document)
        except NotTold as error:
            log.warning("routing.figures_refused", id=message_id, error=str(error))
            continue
        if told.number <= numbers.get(told.router, 0):
            continue  # sent again, because the answer to the first sending was lost
        numbers[told.router] = told.number
        at = _believed(broker.seconds_of(message_id))  # ids of a stream can be chosen by whoever writes
        batch.routers[told.router] = (told, at)
        for uid, seconds in told.firsts.items():
            first = min(_believed(seconds), at)
            batch.firsts[uid] = min(batch.firsts.get(uid, first), first)
        for one in told.variants:
            if (pk := variants.get((one.endpoint, one.variant))) is None:
                continue
            batch.counted.setdefault(pk, []).append(one.counted)
            batch.requests.update(one.figures.instances)
            for seconds in KEPT:
                key = (pk, seconds, int(at.timestamp()) // seconds * seconds)
                batch.windows.setdefault(key, Figures()).merge(one.figures)
    return batch


def _store(batch: _Batch) -> None:
    # In one order, so that two of them could never wait for each other.
    for (variant, seconds, start), figures in sorted(batch.windows.items(), key=lambda one: str(one[0])):
        at = datetime.fromtimestamp(start, UTC)
        row, made = RoutingWindow.objects.select_for_update().get_or_create(
            variant_id=variant, seconds=seconds, at=at, defaults={"figures": figures.to_json()}
        )
        if not made:
            figures.merge(Figures.from_json(row.figures))
            row.figures = figures.to_json()
            row.save(update_fields=["figures"])
    for name, (told, at) in sorted(batch.routers.items()):
        RouterProcess.objects.update_or_create(
            name=name,
            defaults={
                "host": told.host,
                "address": told.address,
                "config_version": told.config_version,
                "figures": {"in_flight": dict(told.in_flight), "ejected": list(told.ejected)},
                "number": told.number,
                "started_at": _believed(told.started_at),
                "seen_at": at,
            },
        )
    uids = sorted(batch.requests.keys() | batch.firsts.keys())
    tell_answers([Answered(uid, batch.requests[uid], batch.firsts.get(uid)) for uid in uids])


def _believed(seconds: float) -> datetime:
    """A time of another clock, or the nearest that can be shown beside our own."""
    now = timezone.now()
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return now
    return min(at, now + LATEST)


def windows_purge(*, now: datetime) -> None:
    """Windows past their time, and routers that were not heard of for long."""
    for seconds, kept in KEPT.items():
        RoutingWindow.objects.filter(seconds=seconds, at__lt=now - kept).delete()
    RouterProcess.objects.filter(seen_at__lt=now - ROUTER_KEPT).delete()
