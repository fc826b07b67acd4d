"""Variants beside the default one: shares that wait for who is to get more, and what routers are told of them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.errors import Clash, Invalid, Missing, Stale
from controlplane.serving.models import Endpoint, Instance, Variant
from routing.domain.shifting import WantedVariant
from routing.models import Configuration, RoutedVariant, RouterProcess
from routing.selectors.telemetry import telemetry
from routing.selectors.variants import variants_shown, variants_tag
from routing.services.policies import policy_set
from routing.services.variants import variants_set
from tests import factories
from tests.services.shifting_world import chat_endpoint, next_endpoint, told, want
from tests.services.test_routing_policies import ADA, LEAST

pytestmark = pytest.mark.django_db


@pytest.fixture
def chat(settings: Any) -> Endpoint:
    return chat_endpoint(settings)


@pytest.fixture
def following(chat: Endpoint) -> Endpoint:
    """The endpoint with the next version; nothing of it is ready yet."""
    made = next_endpoint(chat)
    factories.rollout(of=made, state="Warming", message="1 of 2 nodes is warm.")
    return made


def leaves_out(name: str, *uids: str) -> None:
    now = timezone.now()
    known = {"started_at": now, "seen_at": now, "figures": {"in_flight": {}, "ejected": list(uids)}}
    RouterProcess.objects.update_or_create(name=name, defaults=known)


def test_who_every_router_leaves_out_is_not_ready_for_more(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following, uid="new-pod")
    leaves_out("a", "new-pod")
    leaves_out("b", "new-pod")
    want(chat, ("default", 3, None), ("next", 1, following))
    assert told()["next"][0] == 0.0, "nobody could have answered there"
    _, shown = variants_shown(chat)
    assert (shown.ready, shown.instances) == (0, 1) and shown.waits_for.startswith("No instance of default/chat-next")

    leaves_out("b")
    assert variants_shown(chat)[1].ready == 1, "one router can reach it"
    assert told() == {"default": (3.0, ["old-pod"]), "next": (1.0, ["new-pod"])}


def test_who_served_is_not_handed_to_whom_every_router_leaves_out(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following, uid="new-pod")
    leaves_out("a", "new-pod")
    with pytest.raises(Invalid) as raised:
        want(chat, ("default", 1, following))
    assert raised.value.errors[0].field == "variants.0.endpoint_id"
    leaves_out("a")
    want(chat, ("default", 1, following))


def test_traffic_shifts_once_the_other_version_is_ready_and_not_before(chat: Endpoint, following: Endpoint) -> None:
    want(chat, ("default", 9, None), ("next", 1, following))
    assert told() == {"default": (1.0, ["old-pod"]), "next": (0.0, [])}, "requests go where they went"
    default, other = variants_shown(chat)
    assert (default.share, default.wanted_weight, default.waits_for) == (1.0, 9.0, "It waits for next.")
    assert other.waits_for.startswith("No instance of default/chat-next is ready. Its rollout is Warming.")
    assert "1 of 2 nodes is warm." in other.waits_for and (other.ready, other.instances) == (0, 0)

    made = factories.instance(of=following, uid="new-pod", ready=False)
    assert told()["next"] == (0.0, [])
    Instance.objects.filter(pk=made.pk).update(ready=True)
    assert told() == {"default": (9.0, ["old-pod"]), "next": (1.0, ["new-pod"])}
    assert [one.waits_for for one in variants_shown(chat)] == ["", ""]
    assert [one.share for one in variants_shown(chat)] == [0.9, 0.1]
    changes = {one["detail"] for one in Configuration.objects.first().changes if one["kind"] == "Weight"}  # type: ignore[union-attr]
    assert changes == {"1 → 9", "0 → 1"}
    event = AuditEvent.objects.get(action="routing.shifted")
    assert event.before == {"weights": {"default": 1, "next": 0}}
    assert event.after == {"weights": {"default": 9, "next": 1}}


def test_once_in_force_a_loss_changes_nothing_and_a_way_back_is_open(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following, uid="new-pod")
    want(chat, ("default", 0, None), ("next", 1, following))
    assert told()["next"] == (1.0, ["new-pod"])
    Instance.objects.filter(uid="new-pod").update(ready=False)
    assert told() == {"default": (0.0, ["old-pod"]), "next": (1.0, [])}, "requests wait for it, as for any endpoint"
    want(chat, ("default", 1, None), ("next", 0, following))
    assert told() == {"default": (1.0, ["old-pod"]), "next": (0.0, [])}


def test_another_wish_replaces_one_that_waits(chat: Endpoint, following: Endpoint) -> None:
    want(chat, ("default", 0, None), ("next", 1, following))
    want(chat, ("default", 1, None), ("next", 0, following))
    factories.instance(of=following)
    assert {name: weight for name, (weight, _) in told().items()} == {"default": 1.0, "next": 0.0}
    assert not RoutedVariant.objects.exclude(wanted_weight=None).exists()
    assert not AuditEvent.objects.filter(action="routing.shifted").exists()


def test_two_policies_may_be_tried_on_the_same_instances(chat: Endpoint) -> None:
    want(chat, ("default", 1, None), ("least", 1, None))
    policy_set(actor=ADA, variant_id=Variant.objects.get(name="least").pk, document=LEAST)
    assert told() == {"default": (1.0, ["old-pod"]), "least": (1.0, ["old-pod"])}


def test_who_gets_requests_is_not_taken_away(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following)
    want(chat, ("default", 1, None), ("next", 1, following))
    with pytest.raises(Clash, match="next gets requests"):
        want(chat, ("default", 1, None))
    told()
    with pytest.raises(Clash, match="next gets requests"):
        want(chat, ("default", 1, None))
    want(chat, ("default", 1, None), ("next", 0, following))
    with pytest.raises(Clash, match="next gets requests"):
        want(chat, ("default", 1, None))
    told()
    want(chat, ("default", 1, None))
    assert told().keys() == {"default"}
    event = AuditEvent.objects.filter(action="routing.variants").order_by("-at").first()
    assert event is not None and event.after is not None and len(event.after["variants"]) == 1


def test_the_same_again_is_no_change_and_an_old_reading_changes_nothing(chat: Endpoint, following: Endpoint) -> None:
    before = variants_tag(chat)
    want(chat, ("default", 1, None))
    assert variants_tag(chat) == before and not AuditEvent.objects.exists()
    want(chat, ("default", 1, None), ("next", 0, following), if_tag=before)
    with pytest.raises(Stale):
        want(chat, ("default", 1, None), if_tag=before)
    assert AuditEvent.objects.filter(action="routing.variants").count() == 1


def test_it_is_served_by_another_endpoint_of_the_same_cluster_or_by_nobody(chat: Endpoint, following: Endpoint) -> None:
    elsewhere = factories.endpoint(name="elsewhere")
    for source in (elsewhere.pk, uuid4(), chat.pk):
        wanted = [WantedVariant("default", 1), WantedVariant("next", 0, source)]
        with pytest.raises(Invalid) as refused:
            variants_set(actor=ADA, endpoint_id=chat.pk, wanted=wanted)
        assert [one.field for one in refused.value.errors] == ["variants.1.endpoint_id"]
    factories.instance(of=following)
    want(chat, ("default", 1, None), ("next", 1, following))
    told()
    Endpoint.objects.filter(pk=following.pk).update(gone_at=timezone.now())
    assert told()["next"] == (1.0, []), "who serves it is gone"
    Endpoint.objects.filter(pk=following.pk).delete()
    assert told()["next"] == (1.0, [])
    assert variants_shown(chat)[1].endpoint == ""


def test_an_endpoint_that_is_gone_has_no_variants(chat: Endpoint) -> None:
    Endpoint.objects.update(gone_at=timezone.now())
    with pytest.raises(Missing):
        want(chat, ("default", 1, None))


def test_what_is_measured_of_a_variant_is_of_who_serves_it(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following, uid="new-pod", name="chat-next-1")
    want(chat, ("default", 1, None), ("next", 1, following))
    told()
    shown = telemetry(variant=Variant.objects.get(name="next"), minutes=15, now=timezone.now())
    assert [share.uid for share in shown.shares] == ["new-pod"]
    shown = telemetry(variant=Variant.objects.get(name="default", endpoint=chat), minutes=15, now=timezone.now())
    assert [share.uid for share in shown.shares] == ["old-pod"]
