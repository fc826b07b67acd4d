"""What was measured of a variant's requests: totals, a series, shares, and what was changed meanwhile.

Where nothing was told, the answer is None: unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.serving.models import Instance, Variant
from routing.domain.deciding import Outcome
from routing.domain.engine_figures import Gauge
from routing.domain.figures import Figures, fair_band
from routing.domain.sketches import Sketch
from routing.models import Configuration, RoutedEndpoint, RoutingWindow
from routing.selectors.names import names_of
from routing.selectors.policies import served_by
from routing.selectors.presence import expected_shares

SPANS = {15: 10, 60: 60, 1440: 3600, 10080: 3600}  # minutes shown → seconds of a window
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ENOUGH = {"p50": 1, "p95": 20, "p99": 100}  # samples, from which on a percentile is not simply the greatest
SPILLED = (Outcome.SIBLING, Outcome.SPILL)


@dataclass(frozen=True, slots=True)
class Spread:
    """``p50`` to ``p99`` in seconds over ``count`` samples, and the ``most`` of them; None of none. Of few samples a
    high percentile is the most: see ENOUGH."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    most: float | None = None

    def told(self, name: str) -> float | None:
        """A percentile where there are samples enough to tell it from the most."""
        found: float | None = getattr(self, name) if self.count >= ENOUGH[name] else None
        return found


@dataclass(frozen=True, slots=True)
class Share:
    """``share`` of the decided requests; ``due``: what it would be had every request been spread evenly over those that
    were there at that time, ``low`` to ``high`` is fair. ``fair`` is None while too few were decided, or when nobody
    knows how long it was there. ``there``: it is ready now."""

    uid: str
    name: str
    requests: int
    share: float
    fair: bool | None
    due: float | None = None
    low: float | None = None
    high: float | None = None
    there: bool = True


@dataclass(frozen=True, slots=True)
class EngineShown:
    """What one engine said of itself over the time, mean and most; None is unknown. ``kind`` names it, ``stand_in``:
    it only keeps time."""

    uid: str
    name: str
    kind: str
    stand_in: bool
    caching: bool | None
    answered: float | None
    utilisation: float | None
    running: Gauge
    waiting: Gauge
    usage: Gauge
    hit_rate: float | None

    @property
    def words(self) -> str:
        return engine_words(self.kind, self.stand_in)


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
    engines: tuple[EngineShown, ...]
    points: tuple[Point, ...]
    markers: tuple[Marker, ...]

    @property
    def produced_by(self) -> str:
        """Which engines the figures come from: a sentence."""
        return produced_by(self.engines)


def telemetry(*, variant: Variant, minutes: int, now: datetime) -> Telemetry:
    """``minutes`` is one of SPANS."""
    since = now - timedelta(minutes=minutes)
    windows = list(RoutingWindow.objects.filter(variant=variant, seconds=SPANS[minutes], at__gte=since).order_by("at"))
    total, points = Figures(), []
    for window in windows:
        figures = Figures.from_json(window.figures)
        points.append(Point(window.at, figures.requests, figures.hit_rate, spread(figures.all_ttft)))
        total.merge(figures)
    names = names_of(variant, {*total.instances, *total.engines})
    due = expected_shares(variant, since, [(point.at, point.requests) for point in points])
    shares = _shares(variant, total, names, due)
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
        band=fair_band(sum(one.there for one in shares)),
        engines=_engines(total, names),
        points=tuple(points),
        markers=_markers(variant, since),
    )


def spread(sketch: Sketch) -> Spread:
    p50, p95, p99 = (sketch.quantile(part) for part in QUANTILES.values())
    return Spread(sketch.count, p50, p95, p99, sketch.quantile(1.0))


def _shares(variant: Variant, total: Figures, names: Mapping[str, str], due: Mapping[str, float]) -> tuple[Share, ...]:
    """Every instance that is there, also one that got nothing, and those that are gone since."""
    ready = dict(Instance.objects.filter(endpoint=served_by(variant), ready=True).values_list("uid", "name"))
    uids = sorted(
        ready.keys() | total.instances.keys() | due.keys(), key=lambda uid: (uid not in ready, _name(uid, ready, names))
    )
    whole = total.instances.total()
    enough = whole >= 50 * len(uids)
    found = []
    for uid in uids:
        share = total.instances[uid] / whole if whole else 0.0
        expected = due.get(uid) if due else 1 / len(uids)  # before any publication: as if all had been there
        low, high = fair_band(1 / expected) if expected else (None, None)
        fair = low <= share <= high if enough and low is not None and high is not None else None
        name = _name(uid, ready, names)
        found.append(Share(uid, name, total.instances[uid], share, fair, expected, low, high, uid in ready))
    return tuple(found)


def _name(uid: str, ready: Mapping[str, str], names: Mapping[str, str]) -> str:
    return ready.get(uid) or names.get(uid) or uid


def _engines(total: Figures, names: Mapping[str, str]) -> tuple[EngineShown, ...]:
    return tuple(
        EngineShown(
            uid,
            names[uid],
            said.kind,
            said.stand_in,
            said.caching,
            (said.asked - said.silent) / said.asked if said.asked else None,
            said.utilisation,
            said.running,
            said.waiting,
            said.usage,
            said.hit_rate,
        )
        for uid, said in sorted(total.engines.items(), key=lambda one: names[one[0]])
    )


def engine_words(kind: str, stand_in: bool) -> str:
    """What to call an engine: whether it is one must never be in doubt."""
    if stand_in:
        return "stand-in (keeps time, computes nothing)"
    return kind or "unknown"


def produced_by(engines: Sequence[EngineShown]) -> str:
    """A sentence for people: which engines answered what is shown."""
    said = [one for one in engines if one.kind or one.stand_in]
    if not said:
        return "Engines that did not say what they are."
    real = sorted({one.kind for one in said if not one.stand_in})
    words = [
        *real,
        *(["stand-in engines, which keep time and compute nothing"] if any(o.stand_in for o in said) else []),
    ]
    silent = len(engines) - len(said)
    rest = f"; {silent} did not say what they are" if silent else ""
    return f"Measured on {' and '.join(words)}{rest}."


def _markers(variant: Variant, since: datetime) -> tuple[Marker, ...]:
    name = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).values_list("name", flat=True).first()
    rows = Configuration.objects.filter(created_at__gte=since).order_by("created_at")
    return tuple(
        Marker(row.created_at, one["kind"], one["detail"], row.version)
        for row in rows.only("created_at", "version", "changes")
        for one in row.changes
        if (one["endpoint"], one["variant"]) == (name, variant.name) or one["kind"] == "Routers"
    )
