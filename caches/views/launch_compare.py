"""Two selections of launches side by side, both in the address."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from caches import launch_report_charts
from caches.domain.launches.comparison import Effect
from caches.domain.launches.period import period_of
from caches.domain.launches.resampling import Difference, Verdict
from caches.domain.launches.words import Cached, EventClass
from caches.launch_addresses import FIELDS, SIDES, Problems, pair_of
from caches.launch_charts import PHASE_WORDS
from caches.selectors.launches.comparison import Compared, launches_compared
from caches.selectors.launches.lists import Selection, choices
from caches.views.base import curl, readable, show
from controlplane.errors import FieldError, Invalid
from controlplane.web import cells
from controlplane.web.formats import duration_text, iso_text
from controlplane.web.live import with_charts
from controlplane.web.tables import Column, Table, wanted_format

_WORDS = {
    Verdict.NOT_ENOUGH: ("Unknown", "not enough launches"),
    Verdict.SAME: ("Ready", "no difference seen"),
    Verdict.FASTER: ("Ready", "faster"),
    Verdict.SLOWER: ("Degraded", "slower"),
}


@with_charts
def compare(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """What the second selection took more or less than the first, and in which phase."""
    targets, problems = readable(request), Problems()
    first, second = pair_of(request.GET.dict(), timezone.now(), problems)
    refuse_export(request, suffix, problems)
    compared = launches_compared(first, second, targets=targets)
    table = _table(request, compared)
    context: dict[str, Any] = {
        "sides": [_side(request, "a", "First", first), _side(request, "b", "Second", second)],
        "both": (("First", compared.first), ("Second", compared.second)),
        "compared": compared,
        "sentence": sentence(compared),
        "problems": " ".join(f"{name}: {text}" for name, text in problems.items()),
        "classes": tuple(EventClass),
        "labels": tuple(Cached),
        "chart": launch_report_charts.effects(compared.comparison) if compared.comparison.whole.enough else None,
        "curl": curl(request, f"launches/comparison?{_query(request)}"),
    }
    return show(
        request, "pages/launch_compare.html", context, title="Compare launches", section="launches",
        crumbs=[("Cold starts", reverse("launches"))], tables=(table,), suffix=suffix,
    )  # fmt: skip


def refuse_export(request: HttpRequest, suffix: str, problems: Problems) -> None:
    """An export cannot say beside its rows what was not understood."""
    if wanted_format(request, suffix):
        refuse(problems)


def refuse(problems: Problems) -> None:
    """Raise Invalid with everything that an address says wrongly."""
    if problems:
        raise Invalid(
            "page:user:filter",
            "The filter is not understood.",
            next_step="Correct the address, or export from the page.",
            errors=[FieldError(name, "page:user:filter", text) for name, text in problems.items()],
        )


def sentence(compared: Compared) -> str:
    """What to take from it, in words."""
    whole = compared.comparison.whole
    if not whole.enough:
        one, two = whole.counts
        return f"Not enough launches to compare: {one} and {two} became ready, and it takes 20 of each."
    parts = [f"{name} {_moved(found)}" for name, found in (("p95", whole.p95), ("median", whole.median))]
    moved = compared.comparison.moved
    if moved is None:
        return f"The second selection against the first: {'; '.join(parts)}."
    which = moved.p95 if moved.p95.verdict is whole.p95.verdict is not Verdict.SAME else moved.median
    phase = PHASE_WORDS[moved.phase] if moved.phase is not None else ""
    return f"The second selection against the first: {'; '.join(parts)}. Most of it is {phase}: {signed(which.change)}."


def signed(seconds: float | None) -> str:
    return duration_text(seconds) if seconds is None or seconds < 0 else f"+{duration_text(seconds)}"


def _moved(found: Difference) -> str:
    words = _WORDS[found.verdict][1]
    if found.verdict is Verdict.SAME:
        return f"{duration_text(found.second)}, {words}"
    return f"{duration_text(found.second)}, {words} than {duration_text(found.first)} ({signed(found.change)})"


def _side(request: HttpRequest, prefix: str, title: str, selection: Selection) -> dict[str, Any]:
    asked = {name: request.GET.get(f"{prefix}_{name}", "") for name in ("since", "until")}
    shown = {"prefix": prefix, "title": title, "selection": selection, **choices(_hours(selection), readable(request))}
    return {**shown, "since": asked["since"] or SIDES[prefix][0], "until": asked["until"] or SIDES[prefix][1]}


def _hours(selection: Selection) -> Selection:
    """The full hours around it: pools and versions are known by the hour."""
    since, until = iso_text(selection.period.since), iso_text(selection.period.until)
    return Selection(period_of(since, until, timezone.now()))


def _query(request: HttpRequest) -> str:
    names = [f"{side}_{name}" for side in "ab" for name in FIELDS]
    return urlencode({name: request.GET[name] for name in names if request.GET.get(name)})


def _table(request: HttpRequest, compared: Compared) -> Table:
    columns = [
        Column("phase", "Phase", lambda e: e.phase or "UntilReady", launch_report_charts.effect_words, heading=True),
        Column("verdict", "p95 is", lambda e: e.p95.verdict.value, _verdict),
        Column("first_n", "n, first", lambda e: e.counts[0], numeric=True),
        Column("second_n", "n, second", lambda e: e.counts[1], numeric=True),
    ]
    for name, words in (("median", "Median"), ("p95", "p95")):
        columns += [
            Column(f"first_{name}_seconds", f"{words}, first", _of(name, "first"), _cell(name, "first"), numeric=True),
            Column(f"second_{name}_seconds", "second", _of(name, "second"), _cell(name, "second"), numeric=True),
            Column(f"{name}_change_seconds", "difference", _of(name, "change"), _change(name), numeric=True),
            Column(f"{name}_low_seconds", "from", _of(name, "low"), _cell(name, "low"), numeric=True),
            Column(f"{name}_high_seconds", "to", _of(name, "high"), _cell(name, "high"), numeric=True),
        ]
    return Table(
        request, list(compared.comparison.effects), columns, name="effects", caption="Differences",
        key=lambda e: str(e.phase or "whole"),
    )  # fmt: skip


def _of(name: str, part: str) -> Any:
    def value(effect: Effect) -> float | None:
        found: float | None = getattr(getattr(effect, name), part)
        return found

    return value


def _cell(name: str, part: str) -> Any:
    value = _of(name, part)
    return lambda effect: cells.duration(value(effect))


def _change(name: str) -> Any:
    value = _of(name, "change")
    return lambda effect: format_html('<span class="nowrap">{}</span>', signed(value(effect)))


def _verdict(effect: Effect) -> SafeString:
    return cells.pill(*_WORDS[effect.p95.verdict])
