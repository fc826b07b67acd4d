"""Error pages: a sentence, the code, the next step and the request id; the same words as the API's problems."""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template import loader

from controlplane import errors

logger = logging.getLogger(__name__)

API_PREFIX = "/api/"
_TITLES = {
    400: "That request cannot be used",
    403: "You may not do this",
    404: "There is nothing here",
    405: "There is no page here",
    409: "Not possible right now",
    412: "Somebody changed it first",
    422: "That cannot work",
    500: "Something broke on our side",
    503: "Not available for the moment",
}


def request_id_of(request: HttpRequest) -> str:
    return str(getattr(request, "request_id", ""))


def problem_page(request: HttpRequest, error: errors.HearthError) -> HttpResponse:
    """An expected failure as a page, with the status that the API answers with."""
    context = {
        "title": _TITLES.get(error.status, _TITLES[500]),
        "head_title": _TITLES.get(error.status, _TITLES[500]),
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        "next_step": error.next_step,
        "problems": error.errors,
        "request_id": request_id_of(request),
        "back": _page_before(request),
    }
    return render(request, "errors/problem.html", context, status=error.status)


def _page_before(request: HttpRequest) -> str:
    """Where the button was that led to a refusal; "" when it was not pressed on a page of this site."""
    page = urlsplit(request.headers.get("Referer", ""))
    if request.method in ("GET", "HEAD") or page.netloc != request.get_host() or page.path.startswith("//"):
        return ""
    return page.path + (f"?{page.query}" if page.query else "")


class ErrorPagesMiddleware:
    """Turns a HearthError raised by a page into its error page. The API has its own handler."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if response.status_code == 405 and not request.path.startswith(API_PREFIX):
            return _wrong_method(request, response)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if request.path.startswith(API_PREFIX) or not isinstance(exception, errors.HearthError):
            return None
        return problem_page(request, exception)


def _wrong_method(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Somebody opened the address of a button: say so instead of showing an empty page."""
    error = errors.Invalid(
        "page:user:wrong-method",
        "This address only takes what a button on another page sends.",
        next_step="Go back to the page with the button and press it there.",
        status=405,
    )
    page = problem_page(request, error)
    page["Allow"] = response["Allow"]
    return page


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    detail = str(exception) if isinstance(exception, Http404) and exception.args and _plain(exception) else ""
    return problem_page(
        request,
        errors.Missing(
            "page:user:missing",
            detail or f"No page has the address {request.path}.",
            next_step="Search for it above, or go to the Overview.",
        ),
    )


def _plain(exception: Exception) -> bool:
    """Resolver404 carries a dict for the debug page; only sentences are shown."""
    return isinstance(exception.args[0], str)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(
        request,
        errors.Denied(
            "access:user:role-missing",
            str(exception) or "Your roles do not allow this.",
            next_step="Ask an administrator for a role that does.",
        ),
    )


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(
        request,
        errors.Invalid("page:user:bad-request", "The request was malformed.", next_step="Go back and try again."),
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """Nothing here may query: the database can be what broke."""
    context = {"title": _TITLES[500], "request_id": request_id_of(request)}
    return HttpResponse(loader.render_to_string("errors/broken.html", context), status=500)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    logger.warning("csrf_failure", extra={"reason": reason})
    if request.path.startswith(API_PREFIX):
        return HttpResponse(status=403)
    return problem_page(
        request,
        errors.Denied(
            "page:user:csrf",
            "The form did not carry the proof that it came from this site: the page was open across a sign-in, or "
            "cookies are blocked.",
            next_step="Go back, reload the page and send it again.",
        ),
    )
