"""Who serves, where something is in the way: variants that routers do not know yet, sources with nothing ready, names
and places that change hands, and others who change the same."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.errors import Clash, Invalid, Missing, Transient
from controlplane.serving.models import Endpoint, Instance, Variant
from routing.models import RoutedEndpoint, RoutedVariant
from routing.selectors.variants import used_by, variants_shown
from routing.services.explaining import decision_explain, published_fleet
from routing.services.static_endpoints import (
    static_endpoint_change,
    static_endpoint_create,
    static_endpoint_remove,
    static_read,
)
from tests import factories
from tests.services.shifting_world import chat_endpoint, next_endpoint, told, want
from tests.services.test_routing_policies import ADA

pytestmark = pytest.mark.django_db


@pytest.fixture
def chat(settings: Any) -> Endpoint:
    return chat_endpoint(settings)


@pytest.fixture
def following(chat: Endpoint) -> Endpoint:
    return next_endpoint(chat)


def given(*urls: str, **more: Any) -> Any:
    addresses = [{"name": f"engine-{number}", "url": url} for number, url in enumerate(urls)]
    return static_read(**{"name": "outside", "model": "", "health_path": "/live", "addresses": addresses} | more)


# variants


@pytest.mark.parametrize("published_before", [True, False])
def test_who_gets_requests_is_not_handed_to_an_endpoint_with_nothing_ready(
    chat: Endpoint, following: Endpoint, published_before: bool
) -> None:
    if published_before:
        told()
    factories.instance(of=following, uid="coming", ready=False)
    factories.instance(of=following, uid="nowhere", address="")
    with pytest.raises(Invalid, match="nothing of it is ready") as refused:
        want(chat, ("default", 1, following))
    assert [one.field for one in refused.value.errors] == ["variants.0.endpoint_id"]
    assert told() == {"default": (1.0, ["old-pod"])} and not AuditEvent.objects.filter(action="routing.variants")


def test_once_something_is_ready_it_may_be_handed_over_and_back(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following, uid="new-pod")
    want(chat, ("default", 1, following))
    assert told() == {"default": (1.0, ["new-pod"])}
    Instance.objects.filter(uid="old-pod").update(ready=False)
    with pytest.raises(Invalid, match="nothing of it is ready"):
        want(chat, ("default", 1, None))
    Instance.objects.filter(uid="new-pod").update(ready=False)
    want(chat, ("default", 1, None))  # neither has any: whoever is first to be ready serves
    assert told() == {"default": (1.0, [])}


def test_one_that_gets_nothing_may_be_handed_to_anybody(chat: Endpoint, following: Endpoint) -> None:
    want(chat, ("default", 1, None), ("next", 0, None))
    want(chat, ("default", 1, None), ("next", 0, following))
    assert told()["next"] == (0.0, [])


def test_a_variant_that_routers_were_not_told_of_yet_is_asked_for_again_later(chat: Endpoint) -> None:
    told()
    want(chat, ("default", 1, None), ("next", 0, None))
    row = Variant.objects.select_related("endpoint").get(name="next")
    for asks in (
        lambda: published_fleet(row),
        lambda: decision_explain(variant=row, path="/v1/completions", body="{}"),
        lambda: decision_explain(variant=row, path="/v1/completions", body="x", tenant=" refused"),
    ):
        with pytest.raises(Transient, match="not of its variant next"):
            asks()
    told()
    assert decision_explain(variant=row, path="/v1/completions", body="{}").candidates[0].uid == "old-pod"


def test_an_endpoint_on_its_way_out_takes_over_nothing(chat: Endpoint, following: Endpoint) -> None:
    factories.instance(of=following)
    for gone in ("deleting_at", "gone_at"):
        Endpoint.objects.filter(pk=following.pk).update(**{"deleting_at": None, gone: timezone.now()})
        with pytest.raises(Invalid) as refused:
            want(chat, ("default", 1, None), ("next", 1, following))
        assert [one.field for one in refused.value.errors] == ["variants.1.endpoint_id"], gone


def test_a_shift_that_waits_says_for_whom_when_its_endpoint_goes(chat: Endpoint, following: Endpoint) -> None:
    want(chat, ("default", 1, None), ("next", 1, following))
    told()
    Endpoint.objects.filter(pk=following.pk).update(gone_at=timezone.now())
    shown = {one.name: one for one in variants_shown(chat)}
    assert shown["next"].waits_for == "The endpoint that serves it is gone."
    assert told()["default"] == (1.0, ["old-pod"]), "and requests go where they went"
    want(chat, ("default", 1, None), ("next", 0, following))
    told()
    want(chat, ("default", 1, None))
    assert told().keys() == {"default"}


def test_requests_are_taken_back_from_one_that_is_gone(chat: Endpoint, following: Endpoint) -> None:
    made = factories.instance(of=following, uid="new-pod")
    want(chat, ("default", 0, None), ("next", 1, following))
    assert told()["next"] == (1.0, ["new-pod"])
    made.delete()
    Endpoint.objects.filter(pk=following.pk).update(gone_at=timezone.now())
    want(chat, ("default", 1, None), ("next", 0, following))  # as the form sends it, with who served it
    assert told()["default"] == (1.0, ["old-pod"])


def test_everything_wrong_is_said_at_once_and_nothing_is_changed(chat: Endpoint, following: Endpoint) -> None:
    with pytest.raises(Invalid) as refused:
        want(chat, ("default", -1, following), ("a b", 1, chat))
    assert {one.field for one in refused.value.errors} == {
        "variants.0.weight", "variants.0.endpoint_id", "variants.1.name", "variants.1.endpoint_id",
    }  # fmt: skip
    assert [one.name for one in Variant.objects.filter(endpoint=chat)] == ["default"]


def test_two_shifts_of_two_endpoints_wait_each_for_its_own(chat: Endpoint, following: Endpoint) -> None:
    third = factories.endpoint(of=chat.cluster, name="third")
    want(chat, ("default", 1, None), ("next", 1, following))
    want(following, ("default", 0, None), ("next", 1, third))
    factories.instance(of=third, uid="third-pod")
    assert told("chat-next") == {"default": (0.0, []), "next": (1.0, ["third-pod"])}
    assert told()["next"] == (0.0, []), "what another endpoint's variants are served by is not handed on"
    assert used_by(third) == ["next of default/chat-next"] and used_by(following) == ["next of default/chat"]


# addresses


def test_names_may_change_hands_and_places_keep_their_keys(chat: Endpoint) -> None:
    row = static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given("http://x:1", "http://y:1"))
    before = {one.address: one.uid for one in row.instances.all()}
    static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("http://y:1", "http://x:1"))
    assert {one.name: one.address for one in row.instances.all()} == {"engine-0": "y:1", "engine-1": "x:1"}
    assert {one.address: one.uid for one in row.instances.all()} == before
    assert sorted(told("outside")["default"][1]) == sorted(before.values())


def test_the_order_of_addresses_is_no_change(chat: Endpoint) -> None:
    row = static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given("http://x:1", "http://y:1"))
    turned = static_read(
        name="outside", model="", health_path="/live",
        addresses=[{"name": "engine-1", "url": "http://y:1/"}, {"name": "engine-0", "url": "HTTP://X:1"}],
    )  # fmt: skip
    static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=turned)
    assert not AuditEvent.objects.filter(action="routing.static-change").exists()


def test_a_place_that_learns_tls_is_another_instance(chat: Endpoint) -> None:
    row = static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given("http://x:443"))
    before = row.instances.get().uid
    static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("https://x:443"))
    assert row.instances.get().uid != before and row.instances.get().tls


def test_without_addresses_it_is_there_and_serves_nobody(chat: Endpoint) -> None:
    row = static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given())
    assert row.status["state"] == "DeploymentPending" and told("outside") == {"default": (1.0, [])}
    want(chat, ("default", 1, None), ("out", 1, row))
    assert told()["out"] == (0.0, []), "nobody is sent there"
    static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("http://x:1"))
    assert told()["out"][0] == 1.0 and len(told()["out"][1]) == 1


def test_a_name_that_was_given_back_is_free_and_its_keys_are_others(chat: Endpoint) -> None:
    first = static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given("http://x:1"))
    told("outside")
    secret = RoutedEndpoint.objects.get(name="outside").secret
    static_endpoint_remove(actor=ADA, endpoint_id=first.pk)
    with pytest.raises(Missing):
        static_endpoint_remove(actor=ADA, endpoint_id=first.pk)
    static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given("http://x:1"))
    told("outside")
    assert RoutedEndpoint.objects.get(name="outside").secret != secret
    assert not RoutedVariant.objects.filter(variant__endpoint=first.pk).exists()


def test_one_place_of_two_endpoints_is_two_instances(chat: Endpoint) -> None:
    for name in ("outside", "beside"):
        static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given("http://x:1", name=name))
    assert len(set(Instance.objects.filter(address="x:1").values_list("uid", flat=True))) == 2


def test_it_is_not_taken_away_while_a_shift_to_it_waits(chat: Endpoint) -> None:
    row = static_endpoint_create(actor=ADA, cluster=chat.cluster, given=given())
    want(chat, ("default", 0, None), ("out", 1, row))
    with pytest.raises(Clash, match="out of default/chat"):
        static_endpoint_remove(actor=ADA, endpoint_id=row.pk)
    assert told()["default"] == (1.0, ["old-pod"])
