"""A variant that records, and what its routers would have put into Redis."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
import redis

from controlplane.serving.models import Variant
from routing.domain.keys import Audience, boundaries
from routing.domain.recordings import Kept, key_of_stream, line_of
from routing.models import RoutedEndpoint
from routing.services import broker
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from routing.services.replays import Asked, replay_prepare, replay_run
from tests import factories
from tests.services.test_routing_policies import ADA, PREFIX

SECRET = b"a secret of 16 b"
RECORDED: dict[str, Any] = {"RoutingStrategy": "RANDOM", "RoutingExtensions": {"record_keys": True}}
RECORDED_PREFIX: dict[str, Any] = {**PREFIX, "RoutingExtensions": {"record_keys": True}}


def use_redis(settings: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    """A real one, where what is published stands at a place of its own."""
    settings.REDIS_URL = url
    monkeypatch.setattr(broker, "CONFIG_KEY", f"test:{uuid4().hex}:config")
    return url


@contextmanager
def figures_stream(settings: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[redis.Redis]:
    """A real Redis whose stream of figures, and place of what is published, nobody else has."""
    use_redis(settings, monkeypatch, url)
    monkeypatch.setattr(broker, "STREAM_KEY", f"test:{uuid4().hex}:figures")
    with redis.Redis.from_url(url) as connection:
        yield connection
        connection.delete(broker.STREAM_KEY, broker.CONFIG_KEY)


def tell(stream: redis.Redis, *documents: Any) -> None:
    """As routers tell their figures."""
    for document in documents:
        stream.xadd(broker.STREAM_KEY, {"m": json.dumps(document)})


def with_routed(variant: Variant) -> Variant:
    """The same with ``endpoint.routed`` at hand."""
    variant.endpoint.routed = RoutedEndpoint.objects.get(endpoint=variant.endpoint)
    return variant


def ran(variant: Variant, asked: Asked) -> dict[str, Any]:
    """What REST shows of a replay that is run at once: JSON, with numbers that JSON has."""
    result = replay_run(variant=variant, prepared=replay_prepare(variant=variant, asked=asked))
    shown: dict[str, Any] = json.loads(json.dumps(result, allow_nan=False))
    return shown


def recording_variant(document: dict[str, Any] | None = None, instances: int = 3) -> Variant:
    """A published variant ``default`` of an endpoint with a name of its own, on ready instances pod-0 and on."""
    made = factories.variant(of=factories.endpoint(name=f"chat-{uuid4().hex[:10]}"))
    for number in range(instances):
        factories.instance(of=made.endpoint, uid=f"pod-{number}", name=f"{made.endpoint.name}-{number}")
    policy_set(actor=ADA, variant_id=made.pk, document=document or RECORDED)
    configuration_publish()
    return made


def kept(ago: float, text: str, **fields: Any) -> Kept:
    """One request ``ago`` seconds before now, hashed as if it were of one audience."""
    found = tuple(boundaries(SECRET, Audience("e", "v"), [text], 65536))
    usual = {"own": 0, "outcome": "Random", "instance": "pod-0", "prompt_tokens": 100, "cached_tokens": 10}
    return Kept(at=time.time() - ago, boundaries=found, **{**usual, "ttft": 0.1, "seconds": 0.4, **fields})


def chats(count: int, groups: int = 8, ago: float = 300.0, cached: int | None = 10) -> list[Kept]:
    """Over a system prompt of two kilobytes that all share and documents of their groups, at random on three."""
    draws = random.Random(7)
    return [
        kept(
            ago - number * ago / (count + 1),
            f"{'system':<2048}{draws.randrange(groups):<4096}{number:<300}",
            instance=f"pod-{draws.randrange(3)}",
            output_tokens=20,
            cached_tokens=cached,
        )
        for number in range(count)
    ]


def told(url: str, variant: Variant, some: Iterable[Kept], *, passed: int = 0, at_once: int = 50) -> None:
    """As routers tell it, in messages of ``at_once``."""
    lines = [line_of(one) for one in some]
    key = key_of_stream(variant.endpoint.routed.name, variant.name)
    with redis.Redis.from_url(url) as connection:
        for start in range(0, max(len(lines), 1), at_once):
            message = {"requests": lines[start : start + at_once], "passed": 0 if start else passed}
            connection.xadd(key, {"m": json.dumps(message)})
        connection.expire(key, 600)
