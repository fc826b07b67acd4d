"""What can be pressed: guarded by role and CSRF, done once, audited."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

from caches.models import CacheEntry, Pin
from controlplane.accounts.models import Token, User
from controlplane.audit.models import AuditEvent
from controlplane.operations.models import Operation
from controlplane.rest.models import IdempotencyKey
from tests import factories
from tests.views.conftest import Stage
from tests.views.reading import Page

POSTS: dict[str, Callable[[Stage], tuple[str, dict[str, str]]]] = {
    "evict": lambda s: (f"/entries/{s.loose.id}/evict", {"confirm": "qwen v1"}),
    "scrub": lambda s: (f"/entries/{s.ready.id}/scrub", {}),
    "retry": lambda s: (f"/entries/{s.failed.id}/retry", {}),
    "suspend": lambda s: (f"/pins/{s.pin.id}/suspend", {}),
    "priority": lambda s: (f"/pins/{s.pin.id}/priority", {"priority": "700"}),
    "unpin": lambda s: (f"/pins/{s.pin.id}/unpin", {}),
    "cancel": lambda s: (f"/operations/{s.operation.id}/cancel", {}),
    "recheck": lambda s: ("/models/llama/versions/v1/recheck", {}),
    "image-register": lambda s: ("/images/new", {"reference": "registry.example/other:v1"}),
    "image-revoke": lambda s: (f"/images/{s.image.id}/revoke", {"reason": "CVE"}),
    "image-delete": lambda s: (f"/images/{s.image.id}/delete", {"confirm": s.image.reference}),
    "pin": lambda s: ("/pins/new", {"version": str(s.qwen.id), "pools": str(s.pool.id), "priority": "500"}),
}


@pytest.mark.parametrize("name", POSTS)
def test_it_refuses_a_viewer_and_changes_nothing(name: str, stage: Stage, victor: Client) -> None:
    address, body = POSTS[name](stage)
    before = AuditEvent.objects.count()
    response = victor.post(address, body)
    assert response.status_code == 403
    assert "role Operator" in response.content.decode()
    assert AuditEvent.objects.count() == before
    assert not Operation.objects.exclude(pk=stage.operation.pk).exists()


@pytest.mark.parametrize("name", POSTS)
def test_it_does_what_an_operator_asks_and_audits_it(name: str, stage: Stage, olga: Client) -> None:
    address, body = POSTS[name](stage)
    before = AuditEvent.objects.count()
    response = olga.post(address, body)
    assert response.status_code == 302, response.content.decode()[-3000:]
    if name == "recheck":  # looks and changes nothing: the operation says who asked
        assert Operation.objects.filter(kind="ModelRecheck", started_by="olga").exists()
    else:
        assert AuditEvent.objects.count() > before
        assert AuditEvent.objects.filter(actor="olga", via="Browser").exists()
    assert olga.get(response["Location"]).status_code == 200


@pytest.mark.parametrize("name", POSTS)
def test_it_refuses_a_form_without_its_token(name: str, stage: Stage, operator: User) -> None:
    address, body = POSTS[name](stage)
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    response = client.post(address, body)
    assert response.status_code == 403
    assert "reload the page" in response.content.decode()


@pytest.mark.parametrize("name", ["scrub", "retry", "suspend", "priority", "cancel", "recheck"])
def test_it_changes_nothing_when_an_action_is_only_visited(name: str, stage: Stage, olga: Client) -> None:
    assert olga.get(POSTS[name](stage)[0]).status_code == 405


def test_it_refuses_an_operator_of_another_pool(stage: Stage, client: Client) -> None:
    factories.pool(of=stage.pool.cluster, name="other")
    client.force_login(factories.user(username="otto", role="Operator", target="lab.other"))
    for name in ("evict", "suspend", "unpin", "cancel"):
        address, body = POSTS[name](stage)
        assert client.post(address, body).status_code in (403, 404)
    assert not Pin.objects.filter(suspended=True).exists()


def test_it_evicts_only_when_the_name_is_typed(stage: Stage, olga: Client) -> None:
    address = f"/entries/{stage.loose.id}/evict"
    assert "Type <code>qwen v1</code>" in olga.get(address).content.decode()
    assert olga.post(address, {"confirm": "llama v1"}).status_code == 400
    assert CacheEntry.objects.get(pk=stage.loose.pk).evict_requested_at is None
    assert olga.post(address, {"confirm": "qwen v1"}).status_code == 302
    assert CacheEntry.objects.get(pk=stage.loose.pk).evict_requested_at is not None


@pytest.mark.parametrize(("typed", "status"), [("qwen v1", 409), ("llama v1", 400)])
def test_it_leads_on_to_the_node_where_an_eviction_cannot_be(
    typed: str, status: int, stage: Stage, olga: Client
) -> None:
    address = f"/entries/{stage.loose.id}/evict"
    CacheEntry.objects.filter(pk=stage.loose.pk).update(state="Absent")
    answer = olga.post(address, {"confirm": typed})
    assert answer.status_code == status
    page = Page(answer.content)
    ways = {one.attrs["href"] for one in page.page.all("a")}
    assert {f"/nodes/{stage.nodes[0].id}", f"/entries/{stage.loose.id}"} <= ways
    assert (address in ways) is (status == 400)
    assert "It cannot be evicted now" in page.text or status == 400


@pytest.mark.parametrize(
    ("referer", "back"),
    [
        ("http://testserver/nodes/1?sort=state", ["/nodes/1?sort=state"]),
        ("http://elsewhere/nodes/1", []),
        ("http://testserver//elsewhere/", []),
        ("", []),
    ],
)
def test_it_leads_back_to_the_page_with_the_button(referer: str, back: list[str], stage: Stage, olga: Client) -> None:
    answer = olga.post(f"/entries/{stage.ready.id}/retry", headers={"Referer": referer})
    assert answer.status_code == 409
    ways = Page(answer.content).page.all("a")
    assert [one.attrs["href"] for one in ways if one.attrs["href"] != "/"] == back


def test_it_says_why_a_pinned_copy_stays(stage: Stage, olga: Client) -> None:
    page = olga.get(f"/entries/{stage.ready.id}/evict").content.decode()
    assert "It cannot be evicted now" in page
    assert "entry:user:protected" in page
    assert (
        "<button"
        not in page[page.index('id="page"') : page.index("</main>")]
        .replace("Copy curl", "")
        .split("data-copy")[-1]
        .split("</button>", 1)[1]
    )


def test_it_starts_one_eviction_for_a_form_sent_twice(stage: Stage, olga: Client) -> None:
    address = f"/entries/{stage.loose.id}/evict"
    key = re.search(r'name="form_key" value="([^"]+)"', olga.get(address).content.decode())
    assert key is not None
    body = {"confirm": "qwen v1", "form_key": key[1]}
    first, second = olga.post(address, body), olga.post(address, body)
    assert first["Location"] == second["Location"]
    assert Operation.objects.filter(kind="EntryEvict").count() == 1


def test_it_shows_a_new_token_once_and_never_stores_it(stage: Stage, olga: Client) -> None:
    response = olga.post("/tokens", {"name": "pipeline", "scopes": ["read", "pins:write"], "days": "7"})
    assert response.status_code == 201
    secret = re.search(r'<pre id="secret">([^<]+)</pre>', response.content.decode())
    assert secret is not None and secret[1].startswith("hearth_")
    assert response["Cache-Control"].startswith("max-age=0") or "no-store" in response["Cache-Control"]
    again = olga.get("/tokens").content.decode()
    assert secret[1] not in again and "pipeline" in again
    assert secret[1] not in str(list(AuditEvent.objects.values()))
    token = Token.objects.get()
    assert olga.post(f"/tokens/{token.id}/revoke").status_code == 302
    assert Token.objects.get().revoked_at is not None


def test_it_offers_only_the_scopes_that_the_person_has(stage: Stage, victor: Client, ada: Client) -> None:
    assert 'value="pins:write"' not in victor.get("/tokens").content.decode()
    assert 'value="admin"' in ada.get("/tokens").content.decode()
    refused = victor.post("/tokens", {"name": "x", "scopes": ["admin"], "days": "7"})
    assert refused.status_code == 400 and not Token.objects.exists()


def test_it_makes_one_token_of_a_form_that_is_sent_twice(stage: Stage, olga: Client) -> None:
    page = olga.get("/tokens").content.decode()
    [key] = re.findall(r'name="form_key" value="([^"]+)"', page)
    form = {"name": "pipeline", "scopes": ["read"], "days": "7", "form_key": key}
    wrong = olga.post("/tokens", form | {"addresses": "nonsense"})
    first, again = olga.post("/tokens", form), olga.post("/tokens", form, follow=True)

    # A refused form is sent again as it stands, with its own key.
    assert (wrong.status_code, first.status_code) == (400, 201) and key in wrong.content.decode()
    assert Token.objects.get().name == "pipeline" and first.context["secret"]
    assert again.redirect_chain == [("/tokens", 302)]
    assert "sent twice and made one token" in again.content.decode()
    assert first.context["secret"] not in str(IdempotencyKey.objects.values())
    # The page after the first is ready for another token.
    assert olga.post("/tokens", form | {"form_key": first.context["form_key"], "name": "next"}).status_code == 201


def test_it_refuses_a_token_for_a_pool_that_does_not_exist(olga: Client, stage: Stage) -> None:
    refused = olga.post("/tokens", {"name": "x", "scopes": ["read"], "days": "7", "targets": "nope"})
    assert refused.status_code == 400 and "There is no cluster or pool nope" in refused.content.decode()
    assert not Token.objects.exists()
    allowed = {"name": "x", "scopes": ["read"], "days": "7", "targets": stage.pool.full_name}
    assert olga.post("/tokens", allowed).status_code == 201


def test_it_shows_people_their_own_tokens_and_an_admin_all(
    stage: Stage, olga: Client, victor: Client, ada: Client
) -> None:
    olga.post("/tokens", {"name": "of-olga", "scopes": ["read"], "days": "7"})
    assert "of-olga" not in victor.get("/tokens").content.decode()
    assert "of-olga" in ada.get("/tokens").content.decode()
    assert victor.post(f"/tokens/{Token.objects.get().id}/revoke").status_code == 404


def test_it_says_at_the_field_what_a_token_may_not_have(stage: Stage, olga: Client) -> None:
    page = olga.post("/tokens", {"name": "x", "scopes": ["read"], "days": "7", "addresses": "nonsense"})
    assert page.status_code == 400
    assert "nonsense is no address" in page.content.decode()


def test_it_answers_a_registration_with_the_sources_reason(stage: Stage, olga: Client) -> None:
    body = {
        "model": "new",
        "version": "v1",
        "connection": str(stage.llama.connection.pk),
        "uri": "file:///etc",
    }
    response = olga.post("/register", body)
    page = response.content.decode()
    assert 400 <= response.status_code < 500
    assert 'role="alert"' in page
    assert re.search(r"<code>\w+:\w+:[\w-]+</code>", page)
    assert 'value="file:///etc"' in page


def test_it_says_which_fields_of_a_registration_are_missing(stage: Stage, olga: Client) -> None:
    response = olga.post("/register", {"model": "x"})
    assert response.status_code == 400
    assert response.content.decode().count('class="problem"') == 3


def test_it_deletes_a_version_only_by_its_typed_name(stage: Stage, olga: Client) -> None:
    address = "/models/qwen/versions/v1/delete"
    refused = olga.post(address, {"confirm": "qwen"})
    assert refused.status_code == 400 and "Go back and type qwen v1 exactly." in refused.content.decode()
    assert olga.get("/models/qwen/versions/v1").status_code == 200
    assert olga.post(address, {"confirm": "qwen v1"}).status_code == 302
    assert olga.get("/models/qwen/versions/v1").status_code == 404
