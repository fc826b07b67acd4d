"""Figures under each version of a policy, and the time for which instances were there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.serving.models import Variant
from routing.domain.figures import Figures
from routing.models import Configuration, RoutedEndpoint, RoutingPolicy, RoutingWindow
from routing.selectors.by_policy import under_policies
from routing.selectors.presence import Requests, expected_shares
from routing.services.policies import policy_set
from tests import factories
from tests.services.test_routing_policies import ADA, LEAST, PREFIX

pytestmark = pytest.mark.django_db


@pytest.fixture
def now() -> datetime:
    return timezone.now().replace(microsecond=0)


@pytest.fixture
def variant(settings: Any) -> Variant:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    return factories.variant(of=factories.endpoint(name="chat"))


def figures(requests: int, cached: int, ttft: float) -> Figures:
    made = Figures(requests=requests, told=requests, prompt_tokens=100 * requests, cached_tokens=cached * requests)
    for _ in range(requests):
        made.first_byte("Primary", ttft)
    return made


def test_each_version_has_its_own_figures_and_a_change_belongs_to_none(variant: Variant, now: datetime) -> None:
    for document, ago in ((PREFIX, 60), (LEAST, 30)):
        made = policy_set(actor=ADA, variant_id=variant.pk, document=document)
        RoutingPolicy.objects.filter(pk=made.pk).update(created_at=now - timedelta(seconds=ago))
    windows = [
        (now - timedelta(seconds=80), figures(5, 1, 0.4)),
        (now - timedelta(seconds=70), figures(7, 1, 0.4)),  # it ends when the first version is set
        (now - timedelta(seconds=60), figures(9, 2, 0.3)),  # routers took it in within this one
        (now - timedelta(seconds=50), figures(20, 80, 0.1)),
        (now - timedelta(seconds=35), figures(11, 50, 0.2)),  # the second came in its middle
        (now - timedelta(seconds=20), figures(2, 10, 0.3)),
        (now - timedelta(seconds=10), figures(0, 0, 0.0)),
    ]
    found = under_policies(variant, windows, 10)
    assert [(one.version, one.policy, one.requests) for one in found] == [
        (2, "LEAST_OUTSTANDING_REQUESTS", 2),
        (1, "PREFIX_AWARE 4096/16", 20),
        (0, "RANDOM", 12),
        (None, "", 20),
    ]
    assert [one.hit_rate for one in found][:2] == [0.1, 0.8]
    assert found[1].ttft.p50 == pytest.approx(0.1, rel=0.02) and found[1].ttft.p95 is not None
    assert found[0].ttft.count == 2 and found[0].ttft.p95 is None, "of two there is none"


def test_nothing_measured_is_no_table(variant: Variant) -> None:
    assert under_policies(variant, [], 10) == ()


def told(variant: Variant, at: datetime, version: int, *uids: str) -> None:
    instances = [{"id": uid, "weight": 1.0} for uid in uids]
    change = {"endpoint": "chat", "variant": "default", "kind": "Membership", "detail": ""}
    document = {"endpoints": [{"name": "chat", "variants": [{"name": "default", "instances": instances}]}]}
    row = Configuration.objects.create(version=version, digest=str(version), document=document, changes=[change])
    Configuration.objects.filter(pk=row.pk).update(created_at=at)


@pytest.mark.parametrize(
    ("joined", "due"),
    [
        (-60, {"a": 0.5, "b": 0.5}),  # minutes after the hour's beginning
        (0, {"a": 0.5, "b": 0.5}),
        (30, {"a": 0.75, "b": 0.25}),
        (45, {"a": 0.875, "b": 0.125}),
        (90, {"a": 1.0}),
    ],
)
def test_who_came_in_the_middle_of_an_hour_is_due_its_part_of_it(
    variant: Variant, now: datetime, joined: int, due: dict[str, float]
) -> None:
    RoutedEndpoint.objects.create(endpoint=variant.endpoint, name="chat", secret="ab" * 32)
    hour = now - timedelta(hours=2)
    told(variant, hour - timedelta(hours=5), 1, "a")
    told(variant, hour + timedelta(minutes=joined), 2, "a", "b")
    some = [Requests(hour, hour + timedelta(hours=1), 600)]
    found = expected_shares(variant, hour - timedelta(hours=1), some, until=now)
    assert found == pytest.approx(due)


def test_a_window_that_is_not_over_counts_up_to_now(variant: Variant, now: datetime) -> None:
    RoutedEndpoint.objects.create(endpoint=variant.endpoint, name="chat", secret="ab" * 32)
    begun = now - timedelta(minutes=10)
    told(variant, begun - timedelta(hours=5), 1, "a")
    told(variant, now - timedelta(minutes=5), 2, "a", "b")
    found = expected_shares(variant, begun, [Requests(begun, begun + timedelta(hours=1), 10)], until=now)
    assert found == pytest.approx({"a": 0.75, "b": 0.25})
    at_once = expected_shares(variant, begun, [Requests(now, now + timedelta(hours=1), 10)], until=now)
    assert at_once == pytest.approx({"a": 0.5, "b": 0.5}), "one that has just begun"
    assert not RoutingWindow.objects.exists()
