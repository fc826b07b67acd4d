"""Policies that nobody would send on purpose are refused in words that can be read, and change nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.models import RoutingPolicy
from tests.api.conftest import Api
from tests.api.test_routing import PREFIX, api, place, variant

__all__ = ["api", "place", "variant"]
pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "body",
    [
        {"RoutingStrategy": "RANDOM", "\ud800": 1},
        {"RoutingStrategy": "RANDOM", "a\x00": 1},
        {"RoutingStrategy": "\ud800"},
        {"routingStrategy": "\ud800"},
        {"RoutingStrategy": "RANDOM", "x" * 100_000: 1},
        {"RoutingStrategy": "RANDOM", "RoutingExtensions": {"key_header": "x-\x00"}},
        {"RoutingStrategy": "RANDOM", "RoutingExtensions": {"key_header": "x-\ud800"}},
        {"RoutingStrategy": "RANDOM", "RoutingExtensions": {"key_header": "x" * 100_000}},
        {"RoutingStrategy": "RANDOM", "RoutingExtensions": {"\udfff": True}},
        {**PREFIX, "PrefixAwareRoutingConfig": {**PREFIX["PrefixAwareRoutingConfig"], "\ud800": 1}},
        {**PREFIX, "PrefixAwareRoutingConfig": {"PrefixLength": 10**300, "ConcurrencyThreshold": 16}},
        {**PREFIX, "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": -1}},
        {**PREFIX, "RoutingExtensions": {"inspect_bodies": False}},
        {**PREFIX, "RoutingExtensions": {"inspect_bodies": "yes"}},
        {**PREFIX, "RoutingExtensions": {"queue_when_saturated": None}},
        {**PREFIX, "RoutingExtensions": {"queue_requests": 10**400}},
        {**PREFIX, "RoutingExtensions": {"queue_seconds": "30"}},
        {**PREFIX, "RoutingExtensions": {"queue_when_saturated": True, "queue_requests": 0}},
    ],
)
def test_it_refuses_and_says_why(api: Api, place: str, body: Any) -> None:
    answer = api.call("PUT", place, body)
    assert answer.status_code == 400, answer.content[:300]
    said = json.loads(answer.content)
    assert said["code"] and len(answer.content) < 300_000
    assert not RoutingPolicy.objects.exists()
