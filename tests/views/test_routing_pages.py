"""The page of an endpoint's routing, and the form that changes it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.serving.models import Variant
from routing.domain.extensions import RoutingExtensions
from routing.domain.figures import Figures
from routing.forms import PolicyForm
from routing.models import Configuration, RoutedEndpoint, RoutedVariant, RouterProcess, RoutingPolicy, RoutingWindow
from routing.selectors.policies import policy_in_force
from routing.selectors.telemetry import telemetry
from routing.services.policies import policy_set
from routing.views.columns import milliseconds
from tests import factories
from tests.services.routing_world import RECORDED
from tests.services.test_routing_policies import ADA, LEAST, PREFIX

pytestmark = pytest.mark.django_db


@pytest.fixture
def variant() -> Variant:
    made = factories.variant(of=factories.endpoint(name="chat"))
    factories.instance(of=made.endpoint, uid="pod-1", name="chat-a")
    return made


@pytest.fixture
def place(variant: Variant) -> str:
    return f"/endpoints/{variant.endpoint_id}/routing"


def text(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def fields(**changes: Any) -> dict[str, Any]:
    """What a browser sends: a box that is not ticked is not there."""
    values = PolicyForm.initial_of(policy_in_force(factories.variant())[0]) | changes
    return {name: "on" if value is True else value for name, value in values.items() if value is not False}


def counted(**fields: Any) -> dict[str, Any]:
    made = Figures(**fields)
    made.outcomes.update(Primary=8, Spill=1, Saturated=1)
    made.instances.update({"pod-1": 8, "gone": 2})
    for _ in range(10):
        made.first_byte("Primary", 0.2)
        made.overhead.add(6e-5)
    return made.to_json()


def test_what_nobody_told_is_unknown_on_the_page(victor: Client, place: str) -> None:
    page = text(victor, place)
    assert "the default: nobody set one" in page and "Nothing was measured in this time" in page
    assert "<dt>Prefix hit rate</dt><dd>unknown" in page and "<dt>Spilled</dt><dd>unknown" in page
    assert "0.0 %" not in page.partition("Shares")[0] and "No router was heard of" in page


def test_it_shows_every_figure_together(victor: Client, place: str, variant: Variant) -> None:
    now = timezone.now()
    figures = counted(requests=10, told=4, prompt_tokens=100, cached_tokens=25)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=now - timedelta(minutes=2), figures=figures)
    page = text(victor, place)
    for words in ("25.0 %", "by 4 of 10 answers", "10.0 %", "80.0 %", "too few requests"):
        assert words in page, words
    assert re.search(r"p50 (19[89]|20[012]) ms", page) and re.search(r"p50 (59|60|61) µs", page)
    assert 'id="ttft-chart"' in page


def test_older_windows_belong_to_longer_times(variant: Variant) -> None:
    now = timezone.now()
    for seconds, hours in ((10, 0), (10, 1), (3600, 5)):
        at = now - timedelta(hours=hours, minutes=1)
        RoutingWindow.objects.create(variant=variant, seconds=seconds, at=at, figures={"requests": 7})
    assert telemetry(variant=variant, minutes=15, now=now).requests == 7
    assert telemetry(variant=variant, minutes=1440, now=now).requests == 7
    assert telemetry(variant=variant, minutes=60, now=now).requests == 0


def test_a_share_is_fair_or_not_once_there_are_enough_requests(variant: Variant) -> None:
    now = timezone.now()
    factories.instance(of=variant.endpoint, uid="pod-2", name="chat-b")
    for counts in ({"pod-1": 30, "pod-2": 10}, {"pod-1": 470, "pod-2": 490}):
        RoutingWindow.objects.all().delete()
        RoutingWindow.objects.create(variant=variant, seconds=10, at=now, figures={"instances": counts})
        shares = telemetry(variant=variant, minutes=15, now=now).shares
        assert [one.uid for one in shares] == ["pod-1", "pod-2"]
        assert [one.fair for one in shares] == ([None, None] if counts["pod-2"] == 10 else [True, True])
    RoutingWindow.objects.update(figures={"instances": {"pod-1": 1000}})
    assert [one.fair for one in telemetry(variant=variant, minutes=15, now=now).shares] == [False, False]


def test_where_keys_lead_a_share_is_judged_by_how_many_there_are(variant: Variant) -> None:
    """Ten prefixes on two instances: nobody can call 66 % unfair; a thousand, and it is."""
    now = timezone.now()
    factories.instance(of=variant.endpoint, uid="pod-2", name="chat-b")
    counts = {"instances": {"pod-1": 660, "pod-2": 340}, "outcomes": {"Primary": 1000}, "requests": 1000}
    RoutingWindow.objects.create(variant=variant, seconds=10, at=now, figures=counts)

    def fair(*weights: float, hot: str = "") -> bool | None:
        sums = {"requests": 1000.0, "counts": {f"{n:016x}": weight for n, weight in enumerate(weights)}}
        RoutedVariant.objects.update_or_create(variant=variant, defaults={"counted": {"sum": sums}, "hot": [hot]})
        first, second = telemetry(variant=variant, minutes=15, now=now).shares
        assert first.fair is second.fair
        return first.fair

    assert fair(*[200.0] * 5) is None, "hardly any keys"
    assert fair(*[100.0] * 10) is True
    assert fair(1000.0, *[1.0] * 50, hot="0" * 16) is False, "what everybody begins with is no key"
    RoutedVariant.objects.update(counted={})
    assert telemetry(variant=variant, minutes=15, now=now).shares[0].fair is None, "nobody counted"
    RoutingWindow.objects.update(figures=counts | {"outcomes": {"Random": 1000}})
    assert telemetry(variant=variant, minutes=15, now=now).shares[0].fair is False


def test_changes_of_this_variant_are_marked_and_those_of_others_are_not(variant: Variant) -> None:
    RoutedEndpoint.objects.create(endpoint=variant.endpoint, name="chat", secret="ab" * 32)
    kinds = [("chat", "Policy"), ("other", "Policy"), ("chat", "Membership"), ("", "Routers")]
    changes = [{"endpoint": of, "variant": "default", "kind": kind, "detail": of} for of, kind in kinds]
    Configuration.objects.create(version=3, digest="x", document={}, changes=changes)
    found = telemetry(variant=variant, minutes=15, now=timezone.now()).markers
    assert [(one.kind, one.detail, one.version) for one in found] == [
        ("Policy", "chat", 3),
        ("Membership", "chat", 3),
        ("Routers", "", 3),
    ]


def test_a_router_that_is_behind_or_silent_is_shown_so(victor: Client, place: str) -> None:
    now = timezone.now()
    Configuration.objects.create(version=5, digest="x", document={})
    for name, version, minutes in (("a" * 32, 5, 0), ("b" * 32, 4, 0), ("c" * 32, 4, 9)):
        seen = now - timedelta(minutes=minutes)
        RouterProcess.objects.create(name=name, host=name[0], config_version=version, started_at=seen, seen_at=seen)
    page = text(victor, place)
    assert page.count("4, 5 is being published") == 1 and "not the newest" not in page, "it had no time to say so yet"
    assert page.count("4 when it was heard of last") == 1
    table = page.partition('id="routers"')[2].partition('id="changes"')[0]
    assert (table.count(">Serves<"), table.count(">Silent<"), table.count(">unknown<")) == (2, 1, 1)
    Configuration.objects.update(created_at=now - timedelta(seconds=4))
    page = text(victor, place)
    assert page.count("not the newest") == 1 and "is being published" not in page, "of the silent one nobody knows"


def test_the_form_sets_what_it_shows_and_leaves_a_number_that_is_not_wanted_out(olga: Client, place: str) -> None:
    answer = olga.post(f"{place}/change", fields(step="set", strategy="LEAST_OUTSTANDING_REQUESTS", based_on="0"))
    assert (answer.status_code, answer["Location"]) == (302, place)
    row = RoutingPolicy.objects.get()
    assert row.document["RoutingExtensions"]["adaptive_depth"] and row.document["RoutingExtensions"]["avoid_waits"]
    assert "PrefixAwareRoutingConfig" not in row.document
    limits = {"body_bytes": "262144", "first_byte_seconds": "90", "unanswered_threshold": "3"}
    limits |= {"queue_requests": "0", "queue_seconds": "45"}
    changed = fields(
        step="set", strategy="PREFIX_AWARE", prefix_length="2048", adaptive_depth=False, avoid_waits=False,
        based_on="1", **limits,
    )  # fmt: skip
    assert olga.post(f"{place}/change", changed).status_code == 302
    row = RoutingPolicy.objects.get(version=2)
    assert row.document["PrefixAwareRoutingConfig"] == {"PrefixLength": 2048, "ConcurrencyThreshold": 32}
    assert row.document["RoutingExtensions"]["avoid_waits"] is False
    assert row.document["RoutingExtensions"]["adaptive_depth"] is False and row.set_by == "olga"
    assert {name: str(row.document["RoutingExtensions"][name]) for name in limits} == limits
    assert "is in force as version 2" in text(olga, place)
    shown = text(olga, f"{place}/change")
    assert 'value="262144"' in shown and 'value="90"' in shown
    assert shown.count("(needed with PREFIX_AWARE)") == 2 and shown.count("(optional)") > 5


def test_it_is_tried_before_it_is_set(olga: Client, place: str) -> None:
    answer = olga.post(f"{place}/change", fields(step="preview", strategy="PREFIX_AWARE"))
    page = answer.content.decode()
    assert answer.status_code == 200 and "PREFIX_AWARE 4096/32" in page and "No text of it is stored" in page
    assert "The same is in force already" in olga.post(f"{place}/change", fields(step="preview")).content.decode()
    assert not RoutingPolicy.objects.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "PREFIX_AWARE", "prefix_length": "1000"}, "a whole number from 1024 to 65536"),
        ({"strategy": "PREFIX_AWARE", "prefix_length": ""}, "1024 to 65536"),
        ({"strategy": "PREFIX_AWARE", "concurrency_threshold": "many"}, "a whole number from 1 to 1024"),
        ({"strategy": "FASTEST"}, "one of RANDOM, LEAST_OUTSTANDING_REQUESTS, PREFIX_AWARE"),
        ({"strategy": "PREFIX_AWARE", "inspect_bodies": False}, "or name a key_header"),
        ({"key_header": "x request id"}, "the name of a header"),
        ({"key_header": "X-Request-ID"}, "the name of a header"),
        ({"hot_fraction": "nan"}, "from 0.05 to 1"),
        ({"body_bytes": "12"}, "a whole number from 1024 to 67108864"),
        ({"first_byte_seconds": "0"}, "a whole number from 1 to 3600"),
        ({"unanswered_threshold": "-1"}, "a whole number from 0 to 1024"),
        ({"queue_requests": "4097"}, "a whole number from 0 to 4096"),
        ({"queue_seconds": "0"}, "a whole number from 1 to 600"),
        ({"queue_when_saturated": True, "queue_requests": "0"}, "at least one request must be allowed to wait"),
    ],
)
def test_it_says_at_the_field_what_is_wrong(olga: Client, place: str, changes: dict[str, Any], words: str) -> None:
    answer = olga.post(f"{place}/change", fields(step="set", **changes))
    assert answer.status_code == 400 and words in answer.content.decode()
    assert not RoutingPolicy.objects.exists()


def test_the_policy_is_shown_with_every_extension_that_is_set_other_than_usual(
    victor: Client, place: str, variant: Variant
) -> None:
    assert "Set other than usual" not in text(victor, place)
    other = {
        "adaptive_depth": False, "strict_text": True, "key_header": "x-session-id", "body_key": False,
        "hot_fraction": 0.5, "inspect_bodies": True, "queue_when_saturated": True, "record_keys": True,
        "body_bytes": 1 << 20, "first_byte_seconds": 60, "unanswered_threshold": 8, "queue_requests": 16,
        "queue_seconds": 5, "avoid_waits": False,
    }  # fmt: skip
    assert other.keys() == set(RoutingExtensions.__slots__)
    policy_set(actor=ADA, variant_id=variant.pk, document={**PREFIX, "RoutingExtensions": other})
    box = re.sub(r"<[^>]+>", "", text(victor, place).split("Set other than usual")[1].split("</dd>")[0])
    said = dict(re.findall(r"(\w+) (\S+) \(usually", box))
    assert said.keys() == other.keys() - {"inspect_bodies"}
    assert (said["avoid_waits"], said["unanswered_threshold"], said["queue_when_saturated"]) == ("off", "8", "on")


@pytest.mark.parametrize(
    ("document", "words"), [(LEAST, "no"), (PREFIX, "yes; no text of them is kept"), (RECORDED, "yes; nothing of them")]
)
def test_it_says_whether_requests_are_looked_into(
    victor: Client, place: str, variant: Variant, document: dict[str, Any], words: str
) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document=document)
    assert f"<dt>Requests are looked into</dt><dd>{words}" in text(victor, place)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "requests wait up to 30 seconds for the first, 256 at a time at each router process"),
        ({"queue_requests": 8, "queue_seconds": 1}, "requests wait up to 1 second for the first, 8 at a time"),
        ({"queue_requests": 0}, "requests are refused at once with 503: the policy lets nobody wait"),
    ],
)
def test_it_says_how_long_requests_wait_without_an_instance(
    victor: Client, place: str, variant: Variant, given: dict[str, Any], words: str
) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document={"RoutingStrategy": "RANDOM", "RoutingExtensions": given})
    assert f"<dt>Without a ready instance</dt><dd>{words}" in text(victor, place)


def test_a_form_that_is_older_than_what_is_in_force_sets_nothing(olga: Client, place: str, variant: Variant) -> None:
    page = text(olga, f"{place}/change")
    assert 'name="based_on" value="0"' in page
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    answer = olga.post(f"{place}/change", fields(step="set", strategy="RANDOM", based_on="0"))
    assert answer.status_code == 409 and "Somebody else set a policy" in answer.content.decode()
    assert RoutingPolicy.objects.count() == 1


def test_a_form_sent_twice_makes_one_version(olga: Client, place: str, variant: Variant) -> None:
    sent = fields(step="set", strategy="LEAST_OUTSTANDING_REQUESTS", based_on="0", form_key="k")
    assert olga.post(f"{place}/change", sent)["Location"] == olga.post(f"{place}/change", sent)["Location"] == place
    assert RoutingPolicy.objects.count() == 1


def test_a_viewer_looks_and_changes_nothing(victor: Client, place: str, variant: Variant) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)
    assert f"{place}/change" not in text(victor, place)
    assert victor.get(f"{place}/change").status_code == 403
    assert victor.post(f"{place}/change", fields(step="set")).status_code == 403


def test_an_endpoint_of_another_cluster_is_not_there(place: str) -> None:
    far = Client()
    far.force_login(factories.user(role="Viewer", target="elsewhere"))
    assert far.get(place).status_code == 404


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "unknown"), (0.0, "0 µs"), (6e-5, "60 µs"), (0.0012, "1.2 ms"), (0.25, "250 ms"), (1.0, "1.00 s")],
)
def test_durations_are_read_at_a_glance(seconds: float | None, words: str) -> None:
    assert milliseconds(seconds) == words
