"""Bearer tokens for programs and sessions for browsers. A refused token says which of its limits refused it."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from hmac import compare_digest
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from knox.settings import CONSTANTS
from rest_framework.authentication import SessionAuthentication, get_authorization_header
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from controlplane import errors
from controlplane.accounts.models import Token, User

LAST_USED_EVERY = timedelta(minutes=1)  # one write a minute and token, however many requests


class BearerTokenAuthentication(TokenAuthentication):  # type: ignore[misc]  # knox ships no types
    """``Authorization: Bearer hearth_…``: 401 for unknown, expired and revoked tokens, 403 for a foreign address."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        header = get_authorization_header(request).split()
        if not header or header[0].lower() != b"bearer":
            return None
        if len(header) != 2:
            raise _refused("malformed", "The Authorization header is not of the form: Bearer TOKEN.")
        token = _find(header[1])
        _check_alive(token)
        _check_address(token, client_address(request))
        _mark_used(token)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class BrowserSessionAuthentication(SessionAuthentication):
    """The browser's own calls: the session cookie, with the CSRF token on everything that is not a read."""

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied as error:
            raise errors.Denied(
                "session:user:csrf",
                str(error.detail),
                next_step="Reload the page and try again, or call with a bearer token.",
            ) from error


def client_address(request: HttpRequest | Request) -> str:
    """The caller's address; X-Forwarded-For is believed for exactly TRUSTED_PROXIES hops."""
    meta: dict[str, Any] = request.META
    hops: int = settings.TRUSTED_PROXIES
    forwarded = [part.strip() for part in str(meta.get("HTTP_X_FORWARDED_FOR", "")).split(",") if part.strip()]
    if hops and len(forwarded) >= hops:
        return forwarded[-hops]
    return str(meta.get("REMOTE_ADDR", ""))


def address_allowed(address: str, networks: list[str]) -> bool:
    """True when ``networks`` (CIDR) is empty or contains the address."""
    if not networks:
        return True
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(client, ipaddress.IPv6Address) and client.ipv4_mapped is not None:
        client = client.ipv4_mapped
    return any(client in ipaddress.ip_network(network, strict=False) for network in networks)


def _find(raw: bytes) -> Token:
    secret = raw.decode("latin-1")
    if not secret.isascii() or not secret.isprintable():
        raise _refused("unknown", "The token is not known.")
    digest = hash_token(secret)
    token: Token
    candidates = Token.objects.filter(token_key=secret[: CONSTANTS.TOKEN_KEY_LENGTH]).select_related("user")
    for token in candidates:
        if compare_digest(digest, token.digest):
            return token
    raise _refused("unknown", "The token is not known.")


def _check_alive(token: Token) -> None:
    now = timezone.now()
    if token.revoked_at is not None:
        raise _refused("revoked", f"The token was revoked at {token.revoked_at:%Y-%m-%dT%H:%M:%SZ}.")
    if token.expiry is not None and token.expiry <= now:
        expired = f"{token.expiry:%Y-%m-%dT%H:%M:%SZ}"
        raise _refused("expired", f"The token expired at {expired}; server time is {now:%Y-%m-%dT%H:%M:%SZ}.")
    if not token.user.is_active:
        raise _refused("owner-inactive", "The token's owner may not sign in any more.")


def _check_address(token: Token, address: str) -> None:
    if not address_allowed(address, token.addresses):
        raise errors.Denied(
            "token:user:address",
            f"The token may not be used from {address}.",
            next_step="Call from an allowed network, or create a token that allows this address.",
        )


def _mark_used(token: Token) -> None:
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - LAST_USED_EVERY:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)


def _refused(what: str, detail: str) -> errors.Unauthenticated:
    return errors.Unauthenticated(
        f"token:user:{what}",
        detail,
        next_step="Create a new token on the Tokens page and set it as the bearer token.",
    )
