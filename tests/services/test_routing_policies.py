"""Setting a policy makes a version, says who did it, and refuses what the managed API refuses."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.local.serving import RECORD_KEYS_ANNOTATION
from controlplane.errors import Invalid, Missing, Stale
from controlplane.serving.models import Variant
from routing.domain.policies import RoutingStrategy
from routing.models import RoutingPolicy
from routing.selectors.policies import policy_in_force
from routing.services.policies import ASKED_FOR, READS, RECORDS, policy_preview, policy_set, recordings_begin
from tests import factories
from tests.api.rows import NOWHERE

pytestmark = pytest.mark.django_db
ADA = Actor(name="ada", via=Via.API, request_id="r-1")
LEAST = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
PREFIX: dict[str, Any] = {
    "RoutingStrategy": "PREFIX_AWARE",
    "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": 16},
}


@pytest.fixture
def variant() -> Variant:
    return factories.variant()


def test_each_other_policy_is_a_version_and_the_same_again_is_none(variant: Variant) -> None:
    first = policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)
    again = policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)
    second = policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    back = policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)

    assert (first.version, again.pk, second.version, back.version) == (1, first.pk, 2, 3)
    assert policy_in_force(variant)[0].strategy is RoutingStrategy.LEAST_OUTSTANDING_REQUESTS
    assert [row.set_by for row in RoutingPolicy.objects.all()] == ["ada"] * 3


def test_the_default_may_be_set_by_name(variant: Variant) -> None:
    made = policy_set(actor=ADA, variant_id=variant.pk, document={"RoutingStrategy": "RANDOM"})
    assert made.version == 1, "from now on it is what somebody wants, whatever the document comes to say"


def test_it_is_written_down_with_before_and_after(variant: Variant) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    policy_set(actor=ADA, variant_id=variant.pk, document={**PREFIX, "RoutingExtensions": {"strict_text": True}})

    last, middle, first = AuditEvent.objects.filter(action="routing.policy")
    assert (first.before or {})["version"] == 0 and (first.before or {})["RoutingStrategy"] == "RANDOM"
    assert (middle.before or {})["RoutingStrategy"] == "LEAST_OUTSTANDING_REQUESTS"
    assert (middle.after or {})["PrefixAwareRoutingConfig"] == PREFIX["PrefixAwareRoutingConfig"]
    assert middle.object_id == str(variant.endpoint_id) and middle.request_id == "r-1"
    assert (first.message, middle.message, last.message) == ("", READS, ""), "that requests are read now is said once"


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        ({"RoutingStrategy": "KV_AWARE"}, {"RoutingStrategy"}),
        ({"RoutingStrategy": "PREFIX_AWARE"}, {"PrefixAwareRoutingConfig"}),
        (
            {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": {"PrefixLength": 1023}},
            {"PrefixAwareRoutingConfig.PrefixLength", "PrefixAwareRoutingConfig.ConcurrencyThreshold"},
        ),
        ({**LEAST, "PrefixAwareRoutingConfig": PREFIX["PrefixAwareRoutingConfig"]}, {"PrefixAwareRoutingConfig"}),
        ({**LEAST, "Strategy": 1, "RoutingExtensions": {"x": 1}}, {"Strategy", "RoutingExtensions.x"}),
        ({"routingStrategy": "fastest"}, {"routingStrategy"}),
    ],
)
def test_it_refuses_with_every_field_that_is_wrong(
    variant: Variant, document: dict[str, Any], fields: set[str]
) -> None:
    for refused in (
        lambda: policy_set(actor=ADA, variant_id=variant.pk, document=document),
        lambda: policy_preview(variant=variant, document=document),
    ):
        with pytest.raises(Invalid) as caught:
            refused()
        assert {one.field for one in caught.value.errors} == fields and caught.value.code == "routing:policy:refused"
    assert not RoutingPolicy.objects.exists() and not AuditEvent.objects.exists()


def test_it_maps_the_other_spelling_and_says_so(variant: Variant) -> None:
    made = policy_set(actor=ADA, variant_id=variant.pk, document={"routingStrategy": "session"})
    assert made.strategy == "PREFIX_AWARE" and made.document["RoutingExtensions"]["key_header"] == "x-session-id"
    assert "session is served by PREFIX_AWARE" in made.notes[0] and made.notes[1] == READS


def test_a_change_based_on_an_old_reading_is_refused(variant: Variant) -> None:
    first = policy_set(actor=ADA, variant_id=variant.pk, document=LEAST)
    second = policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX, if_updated_at=first.updated_at)
    with pytest.raises(Stale):
        policy_set(actor=ADA, variant_id=variant.pk, document=LEAST, if_updated_at=first.updated_at)
    assert RoutingPolicy.objects.order_by("-version")[0] == second


def test_a_version_can_not_be_meant_where_none_was_set(variant: Variant) -> None:
    with pytest.raises(Stale):
        policy_set(actor=ADA, variant_id=variant.pk, document=LEAST, if_updated_at=timezone.now())


def test_it_needs_a_variant() -> None:
    with pytest.raises(Missing):
        policy_set(actor=ADA, variant_id=NOWHERE, document=LEAST)  # type: ignore[arg-type]


def test_a_preview_writes_nothing_and_says_whether_anything_would_change(variant: Variant) -> None:
    assert policy_preview(variant=variant, document=PREFIX).changes
    assert not policy_preview(variant=variant, document={"RoutingStrategy": "RANDOM"}).changes
    assert not RoutingPolicy.objects.exists()


def wished(**fields: Any) -> Variant:
    """An endpoint of the local fleet that was made with the wish that its keys are recorded."""
    cluster = factories.cluster(type=fields.pop("type", "Local"))
    annotations = {RECORD_KEYS_ANNOTATION: fields.pop("wish", "true")}
    return factories.variant(of=factories.endpoint(of=cluster, annotations=annotations, **fields))


def test_an_endpoint_that_was_made_with_the_wish_is_recorded_once_and_audited() -> None:
    row = wished(document={"intelligentRoutingSpec": {"enabled": True}})
    assert recordings_begin() == 1 and recordings_begin() == 0
    made = RoutingPolicy.objects.get()
    assert (made.version, made.strategy, made.set_by) == (1, "PREFIX_AWARE", "system"), "the document's own strategy"
    assert policy_in_force(row)[0].extensions.record_keys and made.notes == [ASKED_FOR, READS, RECORDS]
    event = AuditEvent.objects.get(action="routing.policy")
    assert ASKED_FOR in event.message and RECORDS in event.message and event.object_id == str(row.endpoint_id)
    policy_set(actor=ADA, variant_id=row.pk, document=LEAST)
    assert recordings_begin() == 0 and not policy_in_force(row)[0].extensions.record_keys, "what people turn off is off"


def test_nobody_else_is_recorded_by_itself() -> None:
    wished(type="Kubernetes"), wished(wish="yes"), wished(gone_at=timezone.now())
    row = wished()
    policy_set(actor=ADA, variant_id=row.pk, document=LEAST)
    assert recordings_begin() == 0 and RoutingPolicy.objects.count() == 1


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [
        ({"enabled": True}, "PREFIX_AWARE"),
        ({"enabled": True, "routingStrategy": "roundrobin"}, "LEAST_OUTSTANDING_REQUESTS"),
        ({"enabled": True, "routingStrategy": "kvaware"}, "PREFIX_AWARE"),
        ({"enabled": False, "routingStrategy": "kvaware"}, "RANDOM"),
        ({"enabled": True, "routingStrategy": "fastest"}, "RANDOM"),
        ({"enabled": True, "routingStrategy": []}, "RANDOM"),
        ({"enabled": "yes"}, "RANDOM"),
        ([], "RANDOM"),
        (None, "RANDOM"),
    ],
)
def test_without_a_version_it_is_what_the_document_asks_for(asked: object, strategy: str) -> None:
    endpoint = factories.endpoint(document={"intelligentRoutingSpec": asked})
    row = factories.variant(of=endpoint)
    assert policy_in_force(row)[0].strategy == strategy
    policy_set(actor=ADA, variant_id=row.pk, document=LEAST)
    assert policy_in_force(row)[0].strategy == "LEAST_OUTSTANDING_REQUESTS", "what somebody set here comes first"
