"""What drf-spectacular cannot see by itself: the two ways in, error documents, CSV, Idempotency-Key and If-Match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension

METHODS = ("get", "post", "patch", "put", "delete")
PROBLEM = {"$ref": "#/components/schemas/Problem"}
# Every answer that is not the wanted one, by the methods that can give it.
ERRORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "400": ("A parameter or field is wrong", METHODS),
    "401": ("No valid credentials; WWW-Authenticate says how to bring some", METHODS),
    "403": ("A scope, role, target or address is missing, and which", METHODS),
    "404": ("No such object", METHODS),
    "406": ("No such representation", METHODS),
    "409": (
        "The state does not allow it, or a twin with the same Idempotency-Key is running",
        ("post", "put", "patch", "delete"),
    ),
    "412": ("If-Match names an older version", ("put", "patch", "delete")),
    "413": ("The body is too large", ("post", "put", "patch")),
    "415": ("The body is not JSON", ("post", "put", "patch")),
    "422": (
        "It can be understood but not done, or the Idempotency-Key was used for something else",
        ("post", "put", "patch", "delete"),
    ),
    "500": ("A mistake of Hearth's, redacted", METHODS),
    "503": ("Something Hearth needs does not answer; Retry-After says when to come back", METHODS),
}
# Bodies whose unknown fields are refused (rest.validation.Input), by the end of their names.
STRICT = ("Input", "Changes")
PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457. `code` is stable, `next_step` is a sentence for a person.",
    "required": ["type", "title", "status", "detail", "code", "next_step", "request_id", "errors"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "area:who:what"},
        "next_step": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "code", "detail"],
                "properties": {name: {"type": "string"} for name in ("field", "code", "detail")},
            },
        },
        "plan": {
            "allOf": [{"$ref": "#/components/schemas/Plan"}],
            "description": "Why a pin was refused, node by node",
        },
    },
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "description": "Same key and body within 24 hours: the first answer again, with Idempotency-Replayed: true",
}
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The ETag that the change is based on; 412 when the object is another version by now",
}


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "controlplane.accounts.authentication.BearerTokenAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token from the Tokens page"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "controlplane.accounts.authentication.BrowserSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "The browser's session"}


def without_suffixes(endpoints: list[tuple[Any, ...]], **kwargs: Any) -> list[tuple[Any, ...]]:
    """Preprocessing hook: ``pins.csv`` is ``pins`` in another dress."""
    return [endpoint for endpoint in endpoints if not endpoint[0].endswith(".csv")]


def finish(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Postprocessing hook: see the module's sentence."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
    for name, schema in result["components"]["schemas"].items():
        if name.endswith(STRICT):
            schema["additionalProperties"] = False
    for method, operation in _operations(result):
        for status, (description, methods) in ERRORS.items():
            if method in methods:
                content = {"application/problem+json": {"schema": PROBLEM}}
                operation["responses"].setdefault(status, {"description": description, "content": content})
        if method in ("post", "put"):
            operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)
        if operation.pop("x-edited", False):
            operation.setdefault("parameters", []).append(IF_MATCH)
        for response in operation["responses"].values():
            if "text/csv" in (content := response.get("content", {})):
                content["text/csv"] = {"schema": {"type": "string"}}
    return result


def _operations(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in result["paths"].values():
        for method, operation in path.items():
            if method in METHODS:
                yield method, operation
