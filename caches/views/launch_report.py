"""Was caching worth it: every model with and without, as a page, as tables, and as one file for a post-mortem."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe

from caches import launch_report_charts
from caches.domain.launches.bursts import Burst
from caches.domain.launches.period import LONGEST
from caches.domain.launches.worth import Worth
from caches.launch_addresses import REPORTED, Problems, selection_of
from caches.launch_words import (
    WORTH_WORDS,
    missed_sentence,
    move_sentence,
    too_few_sentence,
    without_words,
    worth_sentence,
)
from caches.selectors.launches.attribution import Attributed, launch_moves
from caches.selectors.launches.lists import Selection, choices
from caches.selectors.launches.report import Report, VersionReport, launch_report
from caches.selectors.launches.traffic import request_share
from caches.selectors.launches.trials import trials_within
from caches.views.base import curl, readable, show
from caches.views.launch_compare import refuse, refuse_export
from controlplane.web import cells
from controlplane.web.live import with_charts
from controlplane.web.tables import Column, Table

SINCE = (("now-24h", "24 hours"), ("now-7d", "7 days"), ("now-30d", "30 days"), ("now-90d", "90 days"))
_FIELDS = ("since", "until", *REPORTED)
_NAMELESS = "unknown version"
_DRAWN = 3  # versions that have a chart


@with_charts
def report(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """What caching saved and cost, by model version, and how added capacity fared."""
    targets, problems = readable(request), Problems()
    selection = _selection(request, problems)
    refuse_export(request, suffix, problems)
    found = launch_report(selection, targets=targets)
    known = choices(selection, targets)
    context: dict[str, Any] = {
        **_told(found),
        "selection": selection,
        "period": selection.period,
        "since": request.GET.get("since") or "now-30d",
        "since_choices": SINCE,
        "problems": " ".join(f"{name}: {text}" for name, text in problems.items()),
        "query": _query(request),
        "pools": known["pools"],
        "endpoints": known["endpoints"],
        "namesakes": known["namesakes"],
        "versions_known": known["versions"],
        "requests": request_share(selection, targets),
        "trials": trials_within(selection.period, targets=targets),
        "curl": curl(request, f"launches/report?{_query(request)}"),
    }
    return show(
        request, "pages/launch_report.html", context, title="Was caching worth it?", section="launches",
        crumbs=[("Cold starts", reverse("launches"))],
        tables=(_table(request, found), _burst_table(request, found)), suffix=suffix,
    )  # fmt: skip


def report_file(request: HttpRequest) -> HttpResponse:
    """The report with its charts in one file that needs nothing else, and no network."""
    targets, problems = readable(request), Problems()
    selection = _selection(request, problems)
    refuse(problems)
    now = timezone.now()
    found = launch_report(selection, targets=targets)
    moves = [_move(one) for one in launch_moves(selection, targets=targets)]
    context = {**_told(found), "selection": selection, "generated_at": now, "moves": moves, "plotly": _plotly()}
    answer = render(request, "pages/launch_report_file.html", context)
    answer["Content-Disposition"] = f'attachment; filename="hearth-launches-{now:%Y%m%dT%H%M%SZ}.html"'
    answer["Cache-Control"] = "private, no-store"
    return answer


def _selection(request: HttpRequest, problems: Problems) -> Selection:
    asked = {name: request.GET.get(name, "") for name in _FIELDS}
    return selection_of(asked, timezone.now(), problems, since="now-30d")


def _query(request: HttpRequest) -> str:
    return urlencode({name: request.GET[name] for name in _FIELDS if request.GET.get(name)})


def _told(found: Report) -> dict[str, Any]:
    """What page and file both say."""
    versions = [
        {"report": one, "sentence": worth_sentence(one), "name": one.name or _NAMELESS} for one in found.versions
    ]
    return {
        "found": found,
        "versions": versions,
        "charts": [
            {
                "id": f"version-{number}",
                "data": f"version-{number}-data",
                "name": one.name or _NAMELESS,
                **_drawn(one),
            }
            for number, one in enumerate([row for row in found.versions if row.drawn][:_DRAWN])
        ],
        "longest_days": LONGEST.days,
    }


def _drawn(one: VersionReport) -> dict[str, Any]:
    """The chart, or what there is in words where no side has two launches to draw a line through."""
    judged = one.judged
    without = without_words(judged)
    groups = {"with the cache, misses included": judged.with_cache, f"without: {without}": judged.without}
    sides = {name: seconds for name, seconds in groups.items() if seconds}
    if any(len(seconds) > 1 for seconds in sides.values()):
        return {"spec": launch_report_charts.distributions(sides), "words": ""}
    return {"spec": None, "words": too_few_sentence({name: seconds[0] for name, seconds in sides.items()})}


def _move(one: Attributed) -> dict[str, Any]:
    return {"found": one, "sentence": move_sentence(one), "missed": missed_sentence(one)}


@cache
def _plotly() -> SafeString:
    """Nothing in it ends a script element: the wheel's file is made to be put into one."""
    text = settings.PLOTLY_JS.read_text("utf-8")
    if "</script" in text.lower():
        raise ValueError("plotly.js cannot be put into a page")
    return mark_safe(text)  # it is the file that pages load


def _table(request: HttpRequest, found: Report) -> Table:
    columns = [
        Column("version", "Version", lambda r: r.name, _version, heading=True),
        Column("worth", "Worth it?", lambda r: r.judged.worth.value, _worth),
        Column("launches", "Launches", lambda r: r.counted.launches, numeric=True),
        Column("hits", "Hits", lambda r: r.counted.hits, numeric=True),
        Column("missed", "Misses", lambda r: r.counted.missed, numeric=True),
        Column("ended", "Never ready", lambda r: r.counted.ended, lambda r: r.counted.ended or None, numeric=True),
        Column("hit_seconds", "Median of hits", lambda r: r.judged.hit_seconds,
               lambda r: cells.duration(r.judged.hit_seconds), numeric=True),
        Column("without_seconds", "Median without", lambda r: r.judged.saving.second,
               lambda r: cells.duration(r.judged.saving.second), numeric=True),
        Column("basis", "Without is", lambda r: r.judged.basis.value, lambda r: without_words(r.judged)),
        Column("hit_saving_seconds", "Saved by a hit", lambda r: r.judged.hit_saving_seconds, _saving, numeric=True),
        Column("saved_seconds", "Saved in all", lambda r: r.judged.saved_seconds, _saved, numeric=True),
        Column("break_even_hits", "Break-even", lambda r: r.judged.break_even, _break_even, numeric=True),
        Column("moved_bytes", "Moved", lambda r: r.cost.moved_bytes, _moved, numeric=True),
        Column("held_bytes", "Held", lambda r: r.cost.held_bytes, lambda r: cells.size(r.cost.held_bytes or None),
               numeric=True),
        Column("copies", "Copies", lambda r: r.cost.copies, numeric=True),
        Column("fetch_seconds", "Fetch, median", lambda r: r.judged.fetch_seconds,
               lambda r: cells.duration(r.judged.fetch_seconds), numeric=True),
    ]  # fmt: skip
    return Table(
        request, list(found.versions), columns, name="worth", caption="Caching by model version",
        key=lambda r: f"worth-{r.digest or 'none'}-{r.name}",
    )  # fmt: skip


def _version(row: VersionReport) -> SafeString:
    model, _, version = row.name.partition(" ")
    return cells.link(row.name or "unknown", reverse("version", args=[model, version]) if version else "")


def _worth(row: VersionReport) -> SafeString:
    return cells.pill(*WORTH_WORDS[row.judged.worth])


def _saving(row: VersionReport) -> SafeString:
    return cells.duration(row.judged.hit_saving_seconds)


def _saved(row: VersionReport) -> SafeString | None:
    return None if row.judged.worth is Worth.EXPECTED else cells.duration(row.judged.saved_seconds)


def _break_even(row: VersionReport) -> str | None:
    return f"{row.judged.break_even} a copy" if row.judged.break_even is not None else None


def _moved(row: VersionReport) -> SafeString:
    return cells.size(row.cost.moved_bytes or None)


def _burst_table(request: HttpRequest, found: Report) -> Table:
    columns = [
        Column("began_at", "Began", lambda b: b.began_at, lambda b: cells.when(b.began_at)),
        Column("endpoint", "Endpoint", lambda b: b.endpoint, heading=True),
        Column("launches", "Launches", lambda b: len(b.launches), numeric=True),
        Column("hits", "Hits", lambda b: b.hits, lambda b: f"{b.hits} of {b.known}" if b.known else None, numeric=True),
        Column("half_seconds", "Half of it serves after", lambda b: b.seconds_until(0.5), _until(0.5), numeric=True),
        Column("all_seconds", "All of it after", lambda b: b.seconds_until(1.0), _until(1.0), numeric=True),
    ]
    latest = list(found.scaling.bursts)[::-1]
    return Table(
        request, latest, columns, name="bursts", caption="Scaling out", prefix="burst_",
        key=lambda b: f"burst-{b.endpoint}-{b.began_at.timestamp():.0f}",
    )  # fmt: skip


def _until(share: float) -> Any:
    def cell(burst: Burst) -> SafeString | str:
        seconds = burst.seconds_until(share)
        return ("not yet" if burst.starting else "never") if seconds is None else cells.duration(seconds)

    return cell
