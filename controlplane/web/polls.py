"""Pages that are asked for again: a stamp of everything that they show, cheap to take, decides before they are read.

An ETag that a stamp made is ``W/"<what it says>.<stamp>"``. Whoever takes a stamp takes it before he reads, so that a
change in between is seen the next time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pathlib import Path

from django.conf import settings
from django.contrib.messages import get_messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified

from controlplane.web.formats import iso_text

_STAMPED = re.compile(r'W/"([0-9a-f]{24})(?:\.([0-9a-f]{24}))?"\Z')
_CODE = ("templates", "controlplane", "caches", "routing")
_KINDS = (".html", ".py")


def is_poll(request: HttpRequest) -> bool:
    """Whether the page asks for itself again, with nothing to tell whoever looks at it."""
    return "X-Hearth-Live" in request.headers and not len(get_messages(request))


def stamp_of(request: HttpRequest, parts: Iterable[object]) -> str:
    """Who asks, for which address, of which release, and ``parts``: what the answer follows from beside."""
    asked = (request.build_absolute_uri(), request.user.pk, _release(), *parts)
    return _digest("\n".join(map(str, asked)).encode())


def tag_of(said: bytes, stamp: str = "") -> str:
    return f'W/"{_digest(said)}.{stamp}"' if stamp else f'W/"{_digest(said)}"'


def says_the_same(tag: str, other: str) -> bool:
    """Whether two ETags are of one content, whatever their stamps."""
    found, wanted = _STAMPED.match(tag), _STAMPED.match(other)
    return found is not None and wanted is not None and found[1] == wanted[1]


def unchanged(request: HttpRequest, stamp: str, now: datetime) -> HttpResponse | None:
    """The answer to whoever has this stamp; None for others, who are to be read for."""
    tag = request.headers.get("If-None-Match", "")
    found = _STAMPED.match(tag)
    return not_modified(tag, now) if found is not None and found[2] == stamp and stamp else None


def not_modified(tag: str, now: datetime) -> HttpResponse:
    answer = HttpResponseNotModified()
    answer["ETag"] = tag
    return with_headers(answer, now, poll=True)


def with_headers(answer: HttpResponse, now: datetime, *, poll: bool) -> HttpResponse:
    answer["Cache-Control"] = "private, no-cache" if poll else "private, no-store"
    answer["Vary"] = "X-Hearth-Live, Cookie"
    answer["X-Hearth-As-Of"] = iso_text(now)
    return answer


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:24]


@cache
def _release() -> str:
    """Another one may say the same in other words."""
    return release_of(Path(settings.BASE_DIR))


def release_of(base: Path) -> str:
    """A mark of all code and templates below ``base``, whenever and wherever they were put there."""
    found = hashlib.sha256()
    for path in sorted(path for folder in _CODE for path in (base / folder).rglob("*.*") if path.suffix in _KINDS):
        content = path.read_bytes()
        found.update(f"{path.relative_to(base)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:24]
