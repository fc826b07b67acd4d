"""What every page's frame needs: where one can go, who one is, which theme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from controlplane.accounts import access
from controlplane.accounts.models import Role, User
from controlplane.web.live import Health
from controlplane.web.tones import Tone

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
    Place("images", "Images", "disk", "i", "images"),
    Place("endpoints", "Endpoints", "serve", "e", "endpoints"),
    Place("launches", "Cold starts", "clock", "l", "launches"),
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
    found = getattr(request, "user", None)
    user = found if isinstance(found, User) else None
    return {
        "theme": theme_of(request),
        "places": [(place, _url(place.url_name)) for place in PLACES] if user else [],
        "role": access.role_anywhere(user) if user else None,
        "is_operator": user is not None and access.can_anywhere(user, Role.OPERATOR),
        "is_admin": user is not None and access.can_anywhere(user, Role.ADMIN),
        "layout": "layouts/full.html",
        "as_of": timezone.now(),
        "live": False,
        "health": Health(tone=Tone.UNKNOWN, sentence=""),  # pages that did not look must not look fine
    }


def _url(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:  # an error page must render even when the addresses do not load
        return "/"
