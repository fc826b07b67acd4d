"""A page of routing in the frame that all pages have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from caches.selectors.overview import Severity, stale_reason, troubles
from controlplane.web import live
from controlplane.web.live import Crumb, Health
from controlplane.web.people import readable
from controlplane.web.tables import Table, export
from controlplane.web.tones import Tone

_TONES = {Severity.BAD: Tone.BAD, Severity.WARN: Tone.WARN, Severity.UNKNOWN: Tone.UNKNOWN}


def health_of(request: HttpRequest) -> Health:
    """The worst of what this person may see of the whole fleet."""
    now, targets = timezone.now(), readable(request)
    found, stale = troubles(now=now, targets=targets), stale_reason(now=now, targets=targets)
    if not found:
        return Health(tone=Tone.UNKNOWN if stale else Tone.OK, stale=stale)
    count = sum(trouble.count for trouble in found)
    sentence = "; ".join(trouble.sentence for trouble in found) + "."
    return Health(tone=_TONES[found[0].severity], count=count, sentence=sentence, stale=stale)


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    title: str,
    crumbs: Sequence[tuple[str, str]] = (),
    tables: Sequence[Table] = (),
    suffix: str = "",
    live_page: bool = True,
    status: int = 200,
) -> HttpResponse:
    """A page, or the export of one of its tables when the address asks for that."""
    if tables and (exported := export(request, tables, suffix)) is not None:
        return exported
    return live.page(
        request,
        template,
        {**context, **{f"{table.name}_table": table for table in tables}},
        title=title,
        section="endpoints",
        crumbs=tuple(Crumb(label, url) for label, url in crumbs),
        health=health_of(request),
        live=live_page,
        status=status,
    )
