"""How a registry wants to be asked: no credentials, basic, or a token that another address gives for them."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from caches.sources import allowed, problems
from caches.sources.http_client import Answer, HttpClient, refusal
from controlplane.errors import Permanent

DEFAULT_SECONDS = 60  # what a token lasts that says nothing
_SCHEME = re.compile(r"\s*(?P<scheme>[A-Za-z]+)(?:\s+(?P<rest>.*))?", re.DOTALL)
_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
_NEXT_STEP = "Check the user name and the password or token in the connection's secret, and what they may pull."


@dataclass(frozen=True, slots=True)
class Challenge:
    """A WWW-Authenticate header taken apart; ``scheme`` in lower case."""

    scheme: str
    parameters: Mapping[str, str]


def challenge_of(header: str) -> Challenge:
    """The first challenge of a header; scheme "" when there is none."""
    found = _SCHEME.fullmatch(header)
    if found is None:
        return Challenge("", {})
    parameters = {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(found["rest"] or "")}
    return Challenge(found["scheme"].lower(), parameters)


class Authenticator:
    """Authorization headers for one registry; tokens are kept until they end. Safe to share between threads.

    ``secret`` has ``username`` and ``password``, or a ``token`` that is sent as it is; {} asks without credentials.
    """

    def __init__(self, client: HttpClient, secret: Mapping[str, str], secret_name: str, *, allow_private: bool) -> None:
        whole = bool(secret.get("token")) or bool(secret.get("username") and secret.get("password"))
        if secret and not whole:
            raise problems.secret_missing(secret_name, "lacks username and password, or token")
        self._client, self._secret, self._allow_private = client, secret, allow_private
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float]] = {}  # by repository: header, until when

    def header(self, repository: str) -> str:
        """What to send at first: "" until the registry has said how it wants to be asked."""
        if token := self._secret.get("token"):
            return f"Bearer {token}"
        with self._lock:
            header, until = self._known.get(repository, ("", 0.0))
        return header if time.monotonic() < until else ""

    def answer(self, place: str, repository: str, refused: Answer) -> str:
        """The header with which to ask again after a 401. Permanent(AccessDenied) when there is nothing more to try."""
        challenge = challenge_of(refused.headers.get("WWW-Authenticate", ""))
        if self._secret.get("token"):
            raise denied(place)
        if challenge.scheme == "bearer" and challenge.parameters.get("realm"):
            header, seconds = self._fetch(place, repository, challenge.parameters, refused.url)
        elif challenge.scheme == "basic" and self._secret:
            header, seconds = self._basic(), float(DEFAULT_SECONDS * 60)
        else:
            raise denied(place)
        with self._lock:
            self._known[repository] = header, time.monotonic() + seconds
        return header

    def _basic(self) -> str:
        pair = f"{self._secret['username']}:{self._secret['password']}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"

    def _fetch(self, place: str, repository: str, parameters: Mapping[str, str], registry: str) -> tuple[str, float]:
        realm = parameters["realm"]
        try:
            allowed.check_url(realm, allow_private=self._allow_private)
        except ValueError as error:
            raise problems.rejected(place, "the registry names no address for tokens.") from error
        if urlsplit(registry).scheme == "https" and urlsplit(realm).scheme != "https":
            raise problems.rejected(place, "the registry wants the credentials sent without encryption.")
        # The scope is ours to say: a registry that asks for more than pulling gets no token for that.
        query = {"scope": f"repository:{repository}:pull"} if repository else {}
        if service := parameters.get("service"):
            query["service"] = service
        joint = "&" if urlsplit(realm).query else "?"
        basic = self._basic() if self._secret else ""
        with self._client.open(place, f"{realm}{joint}{urlencode(query)}", authorization=basic) as answer:
            if answer.status in (400, 401, 403):
                raise denied(place)
            if answer.status != 200:
                raise refusal(place, answer)
            said = answer.json(place)
        token = (said.get("token") or said.get("access_token")) if isinstance(said, dict) else None
        if not isinstance(token, str) or not token or not token.isprintable() or " " in token:
            raise problems.rejected(place, "the registry's token cannot be read.")
        seconds = said.get("expires_in")
        lasts = float(seconds) if isinstance(seconds, int) and 0 < seconds <= 86400 else float(DEFAULT_SECONDS)
        return f"Bearer {token}", lasts * 0.8


def denied(place: str) -> Permanent:
    """The registry does not give this image to the connection."""
    return problems.access_denied(place, "The registry refuses it to these credentials.", _NEXT_STEP)
