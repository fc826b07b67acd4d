"""When a run ended that nobody saw end: a container has one run at a time, so by the time that the next one began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from caches.domain.launches.bounds import TOLERATED
from caches.domain.launches.observations import Observation
from caches.domain.launches.words import Clock, Mark, Observer

# Why it ended is not known, nor when exactly. Never reworded: stored launches are told by it.
NOT_SEEN = "nobody saw it end, the next run began"


def told_its_end(seen: Iterable[Observation]) -> bool:
    """Whether its node said when it ended: that is about this run, whatever the node's clock shows."""
    return any(one.mark is Mark.ENDED and one.clock is Clock.NODE for one in seen)


def with_end(seen: Sequence[Observation], next_began: datetime | None) -> Sequence[Observation]:
    """``seen`` of a run, and that it had ended when the next one began (None: none did) where nobody else says so.

    What the cluster says of a pod after that, such as that it is gone, is about a later run.
    """
    if next_began is None:
        return seen
    own = [one for one in seen if not _ends_later(one, next_began)]
    if any(one.mark is Mark.ENDED for one in own):
        return own
    return [*own, Observation(Observer.CLUSTER, Mark.ENDED, next_began, facts=(("reason", NOT_SEEN),))]


def _ends_later(one: Observation, next_began: datetime) -> bool:
    of_cluster = one.mark is Mark.ENDED and one.clock is Clock.SERVER
    return of_cluster and one.at is not None and one.at > next_began + TOLERATED
