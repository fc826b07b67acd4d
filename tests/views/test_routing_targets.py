"""Pages of who serves: addresses that somebody gives, and the shares of variants."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.serving.models import Endpoint, Variant
from routing.models import RoutedVariant, RouterProcess
from tests import factories
from tests.views.reading import Page

GIVEN = {"cluster": "lab", "name": "outside", "model": "llama", "health_path": "/live"}
ADDRESSES = "one http://10.0.0.7:8000\n\n two   https://engine \n"


@pytest.fixture
def chat(db: None) -> Endpoint:
    made = factories.endpoint(of=factories.cluster(name="lab"), name="chat")
    factories.variant(of=made)
    return made


def test_addresses_are_given_changed_and_taken_away(olga: Client, chat: Endpoint) -> None:
    made = olga.post("/endpoints/static", GIVEN | {"addresses": ADDRESSES})
    row = Endpoint.objects.get(name="outside")
    assert made.status_code == 302 and made["Location"] == f"/endpoints/{row.pk}/routing"
    assert {(one.name, one.address, one.tls) for one in row.instances.all()} == {
        ("one", "10.0.0.7:8000", False), ("two", "engine:443", True),
    }  # fmt: skip
    assert "10.0.0.7:8000" in Page(olga.get(made["Location"]).content).text
    assert "outside" in Page(olga.get("/endpoints").content).text
    assert olga.get(f"/endpoints/{row.pk}").status_code == 200

    place = f"/endpoints/{row.pk}/routing/static"
    shown = Page(olga.get(place).content)
    assert "one http://10.0.0.7:8000" in shown.root.one("textarea", name="addresses").text
    based_on = shown.root.one("input", name="based_on").attrs["value"]
    change = {"model": "", "health_path": "", "addresses": "one http://10.0.0.8:8000", "based_on": based_on}
    assert olga.post(place, change).status_code == 302
    assert [one.address for one in row.instances.all()] == ["10.0.0.8:8000"]
    late = olga.post(place, change | {"addresses": ""})
    assert late.status_code == 409 and "Somebody else changed this" in Page(late.content).text
    assert row.instances.count() == 1
    assert olga.post(f"{place}/remove").status_code == 302 and not Endpoint.objects.filter(name="outside").exists()


def test_only_what_routers_reach_of_it_is_ready(olga: Client, chat: Endpoint) -> None:
    place = olga.post("/endpoints/static", GIVEN | {"addresses": ADDRESSES})["Location"]
    one = Endpoint.objects.get(name="outside").instances.get(name="one")

    def shown() -> dict[str, str]:
        rows = json.loads(olga.get(f"{place}.json?table=instances").content)["rows"]
        return {row["name"]: row["state"] for row in rows}

    assert shown() == {"one": "Unknown", "two": "Unknown"}, "nobody asked them"
    now = timezone.now()
    figures = {"in_flight": {}, "ejected": [one.uid]}
    RouterProcess.objects.create(name="r", started_at=now, seen_at=now, figures=figures)
    assert shown() == {"one": "NotReady", "two": "Ready"}
    RouterProcess.objects.create(name="s", started_at=now, seen_at=now, figures={})
    assert shown() == {"one": "Ready", "two": "Ready"}, "the second router reaches it"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"addresses": "\nengine"}, "Line 2, “engine”: expected a name and http://HOST:PORT or https://HOST:PORT."),
        ({"addresses": ADDRESSES + "UP http://x:1"}, "Line 4, “UP http://x:1”: a name has lower-case letters"),
        ({"addresses": "a http://user:secret@x"}, "no user and no password"),
        ({"name": "Out Side"}, "lower-case letters"),
        ({"health_path": "live"}, "begins with /"),
        ({"cluster": "none"}, "Select a valid choice"),
    ],
)
def test_it_says_at_the_field_what_is_wrong(olga: Client, chat: Endpoint, changes: dict[str, str], words: str) -> None:
    answer = olga.post("/endpoints/static", GIVEN | {"addresses": ADDRESSES} | changes)
    assert answer.status_code in (400, 422) and words in Page(answer.content).text
    assert Endpoint.objects.count() == 1


def test_an_endpoint_of_a_cluster_has_no_addresses_to_give(olga: Client, chat: Endpoint) -> None:
    assert olga.get(f"/endpoints/{chat.pk}/routing/static").status_code == 404


def test_shares_are_shifted_and_what_they_wait_for_is_said(olga: Client, chat: Endpoint) -> None:
    other = factories.endpoint(of=chat.cluster, name="chat-next")
    place = f"/endpoints/{chat.pk}/routing/variants"
    before = Page(olga.get(place).content).root.one("input", name="based_on").attrs["value"]
    new = {"weight_0": "9", "new_name": "next", "new_endpoint": str(other.pk), "new_weight": "1", "based_on": before}
    assert olga.post(place, new).status_code == 302
    shown = Page(olga.get(place).content).text
    assert "No instance of default/chat-next is ready." in shown and "requests go where they went" in shown
    late = olga.post(place, {"weight_0": "1", "based_on": before})
    assert late.status_code == 409 and RoutedVariant.objects.get(variant__name="next").wanted_weight == 1

    assert olga.post(place, {"weight_0": "1", "weight_1": "0"}).status_code == 302
    assert olga.post(place, {"weight_0": "1", "weight_1": ""}).status_code == 302, "empty takes it away"
    assert [one.name for one in Variant.objects.filter(endpoint=chat)] == ["default"]
    nobody = olga.post(place, {"weight_0": "0"})
    assert nobody.status_code in (400, 422) and "above 0" in Page(nobody.content).text


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"new_endpoint": "other", "new_weight": "1"}, "Name it"),
        ({"new_weight": "1"}, "Name it"),
        ({"new_name": "a b", "new_weight": "0"}, "letters A-Z"),
        ({"new_name": "default", "new_weight": "1"}, "each name is there once"),
        ({"new_name": "next", "new_weight": "-1"}, "greater than or equal to 0"),
        ({"new_name": "next", "new_weight": "nan"}, "Enter a number"),
        ({"new_name": "next", "new_weight": "1e999"}, "Enter a number"),
        ({"weight_0": "1e7"}, "less than or equal to"),
        ({"weight_0": ""}, "always among them"),
        ({"new_name": "next", "new_endpoint": "01a228ac-bd6d-7055-847c-9529d6e50fbf"}, "Select a valid choice"),
        ({"new_name": "next", "new_endpoint": "x"}, "is not a valid UUID"),
        ({"new_name": "n" * 64}, "at most 63"),
    ],
)
def test_a_shift_that_cannot_be_says_why_and_changes_nothing(
    olga: Client, chat: Endpoint, sent: dict[str, str], words: str
) -> None:
    other = factories.endpoint(of=chat.cluster, name="chat-next")
    sent = {name: str(other.pk) if value == "other" else value for name, value in sent.items()}
    answer = olga.post(f"/endpoints/{chat.pk}/routing/variants", {"weight_0": "1", **sent})
    assert answer.status_code in (400, 422) and words in Page(answer.content).text, Page(answer.content).text
    assert [one.name for one in Variant.objects.filter(endpoint=chat)] == ["default"]


def test_requests_are_not_handed_to_an_endpoint_of_another_cluster(olga: Client, chat: Endpoint) -> None:
    far = factories.endpoint(of=factories.cluster(name="far"), name="far-chat")
    page = Page(olga.get(f"/endpoints/{chat.pk}/routing/variants").content)
    assert "far-chat" not in page.text
    sent = {"weight_0": "1", "new_name": "next", "new_weight": "0", "new_endpoint": str(far.pk)}
    assert olga.post(f"/endpoints/{chat.pk}/routing/variants", sent).status_code == 400


@pytest.mark.parametrize(
    "lines",
    [
        "one",
        "one http://x:1 two http://y:1",
        "http://x:1",
        "one\thttp://x:1/v1",
        "one http://2852039166:80",
        "\x00 http://x:1",
    ],
)
def test_a_line_that_is_no_name_and_place_is_kept_for_correcting(olga: Client, chat: Endpoint, lines: str) -> None:
    answer = olga.post("/endpoints/static", GIVEN | {"addresses": lines})
    assert answer.status_code in (400, 422) and Endpoint.objects.count() == 1
    assert "addresses" in Page(answer.content).text.lower()


def test_sent_twice_it_is_made_once(olga: Client, chat: Endpoint) -> None:
    sent = GIVEN | {"addresses": ADDRESSES, "form_key": "k-static"}
    first, again = olga.post("/endpoints/static", sent), olga.post("/endpoints/static", sent)
    assert first.status_code == again.status_code == 302 and first["Location"] == again["Location"]
    assert Endpoint.objects.filter(name="outside").count() == 1
    other = olga.post("/endpoints/static", sent | {"form_key": "k-other"})
    assert other.status_code == 409 and "already" in Page(other.content).text


def test_who_may_only_look_and_who_is_of_another_cluster_change_no_address(
    olga: Client, victor: Client, chat: Endpoint
) -> None:
    place = f"{olga.post('/endpoints/static', GIVEN | {'addresses': ADDRESSES})['Location']}/static"
    far = Client()
    far.force_login(factories.user(role="Operator", target="elsewhere"))
    for client, status in ((victor, 403), (far, 404)):
        assert client.get(place).status_code == client.post(place, {}).status_code == status
        assert client.post(f"{place}/remove").status_code == status
    assert victor.get("/endpoints/static").status_code == 403
    assert far.post("/endpoints/static", GIVEN | {"name": "b", "addresses": ADDRESSES}).status_code == 400
    assert olga.get(f"{place}/remove").status_code == 405
    assert Endpoint.objects.filter(name="outside").exists() and not Endpoint.objects.filter(name="b").exists()


def test_a_viewer_sees_the_shares_and_no_form(victor: Client, chat: Endpoint) -> None:
    page = Page(victor.get(f"/endpoints/{chat.pk}/routing/variants").content)
    assert "default" in page.text and not page.root.all("input", name="weight_0")
    assert victor.post(f"/endpoints/{chat.pk}/routing/variants", {"weight_0": "2"}).status_code == 403
