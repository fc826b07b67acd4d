"""What of an endpoint's rollouts serves, what comes, and what of the one that was replaced is held, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from caches.domain.endpoints.options import DEFAULT_HOLD_SECONDS, PREFIX
from caches.domain.rollouts import FINAL, SERVED, Kept, RolloutState
from caches.models import Pin, Rollout
from caches.selectors.image_demand import image_of

# One that is held, or was when its endpoint was deleted, took over whatever it is called since.
_TOOK_OVER = Q(state__in=SERVED) | Q(held_until__isnull=False)


@dataclass(frozen=True, slots=True)
class Side:
    """One rollout beside the others; ``serves``: it took over from the one before."""

    rollout: Rollout
    serves: bool

    @property
    def words(self) -> str:
        """What it is at the moment, for people."""
        if self.serves:
            return "Serves"
        # Some of its pods may have come before it ended.
        return "Not finished" if self.rollout.state in FINAL else "Comes next"


def rollout_sides(rows: QuerySet[Rollout]) -> Sequence[Side]:
    """Of the rollouts of one endpoint: the one that serves, one that opened its gate after it and was left unfinished,
    and the newest; each once, in the order of their numbers. A gate that opened makes none serve: its pods do."""
    ordered = rows.order_by("-number")
    newest = ordered.first()
    if newest is None:
        return ()
    serving = ordered.filter(_TOOK_OVER).first()
    if serving == newest:
        return (Side(newest, True),)
    between = ordered.filter(opened_at__isnull=False, number__lt=newest.number)
    if serving is not None:
        between = between.filter(number__gt=serving.number)
    unfinished = between.first()
    found = [Side(serving, True)] if serving is not None else []
    return (*found, *(Side(row, False) for row in (unfinished, newest) if row is not None))


def way_back(rows: QuerySet[Rollout], sides: Sequence[Side]) -> Rollout | None:
    """What served before the newest rollout, while that is on its way, failed, or holds what it replaced."""
    if not sides:
        return None
    newest = sides[-1]
    if newest.rollout.state in FINAL and newest.rollout.state != RolloutState.FAILED:
        return None
    if newest.serves:
        before = newest.rollout.previous_id
        return rows.filter(pk=before).first() if before is not None else None
    return sides[0].rollout if sides[0].serves else None


def hold_words(rollout: Rollout) -> str:
    """Who says how long what it replaced is held, where no person did: "as the document says"; "" while none is."""
    if rollout.held_until is None:
        return ""
    seconds = round((rollout.held_until - rollout.state_since).total_seconds())
    said = rollout.endpoint.annotations.get(f"{PREFIX}hold-seconds")
    if isinstance(said, str) and said.isdecimal() and int(said[:10]) == seconds:
        return "as the document says"
    return "after the usual hour" if seconds == DEFAULT_HOLD_SECONDS else "as the document said then"


def kept_before(rollout: Rollout) -> Kept:
    """What of the version before it the endpoint has pinned now: of a cache that was off when it was replaced nothing,
    nor of an image that is withdrawn since."""
    before = rollout.previous
    if before is None:
        return Kept()
    pins = Pin.objects.filter(endpoint=rollout.endpoint_id, version=before.version_id, removed_at__isnull=True)
    live = list(pins.filter(pools__isnull=False).select_related("image").distinct())  # one without pools holds nothing
    images = {pin.image_id for pin in live if pin.image_id is not None and image_of(pin) is not None}
    weights = before.version_id is not None and any(pin.image_id is None for pin in live)
    return Kept(weights, before.resolved_image_id in images)
