"""A decision is explained by the code that makes it, and nothing of the request is kept or shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from controlplane.errors import Invalid, Transient
from controlplane.serving.models import Variant
from routing.dataplane.routes import Route, route
from routing.models import RoutedVariant, RouterProcess
from routing.services import explaining
from routing.services.explaining import decision_explain
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from tests import factories
from tests.services.test_routing_policies import ADA, LEAST, PREFIX

pytestmark = pytest.mark.django_db
CHAT = "/v1/chat/completions"
SYSTEM, OWN = "you are kind " * 200, "what is the eagle " * 100


@pytest.fixture
def variant(settings: Any) -> Variant:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    made = factories.variant(of=factories.endpoint(name="chat"))
    for number in range(3):
        factories.instance(of=made.endpoint, uid=f"pod-{number}")
    policy_set(actor=ADA, variant_id=made.pk, document=PREFIX)
    configuration_publish()
    return made


def talk(*texts: str, **fields: Any) -> str:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text} for text in texts], **fields})


def test_it_names_the_boundaries_the_key_and_the_candidates_in_order(variant: Variant) -> None:
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, OWN))
    assert [one.depth for one in found.boundaries] == [1024, 2048, 3072, 4096]
    assert [one.chosen for one in found.boundaries] == [True, False, False, False]
    assert (found.outcome, found.key, found.key_depth) == ("Primary", found.boundaries[0].digest, 1024)
    assert sorted(one.uid for one in found.candidates) == ["pod-0", "pod-1", "pod-2"]
    assert {one.in_flight for one in found.candidates} == {None} and not found.drawn and found.config_version == 1
    again = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, OWN + "more"))
    assert again.candidates == found.candidates, "the same beginning, the same order"


def test_what_is_hot_is_passed_over(variant: Variant) -> None:
    before = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, OWN))
    full = _digests(variant, talk(SYSTEM, OWN))
    RoutedVariant.objects.update(hot=full[:2], hot_version=1)
    configuration_publish()
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, OWN))
    assert [one.hot for one in found.boundaries] == [True, True, False, False]
    assert found.key_depth == 3072 and found.key != before.key
    RoutedVariant.objects.update(hot=full, hot_version=2)
    configuration_publish()
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, OWN))
    assert found.outcome == "AllHot" and found.key == "" and "greater PrefixLength" in found.why and found.drawn


def _digests(variant: Variant, body: str) -> list[str]:
    """Whole, as only a router has them."""
    _, fleet = explaining.published_fleet(variant)
    found = route(fleet, explaining._request(variant, CHAT, body, "", {}))
    assert isinstance(found, Route)
    return [f"{one.digest:016x}" for one in found.boundaries()]


def test_it_spills_as_routers_do(variant: Variant) -> None:
    first = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM)).candidates
    now = timezone.now()
    figures = {"in_flight": {first[0].uid: 16}}
    RouterProcess.objects.create(name="r" * 32, started_at=now, seen_at=now, figures=figures)
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM))
    assert found.outcome == "Spill" and found.candidates[0].uid == first[1].uid
    assert {one.uid: one.in_flight for one in found.candidates}[first[0].uid] == 16


def test_a_tenant_and_a_key_of_the_clients_own_lead_elsewhere(variant: Variant) -> None:
    plain = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM))
    tenant = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM), tenant="acme")
    named = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, prompt_cache_key="talk-7"))
    assert plain.key != tenant.key and named.overridden and named.key not in ("", plain.key)
    assert "talk-7" not in repr(named) and "acme" not in repr(tenant)


def test_nothing_of_the_request_is_shown_but_half_a_digest(variant: Variant, caplog: pytest.LogCaptureFixture) -> None:
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM, OWN))
    assert "eagle" not in repr(found) + caplog.text and "you are" not in repr(found) + caplog.text
    assert all(len(one.digest) == 8 for one in found.boundaries)


@pytest.mark.parametrize(
    ("path", "body", "outcome"),
    [
        (CHAT, "not json", "NoKey"),
        (CHAT, talk(), "NoKey"),
        ("/invocations", "x" * 3000, "Primary"),
        ("/v1/completions", '{"prompt": "hello"}', "Primary"),
        ("/v1/models", "", "NoKey"),
    ],
)
def test_whatever_a_client_sends_is_explained(variant: Variant, path: str, body: str, outcome: str) -> None:
    assert decision_explain(variant=variant, path=path, body=body).outcome == outcome


def test_other_strategies_look_at_nothing(variant: Variant) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)
    configuration_publish()
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM))
    assert (found.outcome, found.boundaries, found.key, found.drawn) == ("LeastBusy", (), "", True)


def test_what_a_router_would_refuse_is_said(variant: Variant) -> None:
    found = decision_explain(variant=variant, path=CHAT, body=talk(SYSTEM), tenant=" x")
    assert found.refused.startswith("400") and found.outcome == "" and found.candidates == ()
    found = decision_explain(variant=variant, path="/invocations", body="x" * (6 * 1024 * 1024 + 1))
    assert found.refused.startswith("413")


@pytest.mark.parametrize("path", ["", "v1/chat", "/v1/\r\nx", "/é"])
def test_it_needs_a_path(variant: Variant, path: str) -> None:
    with pytest.raises(Invalid):
        decision_explain(variant=variant, path=path, body="")


def test_before_the_first_publication_it_says_so(settings: Any) -> None:
    made = factories.variant()
    with pytest.raises(Transient):
        decision_explain(variant=made, path=CHAT, body="")
