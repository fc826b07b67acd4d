"""Who sees which button, and what the address behind it answers to each of them."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.accounts.models import RoleGrant, User
from controlplane.audit.models import AuditEvent
from controlplane.operations.models import Operation
from tests import factories
from tests.views.addresses import BUTTONS, FORMS, PAGES
from tests.views.conftest import Stage
from tests.views.reading import Page

EVERY_PAGE = PAGES | FORMS
# What belongs to no pool asks for the role anywhere; the rest asks for it on the pool that is touched.
ANYWHERE = frozenset({"recheck", "delete", "register"} | {name for name in BUTTONS if name.startswith("image-")})


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def somebody(role: str, target: str) -> Client:
    return browser(factories.user(username=f"{role}-{target or 'all'}", role=role, target=target))


def trail() -> tuple[int, int]:
    """What a refusal must not add to."""
    return AuditEvent.objects.count(), Operation.objects.count()


@pytest.fixture
def other(stage: Stage) -> Stage:
    """The stage beside a second pool, on which somebody may do everything."""
    factories.pool(of=stage.pool.cluster, name="other")
    return stage


@pytest.mark.parametrize("name", BUTTONS)
def test_it_refuses_everybody_without_the_role_there_and_leaves_no_trace(name: str, other: Stage) -> None:
    address, body = BUTTONS[name](other)
    people = {
        "viewer": somebody("Viewer", ""),
        "viewer here, admin elsewhere": browser(both(other)),
        "no role": browser(factories.user(username="none")),
    }
    if name in ANYWHERE:
        people.pop("viewer here, admin elsewhere")
    before = trail()
    for who, client in people.items():
        response = client.post(address, body)
        expected = {403} if name != "pin" or who != "viewer here, admin elsewhere" else {400}  # the pool is not offered
        assert response.status_code in expected, (who, response.status_code)
    assert trail() == before


def both(stage: Stage) -> User:
    user = factories.user(username="mixed", role="Viewer", target="lab.gpu")
    RoleGrant.objects.create(user=user, role="Admin", target="lab.other")
    return user


@pytest.mark.parametrize("name", BUTTONS)
def test_it_hides_what_somebody_may_not_even_see(name: str, other: Stage) -> None:
    if name in ANYWHERE:
        return
    address, body = BUTTONS[name](other)
    before = trail()
    response = somebody("Admin", "lab.other").post(address, body)
    assert response.status_code in (400, 403, 404)
    assert trail() == before


@pytest.mark.parametrize("name", BUTTONS)
def test_it_sends_strangers_to_sign_in_and_not_to_the_button(name: str, stage: Stage, client: Client) -> None:
    address, body = BUTTONS[name](stage)
    before = trail()
    late = client.post(address, body, headers={"Referer": "http://testserver/pins?pool=lab.gpu"})
    assert (late.status_code, late["Location"]) == (302, "/login?next=/pins%3Fpool%3Dlab.gpu")
    elsewhere = client.post(address, body, headers={"Referer": "https://evil.example/pins"})
    assert elsewhere["Location"] == "/login?next=/"
    assert client.post(address, body)["Location"] == "/login?next=/"
    assert trail() == before


def test_it_lets_nobody_in_who_was_deactivated_meanwhile(stage: Stage, operator: User) -> None:
    client = browser(operator)
    assert client.get("/").status_code == 200
    operator.is_active = False
    operator.save()
    for name, make in BUTTONS.items():
        address, body = make(stage)
        assert client.post(address, body)["Location"].startswith("/login"), name
    assert client.get("/")["Location"].startswith("/login")


def test_it_takes_a_role_away_at_once(stage: Stage, operator: User) -> None:
    client = browser(operator)
    assert "Unpin…" in client.get(f"/pins/{stage.pin.id}").content.decode()
    RoleGrant.objects.filter(user=operator).update(role="Viewer")
    assert "Unpin…" not in client.get(f"/pins/{stage.pin.id}").content.decode()
    assert client.post(f"/pins/{stage.pin.id}/unpin").status_code == 403


@pytest.mark.usefixtures("health_once")
def test_it_shows_a_viewer_no_way_to_change_anything_on_any_page(stage: Stage, victor: Client) -> None:
    allowed = {"/tokens", ""}  # one's own tokens are everybody's
    for name, address in PAGES.items():
        page = Page(victor.get(address(stage)).content)
        assert [post for post in page.posts() if post not in allowed] == [], name
        for control in (*page.page.all("button"), *page.page.all("a")):
            target = control.attrs.get("href", "")
            changing = ("/new", "/register", "/evict", "/unpin", "/delete")
            assert not target.partition("?")[0].endswith(changing), (name, target)
            assert "danger" not in control.attrs.get("class", "") or name == "tokens", (name, control.text)


def test_it_shows_somebody_of_another_pool_no_button_of_this_one(other: Stage) -> None:
    mixed = browser(both(other))
    for name in ("pool", "node", "entries", "entry", "pin", "operation"):
        page = Page(mixed.get(PAGES[name](other)).content)
        assert page.posts() == [], name
        assert not [one for one in page.page.all("a") if one.attrs["href"].endswith(("/evict", "/unpin"))], name


def test_it_offers_an_operator_exactly_what_the_state_allows(stage: Stage, olga: Client) -> None:
    def offers(address: str) -> set[str]:
        page = Page(olga.get(address).content)
        here = [one for one in page.page.all("a") if "button" in one.attrs.get("class", "").split()]
        return {one.text for one in (*page.page.all("button"), *here)} - {"Copy curl"}

    assert offers(f"/entries/{stage.ready.id}") == {"Verify", "Evict…"}
    assert offers(f"/entries/{stage.failed.id}") == {"Retry now", "Evict…"}
    assert offers(f"/entries/{stage.downloading.id}") == {"Evict…"}
    assert {"Suspend", "Unpin…", "Change"} <= offers(f"/pins/{stage.pin.id}")
    assert "Resume" not in offers(f"/pins/{stage.pin.id}")
    olga.post(f"/pins/{stage.pin.id}/suspend")
    assert "Resume" in offers(f"/pins/{stage.pin.id}") and "Suspend" not in offers(f"/pins/{stage.pin.id}")
    assert offers(f"/operations/{stage.operation.id}") == {"Cancel", "Open pin"}
    for state, buttons in (("Succeeded", set()), ("Failed", {"Try again"}), ("Canceling", set())):
        Operation.objects.filter(pk=stage.operation.pk).update(state=state)
        assert offers(f"/operations/{stage.operation.id}") - {"Open pin"} == buttons, state
    assert "Delete…" not in offers("/models/llama/versions/v1") and "Its pin" in offers("/models/llama/versions/v1")
    assert {"Delete…", "Pin…"} <= offers("/models/qwen/versions/v1")


def follow(client: Client, start: str, *, limit: int = 200, read: list[str] | None = None) -> dict[str, int]:
    """Every page that links lead to, with the status that it answers; ``read`` takes what they say."""
    found: dict[str, int] = {}
    waiting = [start]
    while waiting and len(found) < limit:
        address = waiting.pop(0)
        if address in found:
            continue
        response = client.get(address)
        found[address] = response.status_code
        if response.status_code != 200 or "text/html" not in response["Content-Type"]:
            continue
        page = Page(response.content)
        if read is not None:
            read.append(page.html)
        for link in page.links():
            target = address.partition("?")[0] + link if link.startswith("?") else link
            # Orders and exports of tables have tests of their own.
            if target.startswith("/") and not any(word in target for word in ("sort=", "format=")):
                waiting.append(target)
    return found


@pytest.mark.usefixtures("health_once")
@pytest.mark.parametrize("person", ["victor", "ada"])
def test_it_has_no_link_that_leads_nowhere(person: str, stage: Stage, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(person)
    wanted = {name: make(stage).partition("?")[0] for name, make in PAGES.items()}  # some make what they show
    found = follow(client, "/")
    assert {address: status for address, status in found.items() if status != 200} == {}
    reached = {address.partition("?")[0] for address in found}
    for name, address in wanted.items():
        assert address in reached or name == "search", name


@pytest.mark.usefixtures("health_once")
def test_it_has_no_dead_link_for_somebody_who_sees_one_pool(other: Stage) -> None:
    hidden = factories.pool(of=factories.cluster(name="far"), name="away")
    factories.node(of=hidden, name="far-node")
    said: list[str] = []
    found = follow(somebody("Viewer", "lab.gpu"), "/", read=said)
    assert {address: status for address, status in found.items() if status != 200} == {}
    assert said and "far-node" not in "".join(said) and "away" not in "".join(said)


def test_it_names_no_cluster_that_somebody_may_not_see(other: Stage) -> None:
    factories.cluster(name="secret-cluster")
    assert "secret-cluster" not in somebody("Viewer", "lab").get("/fleet").content.decode()
    assert "secret-cluster" in somebody("Viewer", "").get("/fleet").content.decode()
