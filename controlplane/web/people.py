"""Who is looking at a page, what they may see and do, and the same over REST."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse

from controlplane.accounts import access
from controlplane.accounts.models import Role, User

View = Callable[..., HttpResponseBase]


def signed_in(view: View) -> View:
    """Only people with some role: others sign in first, or are told which role grants it."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not isinstance(request.user, User):
            return redirect_to_login(_way_back(request))
        access.require_anywhere(request.user, Role.VIEWER)
        return view(request, *args, **kwargs)

    return checked


def _way_back(request: HttpRequest) -> str:
    """Where to go after signing in: here, or for a form that was sent too late the page that it stood on."""
    if request.method in ("GET", "HEAD"):
        return request.get_full_path()
    page = urlsplit(request.headers.get("Referer", ""))
    if page.netloc != request.get_host():
        return reverse("overview")
    return page.path + (f"?{page.query}" if page.query else "")


def user_of(request: HttpRequest) -> User:
    """The signed-in person (signed_in has run)."""
    assert isinstance(request.user, User)
    return request.user


def readable(request: HttpRequest) -> frozenset[str] | None:
    """What of the fleet this person may see; None: everything."""
    return access.readable_targets(user_of(request))


def may(request: HttpRequest, role: Role, target: str = "") -> bool:
    return access.can(user_of(request), role, target)


def curl(request: HttpRequest, path: str, *, method: str = "GET", body: str = "") -> str:
    """The same over REST, ready to paste; the token comes from the environment and is never shown."""
    words = ["curl", "-sS", '-H "Authorization: Bearer $HEARTH_TOKEN"']
    if method != "GET":
        words.insert(2, f"-X {method}")
        words.append('-H "Idempotency-Key: $(uuidgen)"')
    if body:
        words.append(f"-H 'Content-Type: application/json' -d {shlex.quote(body)}")
    return " ".join([*words, f"'{request.build_absolute_uri('/api/v1/' + path)}'"])
