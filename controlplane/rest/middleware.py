"""Around every request: an id that the answer, the logs and the audit share, and problem documents below /api/."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.errors import FieldError
from controlplane.ids import new_id
from controlplane.rest import problems

GetResponse = Callable[[HttpRequest], HttpResponseBase]
ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestIdMiddleware:
    """Takes X-Request-Id when it is short and plain, makes one otherwise, and echoes it.

    Stands before django-structlog, which reads the same header, so that one id is everywhere.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        given = request.headers.get("X-Request-Id", "")
        request_id = given if ACCEPTABLE_ID.fullmatch(given) else str(new_id())
        request.META["HTTP_X_REQUEST_ID"] = request_id
        request.request_id = request_id  # type: ignore[attr-defined]
        response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class ApiProblemMiddleware:
    """Below /api/ an error that no API view made (a bad host name) is a problem document as well."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not request.path_info.startswith("/api/") or response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        if response.get("Content-Type", "").startswith(problems.CONTENT_TYPE):
            return response
        return _replaced(request, response)


class NulMiddleware:
    """Refuses a NUL in an address or its parameters, which no text column can be asked for, before any view runs.

    Stands last, so that the error page has its session.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        fields = [name for name, values in request.GET.lists() if "\0" in name or any("\0" in one for one in values)]
        if not fields and "\0" not in request.path_info:
            return self.get_response(request)
        detail = "An address cannot have the character NUL (%00) in it."
        if not request.path_info.startswith("/api/"):
            raise BadRequest(detail)
        errors = tuple(FieldError(name.replace("\0", "")[:100], "nul", detail) for name in fields)
        problem = problems.Problem(400, "request:user:nul", detail, "Leave the character out.", errors=errors)
        return problems.render(problem, problems.request_id_of(request))


def _replaced(request: HttpRequest, response: HttpResponseBase) -> HttpResponse:
    status = response.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        problem = problems.unexpected()
    else:
        problem = problems.Problem(
            status, "request:user:refused", "The request was refused before it reached the API.", "Check the request."
        )
    return problems.render(problem, problems.request_id_of(request))
