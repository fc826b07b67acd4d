"""Signing in and out, and the stored theme."""

from __future__ import annotations

from django.contrib.auth import authenticate, login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from controlplane.accounts.authentication import client_address
from controlplane.web import lockout
from controlplane.web.context import THEMES
from controlplane.web.errors import request_id_of

_WRONG = "That name and password do not match. Both are case-sensitive."
_LOCKED = "Too many wrong passwords. Wait 15 minutes, or ask an administrator."


@never_cache
@sensitive_post_parameters("password")
def sign_in(request: HttpRequest) -> HttpResponse:
    """The form; a right password goes to ``next`` when that is a page of this site."""
    if request.user.is_authenticated:
        return HttpResponseRedirect(_next(request))
    problem, status = "", 200
    username = request.POST.get("username", "")[:150]
    if request.method == "POST":
        problem, status = _attempt(request, username)
        if not problem:
            return HttpResponseRedirect(_next(request))
    context = {"title": "Sign in", "problem": problem, "username": username, "next": _next(request)}
    return render(request, "pages/sign_in.html", context, status=status)


def _attempt(request: HttpRequest, username: str) -> tuple[str, int]:
    """("", 200) when signed in; otherwise what to say and the status."""
    address, request_id = client_address(request)[:64], request_id_of(request)
    with lockout.one_at_a_time(address):
        if lockout.is_locked(username=username, address=address):
            return _LOCKED, 429
        user = authenticate(request, username=username, password=request.POST.get("password", ""))
        lockout.record(username=username, address=address, success=user is not None, request_id=request_id)
    if user is None:
        return _WRONG, 400
    login(request, user)
    return "", 200


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("login")


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Store the theme for a year and go back to where one was."""
    theme = request.POST.get("theme", "auto")
    response = HttpResponseRedirect(_next(request))
    if theme in THEMES:
        response.set_cookie(
            "theme", theme, max_age=365 * 86400, samesite="Lax", httponly=True, secure=request.is_secure()
        )
    return response


def _next(request: HttpRequest) -> str:
    wanted = request.POST.get("next") or request.GET.get("next") or "/"
    safe = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if safe else "/"
