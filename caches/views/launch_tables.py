"""Tables of launches: classes with their percentiles, launches, the phases of one, and what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import Cached, EventClass, Mark, MissReason, Phase, PhaseState
from caches.launch_charts import PHASE_WORDS
from caches.models import Launch, LaunchObservation
from caches.selectors.launches.stats import ClassStats, Part
from caches.views.launch_dots import dots
from controlplane.web import cells
from controlplane.web.formats import duration_text
from controlplane.web.keyset import KeysetTable
from controlplane.web.tables import Column, Table
from controlplane.web.tones import words_of

_SAID = 3  # launches whose seconds a cell says one by one
_STATES = {"Starting": "Running", "Ready": "Ready", "Ended": "Failed"}
REASON_WORDS: dict[str, str] = {
    MissReason.FAILED: "A fetch had failed",
    MissReason.UNUSABLE: "The node's cache could not be used",
    MissReason.NEW_NODE: "The node was new",
    MissReason.FIRST: "The version had not been on the node",
    MissReason.INCOMPLETE: "Only a part was on the node",
    MissReason.GONE: "It had been on the node and was gone",
    MissReason.UNKNOWN: "Not known",
}
_SHORT: dict[str, str] = {
    MissReason.FAILED: "fetch failed",
    MissReason.UNUSABLE: "cache unusable",
    MissReason.NEW_NODE: "new node",
    MissReason.FIRST: "never there",
    MissReason.INCOMPLETE: "only a part",
    MissReason.GONE: "gone again",
}
_LABELS = {"Hit": "Ready", "Partial": "Partial", "Miss": "Degraded", "Unknown": "Unknown"}


@dataclass(frozen=True, slots=True)
class ClassLine:
    """A class as a whole (``weights`` "") or those of it that found the same; ``earlier`` in the period before."""

    stats: ClassStats
    weights: str
    part: Part
    earlier: Part | None
    quantiles: Sequence[float | None]

    @property
    def key(self) -> str:
        return f"{self.stats.event_class}-{self.weights or 'all'}"


def class_table(request: HttpRequest, stats: Sequence[ClassStats], earlier: Mapping[EventClass, ClassStats]) -> Table:
    """Every class, then what its launches found; p50, p95 and p99 with n, dots where there are too few."""
    lines = [line for one in stats for line in _lines(one, earlier.get(one.event_class))]
    most = max((seconds for line in lines for seconds, _ in _few(line.part)), default=1.0)
    columns = [
        Column(
            "event_class", "Class", lambda r: r.stats.event_class, lambda r: words_of(r.stats.event_class), heading=True
        ),
        Column("weights", "Weights", lambda r: r.weights, _weights_cell),
        Column("launches", "Launches", lambda r: r.part.launches, numeric=True),
        *[
            Column(f"{name}_seconds", name, _quantile(index), _quantile_cell(index, most), numeric=True)
            for index, name in enumerate(("p50", "p95", "p99"))
        ],
        *([Column("earlier_p95_seconds", "p95 before", _earlier, _earlier_cell, numeric=True)] if earlier else []),
        Column("measured", "n", lambda r: r.part.sketch.count, numeric=True),
        Column("missed", "Missed the cache", _missed, _missed_cell, numeric=True),
        Column("never_ready", "Never ready", lambda r: r.part.ended, lambda r: r.part.ended or None, numeric=True),
    ]
    return Table(request, lines, columns, name="classes", caption="Classes of launches", key=lambda r: r.key)


def _lines(stats: ClassStats, earlier: ClassStats | None) -> list[ClassLine]:
    lines = [_line(stats, "", stats.whole, earlier.whole if earlier else None)]
    if len(stats.by_weights) > 1 or Cached.UNKNOWN not in stats.by_weights:
        for label in Cached:
            if label in stats.by_weights:
                before = earlier.by_weights.get(label) if earlier else None
                lines.append(_line(stats, label.value, stats.by_weights[label], before))
    return lines


def _line(stats: ClassStats, weights: str, part: Part, earlier: Part | None) -> ClassLine:
    return ClassLine(stats, weights, part, earlier, part.quantiles)


def label_pill(label: str) -> SafeString:
    """Hit, Partial, Miss or Unknown."""
    return cells.pill(_LABELS[label], label)


def _weights_cell(line: ClassLine) -> SafeString | str:
    return label_pill(line.weights) if line.weights else "all"


def _quantile(index: int) -> Any:
    return lambda line: line.quantiles[index]


def _quantile_cell(index: int, most: float) -> Any:
    """``most`` is what the dots of all rows are measured against."""

    def cell(line: ClassLine) -> SafeString | None:
        if line.part.enough:
            return cells.duration(line.quantiles[index])
        return _dots(line.part, most) if index == 0 else None

    return cell


def _few(part: Part) -> Sequence[tuple[float, Any]]:
    """The launches of a part that has too few for percentiles."""
    return () if part.enough else part.dots


def _dots(part: Part, most: float) -> SafeString | None:
    if not part.dots:
        return None
    seconds = [one for one, _ in part.dots]
    few = len(seconds) <= _SAID
    said = ", ".join(map(duration_text, seconds)) if few else f"up to {duration_text(max(seconds))}"
    drawn = dots(seconds, most, lead="Too few for percentiles: ")
    # The words first: they are what stands on the row's line.
    return format_html('<small class="reason">{}: too few</small>{}', said, drawn)


def _missed(line: ClassLine) -> float | None:
    """The share of launches that lacked weights, of those where it was measured."""
    return line.stats.missed / line.stats.known if not line.weights and line.stats.known else None


def _missed_cell(line: ClassLine) -> SafeString | None:
    share = _missed(line)
    if share is None:
        return None
    return format_html("{} of {} <small>({} %)</small>", line.stats.missed, line.stats.known, _percent(share))


def _earlier(line: ClassLine) -> float | None:
    return line.earlier.quantiles[1] if line.earlier is not None else None


def _earlier_cell(line: ClassLine) -> SafeString | str:
    value = _earlier(line)
    return "too few" if value is None else cells.duration(value)


@dataclass(frozen=True, slots=True)
class MissLine:
    """Launches that missed their weights for one reason; ``share`` of all that missed."""

    reason: str
    launches: int
    share: float


def miss_table(request: HttpRequest, stats: Sequence[ClassStats]) -> Table:
    """Why launches missed their weights, the most frequent first."""
    counts = sum((one.whole.reasons for one in stats), Counter[str]())
    lines = [MissLine(reason, count, count / counts.total()) for reason, count in counts.most_common()]
    columns = [
        Column("reason", "Why", lambda r: r.reason, lambda r: REASON_WORDS.get(r.reason, r.reason), heading=True),
        Column("launches", "Launches", lambda r: r.launches, numeric=True),
        Column("share", "Share of the misses", lambda r: r.share, lambda r: f"{_percent(r.share)} %", numeric=True),
    ]
    return Table(request, lines, columns, name="misses", caption="Why launches missed", key=lambda r: r.reason)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0")


def launch_table(request: HttpRequest, rows: QuerySet[Launch], total: int | None) -> Table:
    """The launches of a selection, newest first or slowest first; ``total`` as they are counted."""
    columns = [
        Column("began_at", "Began", lambda r: r.began_at, lambda r: cells.when(r.began_at), "began_at"),
        Column("launch", "Launch", lambda r: r.title, _launch, heading=True),
        Column("state", "State", lambda r: r.state, _state),
        Column("event_class", "Class", lambda r: r.event_class, _class),
        Column("weights", "Weights, image", lambda r: r.weights, _found),
        Column("miss_reason", "Why", lambda r: r.miss_reason or None, shown=False),
        Column("image", "Image", lambda r: r.image, shown=False),
        Column("endpoint", "Endpoint", lambda r: r.endpoint_name, shown=False),
        Column("node", "Node", lambda r: r.node_name, _node),
        Column("version", "Version", lambda r: r.version_name),
        Column(
            "ready_seconds", "Until ready", lambda r: r.ready_seconds, lambda r: cells.duration(r.ready_seconds),
            "ready_seconds", numeric=True,
        ),
        Column("reached", "Got to", lambda r: r.reached, shown=False),
        Column("id", "Id", lambda r: r.pk, shown=False),
    ]  # fmt: skip
    return KeysetTable(
        request, rows, columns, total=total, name="launches", caption="Launches", prefix="list_",
        default_sort="-began_at", url=lambda row: reverse("launch", args=[row.pk]),
    )  # fmt: skip


def _launch(row: Launch) -> SafeString:
    return cells.link(row.title, reverse("launch", args=[row.pk]))


def _state(row: Launch) -> SafeString:
    """How it is, and how far it got where that is not all the way."""
    if row.state == "Ready":
        return format_html("{}{}", cells.pill("Ready"), _beside("has served" if row.served_at else ""))
    got_to = PHASE_WORDS[Phase(row.reached)]
    why = f"{got_to}: {row.end_reason}" if row.end_reason and row.state == "Ended" else got_to
    return format_html("{}{}", cells.pill(_STATES[row.state], row.state), _beside(why))


def _beside(words: str) -> SafeString:
    """A second line that leaves the room to the launch's name."""
    return format_html('<span class="reason short">{}</span>', words) if words else SafeString()


def _class(row: Launch) -> str:
    return words_of(row.event_class)


def _found(row: Launch) -> SafeString:
    """What it found of its weights, and of its image below."""
    image = "image unknown" if row.image == "Unknown" else format_html("image {}", label_pill(row.image))
    weights = format_html("{}{}", label_pill(row.weights), _beside(_SHORT.get(row.miss_reason, "")))
    return format_html('{}<span class="reason short nowrap">{}</span>', weights, image)


def _node(row: Launch) -> SafeString:
    return cells.link(row.node_name, reverse("node", args=[row.node_id]) if row.node_id else "")


def phase_table(launch: Launch) -> list[dict[str, Any]]:
    """What the page says of each phase: its name, state, seconds and who measured it."""
    return [
        {
            "name": PHASE_WORDS[Phase(line["phase"])],
            "state": line["state"],
            "known": line["state"] == PhaseState.MEASURED,
            "seconds": line["seconds"],
            "observer": words_of(line["observer"]),
        }
        for line in launch.phases
    ]


def observation_table(request: HttpRequest, launch: Launch, outside: Collection[Observation] = ()) -> Table:
    """The raw evidence, as it came; of what is ``outside`` the launch it says so."""
    left = {(one.observer, one.phase, one.at, one.seconds, one.clock) for one in outside}

    def saw(row: LaunchObservation) -> SafeString:
        out = row.mark == Mark.SPAN and (row.observer, row.phase, row.at, row.seconds, row.clock) in left
        return format_html("{}{}", _saw(row), _beside("outside the launch" if out else ""))

    columns = [
        Column("at", "At", lambda o: o.at, lambda o: cells.when(o.at), "at"),
        Column("observer", "Observer", lambda o: o.observer, lambda o: words_of(o.observer), "observer"),
        Column("mark", "Saw", lambda o: o.mark, saw, heading=True),
        Column("seconds", "Seconds", lambda o: o.seconds, lambda o: cells.duration(o.seconds), numeric=True),
        Column("clock", "Clock", lambda o: o.clock),
        Column("facts", "Facts", lambda o: o.facts, _facts),
        Column("received_at", "Received", lambda o: o.received_at, lambda o: cells.when(o.received_at), "received_at"),
    ]
    return Table(request, launch.observations.all(), columns, name="observations", caption="Observations")


def _saw(seen: LaunchObservation) -> str:
    if seen.phase in tuple(Phase):
        return PHASE_WORDS[Phase(seen.phase)]
    return words_of(seen.mark)


def _facts(seen: LaunchObservation) -> SafeString | None:
    if not seen.facts:
        return None
    return format_html_join("", '<span class="tag">{}: {}</span> ', sorted(seen.facts.items()))
