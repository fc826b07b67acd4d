"""What was measured of a variant's requests: totals, a series, shares, and what was changed meanwhile.

Where nothing was told, the answer is None: unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.serving.models import Instance, Variant
from routing.domain.deciding import Outcome
from routing.domain.figures import Figures, fair_band
from routing.domain.sketches import Sketch
from routing.models import Configuration, RoutedEndpoint, RoutingWindow

SPANS = {15: 10, 60: 60, 1440: 3600, 10080: 3600}  # minutes shown → seconds of a window
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPILLED = (Outcome.SIBLING, Outcome.SPILL)


@dataclass(frozen=True, slots=True)
class Spread:
    """``p50`` to ``p99`` in seconds over ``count`` samples; None of none."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """``share`` of the decided requests; ``fair`` is whether it lies in the band, None while too few were decided."""

    uid: str
    name: str
    requests: int
    share: float
    fair: bool | None


@dataclass(frozen=True, slots=True)
class Point:
    """One window."""

    at: datetime
    requests: int
    hit_rate: float | None
    ttft: Spread


@dataclass(frozen=True, slots=True)
class Marker:
    """Something that was changed at that time."""

    at: datetime
    kind: str
    detail: str
    version: int


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Everything over the same time, so that no figure is looked at alone. ``spill`` and ``saturated`` are shares of
    the requests that had a key."""

    since: datetime
    until: datetime
    requests: int
    figures: Figures
    hit_rate: float | None
    ttft: Spread
    ttft_by_outcome: dict[str, Spread]
    overhead: Spread
    waited: Spread
    spill: float | None
    saturated: float | None
    shares: tuple[Share, ...]
    band: tuple[float, float]
    points: tuple[Point, ...]
    markers: tuple[Marker, ...]


def telemetry(*, variant: Variant, minutes: int, now: datetime) -> Telemetry:
    """``minutes`` is one of SPANS."""
    since = now - timedelta(minutes=minutes)
    windows = list(RoutingWindow.objects.filter(variant=variant, seconds=SPANS[minutes], at__gte=since).order_by("at"))
    total, points = Figures(), []
    for window in windows:
        figures = Figures.from_json(window.figures)
        points.append(Point(window.at, figures.requests, figures.hit_rate, spread(figures.all_ttft)))
        total.merge(figures)
    shares = _shares(variant, total)
    keyed = sum(total.outcomes[one] for one in (Outcome.PRIMARY, *SPILLED, Outcome.SATURATED))
    return Telemetry(
        since=since,
        until=now,
        requests=total.requests,
        figures=total,
        hit_rate=total.hit_rate,
        ttft=spread(total.all_ttft),
        ttft_by_outcome={outcome: spread(sketch) for outcome, sketch in sorted(total.ttft.items())},
        overhead=spread(total.overhead),
        waited=spread(total.waited),
        spill=sum(total.outcomes[one] for one in SPILLED) / keyed if keyed else None,
        saturated=total.outcomes[Outcome.SATURATED] / keyed if keyed else None,
        shares=shares,
        band=fair_band(len(shares)),
        points=tuple(points),
        markers=_markers(variant, since),
    )


def spread(sketch: Sketch) -> Spread:
    return Spread(sketch.count, *(sketch.quantile(part) for part in QUANTILES.values()))


def _shares(variant: Variant, total: Figures) -> tuple[Share, ...]:
    """Every instance that is there, also one that got nothing, and those that are gone since."""
    names = dict(Instance.objects.filter(endpoint=variant.endpoint_id, ready=True).values_list("uid", "name"))
    uids: Sequence[str] = sorted(names.keys() | total.instances.keys(), key=lambda uid: (names.get(uid, "~"), uid))
    low, high = fair_band(len(uids))
    whole = total.instances.total()
    enough = whole >= 50 * len(uids)
    found = []
    for uid in uids:
        share = total.instances[uid] / whole if whole else 0.0
        found.append(
            Share(uid, names.get(uid, ""), total.instances[uid], share, low <= share <= high if enough else None)
        )
    return tuple(found)


def _markers(variant: Variant, since: datetime) -> tuple[Marker, ...]:
    name = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).values_list("name", flat=True).first()
    rows = Configuration.objects.filter(created_at__gte=since).order_by("created_at")
    return tuple(
        Marker(row.created_at, one["kind"], one["detail"], row.version)
        for row in rows.only("created_at", "version", "changes")
        for one in row.changes
        if (one["endpoint"], one["variant"]) == (name, variant.name) or one["kind"] == "Routers"
    )
