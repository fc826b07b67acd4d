"""Every page: for the three people, in a bounded number of queries, with what it promises on it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from caches.models import Pin
from tests import factories
from tests.views.conftest import Stage

# Page → (address, most queries for a person whose session is known). More rows must not mean more queries.
PAGES: dict[str, tuple[Callable[[Stage], str], int]] = {
    "overview": (lambda s: "/", 22),
    "fleet": (lambda s: "/fleet", 19),
    "pool": (lambda s: "/fleet/lab.gpu", 24),
    "node": (lambda s: f"/nodes/{s.nodes[0].id}", 26),
    "entries": (lambda s: "/entries", 13),
    "entry": (lambda s: f"/entries/{s.ready.id}", 13),
    "models": (lambda s: "/models", 12),
    "model": (lambda s: "/models/llama", 11),
    "version": (lambda s: "/models/llama/versions/v1", 28),
    "images": (lambda s: "/images", 11),
    "image": (lambda s: f"/images/{s.image.id}", 13),
    "pins": (lambda s: "/pins", 17),
    "pin": (lambda s: f"/pins/{s.pin.id}", 19),
    "operations": (lambda s: "/operations", 10),
    "operation": (lambda s: f"/operations/{s.operation.id}", 19),
    "audit": (lambda s: "/audit", 11),
    "tokens": (lambda s: "/tokens", 9),
    "connections": (lambda s: "/connections", 10),
    "connection": (lambda s: f"/connections/{s.llama.connection.name}", 12),
    "search": (lambda s: "/search?q=llama", 13),
}
FORMS: dict[str, Callable[[Stage], str]] = {
    "register": lambda s: "/register",
    "image-new": lambda s: "/images/new",
    "image-revoke": lambda s: f"/images/{s.image.id}/revoke",
    "image-delete": lambda s: f"/images/{s.image.id}/delete",
    "pin": lambda s: "/pins/new",
    "preview": lambda s: f"/pins/new?step=preview&version={s.qwen.id}&pools={s.pool.id}&priority=500",
    "evict": lambda s: f"/entries/{s.loose.id}/evict",
    "unpin": lambda s: f"/pins/{s.pin.id}/unpin",
    "delete": lambda s: "/models/qwen/versions/v1/delete",
}


def text_of(html: str) -> str:
    """What a person reads: no tags, single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


@pytest.mark.parametrize("name", PAGES)
def test_it_shows_each_page_to_a_viewer_in_a_bounded_number_of_queries(name: str, stage: Stage, victor: Client) -> None:
    address, most = PAGES[name]
    victor.get(address(stage))  # fills per-process caches
    with CaptureQueriesContext(connection) as queries:
        response = victor.get(address(stage))
    assert response.status_code == 200
    # One node is silent, so the headline counts the unknown copies; the Overview counts them once.
    most += 1 if name == "overview" else 7
    assert len(queries) <= most, "\n".join(query["sql"][:150] for query in queries)


@pytest.mark.parametrize("name", ["overview", "pool", "entries", "pins"])
def test_it_needs_no_more_queries_for_more_rows(name: str, stage: Stage, victor: Client) -> None:
    address, _ = PAGES[name]
    victor.get(address(stage))
    with CaptureQueriesContext(connection) as few:
        victor.get(address(stage))
    for number in range(5):
        node = factories.node(of=stage.pool)
        other = factories.version(model=f"more-{number}")
        factories.pin(of=other, pools=(stage.pool,))
        assert other.artifact is not None
        factories.entry(on=node, of=other.artifact)
    with CaptureQueriesContext(connection) as many:
        victor.get(address(stage))
    assert len(many) <= len(few)


@pytest.mark.parametrize("name", PAGES)
def test_it_offers_a_viewer_nothing_to_press(name: str, stage: Stage, victor: Client) -> None:
    html = victor.get(PAGES[name][0](stage)).content.decode()
    page = html[html.index('<div id="page"') :]
    posts = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', page)
    assert [post for post in posts if "token" not in post] == []
    for forbidden in (
        "Evict…",
        "Unpin…",
        ">Suspend<",
        "Pin it",
        "Pin…",
        "Pin a version",
        "Register a version",
        "Cancel<",
    ):
        assert forbidden not in page


@pytest.mark.parametrize("name", FORMS)
def test_it_shows_the_forms_to_an_operator_and_refuses_them_to_a_viewer(
    name: str, stage: Stage, olga: Client, victor: Client
) -> None:
    address = FORMS[name](stage)
    assert olga.get(address).status_code == 200
    refused = victor.get(address)
    assert refused.status_code == 403
    assert "role Operator" in refused.content.decode()


def test_it_sends_strangers_to_sign_in_and_back(stage: Stage, client: Client) -> None:
    for address, _ in PAGES.values():
        response = client.get(address(stage))
        assert response.status_code == 302
        assert response["Location"].startswith("/login?next=/")


def test_it_tells_somebody_without_a_role_whom_to_ask(stage: Stage, client: Client) -> None:
    client.force_login(factories.user(username="nobody"))
    response = client.get("/")
    assert response.status_code == 403
    page = text_of(response.content.decode())
    assert "Ask an administrator for the role Viewer" in page
    assert response["X-Request-Id"] in page


def test_it_hides_other_pools_from_somebody_with_one_pool(stage: Stage, client: Client) -> None:
    other = factories.pool(of=stage.pool.cluster, name="secret")
    hidden = factories.node(of=other, name="hidden-node")
    client.force_login(factories.user(username="paula", role="Operator", target="lab.gpu"))
    assert client.get("/fleet/lab.gpu").status_code == 200
    assert client.get("/fleet/lab.secret").status_code == 404
    assert client.get(f"/nodes/{hidden.id}").status_code == 404
    for address in ("/", "/fleet", "/entries", "/pins/new"):
        assert "secret" not in client.get(address).content.decode()


def test_it_says_on_the_overview_what_is_wrong_moving_and_changed(stage: Stage, victor: Client) -> None:
    page = text_of(victor.get("/").content.decode())
    assert "1 copy failed" in page
    assert "1 node stopped reporting" in page
    assert "Degraded" in page
    assert "5.0 MiB/s measured" in page
    assert "Warm llama v1" in page
    assert "pin.create" in page and "ada" in page


def test_it_shows_the_worst_in_title_and_icon_data(stage: Stage, victor: Client) -> None:
    html = victor.get("/fleet").content.decode()
    assert re.search(r"<title>\(\d+▲\) Fleet · Hearth</title>", html)
    assert 'data-worst="bad"' in html


def test_it_is_calm_when_nothing_is_wrong(victor: Client) -> None:
    pool = factories.pool()
    version = factories.version()
    assert version.artifact is not None
    factories.pin(of=version, pools=(pool,))
    factories.entry(on=factories.node(of=pool), of=version.artifact)
    html = victor.get("/").content.decode()
    assert "Nothing is degraded" in html
    assert 'data-worst="ok"' in html
    assert "<title>Overview · Hearth</title>" in html
    assert "every wanted copy is ready or on its way" in text_of(html)
    factories.node(of=pool)  # nobody planned for it yet
    text = text_of(victor.get("/").content.decode())
    assert "Nothing is degraded" in text and "Partial" in text
    assert "1 wanted copy is neither ready nor on its way." in text and "is ready or on its way" not in text
    Pin.objects.update(suspended=True)
    text = text_of(victor.get("/").content.decode())
    assert "1 wanted copy is neither ready nor on its way, because of suspended pins." in text and "Suspended" in text


def test_it_says_how_to_begin_on_an_empty_installation(ada: Client) -> None:
    assert "manage.py bootstrap_demo" in ada.get("/").content.decode()
    assert "make run" in ada.get("/fleet").content.decode()
    assert "/api/v1/pins" in ada.get("/pins").content.decode()
    assert "/api/v1/source-connections" in ada.get("/connections").content.decode()


def test_it_never_shows_a_silent_node_as_ready(stage: Stage, victor: Client) -> None:
    factories.entry(on=stage.nodes[3], of=stage.llama.artifact)
    page = victor.get(f"/nodes/{stage.nodes[3].id}").content.decode()
    assert "tone-unknown" in page and "Last known: Ready." in page
    assert "tone-ok" not in page[page.index("What it holds") : page.index('id="disk"')]


def test_it_says_why_a_version_is_not_warm_node_by_node(stage: Stage, victor: Client) -> None:
    html = victor.get("/models/llama/versions/v1").content.decode()
    why = html[html.index("Why is it not warm there?") :]
    for node in ("n2", "n3", "n4"):
        assert f"<strong>{node}</strong>" in why
    assert "<strong>n1</strong>" not in why
    assert why.count('<ol class="checks">') == 3


def test_it_shows_reason_and_next_retry_of_a_failure(stage: Stage, victor: Client) -> None:
    page = text_of(victor.get(f"/nodes/{stage.nodes[2].id}").content.decode())
    assert "AccessDenied: 403 from the store." in page
    assert re.search(r"Tried again in \d+ m", page)


def test_it_links_the_audit_to_what_was_changed(stage: Stage, victor: Client) -> None:
    assert f"/pins/{stage.pin.id}" in victor.get("/audit").content.decode()
    assert "No row matches" in victor.get("/audit?actor=zoe").content.decode()


def test_it_answers_what_is_missing_with_a_way_on(stage: Stage, victor: Client) -> None:
    for address in ("/nope", "/models/zebra", "/nodes/00000000-0000-7000-8000-000000000000", "/fleet/lab.none"):
        response = victor.get(address)
        assert response.status_code == 404
        page = text_of(response.content.decode())
        assert "What to do:" in page and response["X-Request-Id"] in page


def test_it_shows_a_page_with_the_request_id_when_something_breaks(
    stage: Stage, viewer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("caches.views.overview.overview.flow", broken)
    client = Client(raise_request_exception=False)
    client.force_login(viewer)  # type: ignore[arg-type]
    response = client.get("/")
    page = text_of(response.content.decode())
    assert response.status_code == 500
    assert response["X-Request-Id"] in page and "readyz" in page
    assert "secret detail" not in page
