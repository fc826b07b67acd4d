"""What people type into each form: every mistake is answered at its field, nothing is lost, nothing half done."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from django.http import QueryDict
from django.test import Client

from caches.forms import PinForm, RegisterForm, TokenForm
from caches.models import ModelVersion, Pin
from caches.selectors.nodes import pools_list
from controlplane.accounts.models import Scope, Token
from controlplane.errors import FieldError
from controlplane.operations.models import Operation
from tests import factories
from tests.views.conftest import Stage
from tests.views.reading import Element, Page


def problems(page: Page) -> dict[str, str]:
    """Field → what is said at it."""
    said = {}
    for one in page.page.all("span"):
        if one.attrs.get("class") == "problem":
            said[one.attrs["id"].removeprefix("id_").removesuffix("_error")] = one.text
    return said


def preview(client: Client, stage: Stage, **fields: str) -> tuple[int, Page]:
    body = {"step": "preview", "version": str(stage.qwen.id), "pools": str(stage.pool.id), "priority": "500"}
    response = client.get("/pins/new", {name: value for name, value in (body | fields).items() if value != "-"})
    return response.status_code, Page(response.content)


# what is typed, the field that says so, a word of what it says
MISTAKES = [
    ({"version": "-"}, "version", "required"),
    ({"version": "llama"}, "version", "valid UUID"),
    ({"version": "00000000-0000-7000-8000-000000000000"}, "version", "valid choice"),
    ({"pools": "-"}, "pools", "required"),
    ({"pools": "lab.gpu"}, "pools", "not a valid"),
    ({"priority": "-1"}, "priority", "greater than or equal to 0"),
    ({"priority": "1001"}, "priority", "less than or equal to 1000"),
    ({"priority": "high"}, "priority", "whole number"),
    ({"priority": "1.5"}, "priority", "whole number"),
    ({"priority": "9" * 5000}, "priority", "whole number"),
    ({"placement_type": "Most"}, "placement_type", "valid choice"),
    ({"placement_type": "Count", "placement_value": ""}, "placement_value", "Say how many."),
    ({"placement_type": "Count", "placement_value": "0"}, "placement_value", "greater than or equal to 1"),
    ({"placement_type": "Percent", "placement_value": "101"}, "placement_value", "between 1 and 100"),
    ({"gate_type": "Timeout", "gate_value": ""}, "gate_value", "Say how many."),
    ({"gate_type": "Percent", "gate_value": "250"}, "gate_value", "between 1 and 100"),
    ({"gate_type": "All", "gate_value": "99999999999"}, "gate_value", "less than or equal to"),
    ({"retention_hours": "-1"}, "retention_hours", "greater than or equal to 0"),
    ({"retention_hours": str(400 * 24)}, "retention_hours", "less than or equal to"),
    ({"needed_at": "tomorrow"}, "needed_at", "valid date"),
    ({"needed_at": "2026-02-30T10:00"}, "needed_at", "valid date"),
    ({"window_start": "25:00", "window_end": "06:00"}, "window_start", "valid time"),
    ({"window_start": "22:00"}, "window_end", "both times"),
    ({"window_end": "22:00"}, "window_start", "both times"),
    ({"window_start": "22:00", "window_end": "22:00"}, "window_end", ""),
    ({"window_start": "22:00", "window_end": "06:00", "window_time_zone": "Mars/Olympus"}, "window_time_zone", "Mars"),
    ({"spread_label": "z" * 201}, "spread_label", "200"),
]


@pytest.mark.parametrize(("typed", "field", "word"), MISTAKES)
def test_it_says_at_the_field_of_a_pin_what_is_wrong(
    typed: dict[str, str], field: str, word: str, stage: Stage, olga: Client
) -> None:
    status, page = preview(olga, stage, **typed)
    assert status == 400
    said = problems(page)
    assert list(said) == [field] and word in said[field], said
    wrong = [one for one in page.page.all("input", "select") if one.attrs.get("name") == field]
    assert all(one.attrs.get("aria-invalid") == "true" for one in wrong) or field == "pools"
    if field in PinForm.ADVANCED:
        assert "open" in page.page.one("details").attrs, "a mistake must not hide in a closed section"
    assert not Pin.objects.filter(version=stage.qwen).exists()


def test_it_keeps_what_was_typed_beside_the_mistake(stage: Stage, olga: Client) -> None:
    typed = {"priority": "7777", "retention_hours": "5", "spread_label": '"zone"', "placement_type": "Count",
             "placement_value": "2", "window_time_zone": "Europe/Berlin"}  # fmt: skip
    _, page = preview(olga, stage, **typed)
    fields = {one.attrs["name"]: one for one in page.page.all("input", "select") if "name" in one.attrs}
    for name, value in typed.items():
        assert chosen(fields[name]) == value, name
    assert chosen(fields["version"]) == str(stage.qwen.id)
    assert [one.attrs["value"] for one in page.page.all("input", name="pools", checked="")] == [str(stage.pool.id)]


def chosen(field: Element) -> str:
    if field.tag == "select":
        return next((one.attrs["value"] for one in field.all("option") if "selected" in one.attrs), "")
    return field.attrs.get("value", "")


CHOICES = {
    "priority": "640", "placement_type": "Count", "placement_value": "2", "spread_label": "zone",
    "gate_type": "Timeout", "gate_value": "90", "retention_hours": "3", "needed_at": "2027-01-02T03:04",
    "window_start": "22:00", "window_end": "06:00", "window_time_zone": "Europe/Berlin",
}  # fmt: skip


def test_it_carries_every_choice_from_the_preview_to_the_pin(stage: Stage, olga: Client) -> None:
    status, page = preview(olga, stage, **CHOICES)
    assert status == 200, page.text
    form = page.page.one("form", method="post")
    sent = {one.attrs["name"]: one.attrs["value"] for one in form.all("input", type="hidden")}
    assert {name: sent[name] for name in CHOICES} == CHOICES
    assert olga.post("/pins/new", sent).status_code == 302
    pin = Pin.objects.get(version=stage.qwen)
    assert (pin.priority, pin.placement_type, pin.placement_value, pin.spread_label) == (640, "Count", 2, "zone")
    assert (pin.gate_type, pin.gate_value, pin.retention_seconds) == ("Timeout", 90, 10800)
    assert (str(pin.window_start), str(pin.window_end), pin.window_time_zone) == (
        "22:00:00", "06:00:00", "Europe/Berlin")  # fmt: skip
    assert pin.needed_at is not None and pin.needed_at.isoformat() == "2027-01-02T03:04:00+00:00"


def test_it_leads_back_to_the_choices_with_all_of_them(stage: Stage, olga: Client) -> None:
    _, page = preview(olga, stage, **CHOICES)
    back = page.page.one("ol", **{"class": "steps"}).one("a").attrs["href"]
    again = Page(olga.get(back).content)
    fields = {one.attrs["name"]: one for one in again.page.all("input", "select") if "name" in one.attrs}
    assert {name: chosen(fields[name])[: len(value)] for name, value in CHOICES.items()} == {
        **CHOICES, "needed_at": "2027-01-02T03:04",
    }  # fmt: skip


def test_it_copies_a_command_that_makes_the_same_pin(stage: Stage, olga: Client) -> None:
    _, page = preview(olga, stage, **CHOICES)
    words = shlex.split(page.page.all("button")[0].attrs["data-copy"])
    assert words[0] == "curl" and words[-1].endswith("/api/v1/pins?dry_run=true")
    body = json.loads(words[words.index("-d") + 1])
    assert body == {
        "model": "qwen", "version": "v1", "pools": ["lab.gpu"], "priority": 640,
        "placement": {"type": "Count", "value": 2, "spread_label": "zone"},
        "gate": {"type": "Timeout", "value": 90}, "retention": {"seconds": 10800},
        "needed_at": "2027-01-02T03:04:00+00:00",
        "window": {"start": "22:00", "end": "06:00", "time_zone": "Europe/Berlin"},
    }  # fmt: skip
    by_rest = olga.post("/api/v1/pins?dry_run=true", json.dumps(body), content_type="application/json")
    assert by_rest.status_code == 200, by_rest.content
    assert not Pin.objects.filter(version=stage.qwen).exists()


def test_it_copies_a_short_command_for_a_plain_pin(stage: Stage, olga: Client) -> None:
    _, page = preview(olga, stage)
    words = shlex.split(page.page.all("button")[0].attrs["data-copy"])
    assert json.loads(words[words.index("-d") + 1]) == {
        "model": "qwen", "version": "v1", "pools": ["lab.gpu"], "priority": 500,
    }  # fmt: skip


def test_it_offers_only_versions_that_can_be_pinned(stage: Stage, olga: Client) -> None:
    factories.version(model="early", version="v1", artifact=None)
    factories.version(model="bad", version="v1", artifact=None, state="Refused")
    options = [one.text for one in Page(olga.get("/pins/new").content).page.one("select", name="version").all("option")]
    assert options == ["Choose a version", "llama v1", "qwen v1"]


def test_it_says_what_to_do_where_nothing_can_be_pinned_yet(olga: Client) -> None:
    factories.pool()
    page = Page(olga.get("/pins/new?pools=x").content)
    assert "No version can be pinned yet" in page.text
    assert page.page.all("a", href="/register")


# what is typed, the fields that say so
REGISTRATIONS = [
    ({"model": ""}, {"model"}),
    ({"model": "two words"}, {"model"}),
    ({"model": "x" * 121}, {"model"}),
    ({"model": "../etc"}, {"model"}),
    ({"version": "v 1"}, {"version"}),
    ({"version": "-v1"}, {"version"}),
    ({"version": "v/1"}, {"version"}),
    ({"version": "🔥"}, {"version"}),
    ({"model": "a b", "version": "c d"}, {"model", "version"}),
    ({"connection": ""}, {"connection"}),
    ({"connection": "00000000-0000-7000-8000-000000000000"}, {"connection"}),
    ({"connection": "x"}, {"connection"}),
    ({"uri": ""}, {"uri"}),
    ({"uri": "file:///" + "x" * 1500}, {"uri"}),
]


@pytest.mark.parametrize(("typed", "fields"), REGISTRATIONS)
def test_it_says_at_the_field_of_a_registration_what_is_wrong(
    typed: dict[str, str], fields: set[str], stage: Stage, olga: Client
) -> None:
    body = {
        "model": "new",
        "version": "v1",
        "uri": "file:///nonexistent/x",
        "connection": str(stage.llama.connection.pk),
    }
    response = olga.post("/register", body | typed)
    page = Page(response.content)
    assert response.status_code == 400
    assert set(problems(page)) == fields, problems(page)
    assert page.problems == [] and page.page.attrs["data-live"] == "off"
    assert ModelVersion.objects.count() == 2 and Operation.objects.count() == 1
    for name, value in (body | typed).items():
        kept = next(one for one in page.page.all("input", "select") if one.attrs.get("name") == name)
        assert chosen(kept) == value or name == "connection"


@pytest.mark.parametrize("uri", ["s3://bucket/x", "http://x/", "file:///etc/passwd", "file://host/nonexistent/x",
                                 "file:///nonexistent/../etc", "nonsense", "file:///nonexistent/\u202e"])  # fmt: skip
def test_it_shows_why_a_source_is_refused_and_what_to_do(uri: str, stage: Stage, olga: Client) -> None:
    body = {"model": "new", "version": "v1", "uri": uri, "connection": str(stage.llama.connection.pk)}
    response = olga.post("/register", body)
    if response.status_code == 302:  # only looked at by the worker: the operation will say it
        assert Operation.objects.filter(kind="ModelRegister").exists()
        return
    page = Page(response.content)
    assert 400 <= response.status_code < 500
    assert re.search(r"\w+:(user|source):[\w-]+", page.text), page.text
    assert not ModelVersion.objects.filter(model__name="new", state="Available").exists()


def test_it_reads_patterns_line_by_line(stage: Stage) -> None:
    form = RegisterForm(QueryDict(mutable=False) | {
        "model": "m", "version": "v", "uri": "file:///x", "connection": str(stage.llama.connection.pk),
        "allow_patterns": " *.safetensors \r\n\r\nconfig.json\n", "ignore_patterns": "",
    })  # fmt: skip
    assert form.is_valid(), form.errors
    assert form.patterns("allow_patterns") == ("*.safetensors", "config.json")
    assert form.patterns("ignore_patterns") == ()


# what is typed, the fields that say so
TOKENS = [
    ({"name": ""}, {"name"}),
    ({"name": "x" * 101}, {"name"}),
    ({"scopes": []}, {"scopes"}),
    ({"scopes": ["read", "fly"]}, {"scopes"}),
    ({"days": "2"}, {"days"}),
    ({"days": "-1"}, {"days"}),
    ({"targets": "lab.none"}, {"targets"}),
    ({"targets": "lab.gpu nowhere"}, {"targets"}),
    ({"addresses": "10.0.0.0/33"}, {"addresses"}),
    ({"addresses": "10.0.0.1 hostname"}, {"addresses"}),
]


@pytest.mark.parametrize(("typed", "fields"), TOKENS)
def test_it_says_at_the_field_of_a_token_what_is_wrong(
    typed: dict[str, object], fields: set[str], stage: Stage, olga: Client
) -> None:
    response = olga.post("/tokens", {"name": "ci", "scopes": ["read"], "days": "7"} | typed)
    page = Page(response.content)
    assert response.status_code == 400
    assert set(problems(page)) == fields, page.text
    assert "open" in page.page.one("details", id="new").attrs
    assert page.page.attrs["data-live"] == "off", "a refresh would take away what was typed"
    assert not Token.objects.exists() and not page.root.all("pre", id="secret")


def test_it_takes_addresses_of_both_kinds(stage: Stage, olga: Client) -> None:
    body = {"name": "ci", "scopes": ["read"], "days": "1", "addresses": " 10.0.0.0/8  2001:db8::/32 192.0.2.7 "}
    assert olga.post("/tokens", body).status_code == 201
    assert len(Token.objects.get().addresses) == 3


@pytest.mark.parametrize("typed", ["", "-1", "1001", "x", "1e3", "5.5"])
def test_it_refuses_a_priority_that_is_none(typed: str, stage: Stage, olga: Client) -> None:
    response = olga.post(f"/pins/{stage.pin.id}/priority", {"priority": typed})
    assert response.status_code == 400 and "between 0 and 1000" in Page(response.content).text
    stage.pin.refresh_from_db()
    assert stage.pin.priority == 500


@pytest.mark.parametrize("typed", ["0", "1000", " 700 "])
def test_it_takes_a_priority_up_to_both_ends(typed: str, stage: Stage, olga: Client) -> None:
    response = olga.post(f"/pins/{stage.pin.id}/priority", {"priority": typed}, follow=True)
    assert f"Priority is {int(typed)} now." in Page(response.content).text


def test_it_places_errors_of_services_at_fields_that_are_called_otherwise(stage: Stage) -> None:
    form = PinForm(QueryDict("priority=1"), pools=pools_list())
    form.is_valid()
    for field, here in (("gate", "gate_value"), ("placement", "placement_value"), ("window.time_zone",
                        "window_time_zone"), ("retention", "retention_hours"), ("version", "version")):  # fmt: skip
        form.take([FieldError(field, "x:user:y", f"wrong {field}")], "detail")
        assert f"wrong {field}" in form.errors[here]
    form.take([FieldError("node_selector", "x:user:y", "wrong selector")], "detail")
    assert "wrong selector" in form.non_field_errors()
    other = TokenForm(QueryDict("name=x"), scopes=list(Scope))
    other.is_valid()
    other.take([], "just wrong")
    assert other.non_field_errors() == ["just wrong"]
