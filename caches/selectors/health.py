"""How the fleet is, in one tone and one sentence: for the title and the icon of every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from caches.selectors.coverage import PoolCoverage
from caches.selectors.nodes import Targets
from caches.selectors.overview import Severity, Trouble, troubles, unwatched_clusters
from controlplane.web.live import Health
from controlplane.web.tones import Tone

_TONES: Mapping[Severity, Tone] = {
    Severity.BAD: Tone.BAD,
    Severity.WARN: Tone.WARN,
    Severity.UNKNOWN: Tone.UNKNOWN,
}


def fleet_health(
    *, now: datetime, targets: Targets = None, covered: Sequence[PoolCoverage] | None = None
) -> tuple[Health, tuple[Trouble, ...]]:
    """The worst of what the reader may see, and all of it. ``covered`` is their pools_coverage, where it is known."""
    unwatched = unwatched_clusters(now=now, targets=targets)
    found = troubles(now=now, targets=targets, covered=covered, unwatched=unwatched)
    stale = next(iter(unwatched.values()), "")
    if not found:
        return Health(tone=Tone.UNKNOWN if stale else Tone.OK, stale=stale), found
    count = sum(trouble.count for trouble in found)
    sentence = "; ".join(trouble.sentence for trouble in found) + "."
    return Health(tone=_TONES[found[0].severity], count=count, sentence=sentence, stale=stale), found
