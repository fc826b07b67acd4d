"""From a request to the endpoint, the variant and the key that it means."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import unquote

from routing.dataplane.fleet import Endpoint, Fleet, Variant
from routing.dataplane.heads import Header
from routing.domain.deciding import Key, key_of
from routing.domain.keys import Audience, Boundary, boundaries, override, tenant_salt
from routing.domain.requests import KINDS, RequestKind, parts

_ENDPOINT = re.compile(r"/endpoints/([^/?]{1,400})(/[^?]*)?(\?.*)?")
_INVOCATIONS = ("/invocations", "/invocations-response-stream")
TENANT, TARGET_VARIANT = b"x-amzn-sagemaker-prefix-aware-id", b"x-amzn-sagemaker-target-variant"
_TENANT_ID = re.compile(r"\S[\x20-\x7e]{0,63}")
KEY_CHARACTERS = 512
INVOCATION_BYTES = 6 * 1024 * 1024  # what the managed feature takes


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whole: ``target`` as it stands in the first line."""

    method: bytes
    target: bytes
    headers: list[Header]
    body: bytes

    def header(self, name: bytes) -> str:
        """The first of that name, "" when there is none. ``name`` is in lower case."""
        return next((value.decode("latin-1") for one, value in self.headers if one.lower() == name), "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the router itself answers. ``retry_after`` in seconds, 0 when asking again changes nothing."""

    status: int
    code: str
    detail: str
    next_step: str
    retry_after: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """``target``: what the instance is asked for. ``key`` and ``boundaries`` read the request only when called, the key
    once however often it is asked for. ``under`` is the same request under another configuration."""

    endpoint: Endpoint
    variant: Variant
    target: bytes
    key: Callable[[], Key | None]
    boundaries: Callable[[], Iterator[Boundary]]
    under: Callable[[Endpoint, Variant], Route]


def route(fleet: Fleet, request: Request) -> Route | Refusal:
    """Never raises for anything that a client can send."""
    text = request.target.decode("latin-1")
    read = _Body(request.body)
    if match := _ENDPOINT.fullmatch(text):
        path = match[2] or ""
        endpoint = fleet.endpoints.get(unquote(match[1]))
        target = ("/invocations" if path in _INVOCATIONS else path) + (match[3] or "")
        if endpoint is None:
            return _unknown(f"no endpoint {match[1]!r:.80}", fleet)
        if path in _INVOCATIONS and len(request.body) > INVOCATION_BYTES:
            return too_large(INVOCATION_BYTES)
        if not path:
            return Refusal(404, "routing:request:no-path", "an endpoint's address goes on with a path", _PATHS)
    elif text.startswith("/v1/"):
        path = text.partition("?")[0]
        found = fleet.config.by_model(read.model() if len(fleet.endpoints) > 1 else "")
        endpoint, target = fleet.endpoints.get(found.name) if found else None, text
        if endpoint is None:
            model = read.model()
            said = f"no endpoint is asked for by the model {model!r:.80}" if model else "the request names no model"
            return _unknown(said, fleet)
    else:
        return Refusal(404, "routing:request:unknown-path", "nothing is served at this address", _PATHS)
    return _on(endpoint, path, target.encode("latin-1"), request, read)


def too_large(limit: int) -> Refusal:
    return Refusal(
        413, "routing:request:too-large", f"a body may have {limit:,} bytes", "Send less, or a reference to it."
    )


_PATHS = "Use /v1/… with the endpoint's name as model, or /endpoints/NAME/invocations."


def _on(endpoint: Endpoint, path: str, target: bytes, request: Request, read: _Body) -> Route | Refusal:
    wanted = request.header(TARGET_VARIANT)
    variant = endpoint.variants.get(wanted) if wanted else endpoint.choose()
    if variant is None:
        known = ", ".join(endpoint.variants) or "none"
        return Refusal(400, "routing:request:unknown-variant", f"no such variant; there are: {known}", "Name one.")
    tenant = request.header(TENANT)
    if tenant and not _TENANT_ID.fullmatch(tenant):
        detail = "X-Amzn-SageMaker-Prefix-Aware-Id has 1 to 64 printable characters, the first no space"
        return Refusal(400, "routing:request:bad-tenant", detail, "Correct the header.")
    return _made(endpoint, variant, KINDS.get(path, RequestKind.RAW), tenant, target, request, read)


def _made(
    endpoint: Endpoint, variant: Variant, kind: RequestKind, tenant: str, target: bytes, request: Request, read: _Body
) -> Route:
    return Route(
        endpoint,
        variant,
        target,
        _Once(lambda: _key(endpoint, variant, kind, tenant, request, read)),
        lambda: _boundaries(endpoint, variant, kind, tenant, request, read),
        lambda endpoint, variant: _made(endpoint, variant, kind, tenant, target, request, read),
    )


class _Once:
    """A key that is looked for once: a request that waits is decided many times, and counts as one."""

    __slots__ = ("_find", "_found")

    def __init__(self, find: Callable[[], Key | None]) -> None:
        self._find: Callable[[], Key | None] | None = find
        self._found: Key | None = None

    def __call__(self) -> Key | None:
        if self._find is not None:
            find, self._find = self._find, None
            self._found = find()
        return self._found


def _key(
    endpoint: Endpoint, variant: Variant, kind: RequestKind, tenant: str, request: Request, read: _Body
) -> Key | None:
    policy, secret = variant.config.policy, endpoint.config.secret
    own = request.header(policy.extensions.key_header.encode()) if policy.extensions.key_header else ""
    looks = policy.extensions.inspect_bodies and kind is not RequestKind.RAW
    if looks and policy.extensions.body_key and isinstance(named := read.document().get("prompt_cache_key"), str):
        own = own or named
    if own:
        audience = _audience(endpoint, variant, tenant, read if looks else None)
        return Key(override(secret, audience, own[:KEY_CHARACTERS]), override=True)
    if policy.prefix_aware is None or not policy.extensions.inspect_bodies:
        return None
    found = _boundaries(endpoint, variant, kind, tenant, request, read)
    if not variant.sketch.samples():
        return key_of(policy, found, variant.config.hot)
    met: list[Boundary] = []
    key = key_of(policy, _kept(found, met), variant.config.hot)
    variant.sketch.add((one.digest for one in chain(tuple(met), found)), variant.config.hot)
    return key


def _audience(endpoint: Endpoint, variant: Variant, tenant: str, read: _Body | None) -> Audience:
    salt = tenant_salt(endpoint.config.secret, tenant)
    return Audience(endpoint.config.name, variant.config.name, read.model() if read else "", "", salt)


def _boundaries(
    endpoint: Endpoint, variant: Variant, kind: RequestKind, tenant: str, request: Request, read: _Body
) -> Iterator[Boundary]:
    """All of a request, lazily; none where the policy has no length, or forbids to look."""
    policy = variant.config.policy
    if policy.prefix_aware is None or not policy.extensions.inspect_bodies:
        return iter(())
    looks = kind is not RequestKind.RAW
    body: Mapping[str, Any] | bytes = read.document() if looks else request.body
    audience = _audience(endpoint, variant, tenant, read if looks else None)
    stream = parts(kind, body, strict=policy.extensions.strict_text)
    return boundaries(endpoint.config.secret, audience, stream, policy.prefix_aware.prefix_length)


def _kept(found: Iterable[Boundary], met: list[Boundary]) -> Iterator[Boundary]:
    for boundary in found:
        met.append(boundary)
        yield boundary


class _Body:
    """A body that is read as JSON at most once, and only when somebody asks."""

    __slots__ = ("_document", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._document: Mapping[str, Any] | None = None

    def document(self) -> Mapping[str, Any]:
        """Empty when it is no JSON object: what is wrong with it is for the engine to say."""
        if self._document is None:
            try:
                read = json.loads(self._raw)
            except (ValueError, RecursionError):
                read = None
            self._document = read if isinstance(read, dict) else {}
        return self._document

    def model(self) -> str:
        model = self.document().get("model")
        return model if isinstance(model, str) else ""


def _unknown(detail: str, fleet: Fleet) -> Refusal:
    if not fleet.endpoints:
        step = "Wait until the control plane has published endpoints to this router."
        return Refusal(503, "routing:config:empty", "this router knows no endpoint yet", step, retry_after=2)
    known = ", ".join(sorted(fleet.endpoints)[:10])
    return Refusal(404, "routing:request:unknown-endpoint", detail, f"Use one of: {known}.")
