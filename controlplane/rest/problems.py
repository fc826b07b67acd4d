"""Every error as ``application/problem+json`` (RFC 9457) with code, next step and request id."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.request import Request

from controlplane.errors import FieldError, HearthError, Transient
from controlplane.locks import is_deadlock
from controlplane.rest.validation import flat_errors

CONTENT_TYPE = "application/problem+json"
RETRY_SECONDS = 5  # when nothing better is known

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """What becomes the document; ``extensions`` are further members, e.g. the plan of a refused pin."""

    status: int
    code: str
    detail: str
    next_step: str
    errors: tuple[FieldError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """REST framework's EXCEPTION_HANDLER: nothing passes it, an unexpected exception is logged and redacted."""
    request: Request = context["request"]
    problem = _problem_of(error)
    if problem is None:
        log.error("api.unexpected", exc_info=error, path=request.path, method=request.method)
        problem = unexpected()
    return render(problem, request_id_of(request))


def render(problem: Problem, request_id: str) -> HttpResponse:
    """The document as a response, without content negotiation: an error is never CSV."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "next_step": problem.next_step,
        "request_id": request_id,
        "errors": [{"field": one.field, "code": one.code, "detail": one.detail} for one in problem.errors],
        **problem.extensions,
    }
    response = HttpResponse(json.dumps(document), status=problem.status, content_type=CONTENT_TYPE)
    for name, value in problem.headers.items():
        response[name] = value
    return response


@csrf_exempt
def no_such_address(request: HttpRequest) -> HttpResponse:
    """The last address below /api/: takes what no other did, so that no page is rendered for a program."""
    problem = Problem(
        HTTPStatus.NOT_FOUND,
        "request:user:no-such-address",
        f"There is nothing at {request.path_info[:200]}.",
        "Read /api/v1/docs for the addresses; they have no slash at the end.",
    )
    return render(problem, request_id_of(request))


def unexpected() -> Problem:
    """What the caller is told about a bug: nothing but the id to find it by."""
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "request:hearth:internal",
        "Hearth made a mistake while it answered.",
        "Try again; if it repeats, give the request_id to whoever runs Hearth: the log has the cause.",
    )


def request_id_of(request: HttpRequest | Request) -> str:
    """The id that RequestIdMiddleware gave the request."""
    return str(getattr(request, "request_id", ""))


def _problem_of(error: Exception) -> Problem | None:
    if isinstance(error, HearthError):
        return _of_hearth(error)
    if isinstance(error, Http404):
        return Problem(404, "request:user:not-found", "There is no such object.", "List the collection to see names.")
    if isinstance(error, PermissionDenied):
        return Problem(403, "access:user:denied", "This is not allowed.", "Ask an administrator for a role.")
    if isinstance(error, RequestDataTooBig):
        return Problem(413, "request:user:too-large", "The request body is too large.", "Send less than 2.5 MB.")
    if isinstance(error, SuspiciousOperation | UnreadablePostError | RecursionError):
        return Problem(400, "request:user:malformed", "The request cannot be read.", "Send well-formed JSON in UTF-8.")
    if isinstance(error, exceptions.APIException):
        return _of_framework(error)
    if isinstance(error, DataError):
        log.warning("api.data_refused", error=str(error))
        return Problem(400, "request:user:out-of-range", "A value is out of range.", "Send smaller or shorter values.")
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("api.database_unavailable", error=str(error))
        if is_deadlock(error):
            return _busy("database:hearth:contended", "Another change of the same things was in the way.")
        return _busy("database:hearth:unavailable", "The database does not answer.")
    return None


def _busy(code: str, detail: str) -> Problem:
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return Problem(503, code, detail, "Try again after the time in Retry-After.", headers=headers)


def _of_hearth(error: HearthError) -> Problem:
    headers = {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Transient) or error.status in (429, 503):
        headers["Retry-After"] = str(_seconds_until(error))
    return Problem(
        error.status,
        error.code,
        error.detail,
        error.next_step or "Read the detail and change the request.",
        errors=error.errors,
        headers=headers | dict(getattr(error, "headers", {})),
        extensions=getattr(error, "extensions", {}),
    )


def _seconds_until(error: HearthError) -> int:
    retry_at = getattr(error, "retry_at", None)
    return RETRY_SECONDS if retry_at is None else max(1, math.ceil((retry_at - timezone.now()).total_seconds()))


# What to say instead of the framework's own words: code and next step by exception.
_FRAMEWORK: Mapping[type[exceptions.APIException], tuple[str, str]] = {
    exceptions.ValidationError: ("request:user:invalid", "Correct the fields named in errors."),
    exceptions.ParseError: ("request:user:malformed", "Send well-formed JSON in UTF-8."),
    exceptions.AuthenticationFailed: ("session:user:refused", "Sign in again, or use another token."),
    exceptions.NotAuthenticated: ("session:user:missing", "Send Authorization: Bearer TOKEN, or sign in."),
    exceptions.PermissionDenied: ("access:user:denied", "Ask an administrator for a role."),
    exceptions.NotFound: ("request:user:not-found", "List the collection to see what there is."),
    exceptions.MethodNotAllowed: ("request:user:method", "Use one of the methods in the Allow header."),
    exceptions.NotAcceptable: ("request:user:not-acceptable", "Accept application/json; lists also offer text/csv."),
    exceptions.UnsupportedMediaType: ("request:user:media-type", "Send Content-Type: application/json."),
    exceptions.Throttled: ("request:user:throttled", "Wait for the time in Retry-After."),
}


def _of_framework(error: exceptions.APIException) -> Problem:
    code, next_step = next(
        (words for kind, words in _FRAMEWORK.items() if isinstance(error, kind)),
        ("request:user:refused", "Read the detail and change the request."),
    )
    headers = {}
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, exceptions.Throttled):
        headers["Retry-After"] = str(math.ceil(getattr(error, "wait", None) or RETRY_SECONDS))
    errors = tuple(flat_errors(error.detail)) if isinstance(error, exceptions.ValidationError) else ()
    detail = " ".join(_sentences(errors)) if errors else str(error.detail)
    return Problem(error.status_code, code, detail, next_step, errors=errors, headers=headers)


def _sentences(errors: tuple[FieldError, ...]) -> Iterator[str]:
    for one in errors[:5]:
        yield f"{one.field}: {one.detail}" if one.field else one.detail
