"""Moves of classes as pages show them, and the ways from a selection to its comparison and its report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from caches.launch_addresses import FILTERS, REPORTED
from caches.launch_words import missed_sentence, move_sentence
from caches.selectors.launches.attribution import Attributed, launch_moves
from caches.selectors.launches.lists import Selection
from caches.selectors.launches.stats import ClassStats
from caches.selectors.nodes import Targets
from controlplane.web.formats import iso_text

# Launches of each class that a page looks at: enough for a change that people would notice, and quick.
LOOKED_AT = 400


def moves_shown(selection: Selection, stats: Iterable[ClassStats], *, targets: Targets) -> list[dict[str, Any]]:
    """Each move with its words, the changes before it, and where its two sides are compared."""
    counts = {one.event_class: one.whole.sketch.count for one in stats}
    found = launch_moves(selection, targets=targets, most=LOOKED_AT, counts=counts)
    return [_shown(one, selection) for one in found]


def comparison_url(selection: Selection) -> str:
    """This selection against the same of the period before."""
    before, period = selection.period.before(), selection.period
    return _compare(selection, (before.since, before.until), (period.since, period.until))


def report_url(selection: Selection) -> str:
    """What caching was worth to what is selected."""
    period = selection.period
    asked = {"since": iso_text(period.since), "until": iso_text(period.until)}
    asked |= {name: getattr(selection, name) for name in REPORTED}
    return f"{reverse('launch-report')}?{urlencode({name: value for name, value in asked.items() if value})}"


def _shown(one: Attributed, selection: Selection) -> dict[str, Any]:
    at, period = one.move.first_after, selection.period
    sides = (period.since, at), (at, period.until)
    return {
        "found": one,
        "sentence": move_sentence(one),
        "missed": missed_sentence(one),
        "compare": _compare(selection, *sides, event_class=one.event_class.value),
    }


def _compare(selection: Selection, first: tuple[Any, Any], second: tuple[Any, Any], **also: str) -> str:
    same = {name: getattr(selection, name) for name in FILTERS} | also
    asked: dict[str, str] = {}
    for side, (since, until) in (("a", first), ("b", second)):
        asked |= {f"{side}_since": iso_text(since), f"{side}_until": iso_text(until)}
        asked |= {f"{side}_{name}": value for name, value in same.items() if value}
    return f"{reverse('launch-compare')}?{urlencode(asked)}"
