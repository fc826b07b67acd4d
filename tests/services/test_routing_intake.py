"""What routers tell becomes windows, once, however it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.serving.models import Variant
from routing.models import Intake, RoutedVariant, RouterProcess, RoutingWindow
from routing.selectors.routers import in_flight
from routing.services import broker, intake
from routing.services.intake import KEPT, figures_take, windows_purge
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from tests import factories
from tests.services.routing_world import figures_stream, tell
from tests.services.test_routing_policies import ADA, PREFIX

pytestmark = pytest.mark.django_db
ONE, OTHER = "a" * 32, "b" * 32
HOT, RARE = "00000000000000aa", "00000000000000bb"


@pytest.fixture
def stream(settings: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    with figures_stream(settings, monkeypatch, valkey_url) as connection:
        yield connection


@pytest.fixture
def variant(stream: redis.Redis) -> Variant:
    made = factories.variant(of=factories.endpoint(name="chat"))
    factories.instance(of=made.endpoint, uid="pod-1")
    factories.instance(of=made.endpoint, uid="pod-2")
    configuration_publish()
    return made


def message(number: Any = 1, router: str = ONE, **fields: Any) -> dict[str, Any]:
    figures = {"requests": 4, "outcomes": {"Random": 4}, "instances": {"pod-1": 3, "pod-2": 1}, "overhead": {"-500": 4}}
    of = {"endpoint": "chat", "variant": "default", "figures": figures}
    return {
        "router": router, "host": "h", "address": "10.0.0.9:80", "started_at": timezone.now().timestamp(),
        "number": number, "config_version": 1, "in_flight": {"pod-1": 2}, "ejected": ["pod-2"], "variants": [of],
        **fields,
    }  # fmt: skip


def counted(number: int, requests: int, router: str = ONE, **counts: Any) -> dict[str, Any]:
    of = {"endpoint": "chat", "variant": "default", "counted": {"requests": requests, "counts": counts}}
    return message(number, router, variants=[of])


def windows() -> dict[int, dict[str, Any]]:
    return {row.seconds: row.figures for row in RoutingWindow.objects.all()}


def test_several_routers_add_up_in_windows_of_every_length(stream: redis.Redis, variant: Variant) -> None:
    tell(stream, message(), message(router=OTHER), message(2))
    assert figures_take() == 3
    assert figures_take() == 0
    hour = RoutingWindow.objects.get(seconds=3600)
    assert hour.figures["requests"] == 12 and hour.figures["instances"] == {"pod-1": 9, "pod-2": 3}
    assert sum(row.figures["requests"] for row in RoutingWindow.objects.filter(seconds=10)) == 12
    assert hour.at.minute == 0 and set(windows()) == set(KEPT)
    assert {row.name: row.number for row in RouterProcess.objects.all()} == {ONE: 2, OTHER: 1}
    assert in_flight().ejected_by("pod-2") == 2 and in_flight().ejected_by("pod-1") == 0, "at both routers"
    router = RouterProcess.objects.get(name=ONE)
    assert (router.host, router.config_version) == ("h", 1)
    assert router.figures == {"in_flight": {"pod-1": 2}, "ejected": ["pod-2"]}


def test_a_message_that_was_sent_again_counts_once(stream: redis.Redis, variant: Variant) -> None:
    tell(stream, message(1), message(1))
    figures_take()
    tell(stream, message(1), message(2))
    figures_take()
    assert windows()[3600]["requests"] == 8


def test_what_was_not_stored_is_read_again(
    stream: redis.Redis, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: Any) -> None:
        raise RuntimeError("killed")

    tell(stream, message())
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(intake, "_store", dies)
        figures_take()
    assert Intake.objects.get().last_id == "0-0" and not RouterProcess.objects.exists()
    assert figures_take() == 1 and windows()[3600]["requests"] == 4


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"router": "x"}, message(router="../etc"), message(number=-1), message(number="1"), message(variants={}),
        message(in_flight={"pod": "many"}), message(started_at="long ago"), message(variants=[{"endpoint": "chat"}]),
        message(variants=[{"endpoint": "chat", "variant": "default", "figures": {"requests": -3}}]),
        counted(1, 5, x=1), counted(1, -1), [1, 2], "text",
    ],
)  # fmt: skip
def test_one_that_makes_no_sense_keeps_nothing_else_from_being_counted(
    stream: redis.Redis, variant: Variant, bad: Any
) -> None:
    tell(stream, bad, message(router=OTHER))
    stream.xadd(broker.STREAM_KEY, {"other": "field"})
    assert figures_take() == 3 and windows()[3600]["requests"] == 4
    assert [row.name for row in RouterProcess.objects.all()] == [OTHER]


def test_a_variant_that_is_gone_is_passed_over(stream: redis.Redis, variant: Variant) -> None:
    elsewhere = {"endpoint": "gone", "variant": "default", "figures": {"requests": 1}}
    tell(stream, message(variants=[elsewhere]))
    assert figures_take() == 1 and not RoutingWindow.objects.exists() and RouterProcess.objects.exists()


def test_a_broker_that_began_anew_is_read_from_its_beginning(stream: redis.Redis, variant: Variant) -> None:
    tell(stream, message(1))
    figures_take()
    Intake.objects.update(last_id="99999999999999-0")
    stream.delete(broker.STREAM_KEY)
    tell(stream, message(2))
    assert figures_take() == 1 and windows()[3600]["requests"] == 8


def test_a_router_whose_clock_is_wrong_is_shown_in_ours(stream: redis.Redis, variant: Variant) -> None:
    far = (timezone.now() + timedelta(days=400)).timestamp()
    tell(stream, message(started_at=far), message(router=OTHER, started_at=1e300))
    figures_take()
    assert all(row.started_at <= timezone.now() + timedelta(minutes=1) for row in RouterProcess.objects.all())
    assert all(abs(row.seen_at - timezone.now()) < timedelta(minutes=1) for row in RouterProcess.objects.all())


def test_without_a_broker_nothing_is_read(variant: Variant, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    assert figures_take() == 0


def test_old_windows_and_routers_go(variant: Variant) -> None:
    now = timezone.now()
    for seconds, kept in KEPT.items():
        for at in (now - kept - timedelta(hours=1), now - kept / 2):
            RoutingWindow.objects.create(variant=variant, seconds=seconds, at=at)
    for name, days in (("old", 3), ("new", 0)):
        RouterProcess.objects.create(name=name, started_at=now, seen_at=now - timedelta(days=days))
    windows_purge(now=now)
    assert sorted(row.seconds for row in RoutingWindow.objects.all()) == sorted(KEPT)
    assert [row.name for row in RouterProcess.objects.all()] == ["new"]


def test_what_everybody_sends_becomes_hot_and_is_published(stream: redis.Redis, variant: Variant) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    before = configuration_publish()
    tell(stream, counted(1, 40, ONE, **{HOT: 40, RARE: 2}), counted(1, 40, OTHER, **{HOT: 39, RARE: 2}))
    figures_take()
    row = RoutedVariant.objects.get(variant=variant)
    assert (row.hot, row.hot_version) == ([HOT], 1)
    assert configuration_publish() == before + 1
    shown = json.loads(stream.hget(broker.CONFIG_KEY, "document") or "")
    assert shown["endpoints"][0]["variants"][0]["hot"] == [HOT]


def test_a_settled_set_is_looked_at_every_ten_seconds(stream: redis.Redis, variant: Variant) -> None:
    tell(stream, counted(1, 100, ONE, **{HOT: 100}))
    figures_take()
    tell(stream, counted(2, 5000, ONE, **{RARE: 5000}))
    figures_take()
    row = RoutedVariant.objects.get(variant=variant)
    assert row.hot == [HOT] and row.counted["pending"]["requests"] == 5000, "counted, and not yet looked at"
    RoutedVariant.objects.update(hot_at=timezone.now() - timedelta(seconds=11))
    tell(stream, counted(3, 1, ONE, **{RARE: 1}))
    figures_take()
    row.refresh_from_db()
    assert row.hot == [RARE] and row.hot_version == 2 and "pending" not in row.counted


def test_without_traffic_nothing_cools(stream: redis.Redis, variant: Variant) -> None:
    tell(stream, counted(1, 100, ONE, **{HOT: 100}))
    figures_take()
    RoutedVariant.objects.update(hot_at=timezone.now() - timedelta(hours=1))
    figures_take()
    assert RoutedVariant.objects.get(variant=variant).hot == [HOT]
