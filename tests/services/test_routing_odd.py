"""A broker in which others write, files of others, addresses that are none: what is right goes on being published."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.serving.models import Endpoint, Variant
from routing.dataplane.config import read_config
from routing.models import Configuration, RouterProcess, RoutingWindow
from routing.selectors.routers import in_flight, routers_list, with_state
from routing.selectors.telemetry import telemetry
from routing.services import broker
from routing.services.intake import figures_take
from routing.services.publishing import configuration_publish
from tests import factories
from tests.services.routing_world import tell
from tests.services.test_routing_intake import ONE, OTHER, message, stream, variant

__all__ = ["stream", "variant"]
pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "version", ["x", "-1", "1e9", "1.5", "", " 7", "9" * 15, "9" * 30, "9" * 5000, str(2**48), "\x00", "nan", "0x10"]
)
def test_a_version_that_makes_no_sense_is_written_over(stream: redis.Redis, version: str) -> None:
    stream.hset(broker.CONFIG_KEY, mapping={"version": version, "document": "{}"})
    assert broker.version_there(stream) == 0
    factories.variant(of=factories.endpoint(name="chat"))
    made = configuration_publish()
    assert made == 1 == broker.version_there(stream)
    assert "chat" in read_config(document(stream)).endpoints


def document(stream: redis.Redis) -> bytes:
    found: Any = stream.hget(broker.CONFIG_KEY, "document")
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("kind", ["text", "list", "set", "stream"])
def test_a_key_of_another_kind_in_the_place_is_written_over(stream: redis.Redis, kind: str) -> None:
    key = broker.CONFIG_KEY
    if kind == "text":
        stream.set(key, "mine")
    elif kind == "list":
        stream.rpush(key, "mine")
    elif kind == "set":
        stream.sadd(key, "mine")
    else:
        stream.xadd(key, {"m": "mine"})
    assert broker.version_there(stream) == 0
    assert configuration_publish() == 1 == broker.version_there(stream)


def test_the_highest_version_that_is_believed_is_followed_by_one_more(stream: redis.Redis) -> None:
    stream.hset(broker.CONFIG_KEY, mapping={"version": 2**48 - 2, "document": "{}"})
    assert configuration_publish() == 2**48 - 1 == broker.version_there(stream)
    assert read_config(document(stream)).version == 2**48 - 1


def test_what_others_left_beside_the_configuration_changes_nothing(stream: redis.Redis) -> None:
    configuration_publish()
    stream.hset(broker.CONFIG_KEY, mapping={"other": "x", "document": b"\xff"})
    assert configuration_publish() == 1
    stream.delete(broker.CONFIG_KEY)
    assert configuration_publish() == 1 and read_config(document(stream)).version == 1


@pytest.mark.parametrize(
    ("held", "written"),
    [
        ('{"version": 12, "endpoints": []}', True),
        ('{"version": 1, "endpoints": []}', False),
        ('{"version": 1', True),
        ("", True),
        ("[]", True),
        (b"\xff\xfe" * 40, True),
    ],
)
def test_a_file_is_left_alone_only_when_it_is_this_version(
    settings: Any, tmp_path: Path, held: str | bytes, written: bool
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    path = tmp_path / "router.json"
    path.write_bytes(held if isinstance(held, bytes) else held.encode())
    settings.ROUTER_CONFIG_FILE = str(path)
    before = path.stat().st_ino
    assert configuration_publish() == 1
    assert (path.stat().st_ino != before) is written and read_config(path.read_bytes()).version == 1
    assert [one.name for one in tmp_path.iterdir()] == ["router.json"]


@pytest.mark.parametrize("address", ["10.0.0.1:", "10.0.0.1:99999", "http://10.0.0.1:80", "a b", "[fd00::1", "-"])
def test_one_instance_at_no_address_keeps_routers_from_none_of_the_others(address: str, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    chat: Endpoint = factories.endpoint(name="chat")
    factories.variant(of=chat)
    factories.instance(of=chat, uid="good", address="10.0.0.2")
    factories.instance(of=chat, uid="odd", address=address)
    configuration_publish()
    found = Configuration.objects.first()
    assert found is not None
    whole = {**found.document, "version": 1}
    whole["endpoints"] = [{**one, "secret": "ab" * 32} for one in whole["endpoints"]]
    [one] = read_config(json.dumps(whole).encode()).endpoints["chat"].variants["default"].instances
    assert one.member.id == "good"


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "h\x00"},
        {"address": "\ud800"},
        {"in_flight": {"pod\x00": 1}},
        {"variants": [{"endpoint": "chat", "variant": "default", "figures": {"outcomes": {"a\x00": 1}}}]},
        {"variants": [{"endpoint": "chat", "variant": "default", "figures": {"instances": {"\ud800": 1}}}]},
        {"variants": [{"endpoint": "chat", "variant": "default", "figures": {"overhead": {"0": 10**400}}}]},
        {"variants": [{"endpoint": "chat\x00", "variant": "\ud800", "figures": {"requests": 9}}]},
    ],
)
def test_a_message_that_no_row_can_hold_keeps_none_that_follow_from_being_counted(
    stream: redis.Redis, variant: Variant, fields: dict[str, Any]
) -> None:
    tell(stream, message(**fields), message(router=OTHER))
    assert figures_take() == 2 and figures_take() == 0
    assert {row.seconds: row.figures["requests"] for row in RoutingWindow.objects.all()} == {10: 4, 60: 4, 3600: 4}


@pytest.mark.parametrize("last", ["18446744073709551615-1", "99999999999999-0", "253402300800000-0"])
def test_ids_of_a_stream_from_a_time_that_never_comes(stream: redis.Redis, variant: Variant, last: str) -> None:
    """Whoever writes may choose them; all that follow are later still."""
    now = timezone.now()
    stream.xadd(broker.STREAM_KEY, {"m": json.dumps(message())}, id=last)
    assert figures_take() == 1
    for row in RoutingWindow.objects.all():
        assert row.at <= now + timedelta(minutes=2) and row.figures["requests"] == 4
    stream.xadd(broker.STREAM_KEY, {"m": json.dumps(message(2))})
    assert figures_take() == 1 and figures_take() == 0
    assert all(row.seen_at <= now + timedelta(minutes=5) for row in RouterProcess.objects.all())


def test_counts_as_large_as_can_be_are_added_up_and_shown(stream: redis.Redis, variant: Variant) -> None:
    most = 2**53 - 1
    figures = {
        "requests": most, "outcomes": {"Primary": most}, "instances": {"pod-1": most},
        "ttft": {"Primary": {"0": most}}, "prompt_tokens": most, "cached_tokens": most, "told": most,
    }  # fmt: skip
    of = [{"endpoint": "chat", "variant": "default", "figures": figures}]
    for number in (1, 2, 3):
        tell(stream, message(number, variants=of, in_flight={"pod-1": most}), message(number, OTHER, variants=of))
        assert figures_take() == 2
    now = timezone.now()
    shown = telemetry(variant=variant, minutes=15, now=now)
    assert shown.requests >= most and shown.hit_rate == 1.0 and shown.ttft.p99 is not None
    assert sum(share.share for share in shown.shares) == pytest.approx(1.0)
    assert in_flight().counts["pod-1"] >= most
    assert {row.name for row in with_state(list(routers_list()))} == {ONE, OTHER}


@pytest.mark.parametrize("kind", ["text", "hash"])
def test_another_kind_of_key_where_figures_are_told_is_read_as_nothing(
    stream: redis.Redis, variant: Variant, kind: str
) -> None:
    if kind == "text":
        stream.set(broker.STREAM_KEY, "mine")
    else:
        stream.hset(broker.STREAM_KEY, "m", "mine")
    assert figures_take() == 0
    stream.delete(broker.STREAM_KEY)
    tell(stream, message())
    assert figures_take() == 1


def test_fields_that_are_no_message_are_passed_over(stream: redis.Redis, variant: Variant) -> None:
    for fields in (
        {"x": "1"},
        {"m": ""},
        {"m": "["},
        {"m": "[1]"},
        {"m": "[" * 50_000},
        {"m": b"\xff\xfe"},
        {"m": "7"},
    ):
        stream.xadd(broker.STREAM_KEY, fields)  # type: ignore[arg-type]
    tell(stream, message())
    assert figures_take() == 8 and RouterProcess.objects.count() == 1
