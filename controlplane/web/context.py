"""What every page's frame needs: where one can go, who one is, which theme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from controlplane.accounts import access
from controlplane.accounts.models import Role, User

THEMES = ("auto", "light", "dark")


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the navigation; ``key`` is what follows ``g`` on the keyboard."""

    section: str
    label: str
    icon: str
    key: str
    url_name: str


PLACES = (
    Place("overview", "Overview", "gauge", "o", "overview"),
    Place("fleet", "Fleet", "server", "f", "fleet"),
    Place("models", "Models", "box", "m", "models"),
    Place("pins", "Pins", "pin", "p", "pins"),
    Place("operations", "Operations", "list", "n", "operations"),
    Place("audit", "Audit", "book", "a", "audit"),
    Place("connections", "Connections", "plug", "c", "connections"),
    Place("tokens", "Tokens", "key", "t", "tokens"),
)


def theme_of(request: HttpRequest) -> str:
    """The stored theme; "auto" follows the system."""
    theme = request.COOKIES.get("theme", "auto")
    return theme if theme in THEMES else "auto"


def page_frame(request: HttpRequest) -> dict[str, Any]:
    """Context processor. Roles are those held anywhere; endpoints check the exact target again."""
    user = getattr(request, "user", None)
    known = isinstance(user, User)
    role = access.role_anywhere(user) if isinstance(user, User) else None
    return {
        "theme": theme_of(request),
        "places": [(place, _url(place.url_name)) for place in PLACES] if known else [],
        "role": role,
        "is_operator": known and access.can_anywhere(user, Role.OPERATOR),
        "is_admin": known and access.can_anywhere(user, Role.ADMIN),
        "layout": "layouts/full.html",
    }


def _url(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:  # an error page must render even when the addresses do not load
        return "/"
