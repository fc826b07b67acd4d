"""Few launches are drawn one by one: as dots on a line from zero, which rows of one table share."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane.web.formats import duration_text

_LEFT, _WIDTH = 3, 94  # percent: a dot at an end is whole


def dots(seconds: Sequence[float], most: float, *, lead: str = "", mark: float | None = None) -> SafeString:
    """Each as a dot on a line from zero to ``most``, and in words behind ``lead``; a line across at ``mark``."""
    words = lead + ", ".join(duration_text(one) for one in seconds)
    if mark is not None:
        words += f"; the line is at {duration_text(mark)}"
    line = (
        format_html('<line x1="{0}" x2="{0}" y1="0" y2="100%" stroke="currentColor" stroke-width="2"/>', _x(mark, most))
        if mark is not None
        else ""
    )
    return format_html(
        '<svg class="meter dots" role="img" aria-label="{}"><title>{}</title>{}{}</svg>',
        words,
        words,
        line,
        format_html_join(
            "", '<circle cx="{}" cy="50%" r="3" fill="currentColor"/>', ((_x(one, most),) for one in seconds)
        ),
    )


def _x(seconds: float, most: float) -> str:
    return f"{_LEFT + _WIDTH * min(1.0, seconds / (most or 1)):.1f}%"
