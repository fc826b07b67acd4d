"""An API server's refusals as GatewayErrors. Pure: status, headers and body in, exception out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from controlplane.clusters.gateway import (
    Conflict,
    Forbidden,
    GatewayError,
    Gone,
    NoNamespace,
    NotFound,
    Refused,
    Throttled,
    Unreachable,
)
from controlplane.clusters.kubernetes.names import ENDPOINT_GROUP, GROUP


class Invalid(Refused):
    """What was sent breaks a rule: of its definition, of the cluster, or a condition that a patch named (400, 422)."""


LONGEST_RETRY_SECONDS = 300.0
MESSAGE_LENGTH = 600
# Status and reason are those of a quota, too: only the sentence says that it is for want of a role.
_NO_ROLE = re.compile(r"\bcannot [a-z]+ resource\b")
# An apply whose values are of other types than the definition's is answered with 500, as if the server were at fault.
_UNTYPED = re.compile(r"failed to create typed patch object")
_MANAGER = re.compile(r'conflict with "([^"]+)"')


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, method: str, path: str, now: datetime
) -> GatewayError:
    """The error for an HTTP answer of 300 or more. What a Secret's refusal says is left out: it may quote values."""
    document = _document(body)
    message = _message(document, body)
    no_role = _NO_ROLE.search(message) is not None
    if "/secrets" in path:
        message = str(document.get("reason", ""))
    said = f"{method} {path}: {status} {message}".strip()[:MESSAGE_LENGTH]
    if status == 429 or (status == 503 and headers.get("Retry-After")):
        return Throttled(said, retry_after(headers.get("Retry-After", ""), now))
    if status == 401:
        return Refused(f"The API server does not accept Hearth's credentials. {said}")
    if status == 403:
        kind = Forbidden if no_role else Refused
        return kind(f"The API server does not allow this to Hearth's account. {said}")
    if status == 404:
        return _not_found(document, path, said)
    if status == 409:
        return _conflict(document, path, said)
    if status == 410 or _causes(document, "ResourceVersionTooLarge") or "Too large resource version" in message:
        return Gone(said)
    if status >= 500 and not _UNTYPED.search(message):
        return Unreachable(said)
    return Invalid(said) if status in (400, 422, 500) else Refused(said)


def status_error(document: Mapping[str, Any], *, path: str, now: datetime) -> GatewayError:
    """The error that a watch tells as an event of type ERROR."""
    code = document.get("code")
    status = code if isinstance(code, int) else 410 if document.get("reason") in ("Expired", "Gone") else 500
    return refusal(status, {}, json.dumps(document).encode(), method="WATCH", path=path, now=now)


def retry_after(value: str, now: datetime) -> float:
    """Seconds that a Retry-After header asks for, 1 when it is missing or nonsense, never more than five minutes."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            return 1.0
        seconds = ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds()
    if not seconds >= 0:  # also not a number
        return 1.0
    return min(seconds, LONGEST_RETRY_SECONDS)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _message(document: Mapping[str, Any], body: bytes) -> str:
    message = document.get("message")
    return message if isinstance(message, str) else body[:200].decode("utf-8", "replace").strip()


def _not_found(document: Mapping[str, Any], path: str, said: str) -> NotFound:
    # The server says "the server could not find the requested resource" for a type, and names an object otherwise.
    details = document.get("details")
    named = details.get("name") if isinstance(details, dict) else None
    if isinstance(details, dict) and details.get("kind") == "namespaces" and f"/namespaces/{named}/" in path:
        return NoNamespace(str(named))
    if f"/apis/{GROUP}/" in path and not named:
        return NotFound(f"Hearth's resource definitions are not installed in this cluster (deploy/base/crds). {said}")
    return NotFound(said)


def _conflict(document: Mapping[str, Any], path: str, said: str) -> Conflict:
    held = _causes(document, "FieldManagerConflict")
    if not held:
        return Conflict(said)
    managers = sorted({match[1] for cause in held if (match := _MANAGER.search(str(cause.get("message", ""))))})
    fields = sorted({str(cause.get("field", "")).lstrip(".") for cause in held})
    more = f" and {len(fields) - 5} more" if len(fields) > 5 else ""
    who = ", ".join(managers) or "somebody else"
    named = f"{', '.join(fields[:5])}{more}"
    if f"/apis/{ENDPOINT_GROUP}/" in path:  # a person's document, which Hearth only changes on request
        return Conflict(f"{who} holds {named}, which this would change; apply it there.", tuple(managers))
    return Conflict(f"{who} writes what is Hearth's: {named}.", tuple(managers))


def _causes(document: Mapping[str, Any], reason: str) -> list[Mapping[str, Any]]:
    details = document.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause for cause in causes or () if isinstance(cause, dict) and cause.get("reason") == reason]
