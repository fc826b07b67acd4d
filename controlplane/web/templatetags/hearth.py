"""The cells and formats as template tags: ``{% load hearth %}``."""

from __future__ import annotations

import json
from typing import Any

from django import template
from django.http import HttpRequest
from django.templatetags.static import static
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from controlplane.web import cells, formats, tones

register = template.Library()

register.simple_tag(cells.icon, name="icon")
register.simple_tag(cells.progress, name="progress")
register.simple_tag(cells.pill, name="pill")
register.filter("pill", cells.pill)
register.filter("standing", cells.standing)
register.filter("sentence", formats.sentence_text)
register.filter("size", cells.size)
register.filter("number", cells.number)
register.filter("rate", cells.rate)
register.filter("duration", cells.duration)
register.filter("when", cells.when)
register.filter("digest", cells.digest)
register.filter("reference", cells.reference)
register.filter("tags", cells.tags)
register.filter("iso", formats.iso_text)
register.filter("words", tones.words_of)
register.filter("bytes_text", formats.bytes_text)


@register.filter
def count(number: int, noun: str) -> str:
    """{{ 2|count:"node" }} → 2 nodes; {{ 2|count:"copy,copies" }} → 2 copies."""
    one, _, many = noun.partition(",")
    return formats.plural(number, one, many)


@register.filter
def noun(number: int, word: str) -> str:
    """The noun alone, in the number that fits: {{ 2|noun:"node" }} → nodes."""
    return word if number == 1 else f"{word}s"


@register.filter
def tone(state: str) -> str:
    return tones.look_of(state).tone.value


@register.simple_tag
def favicon(tone: str) -> str:
    """The icon that says how the fleet is: from the first paint on, not from the first refresh."""
    return static(f"img/favicon-{tone}.svg")


@register.simple_tag(takes_context=True)
def other_query(context: dict[str, Any], *shown: str) -> SafeString:
    """What the address says beside a form's own fields, as hidden ones: choosing a filter keeps the sorting."""
    request: HttpRequest = context["request"]
    left = [
        (name, value) for name in request.GET if name not in (*shown, "page") for value in request.GET.getlist(name)
    ]
    return format_html_join("", '<input type="hidden" name="{}" value="{}">', left)


@register.simple_tag
def fits(pool: Any, label: str) -> SafeString:
    """The capacity bar of anything with used, reserved, other and capacity bytes."""
    return cells.disk(pool, label)


@register.simple_tag(takes_context=True)
def with_query(context: dict[str, Any], **changes: object) -> str:
    """This page's query string with some values changed; "" or None removes one. Starts with "?"."""
    request: HttpRequest = context["request"]
    query = request.GET.copy()
    for name, value in changes.items():
        if value in ("", None):
            query.pop(name, None)
        else:
            query[name] = str(value)
    return f"?{query.urlencode()}"


@register.simple_tag
def coverage_meter(coverage: Any, failed: int) -> SafeString:
    """Ready, arriving, failed and unknown copies of what is wanted."""
    arriving = 0.0
    if coverage.bytes_required:
        arriving = coverage.required * (coverage.bytes_arrived - coverage.bytes_ready) / coverage.bytes_required
    parts = [
        (tones.Tone.OK, coverage.ready),
        (tones.Tone.BUSY, arriving),
        (tones.Tone.BAD, min(failed, coverage.required - coverage.ready)),
        (tones.Tone.UNKNOWN, coverage.unknown),
    ]
    label = f"{coverage.ready} of {coverage.required} copies ready, {failed} failed, {coverage.unknown} unknown"
    return cells.meter(parts, coverage.required, label)


@register.filter
def percent(fraction: float) -> str:
    """0.85 → 85 %"""
    return f"{100 * fraction:.0f} %"


@register.filter
def pretty(value: Any) -> str:
    """A JSON value for reading."""
    return "—" if value is None else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
