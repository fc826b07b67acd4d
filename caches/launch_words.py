"""What pages and files say of comparisons, moves and reports of launches: sentences, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from caches.domain.launches.resampling import Difference, Verdict
from caches.domain.launches.shifts import Shift
from caches.domain.launches.words import Phase
from caches.domain.launches.worth import Basis, Cost, Judged, Worth
from caches.launch_charts import PHASE_WORDS
from caches.selectors.launches.attribution import Attributed
from caches.selectors.launches.report import VersionReport
from controlplane.web.formats import bytes_text, duration_text, plural
from controlplane.web.tones import words_of

# The pill's look, and its words.
WORTH_WORDS = {
    Worth.YES: ("Ready", "worth it"),
    Worth.NOT_YET: ("Partial", "not yet"),
    Worth.NO: ("Degraded", "not worth it"),
    Worth.ELSEWHERE: ("Unknown", "differs elsewhere"),
    Worth.EXPECTED: ("Pending", "not cached"),
    Worth.UNKNOWN: ("Unknown", "not enough launches"),
}
_WITHOUT = {
    Basis.BEFORE: "the launches before it was pinned",
    Basis.MISSES: "the launches that missed",
    Basis.PHASES: "the launches of now",
    Basis.NONE: "no launch",
}


def signed(seconds: float | None) -> str:
    """With its sign, also where it is more."""
    return duration_text(seconds) if seconds is None or seconds <= 0 else f"+{duration_text(seconds)}"


def phase_words(phase: Phase | None) -> str:
    """A phase, or what nobody measured."""
    return PHASE_WORDS[phase] if phase is not None else "what nobody measured"


def without_words(judged: Judged) -> str:
    return _WITHOUT[judged.basis]


def worth_sentence(report: VersionReport) -> str:
    """Whether caching was worth it for this version, in a sentence or two with the numbers."""
    judged, counted = report.judged, report.counted
    if judged.worth is Worth.EXPECTED:
        return f"Nobody pinned it. {_expected(judged, counted.launches - counted.hits)}"
    hits = _hits(report)
    if judged.basis is Basis.NONE or judged.hit_saving_seconds is None:
        return f"{_sentence(hits)}. There is nothing to compare them with."
    saving = judged.hit_saving_seconds
    told = (
        f"a hit is ready {duration_text(abs(saving))} {'sooner' if saving >= 0 else 'later'} than "
        f"{without_words(judged)} (medians)"
    )
    verdict = {
        Worth.YES: f"Worth it: {hits}; {told}, {duration_text(judged.saved_seconds)} in all",
        Worth.NOT_YET: f"Not yet: {hits}; {told}, but it takes {_break_even(judged)} to pay for the transfers",
        Worth.NO: f"Not worth it: {hits}, and {told}",
        Worth.ELSEWHERE: f"Not told by these launches: {hits}, and {told}; the difference is in {_elsewhere(judged)}",
        Worth.UNKNOWN: f"Not enough launches to be sure (it takes 20 hits and 20 without): {hits}; {told}",
    }[judged.worth]
    return f"{verdict}. {cost_sentence(report.cost)}"


def cost_sentence(cost: Cost) -> str:
    """What the copies are and took."""
    held = (
        f"It holds {bytes_text(cost.held_bytes)} on {plural(cost.copies, 'node')}" if cost.copies else "No copy is held"
    )
    if not cost.transfers:
        return f"{held}; no transfer ended in this time."
    return f"{held}; {bytes_text(cost.moved_bytes)} were moved in {duration_text(cost.moved_seconds)}."


def too_few_sentence(sides: Mapping[str, float]) -> str:
    """Instead of a chart of one launch a side: after how long it was ready."""
    told = [f"one launch {name}, ready after {duration_text(seconds)}" for name, seconds in sides.items()]
    return f"Too few launches to draw: {', and '.join(told)}."


def move_sentence(found: Attributed) -> str:
    """What moved, since when is beside it. First the quantile that surely did, of two the one that did by more."""
    move = found.move
    told = sorted((("p95", move.p95), ("median", move.median)), key=lambda one: _sureness(one[1]))
    (name, which), (other, beside) = told
    how = "drifted" if move.shift is Shift.DRIFT else "went"
    text = f"{words_of(found.event_class)}: the {name} {how} {_from_to(which)}{_beside(other, beside)}"
    if not move.shares:
        return f"{text}; no phase stands out."
    share = move.shares[0]
    if share.phase is None:
        return f"{text}; it is in what nobody measured ({signed(share.change)} of a launch)."
    return f"{text}; it is {phase_words(share.phase)} ({signed(share.change)} of a launch)."


def _sureness(found: Difference) -> tuple[bool, float]:
    return found.verdict in (Verdict.SAME, Verdict.NOT_ENOUGH), -abs(found.change or 0)


def _from_to(found: Difference) -> str:
    return f"from {duration_text(found.first)} to {duration_text(found.second)}"


def _beside(name: str, found: Difference) -> str:
    """The other quantile; of one whose interval holds zero not that it moved, and of too few launches nothing."""
    if found.verdict is Verdict.NOT_ENOUGH:
        return ""
    if found.verdict is Verdict.SAME:
        values = f"{duration_text(found.first)} before, {duration_text(found.second)} after"
        return f", and that the {name} moved is not sure ({values})"
    return f", the {name} {_from_to(found)}"


def missed_sentence(found: Attributed) -> str:
    """Whether the cache was missed more or less; "" where that is not known, or is as it was."""
    (before, known), (after, known_after) = found.move.missed_before, found.move.missed_after
    if not known or not known_after or before * known_after == after * known:
        return ""
    return f"Before, {before} of {known} missed the cache; since then {after} of {known_after}."


def _expected(judged: Judged, launches: int) -> str:
    if judged.fetch_seconds is None:
        return "What its launches take to fetch the weights was not measured, so the saving is not known."
    whole = judged.fetch_seconds * launches
    return (
        f"Its launches fetch their weights in {duration_text(judged.fetch_seconds)} (median): a cache would save about "
        f"that at each launch, {duration_text(whole)} for the {launches} of this time."
    )


def _hits(report: VersionReport) -> str:
    """As the table counts them; since the pin apart, where some were before and all were looked at."""
    counted, judged = report.counted, report.judged
    if not (known := counted.hits + counted.missed):
        return "nobody measured what launches found"
    hits, since = judged.since_pinned
    whole = 0 < since < judged.known and report.drawn >= counted.ready
    return f"{counted.hits} of {known} launches hit" + (f" ({hits} of {since} since it was pinned)" if whole else "")


def _elsewhere(judged: Judged) -> str:
    phase, seconds = judged.elsewhere or (None, 0.0)
    return f"{phase_words(phase)} ({signed(seconds)} in hits), which is not what caching does"


def _break_even(judged: Judged) -> str:
    return f"{plural(judged.break_even or 0, 'hit')} for each copy"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
