"""From a request to the endpoint, the variant and the key that it means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast
from urllib.parse import unquote

import orjson

from routing.dataplane.fleet import Endpoint, Fleet, Variant
from routing.dataplane.heads import Header
from routing.domain.deciding import Key, key_of
from routing.domain.extensions import RoutingExtensions
from routing.domain.keys import CHUNK, Boundary, boundaries_from, first_digest, override, tenant_salt
from routing.domain.recordings import DEEPEST
from routing.domain.requests import KINDS, RequestKind, opening, parts

_ENDPOINT = re.compile(r"/endpoints/([^/?]{1,400})(/[^?]*)?(\?.*)?")
_ABSOLUTE = re.compile(r"https?://[^/?#]*(?=[/?#]|$)", re.IGNORECASE)  # as RFC 9112, 3.2.2, has it of any server
_DOTS = re.compile(r"(/|%2f)(\.|%2e){1,2}(/|%2f|$)", re.IGNORECASE)  # engines would read such a path each in its way
_INVOCATIONS = ("/invocations", "/invocations-response-stream")
_MODELS = "/v1/models/"
TENANT, TARGET_VARIANT = b"x-amzn-sagemaker-prefix-aware-id", b"x-amzn-sagemaker-target-variant"
_TENANT_ID = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,63}")
KEY_CHARACTERS = 512
_CHAT, _RAW = RequestKind.CHAT, RequestKind.RAW  # a name in an Enum is looked up for a tenth of a microsecond
INVOCATION_BYTES = 6 * 1024 * 1024  # what the managed feature takes


@dataclass(slots=True)
class Made:
    """What was made of a head, for all requests that have the same: where it goes, and how the head that an instance
    gets begins, b"" until it was needed."""

    asked: Asked | Refusal | None = None
    start: bytes = b""


@dataclass(slots=True)
class Request:
    """One request, whole: ``target`` as it stands in the first line."""

    method: bytes
    target: bytes
    headers: list[Header]
    body: bytes
    made: Made = field(default_factory=Made)
    _document: Mapping[str, Any] | None = None

    def document(self) -> Mapping[str, Any]:
        """The body as JSON, read at most once, and only when somebody asks. Empty when it is no JSON object: what is
        wrong with it is for the engine to say."""
        if self._document is None:
            try:
                read = _read(self.body)
            except (ValueError, RecursionError):
                read = None
            self._document = read if isinstance(read, dict) else {}
        return self._document

    def model(self) -> str:
        model = self.document().get("model")
        return model if isinstance(model, str) else ""

    def trouble(self) -> str:
        """Why the body names no model; "" when it is a JSON object without one, or nothing at all."""
        document = self.document()
        if document.get("model") is not None:
            return "the model that the body names is no text, or empty"
        return _trouble(self.body) if self.body and not document else ""

    def header(self, name: bytes) -> str:
        """The first of that name, "" when there is none. ``name`` is in lower case."""
        return next((value.decode("latin-1") for one, value in self.headers if one.lower() == name), "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the router itself answers. ``retry_after`` in seconds, 0 when asking again changes nothing. ``param``: the
    field that it is about, as clients of the OpenAI API read it."""

    status: int
    code: str
    detail: str
    next_step: str
    retry_after: int = 0
    param: str | None = None

    def body(self) -> bytes:
        said = {"message": self.detail, "type": "hearth_router", "param": self.param, "code": self.code}
        return json.dumps({"error": {**said, "next_step": self.next_step}}).encode()


@dataclass(frozen=True, slots=True)
class Models:
    """What the router itself says of the models that requests may name: ``only`` one of them, or all. As the OpenAI
    API has it, and beside it the endpoint that is meant. Nobody here knows when a model was made, or whose it is."""

    names: Mapping[str, str]
    only: str = ""

    def body(self) -> bytes:
        if self.only:
            return json.dumps(self._one(self.only)).encode()
        return json.dumps({"object": "list", "data": [self._one(name) for name in self.names]}).encode()

    def _one(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "hearth", "endpoint": self.names[name]}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the head of a request says of where it goes, whatever endpoints there are. ``endpoint`` None for one that
    its model names. ``target``: what an instance is asked for. ``tenant`` and ``variant`` "" for none.
    ``body_bytes``: the limit of the address itself. ``no_path``: of an endpoint's address alone. ``about``: the model
    that is asked about and not asked, "" for all of them."""

    endpoint: str | None
    path: str
    kind: RequestKind
    target: bytes
    variant: str
    tenant: str
    body_bytes: int | None = None
    no_path: bool = False
    about: str | None = None


def asked_for(request: Request) -> Asked | Refusal:
    """Never raises for anything that a client can send."""
    text = request.target.decode("latin-1")
    if not text.startswith("/") and (absolute := _ABSOLUTE.match(text)):
        text = text[absolute.end() :]
    if _DOTS.search(text.partition("?")[0]):
        detail = "a path has no . or .. between its slashes"
        return Refusal(400, "routing:request:bad-path", detail, "Send the path that is meant.")
    wanted, tenant = request.header(TARGET_VARIANT), request.header(TENANT)
    if match := _ENDPOINT.fullmatch(text):
        path = match[2] or ""
        invokes = path in _INVOCATIONS
        target = ("/invocations" if invokes else path) + (match[3] or "")
        return Asked(
            unquote(match[1]), path, KINDS.get(path, RequestKind.RAW), target.encode("latin-1"), wanted, tenant,
            INVOCATION_BYTES if invokes else None, not path,
        )  # fmt: skip
    if text.startswith("/v1/"):
        path = text.partition("?")[0]
        return Asked(
            None, path, KINDS.get(path, RequestKind.RAW), text.encode("latin-1"), wanted, tenant,
            about=_about(request.method, path),
        )  # fmt: skip
    return Refusal(404, "routing:request:unknown-path", "nothing is served at this address", _PATHS)


def _about(method: bytes, path: str) -> str | None:
    if method not in (b"GET", b"HEAD") or not f"{path}/".startswith(_MODELS):
        return None
    return unquote(path[len(_MODELS) :])


def route(fleet: Fleet, request: Request) -> Route | Refusal | Models:
    """Never raises for anything that a client can send."""
    asked = request.made.asked
    if asked is None:
        asked = request.made.asked = asked_for(request)
    if isinstance(asked, Refusal):
        return asked
    if asked.endpoint is not None:
        endpoint = fleet.endpoints.get(asked.endpoint)
        if endpoint is None:
            return _unknown(f"no endpoint {asked.endpoint!r:.80}", fleet)
        if asked.body_bytes is not None and len(request.body) > asked.body_bytes:
            return too_large(asked.body_bytes)
        if asked.no_path:
            return Refusal(404, "routing:request:no-path", "an endpoint's address goes on with a path", _PATHS)
    else:
        if (endpoint := fleet.only) is None:
            found = fleet.config.by_model(request.model())
            endpoint = fleet.endpoints.get(found.name) if found else None
        if endpoint is None:
            return _on_models(fleet, asked.about) if asked.about is not None else _unnamed(fleet, request)
    return _on(endpoint, asked, request)


def meant(fleet: Fleet, request: Request) -> Variant | None:
    """Among whose requests one counts that is refused, as far as it says that; its body may not have been read."""
    asked = request.made.asked or asked_for(request)
    if isinstance(asked, Refusal):
        return None
    if asked.endpoint is not None:
        endpoint = fleet.endpoints.get(asked.endpoint)
    elif (endpoint := fleet.only) is None and (found := fleet.config.by_model(request.model())) is not None:
        endpoint = fleet.endpoints.get(found.name)
    if endpoint is None:
        return None
    return endpoint.variants.get(asked.variant) or endpoint.only or next(iter(endpoint.variants.values()), None)


def _unnamed(fleet: Fleet, request: Request) -> Refusal:
    """Of several endpoints none is meant."""
    model = request.model()
    if model or not fleet.endpoints or not (said := request.trouble()):
        return _no_model(fleet, model)
    step = "Send a JSON object whose model names an endpoint, or use /endpoints/NAME/… for what is none."
    return Refusal(400, "routing:request:bad-body", said, step, param="model")


def _on_models(fleet: Fleet, model: str) -> Models | Refusal:
    """Of several endpoints: the only one there is says itself what it serves."""
    names = fleet.config.names()
    if model and model not in names:
        return _no_model(fleet, model)
    return Models(names, model) if names or fleet.config.version else _unknown("", fleet)


def _no_model(fleet: Fleet, model: str) -> Refusal:
    said = f"no endpoint is asked for by the model {model!r:.80}" if model else "the request names no model"
    return _unknown(said, fleet, param="model")


def too_large(limit: int) -> Refusal:
    return Refusal(
        413, "routing:request:too-large", f"a body may have {limit:,} bytes", "Send less, or a reference to it."
    )


_PATHS = "Use /v1/… with the endpoint's name as model, or /endpoints/NAME/invocations."


def _on(endpoint: Endpoint, asked: Asked, request: Request) -> Route | Refusal:
    variant = endpoint.variants.get(asked.variant) if asked.variant else endpoint.only or endpoint.choose()
    if variant is None:
        known = ", ".join(endpoint.variants) or "none"
        return Refusal(400, "routing:request:unknown-variant", f"no such variant; there are: {known}", "Name one.")
    if len(request.body) > (limit := variant.config.policy.extensions.body_bytes):
        return too_large(limit)
    if asked.tenant and not _TENANT_ID.fullmatch(asked.tenant):
        detail = "X-Amzn-SageMaker-Prefix-Aware-Id has 1 to 64 printable characters, the first no space"
        return Refusal(400, "routing:request:bad-tenant", detail, "Correct the header.")
    return Route(endpoint, variant, asked, request)


class Route:
    """Where one request goes. ``target``: what the instance is asked for. ``key`` and ``boundaries`` read the request
    only when called, the key once however often it is asked for: a request that waits is decided many times, and
    counts as one."""

    __slots__ = ("_asked", "_found", "_key", "_request", "endpoint", "target", "variant")

    def __init__(self, endpoint: Endpoint, variant: Variant, asked: Asked, request: Request) -> None:
        self.endpoint, self.variant, self.target = endpoint, variant, asked.target
        self._asked, self._request = asked, request
        self._found, self._key = False, cast("Key | None", None)

    def under(self, endpoint: Endpoint, variant: Variant) -> Route:
        """The same request under another configuration."""
        return Route(endpoint, variant, self._asked, self._request)

    def key(self) -> Key | None:
        if not self._found:
            self._key, self._found = self._find(), True
        return self._key

    def _find(self) -> Key | None:
        variant, policy = self.variant, self.variant.config.policy
        if own := self._own():
            return Key(own, override=True)
        if policy.prefix_aware is None or not policy.extensions.inspect_bodies:
            return None
        hot = variant.config.hot
        if not variant.sketch.samples():
            first = self._first(policy.extensions)
            if first and first not in hot:
                return Key(first, CHUNK)
            return key_of(policy, self.boundaries(), hot)
        met, found = list[Boundary](), self.boundaries()
        key = key_of(policy, _kept(found, met), hot)
        variant.sketch.add((one.digest for one in chain(tuple(met), found)), hot)
        return key

    def _first(self, extensions: RoutingExtensions) -> int:
        """The digest that ``boundaries`` gives first, where that is known without looking further; else 0."""
        if self._asked.kind is not _CHAT or not extensions.adaptive_depth or extensions.strict_text:
            return 0
        document = self._request.document()
        if (begins := opening(document)) is None:
            return 0
        model = document.get("model")
        salt = self._salt() if self._asked.tenant else ""
        state = self.variant.begun(salt, model if type(model) is str else "", begins[0])
        return first_digest(state, begins[1])

    def _own(self) -> int:
        """The digest of a key that the client named; 0 without."""
        extensions = self.variant.config.policy.extensions
        looks = extensions.inspect_bodies and self._asked.kind is not _RAW
        own = self._request.header(extensions.key_header.encode()) if extensions.key_header else ""
        if looks and extensions.body_key and isinstance(named := self._request.document().get("prompt_cache_key"), str):
            own = own or named
        if not own:
            return 0
        audience = self.variant.audience(self._salt(), self._request.model() if looks else "")
        return override(self.endpoint.config.secret, audience, own[:KEY_CHARACTERS])

    def boundaries(self) -> Iterator[Boundary]:
        """All of a request, lazily; none where the policy has no length, or forbids to look."""
        prefix = self.variant.config.policy.prefix_aware
        return self._boundaries(prefix.prefix_length) if prefix is not None else iter(())

    def recorded(self) -> tuple[int, tuple[Boundary, ...]]:
        """The digest of a key that the client named, 0 without, and its boundaries, whatever the policy's length."""
        return self._own(), tuple(self._boundaries(DEEPEST))

    def _boundaries(self, limit: int) -> Iterator[Boundary]:
        extensions = self.variant.config.policy.extensions
        if not extensions.inspect_bodies:
            return iter(())
        looks = self._asked.kind is not _RAW  # it is read as JSON
        body: Mapping[str, Any] | bytes = self._request.document() if looks else self._request.body
        state = self.variant.begun(self._salt(), self._request.model() if looks else "")
        return boundaries_from(state, parts(self._asked.kind, body, strict=extensions.strict_text), limit)

    def _salt(self) -> str:
        return tenant_salt(self.endpoint.config.secret, self._asked.tenant) if self._asked.tenant else ""


def _kept(found: Iterable[Boundary], met: list[Boundary]) -> Iterator[Boundary]:
    for boundary in found:
        met.append(boundary)
        yield boundary


def _read(raw: bytes) -> object:
    """As json.loads, but for whole numbers of more than 64 bits, which are no texts. Raises what that raises."""
    try:
        return orjson.loads(raw)
    except ValueError:
        return json.loads(raw)  # halves of characters, NaN and other encodings: engines read them too


def _trouble(raw: bytes) -> str:
    """What is wrong with a body that is no JSON object, without a word of it; "" of one that is."""
    try:
        found = _read(raw)
    except RecursionError:
        return "the body is nested too deeply to be read"
    except UnicodeDecodeError as error:
        return f"the body is not in UTF-8 (at byte {error.start:,})"
    except json.JSONDecodeError as error:
        return f"the body is no JSON: line {error.lineno:,}, column {error.colno:,}"
    except ValueError:
        return "the body has a number of more than 4,300 digits"
    return "" if isinstance(found, dict) else "the body is JSON, but no object with a model"


def _unknown(detail: str, fleet: Fleet, param: str | None = None) -> Refusal:
    if not fleet.endpoints:
        step = "Wait until the control plane has published endpoints to this router."
        return Refusal(503, "routing:config:empty", "this router knows no endpoint yet", step, retry_after=2)
    known = ", ".join(sorted(fleet.endpoints)[:10])
    return Refusal(404, "routing:request:unknown-endpoint", detail, f"Use one of: {known}.", param=param)
