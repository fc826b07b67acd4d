"""Tables of trials: all of them, how each kind of one fared, and its launches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from caches.selectors.launches.trials import trial_progress
from caches.views.launch_dots import dots
from caches.views.launch_tables import label_pill
from controlplane.operations.models import Operation
from controlplane.web import cells
from controlplane.web.formats import duration_text
from controlplane.web.tables import Column, Table
from controlplane.web.tones import words_of

Found = Mapping[str, Any]


def version_of(operation: Operation) -> str:
    """The name of the version, which may be gone."""
    return operation.subject_name.partition(" ")[2]


def trials_table(request: HttpRequest, rows: QuerySet[Operation]) -> Table:
    columns = [
        Column("version", "Trial", version_of, _trial, "subject_name", heading=True),
        Column("state", "State", lambda o: o.state, lambda o: cells.pill(o.state), "state"),
        Column("measured", "Launches", lambda o: trial_progress(o).done, _measured, numeric=True),
        Column("not_measured", "Not measured", _beside, shown=False),
        Column("target_seconds", "Target", _param("target_seconds"), _target, numeric=True),
        Column("within_target", "Within it", _within, _within_cell, numeric=True),
        Column("seed", "Seed", _param("seed"), numeric=True),
        Column("started_by", "By", lambda o: o.started_by, None, "started_by"),
        Column("created_at", "Started", lambda o: o.created_at, lambda o: cells.when(o.created_at), "created_at"),
        Column("ended_at", "Ended", lambda o: o.ended_at, lambda o: cells.when(o.ended_at), "ended_at"),
        Column("id", "Id", lambda o: o.pk, shown=False),
    ]
    return Table(
        request, rows, columns, name="trials", caption="Trials", default_sort="-created_at",
        url=lambda row: reverse("trial", args=[row.pk]),
    )  # fmt: skip


def _trial(row: Operation) -> SafeString:
    return cells.link(version_of(row), reverse("trial", args=[row.pk]))


def _param(name: str) -> Any:
    return lambda row: row.params.get(name)


def _measured(row: Operation) -> SafeString:
    progress, beside = trial_progress(row), _beside(row)
    more = f"and {beside} not measured" if beside else ""
    return format_html("{} of {}{}", progress.done, progress.total, cells.reason(more))


def _beside(row: Operation) -> int | None:
    """How many it provoked that are not measured; None while it goes on, and where its result does not say it."""
    told = (row.result or {}).get("not_measured")
    return len(told) if told is not None else None


def _target(row: Operation) -> SafeString:
    return cells.duration(row.params.get("target_seconds"))


def _within(row: Operation) -> int | None:
    return sum(one["within_target"] for one in row.result["kinds"]) if row.result else None


def _within_cell(row: Operation) -> str | None:
    return f"{_within(row)} of {sum(one['runs'] for one in row.result['kinds'])}" if row.result else None


def kinds_table(request: HttpRequest, found: Found, target: float) -> Table:
    """How each kind fared; its launches as dots on a scale that all kinds share, with the target across."""
    kinds = found["kinds"]
    most = max([target, *(seconds for one in kinds for seconds in one["seconds"])])
    columns = [
        Column("event_class", "Provoked", _of("event_class"), lambda k: words_of(k["event_class"]), heading=True),
        Column("seconds", "Each launch, until ready", _of("seconds"), lambda k: _dots(k, most, target)),
        Column("median_seconds", "Median", _of("median_seconds"), _seconds("median_seconds"), numeric=True),
        Column("p95_seconds", "p95", _of("p95_seconds"), _p95, numeric=True),
        Column("runs", "n", _of("runs"), numeric=True),
        Column("within_target", "Within the target", _of("within_target"), _within_words),
        Column("within_target_low", "From", _of("within_target_low"), shown=False),
        Column("within_target_high", "To", _of("within_target_high"), shown=False),
        Column("hits", "Hits", _of("hits"), numeric=True),
        Column("labelled_so", "Labelled so", _of("labelled_so"), numeric=True),
        Column("idle_seconds", "Accelerator idle", _of("idle_seconds"), _seconds("idle_seconds"), numeric=True),
    ]
    return Table(
        request, kinds, columns, name="kinds", caption="Kinds of launches", key=lambda k: k["event_class"], prefix="k-",
    )  # fmt: skip


def _of(name: str) -> Any:
    return lambda row: row[name]


def _seconds(name: str) -> Any:
    return lambda row: cells.duration(row[name])


def _dots(kind: Found, most: float, target: float) -> SafeString | None:
    seconds = kind["seconds"]
    if not seconds:
        return None
    low, high = duration_text(min(seconds)), duration_text(max(seconds))
    spread = low if low == high else f"{low} to {high}"
    return format_html('{}<small class="reason">{}</small>', dots(seconds, most, mark=target), spread)


def _p95(kind: Found) -> SafeString | str:
    return "too few" if kind["p95_seconds"] is None else cells.duration(kind["p95_seconds"])


def _within_words(kind: Found) -> SafeString:
    """The share, and between which shares the true one lies 95 times of 100."""
    low, high = kind["within_target_low"], kind["within_target_high"]
    between = "" if low is None else f"{100 * low:.0f} to {100 * high:.0f} % of many"
    return format_html("{} of {}{}", kind["within_target"], kind["runs"], cells.reason(between))


def trial_launches_table(request: HttpRequest, found: Found, kept: Collection[str]) -> Table:
    """In the order in which they were provoked; those that are kept lead to their pages."""
    rows: Sequence[Found] = [{"number": number, **one} for number, one in enumerate(found["launches"], 1)]
    columns = [
        Column("number", "No.", _of("number"), None, "number", numeric=True),
        Column("wanted", "Provoked", _of("wanted"), lambda r: _launch(r, kept), heading=True),
        Column("event_class", "Labelled", _of("event_class"), lambda r: words_of(r["event_class"])),
        Column("weights", "Weights", _of("weights"), lambda r: label_pill(r["weights"])),
        Column(
            "ready_seconds", "Until ready", _of("ready_seconds"), _seconds("ready_seconds"), "ready_seconds",
            numeric=True,
        ),
        Column("idle_seconds", "Accelerator idle", _of("idle_seconds"), _seconds("idle_seconds"), numeric=True),
        Column("id", "Id", _of("id"), shown=False),
    ]  # fmt: skip
    return Table(
        request, rows, columns, name="launches", caption="Launches of the trial", key=lambda r: str(r["number"]),
        prefix="l-",
    )  # fmt: skip


def _launch(row: Found, kept: Collection[str]) -> SafeString:
    return cells.link(words_of(row["wanted"]), reverse("launch", args=[row["id"]]) if row["id"] in kept else "")
