"""Cold starts: what launches took, which class and phase is slow, since when; and one launch with its evidence."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from caches import launch_charts
from caches.domain.launches.period import LONGEST, Period, moment_of, period_of
from caches.domain.launches.spans import outside_of
from caches.domain.launches.timeline import seconds_waited
from caches.domain.launches.words import Cached, EventClass
from caches.launch_addresses import FILTERS, WORDS
from caches.models import Launch
from caches.selectors.audit import audit_list
from caches.selectors.launches.lists import (
    Selection,
    choices,
    hours_waiting,
    launch_rows,
    launches_list,
    uncounted_before,
)
from caches.selectors.launches.observations import runs_seen
from caches.selectors.launches.standing import launches_standing
from caches.selectors.launches.stats import class_stats, examples, heat
from caches.selectors.launches.trials import trials_within
from caches.selectors.nodes import Targets
from caches.views.base import curl, health_of, readable, show
from caches.views.launch_moves import comparison_url, moves_shown, report_url
from caches.views.launch_tables import class_table, launch_table, miss_table, observation_table, phase_table
from controlplane.audit.models import AuditEvent
from controlplane.errors import FieldError, Invalid, Missing
from controlplane.web import polls
from controlplane.web.formats import iso_text
from controlplane.web.live import Health, with_charts
from controlplane.web.tables import wanted_format

SINCE = (("now-6h", "6 hours"), ("now-24h", "24 hours"), ("now-7d", "7 days"), ("now-30d", "30 days"))
ZONES = ("UTC", "Europe/Zurich", "Europe/London", "America/New_York", "America/Los_Angeles", "Asia/Tokyo")
_RECOUNTED = 12  # hours that wait to be counted: fewer are so for a moment whenever launches come
_MOST_EVENTS = 60
_SHORTEST = timedelta(minutes=1)
# Who came and went says nothing of launches.
_NO_CHANGES = ("Token", "User", "Webhook", "RoleGrant")


@with_charts
def launches(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Everything that the address selects: classes, phases, time and duration, changes, and the launches themselves."""
    targets = readable(request)
    problems: dict[str, str] = {}
    zone = _zone(request, problems)
    selection = _selection(request, zone, problems)
    if problems and wanted_format(request, suffix):
        raise Invalid(
            "page:user:filter",
            "The filter is not understood.",
            next_step="Correct the address, or export from the page.",
            errors=[FieldError(name, "page:user:filter", text) for name, text in problems.items()],
        )
    health, _ = health_of(request)
    stamp = "" if problems or suffix else _stamp(request, selection.period, targets, health)
    if (same := polls.unchanged(request, stamp, timezone.now())) is not None:
        return same
    stats = class_stats(selection, targets=targets)
    earlier = class_stats(_before(selection), targets=targets) if request.GET.get("compare") == "previous" else []
    classes = class_table(request, stats, {one.event_class: one for one in earlier})
    rows = launch_rows(selection, targets).select_related(None)  # nothing that is listed says its cluster
    table = launch_table(request, rows, sum(one.whole.launches for one in stats))
    misses = miss_table(request, stats)
    shown = examples(stats, selection, targets=targets)
    events = _events(selection.period, targets)
    count, missed, known = (
        sum(one.whole.launches for one in stats), sum(one.missed for one in stats), sum(one.known for one in stats),
    )  # fmt: skip
    context = {
        "selection": selection,
        "period": selection.period,
        "begins": _clock(selection.period.since, zone),
        "ends": "now" if selection.period.open else _clock(selection.period.end, zone),
        "rounded": not problems and _is_rounded(request, selection.period),
        "moves": _moves(selection.period),
        "problems": " ".join(problems.values()),
        "since_choices": SINCE,
        "zones": ZONES,
        "zone": zone.key,
        "event_classes": tuple(EventClass),
        "labels": tuple(Cached),
        **choices(selection, targets),
        "count": count,
        "missed": missed,
        "known": known,
        "ended": sum(one.whole.ended for one in stats),
        "any": count or launches_list(targets=targets).exists(),
        "restricted": targets is not None,
        "phases": launch_charts.phase_bars(shown, _url) if shown else None,
        "examples": shown,
        "heat": launch_charts.heatmap(heat(selection, targets=targets), selection.period, zone, events)
        if count
        else None,
        "events": events,
        "moved": moves_shown(selection, stats, targets=targets),
        "comparison_url": comparison_url(selection),
        "report_url": report_url(selection),
        "trials": trials_within(selection.period, targets=targets),
        "uncounted": _clock(moment, zone) if (moment := uncounted_before(selection)) is not None else "",
        "recounted": waiting if (waiting := hours_waiting(selection.period, targets=targets)) >= _RECOUNTED else 0,
        "curl": curl(request, f"launches/statistics?{_query(request)}"),
        "health": health,
    }
    return show(
        request, "pages/cold_starts.html", context, title="Cold starts", section="launches",
        tables=(classes, misses, table), suffix=suffix, stamp=stamp,
    )  # fmt: skip


@with_charts
def launch(request: HttpRequest, launch_id: UUID, suffix: str = "") -> HttpResponse:
    """One launch: where its seconds went, who measured them, and everything that was seen of it."""
    found = launches_list(targets=readable(request)).defer(None).filter(pk=launch_id).first()
    if found is None:
        raise Missing("launch:user:not-found", "There is no such launch.", next_step="Look at Cold starts.")
    told = runs_seen([found]).get(found.pk, ())
    seen = observation_table(request, found, outside_of(told))
    context = {
        "launch": found,
        "phase_lines": phase_table(found),
        "waited": seconds_waited(told),
        "waterfall": launch_charts.waterfall(found) if any(line["pieces"] for line in found.phases) else None,
        "node_there": found.node_id is not None,
        "curl": curl(request, f"launches/{found.pk}"),
    }
    return show(
        request, "pages/launch.html", context, title=found.title, section="launches",
        crumbs=[("Cold starts", reverse("launches"))], tables=(seen,), suffix=suffix,
    )  # fmt: skip


def _stamp(request: HttpRequest, period: Period, targets: Targets, health: Health) -> str:
    """Of whoever sees the whole fleet: what others may see follows from more than is asked here."""
    if targets is not None or not polls.is_poll(request):
        return ""
    since = period.before().since if request.GET.get("compare") == "previous" else period.since
    standing = launches_standing(period, since=since, now=timezone.now())
    return polls.stamp_of(request, [*standing, health]) if standing is not None else ""


def _url(found: Launch) -> str:
    return reverse("launch", args=[found.pk])


def _selection(request: HttpRequest, zone: ZoneInfo, problems: dict[str, str]) -> Selection:
    """What the address asks for; what it says wrongly is left out and named in ``problems``."""
    now = timezone.now()
    since, until = request.GET.get("since") or "now-24h", request.GET.get("until") or "now"
    try:
        period = period_of(since, until, now, zone)
    except ValueError as error:
        problems["since"] = f"since and until are no period: {error}."
        period = period_of("now-24h", "now", now, zone)
    wanted: dict[str, Any] = {name: request.GET.get(name, "") for name in FILTERS}
    for name, words in WORDS.items():
        if wanted[name] and wanted[name] not in words:
            problems[name] = f"{name} must be one of {', '.join(words)}."
            wanted[name] = ""
    return Selection(period, **wanted)


def _zone(request: HttpRequest, problems: dict[str, str]) -> ZoneInfo:
    name = request.GET.get("tz") or "UTC"
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # what it raises for a name that is a folder, too long, or unknown
        problems["tz"] = "tz is no time zone."
        return ZoneInfo("UTC")


def _clock(moment: datetime, zone: ZoneInfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"


def _moves(period: Period) -> list[tuple[str, str, str]]:
    """(words, since, until) of the periods beside this one and around it, as addresses say them."""
    # What goes on until now is taken to end with its hour: else these would be others whenever somebody asks again.
    now = timezone.now()
    end = period.until if period.open else period.end
    length, last = end - period.since, period.until if period.open else now
    until = min(end + length / 2, last)
    beside = [("Earlier", period.since - length, period.since), ("Later", end, min(end + length, last))]
    wider = [("Wider", until - 2 * length, until)] if 2 * length <= LONGEST else []
    return [
        (words, iso_text(since), "now" if to == last else iso_text(to))
        for words, since, to in [*beside, *wider]
        if to - since >= _SHORTEST
    ]


def _is_rounded(request: HttpRequest, period: Period) -> bool:
    """Whether more is shown than the address asks for; what goes on until now begins with an hour anyway."""
    now = timezone.now()
    since, until = (moment_of(request.GET.get(name) or "now", now) for name in ("since", "until"))
    return not period.open and (since, until) != (period.since, period.until)


def _before(selection: Selection) -> Selection:
    return Selection(selection.period.before(), **{name: getattr(selection, name) for name in FILTERS})


def _events(period: Period, targets: Targets) -> list[AuditEvent]:
    rows = audit_list(targets=targets).filter(at__gte=period.since, at__lt=period.until)
    return list(rows.exclude(object_type__in=_NO_CHANGES).order_by("-at")[:_MOST_EVENTS])


def _query(request: HttpRequest) -> str:
    return urlencode({name: request.GET[name] for name in ("since", "until", *FILTERS) if request.GET.get(name)})
