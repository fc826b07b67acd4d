"""When a run ended that nobody saw end: a container has one run at a time, so by the time that the next one began."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from caches.domain.launches.bounds import TOLERATED
from caches.domain.launches.observations import Observation
from caches.domain.launches.spans import Seen
from caches.domain.launches.words import Clock, Mark, Observer

# Why it ended is not known, nor when exactly. Never reworded: stored launches are told by it.
NOT_SEEN = "nobody saw it end, the next run began"


def told_its_end(seen: Sequence[Observation]) -> bool:
    """Whether its node said when it ended: that is about this run, whatever the node's clock shows, unless that is
    before the run began."""
    told = any(one.mark is Mark.ENDED and one.clock is Clock.NODE for one in seen)
    return told and Seen(seen).bounds.ended is not None


def with_end(seen: Sequence[Observation], next_began: datetime | None) -> Sequence[Observation]:
    """``seen`` of a run, and that it had ended when the next one began (None: none did) where nobody else says so.

    What the cluster says of a pod after that, such as that it is gone, is about a later run.
    """
    if next_began is None:
        return seen
    end = max([next_began, *_begins(seen)])
    own = [one for one in seen if not _ends_later(one, end)]
    if Seen(own).bounds.ended is not None:
        return own
    # An end that is not believed would hide this one.
    own = [one for one in own if one.mark is not Mark.ENDED]
    return [*own, Observation(Observer.CLUSTER, Mark.ENDED, end, facts=(("reason", NOT_SEEN),))]


def is_inferred(one: Observation) -> bool:
    """Whether nobody saw it: it is the end that follows from the next run."""
    return one.mark is Mark.ENDED and one.fact("reason") == NOT_SEEN


def _begins(seen: Sequence[Observation]) -> list[datetime]:
    """When the run itself began, as whoever assembles it has it: where the clocks of nodes are off, the next one may
    seem to have begun before that, and an end before the beginning counts for none."""
    restarted = (one.at for one in seen if one.mark is Mark.RESTARTED and one.clock is Clock.SERVER)
    return [at for at in (Seen(seen).bounds.started, *restarted) if at is not None]


def _ends_later(one: Observation, end: datetime) -> bool:
    of_cluster = one.mark is Mark.ENDED and one.clock is Clock.SERVER
    return of_cluster and one.at is not None and one.at > end + TOLERATED
