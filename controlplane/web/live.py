"""Answering a page whole, or only its changing part when the page itself asks again.

The page polls its own address with ``X-Hearth-Live``. The answer is the ``#page`` element alone, with an ETag over what
it says (ages and form tokens left out), so that a fleet where nothing changed costs a 304. ``X-Hearth-As-Of`` carries
the time of the answer in either case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from controlplane.web import polls
from controlplane.web.people import View
from controlplane.web.tones import Tone

_VOLATILE = re.compile(
    rb'(?<=">)[^<]*(?=</time>)|name="csrfmiddlewaretoken" value="[^"]*"|name="form_key" value="[^"]*"'
    rb'|data-as-of="[^"]*"'
)


@dataclass(frozen=True, slots=True)
class Health:
    """The worst of the whole fleet, for the title and the icon of every page. ``stale`` says why data is old, or ""."""

    tone: Tone = Tone.OK
    count: int = 0
    sentence: str = "Nothing is degraded."
    stale: str = ""


@dataclass(frozen=True, slots=True)
class Crumb:
    label: str
    url: str


def with_charts(view: View) -> View:
    """plotly.js writes style attributes; scripts stay strict."""
    return cast(View, csp_update({"style-src": [SELF, UNSAFE_INLINE]})(view))


def page(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | None = None,
    *,
    title: str,
    section: str,
    crumbs: tuple[Crumb, ...] = (),
    health: Health | None = None,
    live: bool = True,
    status: int = 200,
    stamp: str = "",
) -> HttpResponse:
    """Render a page; ``live`` False for pages with fields that a refresh would disturb, ``stamp`` as polls has it."""
    fragment = "X-Hearth-Live" in request.headers
    now = timezone.now()
    health = health or Health()
    whole = {
        "title": title,
        "section": section,
        "crumbs": crumbs,
        "health": health,
        "head_title": f"({health.count}▲) {title}" if health.count else title,
        "live": live,
        "as_of": now,
        **(context or {}),
    }
    if fragment:
        whole["layout"] = "layouts/fragment.html"
    response = render(request, template, whole, status=status)
    polls.with_headers(response, now, poll=fragment)
    if not fragment or status != 200:
        return response
    tag = polls.tag_of(_VOLATILE.sub(b"", response.content), stamp)
    if polls.says_the_same(request.headers.get("If-None-Match", ""), tag):
        return polls.not_modified(tag, now)
    response["ETag"] = tag
    return response
