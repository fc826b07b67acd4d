"""Bodies that cannot be used, on every call that reads one, and on every call that reads none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from caches.models import CacheEntry, Pin, Webhook
from controlplane.operations.models import Operation
from tests.api.conftest import Api
from tests.api.rows import description, filled

pytestmark = pytest.mark.thorough

READERS = [
    (method, path) for path, methods in description().items() for method in methods if "requestBody" in methods[method]
]
BODILESS = [
    (method, path)
    for path, methods in description().items()
    for method in methods
    # Adopting needs a cluster that answers: test_clusters.py.
    if method != "get" and "requestBody" not in methods[method] and not path.endswith("/adopt")
]
HUGE = b"9" * 5000


@pytest.mark.parametrize(("method", "path"), READERS)
def test_it_refuses_what_is_no_object_of_its_fields(
    admin_api: Api, method: str, path: str, populated: dict[str, str]
) -> None:
    place = filled(path, populated)
    codes = {
        b"": None,
        b"{": "request:user:malformed",
        b"\xff\xfe{\x00}\x00": "request:user:malformed",
        b"\xef\xbb\xbf{}": "request:user:malformed",
        b'{"name": "a", "name": "b"}': "request:user:malformed",
        b'{"x": {"y": 1, "y": 1}}': "request:user:malformed",
        b'{"x": NaN}': "request:user:malformed",
        b'{"x": ' + HUGE + b"}": "request:user:malformed",
        b"[" * 50_000: "request:user:malformed",
        b"[{}]": "request:user:invalid",
        b'"x"': "request:user:invalid",
        b"7": "request:user:invalid",
    }

    for body, code in codes.items():
        answer = admin_api.call(method.upper(), place, body)
        if code is None and method == "patch":
            # Nothing is to be changed; only a connection is looked at again, and its folder never existed.
            assert answer.status_code == (400 if path.startswith("source-connections") else 200)
            continue
        empty = "endpoint:user:nothing-to-do" if path.endswith("/cache") else "request:user:invalid"
        assert (answer.status_code, answer.json()["code"]) == (400, code or empty), body[:40]
    assert admin_api.call(method.upper(), place, b'{"nme": 1}').json()["errors"]


def test_it_reads_json_alone(admin_api: Api, populated: dict[str, str]) -> None:
    media_types = ("text/plain", "application/x-www-form-urlencoded", "application/xml", "x")
    for (method, path), media_type in itertools.product(READERS, media_types):
        answer = admin_api.client.generic(
            method.upper(),
            f"/api/v1/{filled(path, populated)}",
            data=b'{"name": "x"}',
            content_type=media_type,
            headers=admin_api.headers,
        )
        told = (answer.status_code, answer.json()["code"])
        assert told == (415, "request:user:media-type"), (method, path, media_type)
        assert "application/json" in answer.json()["next_step"]


@pytest.mark.parametrize(("method", "path"), BODILESS)
def test_it_does_nothing_for_a_body_that_it_would_not_read(
    admin_api: Api, method: str, path: str, populated: dict[str, str]
) -> None:
    place = filled(path, populated)
    before = [list(kind.objects.order_by("pk").values()) for kind in (CacheEntry, Operation, Pin, Webhook)]

    answer = admin_api.call(method.upper(), place, {"dry_run": True})

    assert (answer.status_code, answer.json()["code"]) == (400, "request:user:body")
    assert "address" in answer.json()["next_step"]
    assert before == [list(kind.objects.order_by("pk").values()) for kind in (CacheEntry, Operation, Pin, Webhook)]
    # What some clients send with every call is no mistake.
    assert admin_api.call(method.upper(), place, b"{}").status_code < 500
    assert admin_api.call(method.upper(), place, b"{").json()["code"] in ("request:user:malformed", *GONE)


GONE = ("request:user:not-found", "version:user:not-found", "pin:user:not-found")
PIN = {"model": "llama", "version": "v3", "pools": ["bb.xx"]}


WRONG_PINS: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
    ({"model": ["llama"]}, "model"),
    ({"model": "x" * 121}, "model"),
    ({"model": "nul\0"}, "model"),
    ({"version": "\ud800"}, "version"),
    ({"pools": "bb.xx"}, "pools"),
    ({"pools": []}, "pools"),
    ({"pools": ["bb.xx"] * 201}, "pools"),
    ({"pools": [None]}, "pools.0"),
    ({"pools": [["bb.xx"]]}, "pools.0"),
    ({"pools": ["bb.xx", "bb.XX"]}, "pools.1"),
    ({"artifacts": []}, "artifacts"),
    ({"artifacts": ["Bytes"]}, "artifacts.0"),
    ({"priority": 1001}, "priority"),
    ({"priority": -1}, "priority"),
    ({"priority": 2**63}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": None}, "priority"),
    ({"placement": {"type": "Some"}}, "placement.type"),
    ({"placement": {"type": "Count"}}, "placement.value"),
    ({"placement": {"type": "Count", "value": 0}}, "placement.value"),
    ({"placement": {"type": "Percent", "value": 101}}, "placement.value"),
    ({"placement": {"spread_label": "x" * 201}}, "placement.spread_label"),
    ({"gate": {"type": "Count"}}, "gate.value"),
    ({"gate": {"type": "Timeout"}}, "gate.value"),
    ({"gate": {"type": "Count", "value": 2**31}}, "gate.value"),
    ({"gate": "All"}, "gate"),
    ({"gate": None}, "gate"),
    ({"gate": {"kind": "All"}}, "gate.kind"),
    ({"retention": {}}, "retention.seconds"),
    ({"retention": {"seconds": -1}}, "retention.seconds"),
    ({"retention": 60}, "retention"),
    ({"window": {"start": "22:00", "end": "06:00"}}, "window.time_zone"),
    ({"window": {"start": "22:00+02:00", "end": "06:00", "time_zone": "UTC"}}, "window.start"),
    ({"window": {"start": "22:00", "end": "24:00", "time_zone": "UTC"}}, "window.end"),
    ({"window": {"start": 22, "end": "06:00", "time_zone": "UTC"}}, "window.start"),
    ({"window": {"start": "22:00", "end": "06:00", "time_zone": "CEST!"}}, "window.time_zone"),
    ({"window": {"start": "22:00", "end": "22:00", "time_zone": "UTC"}}, "window.end"),
    ({"needed_at": "2030-01-01T00:00:00"}, "needed_at"),
    ({"needed_at": "2030-01-01 00:00"}, "needed_at"),
    ({"needed_at": "2030-01-01"}, "needed_at"),
    ({"needed_at": 1893456000}, "needed_at"),
    ({"needed_at": "9999-12-31T23:59:59-01:00"}, "needed_at"),
    ({"needed_at": "2030-02-30T00:00:00Z"}, "needed_at"),
    ({"suspended": None}, "suspended"),
    ({"suspended": "maybe"}, "suspended"),
    ({"node_selector": ["zone"]}, "node_selector"),
    ({"node_selector": {"zone": None}}, "node_selector.zone"),
    ({"node_selector": {"zone": "nul\0"}}, "node_selector.zone"),
    ({"node_selector": {"nul\0": "a"}}, "node_selector"),
    ({"node_selector": {"\ud800": "a"}}, "node_selector"),
    ({"node_selector": {"": "a"}}, "node_selector"),
    ({"node_selector": {"x" * 318: "a"}}, "node_selector"),
    ({"node_selector": {"zone": "x" * 254}}, "node_selector.zone"),
]


def test_it_refuses_a_pin_by_field_and_says_the_same_in_a_dry_run(admin_api: Api, populated: dict[str, str]) -> None:
    Pin.objects.all().delete()

    for change, field in WRONG_PINS:
        answers = [admin_api.post(f"pins{query}", PIN | change) for query in ("", "?dry_run=true")]
        for answer in answers:
            assert answer.status_code == 400, (change, answer.content)
            assert [error["field"] for error in answer.json()["errors"]] == [field], change
        assert answers[0].json()["errors"] == answers[1].json()["errors"]
    assert not Pin.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"node_selector": {"zone": "größe-🔥", "kubernetes.io/os": ""}},
        {"needed_at": "2030-01-01T00:00:00+05:30"},
        {"needed_at": "0001-01-01T00:00:00Z"},
        {"needed_at": "9999-12-31T23:59:59Z"},
        {"window": {"start": "23:59:59.999999", "end": "00:00", "time_zone": "Pacific/Kiritimati"}},
        {"gate": {"type": "Timeout", "value": 1}, "placement": {"type": "Count", "value": 1}},
        {"gate": {}, "placement": {}},
        {"priority": 0},
    ],
)
def test_it_takes_what_is_odd_but_right(admin_api: Api, change: dict[str, Any], populated: dict[str, str]) -> None:
    Pin.objects.all().delete()

    dry = admin_api.post("pins?dry_run=true", PIN | change)
    made = admin_api.post("pins", PIN | change)

    assert (dry.status_code, made.status_code) == (200, 202), made.content
    pin = admin_api.get("pins").json()["items"][0]
    if "node_selector" in change:
        assert pin["node_selector"] == change["node_selector"]
    if change.get("needed_at") == "2030-01-01T00:00:00+05:30":
        assert pin["needed_at"] == "2029-12-31T18:30:00.000000Z"


POOL = {"cluster": "bb", "name": "new", "selector": {"kind": "gpu"}}


WRONG_POOLS: list[tuple[dict[str, Any], str]] = [
    ({"cluster": "none"}, "cluster"),
    ({"cluster": 5}, "cluster"),
    ({"name": "New"}, "name"),
    ({"name": "a.b"}, "name"),
    ({"name": "x" * 64}, "name"),
    ({"selector": {}}, "selector"),
    ({"selector": {"a b": "c"}}, "selector"),
    ({"selector": {"nul\0": "c"}}, "selector"),
    ({"selector": {"kind": "a b"}}, "selector"),
    ({"priority": 1001}, "priority"),
    ({"high_watermark": 1.01}, "high_watermark"),
    ({"high_watermark": "NaN"}, "high_watermark"),
    ({"high_watermark": 0.5, "low_watermark": 0.6}, "low_watermark"),
    ({"max_downloads": 0}, "max_downloads"),
    ({"max_downloads_per_node": 65}, "max_downloads_per_node"),
    ({"node_bytes_per_second": 1}, "node_bytes_per_second"),
    ({"node_bytes_per_second": 2**60 + 1}, "node_bytes_per_second"),
    ({"freshness_seconds": 10, "status_interval_seconds": 9}, "freshness_seconds"),
    ({"scrub_interval_seconds": "inf"}, "scrub_interval_seconds"),
    ({"cache_path": "relative"}, "cache_path"),
    ({"cache_path": "/a/../b"}, "cache_path"),
    ({"cache_path": "/mnt/nvme/"}, "cache_path"),
    ({"source_paths": ["relative"]}, "source_paths"),
    ({"source_paths": ["/opt/dlami"]}, "source_paths"),
    ({"source_paths": "/fsx"}, "source_paths"),
    ({"paused": None}, "paused"),
    ({"pause": True}, "pause"),
]


def test_it_refuses_a_pool_by_field_when_it_is_made_tried_out_or_changed(
    admin_api: Api, populated: dict[str, str]
) -> None:
    for change, field in WRONG_POOLS:
        calls = [("POST", "node-pools", POOL | change), ("POST", "node-pools?dry_run=true", POOL | change)]
        if not set(change) & {"cluster", "name", "cache_path"}:
            calls += [("PATCH", "node-pools/bb.xx", change), ("PATCH", "node-pools/bb.xx?dry_run=true", change)]
        for method, path, body in calls:
            answer = admin_api.call(method, path, body)
            told = [error["field"] for error in answer.json().get("errors", ())]
            assert (answer.status_code, told) == (400, [field]), (path, change)
    assert len(admin_api.get("node-pools").json()["items"]) == 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bb.new", "Leave out the cluster, which has a field of its own: new"),  # as every answer shows it
        ("cc.new", "letters, digits, dashes"),
        ("bb.", "letters, digits, dashes"),
        (".new", "letters, digits, dashes"),
    ],
)
def test_it_says_what_to_do_with_a_name_that_was_copied_from_an_answer(
    admin_api: Api, name: str, says: str, populated: dict[str, str]
) -> None:
    [error] = admin_api.call("POST", "node-pools", POOL | {"name": name}).json()["errors"]
    assert error["field"] == "name" and says in error["detail"]


WRONG_OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("webhooks", {"events": ["entry.faild"]}, "events.0"),
    ("webhooks", {"events": "entry.failed"}, "events"),
    ("webhooks", {"url": "ftp://192.0.2.1/"}, "url"),
    ("webhooks", {"url": "https://192.0.2.1/" + "x" * 1000}, "url"),
    ("webhooks", {"name": "two words"}, "name"),
    ("webhooks", {"name": "größe"}, "name"),
    ("webhooks", {"enabled": "perhaps"}, "enabled"),
    ("tokens", {"name": " "}, "name"),
    ("tokens", {"name": "x" * 101}, "name"),
    ("tokens", {"name": "two\nlines"}, "name"),
    ("tokens", {"name": "\x1b[31m"}, "name"),
    ("tokens", {"scopes": "read"}, "scopes"),
    ("tokens", {"scopes": ["read"] * 21}, "scopes"),
    ("tokens", {"scopes": ["Read"]}, "scopes.0"),
    ("tokens", {"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    ("tokens", {"expires_at": "9999-12-31T23:59:59-23:59"}, "expires_at"),
    ("tokens", {"addresses": ["10.0.0.256"]}, "addresses"),
    ("tokens", {"addresses": ["localhost"]}, "addresses"),
    ("tokens", {"targets": [""]}, "targets.0"),
    ("source-connections", {"type": "s3"}, "type"),
    ("source-connections", {"allowed": []}, "allowed"),
    ("source-connections", {"allowed": [""]}, "allowed.0"),
    ("source-connections", {"endpoint": "http://[::1"}, "endpoint"),
    ("source-connections", {"endpoint": "http://x:99999"}, "endpoint"),
    ("source-connections", {"addressing": "both"}, "addressing"),
    ("source-connections", {"ca_bundle": "no certificate"}, "ca_bundle"),
    ("source-connections", {"max_downloads": 0}, "max_downloads"),
    ("source-connections", {"bytes_per_second": 2**63}, "bytes_per_second"),
    ("source-connections", {"secret": {"access_key": "x"}}, "secret"),
    ("models", {"name": "a/b"}, "name"),
    ("models", {"name": "x" * 121}, "name"),
    ("models", {"version": "-v1"}, "version"),
    ("models", {"version": "x" * 121}, "version"),
    ("models", {"source": {"connection": "sb"}}, "source.uri"),
    ("models", {"source": {"connection": "sb", "uri": "x" * 1501}}, "source.uri"),
    ("models", {"source": {"connection": "none", "uri": "s3://b/x"}}, "source.connection"),
    ("models", {"source": None}, "source"),
]
RIGHT: dict[str, dict[str, Any]] = {
    "webhooks": {"name": "new", "url": "https://192.0.2.1/", "secret_name": "hooks"},
    "tokens": {"name": "new", "scopes": ["read"]},
    "source-connections": {"name": "new", "type": "S3", "allowed": ["models"]},
    "models": {"name": "new", "version": "v1", "source": {"connection": "sb", "uri": "s3://b/x"}},
}


@pytest.mark.parametrize("path", RIGHT)
def test_it_refuses_everything_else_by_field(admin_api: Api, path: str, populated: dict[str, str]) -> None:
    before = [item["id"] for item in admin_api.get(path).json()["items"]]

    for body, field in [(body, field) for where, body, field in WRONG_OTHERS if where == path]:
        answer = admin_api.post(path, RIGHT[path] | body)
        assert answer.status_code == 400, (body, answer.content)
        assert [error["field"] for error in answer.json()["errors"]] == [field], body
        assert all(error["code"] and error["detail"] for error in answer.json()["errors"])
    assert [item["id"] for item in admin_api.get(path).json()["items"]] == before
