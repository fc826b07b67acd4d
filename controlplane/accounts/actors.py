"""On whose behalf a request acts."""

from __future__ import annotations

import getpass

from django.http import HttpRequest
from rest_framework.request import Request

from controlplane.accounts.models import Token
from controlplane.audit.models import Via
from controlplane.audit.services import Actor


def actor_of(request: HttpRequest | Request) -> Actor:
    """The request's Actor: ``user/token-name`` via Api for a bearer token, the user via Browser for a session."""
    name = request.user.get_username()
    token = getattr(request, "auth", None)
    if isinstance(token, Token):
        return Actor(name=f"{name}/{token.name}"[:150], via=Via.API, request_id=request_id_of(request))
    return Actor(name=name, via=Via.BROWSER, request_id=request_id_of(request))


def person_at_terminal() -> Actor:
    """Whoever runs a command of manage.py, by the name the system has for them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return Actor(name=f"{name} (manage.py)", via=Via.COMMAND)


def request_id_of(request: HttpRequest | Request) -> str:
    """The id that controlplane.rest.request_ids gave the request, "" outside of it."""
    return str(getattr(request, "request_id", ""))
