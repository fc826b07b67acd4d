"""Small pieces of HTML that tables and templates share. Everything is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane.web import formats
from controlplane.web.tones import Tone, look_of, words_of

NOTHING = mark_safe('<span class="muted">—</span>')


def icon(name: str, extra: str = "") -> SafeString:
    """A decorative symbol of static/img/icons.svg; words beside it carry the meaning."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true"><use href="{}#{}"/></svg>', extra, static("img/icons.svg"), name
    )


def pill(state: str, words: str = "") -> SafeString:
    """Icon, word and colour of a state."""
    look = look_of(state)
    spin = "spin" if look.icon == "spinner" else ""
    return format_html(
        '<span class="pill tone-{}" title="{}">{}{}</span>',
        look.tone,
        look.meaning,
        icon(look.icon, spin),
        words or words_of(state),
    )


def standing(shown: Any) -> SafeString:
    """A controlplane.serving.standing.Standing: the pill; of what nobody knows since when and what it was, otherwise
    how it came to that where there is more to say."""
    mark = pill(shown.state)
    if shown.state != "Unknown":
        return format_html("{}{}", mark, reason(shown.detail))
    known = f"; last known: {words_of(shown.last_known).lower()}" if shown.last_known else ""
    since = format_html("since {}: ", when(shown.since)) if shown.since is not None else ""
    return format_html('{}<span class="reason">{}{}{}</span>', mark, since, shown.detail, known)


def link(text: str, url: str | None, css: str = "") -> SafeString:
    if not url:
        return format_html("{}", text)
    return (
        format_html('<a href="{}" class="{}">{}</a>', url, css, text)
        if css
        else format_html('<a href="{}">{}</a>', url, text)
    )


def size(count: float | None) -> SafeString:
    """Bytes in GiB, the exact number as title."""
    if count is None:
        return NOTHING
    return format_html(
        '<span title="{}" class="nowrap">{}</span>', formats.bytes_exact(count), formats.bytes_text(count)
    )


def number(count: object) -> SafeString:
    """A large number in thousands, millions or billions, the exact one as title; what is no number, as it is."""
    if isinstance(count, bool) or not isinstance(count, int | float):
        return NOTHING if count is None else format_html("{}", count)
    return format_html('<span title="{}" class="nowrap">{}</span>', f"{count:,}", formats.number_text(count))


def rate(bytes_per_second: float | None) -> SafeString:
    return format_html('<span class="nowrap">{}</span>', formats.rate_text(bytes_per_second))


def duration(seconds: float | None) -> SafeString:
    return format_html('<span class="nowrap">{}</span>', formats.duration_text(seconds))


def when(at: datetime | None) -> SafeString:
    """Relative text with the absolute time as title; static/js/clock.js keeps it true."""
    if at is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        formats.iso_text(at),
        formats.moment_text(at),
        formats.age_text(at, timezone.now()),
    )


def digest(value: str) -> SafeString:
    """The first twelve digits; the whole as title."""
    if not value:
        return NOTHING
    algorithm, _, digits = value.rpartition(":")
    return format_html('<code title="{}">{}</code>', value, f"{algorithm}:{digits[:12]}" if algorithm else digits[:12])


def reference(text: str) -> SafeString:
    """The name of an image, broken before its digest where it has to be; of that the first twelve digits, with the
    whole as title."""
    if not text:
        return NOTHING
    short = formats.reference_text(text)
    name, at, found = short.partition("@")
    if short == text:
        return format_html('<span class="break">{}</span>', text)
    return format_html('<span class="break" title="{}">{}<wbr>{}{}</span>', text, name, at, found)


def code(text: str) -> SafeString:
    return format_html('<code class="break">{}</code>', text) if text else NOTHING


def tags(words: Sequence[str]) -> SafeString:
    if not words:
        return NOTHING
    return format_html_join(" ", '<span class="tag">{}</span>', ((word,) for word in words))


def reason(*sentences: str) -> SafeString:
    """A second, quieter line below a cell's value."""
    text = " ".join(sentence for sentence in sentences if sentence)
    return format_html('<span class="reason">{}</span>', text) if text else mark_safe("")


def meter(parts: Sequence[tuple[Tone, float]], whole: float, label: str, css: str = "") -> SafeString:
    """A stacked bar as SVG (no inline style). ``parts`` are drawn from the left; the rest is empty track."""
    whole = max(whole, sum(amount for _, amount in parts)) or 1
    drawn, left = [], 0.0
    for tone, amount in parts:
        width = 100 * amount / whole
        if width > 0:
            drawn.append((f"{left:.2f}%", f"{width:.2f}%", tone))
        left += width
    bars = format_html_join("", '<rect x="{}" y="0" width="{}" height="100%" class="tone-{}"/>', drawn)
    return format_html(
        '<svg class="meter {}" role="img" aria-label="{}"><title>{}</title>'
        '<rect class="track" width="100%" height="100%"/>{}</svg>',
        css,
        label,
        label,
        bars,
    )


def disk(node: Any, label: str) -> SafeString:
    """The bar of a disk: used, reserved and other bytes. What a silent node said last is hatched, not green."""
    if getattr(node, "silent", False):
        total = node.used_bytes + node.reserved_bytes + node.other_bytes
        return meter([(Tone.UNKNOWN, total)], node.capacity_bytes or 0, f"{label}, as last reported")
    parts = [(Tone.OK, node.used_bytes), (Tone.BUSY, node.reserved_bytes), (Tone.IDLE, node.other_bytes)]
    return meter(parts, node.capacity_bytes or 0, label)


def progress(done: int, total: int, tone: Tone = Tone.BUSY) -> SafeString:
    """A meter with "12.0 MiB of 300 MiB, 4 %" below it."""
    if total <= 0:
        return NOTHING
    text = f"{formats.bytes_text(done)} of {formats.bytes_text(total)}, {formats.percent_text(done, total)}"
    return format_html(
        '<span class="with-meter">{}<small class="nowrap">{}</small></span>', meter([(tone, done)], total, text), text
    )
