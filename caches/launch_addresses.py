"""Selections of launches as addresses say them, for pages and REST: one, or two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from caches.domain.launches.period import full_moment, moment_of, period_of
from caches.domain.launches.words import Cached, EventClass, Trials
from caches.selectors.launches.lists import Selection

FILTERS = ("pool", "endpoint", "version", "event_class", "weights", "image", "trial")
# Of a report: its own rows tell hits from misses.
REPORTED = ("pool", "endpoint", "version", "trial")
FIELDS = ("since", "until", *FILTERS)
WORDS: Mapping[str, tuple[str, ...]] = {
    "event_class": tuple(one.value for one in EventClass),
    "weights": tuple(one.value for one in Cached),
    "image": tuple(one.value for one in Cached),
    "trial": tuple(one.value for one in Trials),
}
# What either side is where the address does not say.
SIDES: Mapping[str, tuple[str, str]] = {"a": ("now-48h", "now-24h"), "b": ("now-24h", "now")}
Problems = dict[str, str]


def selection_of(
    values: Mapping[str, str],
    now: datetime,
    problems: Problems,
    *,
    prefix: str = "",
    since: str,
    until: str = "now",
    exact: bool = False,
) -> Selection:
    """What ``values`` ask for with ``prefix`` before each name; ``since`` and ``until`` where they do not say.

    ``exact``: to the moment, for launches themselves, and what is relative from its full hour (or minute) on. Counts
    have full hours only, and without it so has the period.

    What they say wrongly is left out, and named in ``problems`` as a sentence without its subject.
    """
    asked = {name: values.get(prefix + name) or "" for name in FIELDS}
    began, ended = asked["since"] or since, asked["until"] or until
    try:
        period = period_of(began, ended, now)
    except ValueError as error:
        problems[f"{prefix}since"] = f"Not a period: {error}."
        began, ended = since, until
        period = period_of(began, ended, now)
    if exact:
        first, last = full_moment(began, now), min(full_moment(ended, now), now)
        last = last if last > first else moment_of(ended, now)
        period = replace(period, since=first, until=last, end=last)
    wanted: dict[str, Any] = {name: asked[name] for name in FILTERS}
    for name, words in WORDS.items():
        if wanted[name] and wanted[name] not in words:
            problems[prefix + name] = f"Must be one of {', '.join(words)}."
            wanted[name] = ""
    return Selection(period, **wanted)


def pair_of(values: Mapping[str, str], now: datetime, problems: Problems) -> tuple[Selection, Selection]:
    """Two selections, ``a_`` and ``b_``, to the moment: the last 24 hours and those before where they do not say."""
    first, second = (
        selection_of(values, now, problems, prefix=f"{side}_", since=since, until=until, exact=True)
        for side, (since, until) in SIDES.items()
    )
    return first, second
