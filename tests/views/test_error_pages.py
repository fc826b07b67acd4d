"""Every refusal is a page with a sentence, a code, a next step and the request id; headers hold on all of them."""

from __future__ import annotations

import pytest
from django.db import OperationalError
from django.http import Http404
from django.test import Client, RequestFactory

from controlplane import errors
from controlplane.accounts.models import User
from controlplane.web.errors import bad_request, forbidden, not_found, problem_page
from tests.factories import PASSWORD
from tests.views.addresses import BUTTONS, FORMS, PAGES
from tests.views.conftest import Stage
from tests.views.reading import Page

NOBODY = "00000000-0000-7000-8000-000000000000"
MISSING = [
    "/nope", "/fleet/lab", "/fleet/lab.none", "/fleet/none.gpu", "/fleet/lab.gpu.x", f"/nodes/{NOBODY}", "/nodes/n1",
    f"/entries/{NOBODY}", f"/entries/{NOBODY}/evict", "/models/none", "/models/none/versions/v1",
    "/models/llama/versions/none", "/models/llama/versions/v1/nope", f"/pins/{NOBODY}", f"/pins/{NOBODY}/unpin",
    f"/operations/{NOBODY}", "/operations/1", "/connections/none", "/models/none/versions/v1/delete",
    "/fleet/lab.none.csv", f"/nodes/{NOBODY}.json", "/models/none.csv", "/search.csv", "/日本語",
]  # fmt: skip


@pytest.mark.parametrize("address", MISSING)
def test_it_says_that_something_is_not_there_and_how_to_go_on(address: str, stage: Stage, olga: Client) -> None:
    response = olga.get(address)
    page = Page(response.content)
    assert response.status_code == 404
    assert "What to do:" in page.text and page.problems == []
    assert page.root.one("code", id="request-id").text == response["X-Request-Id"]
    assert "text/html" in response["Content-Type"]


def test_it_has_a_page_for_addresses_that_only_buttons_use(stage: Stage, olga: Client) -> None:
    for name in ("scrub", "retry", "suspend", "resume", "priority", "cancel", "retry-operation", "recheck"):
        response = olga.get(BUTTONS[name](stage)[0])
        assert response.status_code == 405 and response["Allow"] == "POST", name
        assert "Go back to the page with the button" in Page(response.content).text, name
    assert olga.get(f"/tokens/{NOBODY}/revoke").status_code == 405
    assert olga.get("/api/v1/me").status_code == 200
    api = olga.post("/api/v1/me")
    assert api.status_code in (403, 405) and "text/html" not in api["Content-Type"]


@pytest.mark.parametrize(
    ("error", "status", "title"),
    [
        (errors.Invalid("a:user:b", "Bad.", next_step="Fix."), 400, "That request cannot be used"),
        (errors.Denied("a:user:b", "No.", next_step="Ask."), 403, "You may not do this"),
        (errors.Missing("a:user:b", "Gone."), 404, "There is nothing here"),
        (errors.Clash("a:user:b", "Not now."), 409, "Not possible right now"),
        (errors.Stale("a:user:b", "Old."), 412, "Somebody changed it first"),
        (errors.Permanent("a:source:b", "Never."), 422, "That cannot work"),
        (errors.Transient("a:cluster:b", "Later."), 503, "Not available for the moment"),
        (errors.HearthError("a:hearth:b", "Odd.", status=418), 418, "Something broke on our side"),
    ],
)
def test_it_shows_each_kind_of_refusal(error: errors.HearthError, status: int, title: str, viewer: User) -> None:
    request = RequestFactory().get("/x")
    request.user = viewer
    response = problem_page(request, error)
    page = Page(response.content)
    assert response.status_code == status and title in page.text
    assert error.code in page.text and error.detail in page.text and error.next_step in page.text


def test_it_lists_each_field_that_was_wrong(viewer: User) -> None:
    request = RequestFactory().get("/x")
    request.user = viewer
    fields = [errors.FieldError("a.b", "x", "Too <long>."), errors.FieldError("", "x", "All wrong.")]
    page = Page(problem_page(request, errors.Invalid("a:user:b", "Bad.", errors=fields)).content)
    assert [one.text for one in page.page.all("ul")[0].all("li")] == ["a.b : Too <long>.", "All wrong."]


def test_it_explains_djangos_own_refusals(viewer: User) -> None:
    request = RequestFactory().get("/x<b>")
    request.user = viewer
    assert b"No page has the address /x" in not_found(request, Http404()).content
    assert b"<b>" not in not_found(request, Http404()).content
    assert "Said so." in Page(not_found(request, Http404("Said so.")).content).text
    assert forbidden(request, PermissionError("")).status_code == 403
    assert "Go back and try again." in Page(bad_request(request, ValueError("secret")).content).text
    assert b"secret" not in bad_request(request, ValueError("secret")).content


def test_it_shows_the_broken_page_without_asking_the_database(
    stage: Stage, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(viewer)

    def down(*_: object, **__: object) -> None:
        raise OperationalError("connection to 10.0.0.5 failed for user hearth")

    with monkeypatch.context() as patched:
        patched.setattr("django.db.backends.utils.CursorWrapper.execute", down)
        response = client.get("/fleet", headers={"X-Request-Id": "incident-7"})
    page = Page(response.content)
    assert response.status_code == 500
    assert "incident-7" in page.root.text and "10.0.0.5" not in page.html
    assert page.root.all("a", href="/readyz") and page.problems == []


def test_it_refuses_nul_in_every_place_of_an_address(stage: Stage, olga: Client) -> None:
    for address in ("/models?q=%00", "/search?q=a%00b", "/models/x%00", "/audit?actor=%00", "/entries?sort=%00"):
        assert olga.get(address).status_code in (400, 404), address


POLICY = {
    "default-src": "'self'", "script-src": "'self'", "img-src": "'self' data:", "connect-src": "'self'",
    "font-src": "'self'", "object-src": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'",
    "form-action": "'self'",
}  # fmt: skip


CHARTS = ("pool", "node", "routing", "launches", "launch", "launch-compare", "launch-report")


@pytest.mark.usefixtures("health_once")
def test_it_sends_the_same_strict_headers_with_every_page(stage: Stage, olga: Client) -> None:
    addresses = {name: make(stage) for name, make in (PAGES | FORMS).items()}
    for name, address in {**addresses, "missing": "/nope", "login": "/login", "export": "/pins.csv"}.items():
        response = olga.get(address)
        parts = (part.strip().partition(" ") for part in response["Content-Security-Policy"].split(";"))
        policy = {directive: rest for directive, _, rest in parts}
        styles = policy.pop("style-src")
        assert styles == ("'self' 'unsafe-inline'" if name in CHARTS else "'self'"), name
        assert policy == POLICY, name
        assert response["X-Frame-Options"] == "DENY" and response["X-Content-Type-Options"] == "nosniff", name
        assert response["Referrer-Policy"] == "same-origin" and response["X-Request-Id"], name


@pytest.mark.usefixtures("health_once")
def test_it_lets_nobody_keep_what_a_session_saw(stage: Stage, olga: Client) -> None:
    for name, make in (PAGES | FORMS).items():
        assert "no-store" in olga.get(make(stage))["Cache-Control"], name
    assert "no-store" in olga.get("/pins.json")["Cache-Control"]


@pytest.mark.usefixtures("health_once")
def test_it_answers_head_like_get_without_a_body(stage: Stage, olga: Client) -> None:
    for name, make in PAGES.items():
        head = olga.head(make(stage))
        assert (head.status_code, head.content) == (200, b""), name


def test_it_keeps_cookies_from_scripts_and_other_sites(stage: Stage, viewer: User, client: Client) -> None:
    response = client.post("/login", {"username": "victor", "password": PASSWORD})
    session = response.cookies["sessionid"]
    assert session["httponly"] and session["samesite"] == "Lax"
    theme = client.post("/theme", {"theme": "dark"}).cookies["theme"]
    assert theme["httponly"] and theme["samesite"] == "Lax" and int(theme["max-age"]) > 86400


def test_it_starts_a_new_session_at_the_sign_in(viewer: User, client: Client) -> None:
    client.cookies["sessionid"] = "fixedbyanattacker1234567890abcdef"
    client.post("/login", {"username": "victor", "password": PASSWORD})
    assert client.cookies["sessionid"].value != "fixedbyanattacker1234567890abcdef"
    first = client.cookies["sessionid"].value
    client.post("/logout")
    client.cookies["sessionid"] = first
    assert client.get("/")["Location"].startswith("/login"), "a signed-out session is over"
