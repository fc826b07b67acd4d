"""Two clocks disagree: the node's is moved by the least amount that lets causes come before their effects.

A clock that contradicts nothing is believed. One that cannot be right at all (no shift helps) is left as it is, and
the phases between the two clocks stay unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from caches.domain.launches.words import Clock, Mark

# What must be before what. Pulling and ensuring come in either order between being placed and being started.
RANK: Mapping[Mark, int] = {
    Mark.CREATED: 0,
    Mark.RESTARTED: 0,
    Mark.SCHEDULED: 1,
    Mark.PULLING: 2,
    Mark.ENSURE_STARTED: 2,
    Mark.STARTED: 3,
    Mark.LOAD_STARTED: 4,
    Mark.LOADED: 5,
    Mark.SERVING: 6,
    Mark.READY: 7,
    Mark.FIRST_SUCCESS: 8,
}

Moments = Mapping[tuple[Mark, Clock], datetime]


def node_shift(moments: Moments) -> timedelta:
    """What to add to the node's times. ``moments`` are the earliest of each mark on each clock."""
    least, most = timedelta.min, timedelta.max
    for (server_mark, clock), server_at in moments.items():
        if clock is not Clock.SERVER or server_mark not in RANK:
            continue
        for (node_mark, other), node_at in moments.items():
            if other is not Clock.NODE or node_mark not in RANK:
                continue
            apart = server_at - node_at
            if RANK[server_mark] < RANK[node_mark]:
                least = max(least, apart)
            elif RANK[server_mark] > RANK[node_mark]:
                most = min(most, apart)
    if least > most:
        return timedelta()
    return min(max(timedelta(), least), most)
