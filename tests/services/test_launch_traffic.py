"""What routers say of instances: the first success ends a launch, and requests count for the launch behind them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from caches.domain.launches.period import period_of
from caches.domain.launches.words import Cached, Mark
from caches.models import Launch, LaunchObservation, LaunchTraffic
from caches.selectors.launches.lists import Selection
from caches.selectors.launches.traffic import RequestShare, request_share
from caches.services.launches.traffic import answers_record
from controlplane.serving.answers import Answered, tell_answers
from controlplane.serving.models import Variant
from routing.services import intake
from routing.services.intake import figures_take
from routing.services.publishing import configuration_publish
from tests import factories
from tests.services.launches import ready_pod, settle, take_in
from tests.services.routing_world import figures_stream, tell

pytestmark = pytest.mark.django_db


@pytest.fixture
def began() -> datetime:
    return timezone.now() - timedelta(minutes=5)


@pytest.fixture
def launch(began: datetime) -> Launch:
    [made] = take_in(ready_pod(factories.cluster(), "pod-1", 20, at=began))
    return made


def again(launch: Launch) -> Launch:
    settle()
    launch.refresh_from_db()
    return launch


def test_the_first_success_ends_the_last_phase(launch: Launch, began: datetime) -> None:
    answers_record([Answered("pod-1", 0, began + timedelta(seconds=24))])
    again(launch)
    assert (launch.ready_seconds, launch.total_seconds, launch.phase_seconds[6]) == (20, 24, 4)
    assert launch.phases[6]["observer"] == "Router"


def test_every_router_says_so_and_the_earliest_is_right(launch: Launch, began: datetime) -> None:
    for seconds in (30, 24, 40, 24):
        answers_record([Answered("pod-1", 0, began + timedelta(seconds=seconds))])
        again(launch)
    assert launch.total_seconds == 24
    assert LaunchObservation.objects.filter(mark=Mark.FIRST_SUCCESS).count() == 2, "later ones are not kept"


def test_the_first_success_is_of_the_run_that_had_begun_by_then(launch: Launch, began: datetime) -> None:
    restarted = began + timedelta(seconds=60)
    [second] = take_in(ready_pod(launch.cluster, "pod-1", 10, restart=1, at=restarted))
    answers_record([Answered("pod-1", 5, began + timedelta(seconds=24)), Answered("pod-1", 2, None)])
    answers_record([Answered("pod-1", 1, restarted + timedelta(seconds=11))])
    assert (again(launch).total_seconds, again(second).total_seconds) == (24, 11)
    assert dict(LaunchTraffic.objects.values_list("launch", "requests")) == {second.pk: 8}


def test_instances_that_nobody_saw_start_are_left_out(launch: Launch, began: datetime) -> None:
    answers_record([Answered("other", 5, began), Answered("pod-1", 3, began - timedelta(hours=1))])
    tell_answers([])
    assert again(launch).served_at is None
    assert LaunchTraffic.objects.get().requests == 3


def test_the_share_of_requests_that_reached_what_had_missed(began: datetime) -> None:
    cluster = factories.cluster()
    take_in(*(ready_pod(cluster, found, 20, at=began, found=found) for found in ("hit", "miss", "partial", "")))
    for _ in range(2):
        answers_record([Answered("hit", 45), Answered("miss", 3), Answered("partial", 2), Answered("", 10)])
    period = period_of("now-2h", "now", timezone.now())
    share = request_share(Selection(period), None)
    assert (share, share.share) == (RequestShare(120, 10, 20), 0.1)
    missed = request_share(Selection(period, weights=Cached.MISS), None)
    assert missed.share == 1
    assert request_share(Selection(period_of("now-3d", "now-1d", timezone.now())), None).share is None


@pytest.fixture
def stream(settings: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    with figures_stream(settings, monkeypatch, valkey_url) as connection:
        yield connection


@pytest.fixture
def variant(stream: redis.Redis) -> Variant:
    made = factories.variant(of=factories.endpoint(name="chat"))
    configuration_publish()
    return made


def told(stream: redis.Redis, number: int, firsts: Any, requests: int = 4) -> None:
    of = {"endpoint": "chat", "variant": "default", "figures": {"requests": requests, "instances": {"pod-1": requests}}}
    document = {
        "router": "a" * 32, "host": "h", "address": "", "started_at": 1.0, "number": number, "config_version": 1,
        "in_flight": {}, "variants": [of], "firsts": firsts,
    }  # fmt: skip
    tell(stream, document)


def test_a_routers_word_reaches_the_launch_once(
    stream: redis.Redis, variant: Variant, launch: Launch, began: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (began + timedelta(seconds=24)).timestamp()
    told(stream, 1, {"pod-1": first})
    told(stream, 1, {"pod-1": first})  # sent again
    told(stream, 2, {})

    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(intake, "tell_answers", dies)
        figures_take()
    assert figures_take() == 3
    assert again(launch).total_seconds == 24
    assert LaunchTraffic.objects.get().requests == 8


@pytest.mark.parametrize(
    "firsts", [{"pod-1": "now"}, {"pod-1": -1}, {"pod-1": True}, {"pod-1": 1e400}, ["pod-1"], {"\x00": 1}]
)
def test_a_word_that_no_router_says_is_refused(
    stream: redis.Redis, variant: Variant, launch: Launch, firsts: Any
) -> None:
    told(stream, 1, firsts)
    assert figures_take() == 1
    assert again(launch).served_at is None and not LaunchTraffic.objects.exists()


def test_a_router_whose_clock_is_ahead_is_believed_up_to_now(
    stream: redis.Redis, variant: Variant, launch: Launch
) -> None:
    told(stream, 1, {"pod-1": (timezone.now() + timedelta(days=3)).timestamp()})
    figures_take()
    served = again(launch).served_at
    assert served is not None and served <= timezone.now() + timedelta(minutes=1)
