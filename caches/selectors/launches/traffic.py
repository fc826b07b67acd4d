"""Which requests reached instances whose launch had missed: what misses cost those who asked."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q, Sum

from caches.domain.launches.words import Cached
from caches.models import LaunchTraffic
from caches.selectors.launches.lists import Selection, launch_rows
from caches.selectors.nodes import Targets


@dataclass(frozen=True, slots=True)
class RequestShare:
    """``requests`` reached instances that the selected launches brought up; ``missed`` of them one whose weights were
    not (all) on its node, ``unknown`` one of which nobody knows."""

    requests: int
    missed: int
    unknown: int

    @property
    def share(self) -> float | None:
        """Of those of which it is known; None without any."""
        known = self.requests - self.unknown
        return self.missed / known if known else None


def request_share(selection: Selection, targets: Targets) -> RequestShare:
    """Over the launches of a selection."""
    launches = launch_rows(selection, targets).order_by().values("pk")
    found = LaunchTraffic.objects.filter(launch__in=launches).aggregate(
        whole=Sum("requests"),
        missed=Sum("requests", filter=Q(launch__weights__in=(Cached.MISS, Cached.PARTIAL))),
        unknown=Sum("requests", filter=Q(launch__weights=Cached.UNKNOWN)),
    )
    return RequestShare(*(int(found[name] or 0) for name in ("whole", "missed", "unknown")))
