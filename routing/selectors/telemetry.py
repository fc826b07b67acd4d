"""What was measured of a variant's requests: totals, a series, shares, and what was changed meanwhile.

Where nothing was told, the answer is None: unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.serving.models import Instance, Variant
from controlplane.serving.standing import Standings
from routing.domain.deciding import KEYED, SPILLED, Outcome
from routing.domain.engine_figures import Gauge
from routing.domain.failing import Failed, failed_of
from routing.domain.figures import Figures, fair_band, is_fair
from routing.models import Configuration, RoutedEndpoint, RoutingWindow
from routing.selectors.beginnings import heaviest_key
from routing.selectors.by_policy import UnderPolicy, under_policies
from routing.selectors.names import names_of
from routing.selectors.policies import served_by
from routing.selectors.presence import Requests, expected_shares
from routing.selectors.spreads import Spread, spread

SPANS = {15: 10, 60: 60, 1440: 3600, 10080: 3600}  # minutes shown → seconds of a window


@dataclass(frozen=True, slots=True)
class Share:
    """``share`` of the decided requests; ``due``: what it would be had every request been spread evenly over those that
    were there at that time, ``low`` to ``high`` is fair: see figures.fair_band. ``fair`` is None while too few were due
    to it, or when nobody knows how long it was there. ``there``: it is ready now, None where nobody knows."""

    uid: str
    name: str
    requests: int
    share: float
    fair: bool | None
    due: float | None = None
    low: float | None = None
    high: float | None = None
    there: bool | None = True


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
    failed: tuple[Failed, ...]
    shares: tuple[Share, ...]
    band: tuple[float, float]
    engines: tuple[EngineShown, ...]
    points: tuple[Point, ...]
    markers: tuple[Marker, ...]
    policies: tuple[UnderPolicy, ...]

    @property
    def lost(self) -> int:
        """Requests that got no whole answer for no reason of their own."""
        return sum(one.count for one in self.failed if one.lost)

    @property
    def produced_by(self) -> str:
        """Which engines the figures come from: a sentence."""
        return produced_by(self.engines)


def telemetry(*, variant: Variant, minutes: int, now: datetime) -> Telemetry:
    """``minutes`` is one of SPANS."""
    since = now - timedelta(minutes=minutes)
    windows = list(RoutingWindow.objects.filter(variant=variant, seconds=SPANS[minutes], at__gte=since).order_by("at"))
    read = [(window.at, Figures.from_json(window.figures)) for window in windows]
    total, points = Figures(), []
    for at, figures in read:
        points.append(Point(at, figures.requests, figures.hit_rate, spread(figures.all_ttft)))
        total.merge(figures)
    names = names_of(variant, {*total.instances, *total.engines})
    times = [Requests(point.at, point.at + timedelta(seconds=SPANS[minutes]), point.requests) for point in points]
    due = expected_shares(variant, since, times, until=now)
    keyed = sum(total.outcomes[one] for one in KEYED)
    # Of what a key led to: the rest was placed request by request.
    heaviest = heaviest_key(variant) * (keyed / total.outcomes.total()) ** 2 if keyed else 0.0
    shares = _shares(variant, total, names, due, now, heaviest)
    there = sum(one.there is not False for one in shares)
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
        failed=failed_of(total),
        shares=shares,
        band=fair_band(1 / there if there else 0.0, total.instances.total(), heaviest),
        engines=_engines(total, names),
        points=tuple(points),
        markers=_markers(variant, since),
        policies=under_policies(variant, read, SPANS[minutes]),
    )


def _shares(
    variant: Variant,
    total: Figures,
    names: Mapping[str, str],
    due: Mapping[str, float],
    now: datetime,
    heaviest: float,
) -> tuple[Share, ...]:
    """Every instance that is there, also one that got nothing, and those that are gone since."""
    rows = Instance.objects.filter(endpoint=served_by(variant), ready=True).select_related("endpoint__cluster")
    standings = Standings(now=now)
    there = {row.uid: standings.of_instance(row).ready for row in rows}
    ready = {row.uid: row.name for row in rows}
    uids = sorted(
        ready.keys() | total.instances.keys() | due.keys(), key=lambda uid: (uid not in ready, _name(uid, ready, names))
    )
    whole = total.instances.total()
    found = []
    for uid in uids:
        share = total.instances[uid] / whole if whole else 0.0
        expected = due.get(uid) if due else 1 / len(uids)  # before any publication: as if all had been there
        low, high = fair_band(expected, whole, heaviest) if expected else (None, None)
        fair = is_fair(share, expected, whole, heaviest) if expected else None
        name = _name(uid, ready, names)
        found.append(Share(uid, name, total.instances[uid], share, fair, expected, low, high, there.get(uid, False)))
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
