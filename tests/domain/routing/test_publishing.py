"""What routers read is whole, in one order, and says what is other than before."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from routing.dataplane.config import read_config
from routing.domain.extensions import RoutingExtensions
from routing.domain.policies import RoutingPolicy, policy_document, read_policy
from routing.domain.publishing import (
    Copy,
    PublishedEndpoint,
    PublishedVariant,
    changes,
    contents,
    digest_of,
    place_of,
    sealed,
)

PREFIX = read_policy(
    {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": 2048, "ConcurrencyThreshold": 8},
        "RoutingExtensions": {"key_header": "x-talk", "hot_fraction": 0.5},
    }
)
A, B = Copy("a", "10.0.0.1:8080", "n1"), Copy("b", "10.0.0.2:8080", "n2")
RECORDS = RoutingPolicy(extensions=RoutingExtensions(record_keys=True))
CHAT = PublishedVariant("default", RoutingPolicy(), 0, (A, B))


def document(*variants: PublishedVariant, routers: int = 1, name: str = "chat") -> dict[str, Any]:
    return contents(routers, [PublishedEndpoint(name, ["llama", "llama"], variants)])


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.1.2.3", "10.1.2.3:8080"),
        ("10.1.2.3:9000", "10.1.2.3:9000"),
        ("fd00::1", "[fd00::1]:8080"),
        ("[fd00::1]", "[fd00::1]:8080"),
        ("[fd00::1]:9000", "[fd00::1]:9000"),
        ("engine.local", "engine.local:8080"),
        ("", ""),
    ],
)
def test_it_knows_where_an_address_has_its_port(address: str, place: str) -> None:
    assert place_of(address, 8080) == place


def test_routers_read_what_is_published() -> None:
    hot = replace(CHAT, policy=PREFIX, policy_version=3, hot=("00000000000000ff",), copies=(replace(A, weight=2.0), B))
    config = read_config(json.dumps(sealed(document(hot, routers=4), 9, {"chat": "ab" * 32})).encode())

    assert (config.version, config.routers) == (9, 4)
    endpoint = config.endpoints["chat"]
    assert (endpoint.secret, endpoint.models) == (bytes.fromhex("ab" * 32), frozenset({"llama"}))
    variant = endpoint.variants["default"]
    assert (variant.policy, variant.hot) == (PREFIX, frozenset({255}))
    assert [(one.member.id, one.member.weight, one.member.home) for one in variant.instances] == [
        ("a", 2.0, "n1"),
        ("b", 1.0, "n2"),
    ]


@pytest.mark.parametrize("policy", [RoutingPolicy(), PREFIX])
def test_a_policy_is_read_back_as_it_was(policy: RoutingPolicy) -> None:
    assert read_policy(json.loads(json.dumps(policy_document(policy)))) == policy


def test_it_is_the_same_whatever_the_order_of_the_rows() -> None:
    other = PublishedEndpoint("apple", (), (CHAT,))
    one = PublishedEndpoint("chat", ("x", "y"), (CHAT, replace(CHAT, name="canary")))
    same = PublishedEndpoint("chat", ("y", "x"), (replace(CHAT, name="canary"), replace(CHAT, copies=(B, A))))

    assert digest_of(contents(1, [one, other])) == digest_of(contents(1, [other, same]))
    assert digest_of(contents(2, [one, other])) != digest_of(contents(1, [one, other]))


def test_it_holds_no_secret_and_publishes_no_endpoint_without_one() -> None:
    found = document(CHAT)
    assert "secret" not in json.dumps(found)
    assert sealed(found, 1, {})["endpoints"] == [], "rather none than one whose keys anybody can make"


@pytest.mark.parametrize(
    ("before", "after", "kind", "detail"),
    [
        ({}, document(CHAT), "Endpoint", "new, 2 instances, RANDOM"),
        (document(CHAT), contents(1, []), "Endpoint", "gone"),
        (document(CHAT), document(replace(CHAT, policy=PREFIX)), "Policy", "RANDOM → PREFIX_AWARE 2048/8"),
        (document(CHAT), document(replace(CHAT, policy=RECORDS)), "Policy", "RANDOM; record_keys: off → on"),
        (document(CHAT), document(replace(CHAT, copies=(A, Copy("c", "10.0.0.3:1")))), "Membership", "(+1, -1)"),
        (document(CHAT), document(replace(CHAT, hot=("ff",))), "HotSet", "0 → 1"),
        (document(CHAT), document(CHAT, routers=3), "Routers", "1 → 3"),
    ],
)
def test_it_says_what_changed(before: dict[str, Any], after: dict[str, Any], kind: str, detail: str) -> None:
    (change,) = changes(json.loads(json.dumps(before)), after)
    assert change["kind"] == kind and detail in change["detail"]


def test_requests_wait_as_the_policy_says_where_somebody_could_come() -> None:
    policy = RoutingPolicy(extensions=RoutingExtensions(queue_requests=3, queue_seconds=90))
    for variant, requests in ((replace(CHAT, policy=policy), 3), (replace(CHAT, policy=policy, waits=False), 0)):
        raw = json.dumps(sealed(document(variant), 1, {"chat": "ab" * 32})).encode()
        read = read_config(raw).endpoints["chat"].variants["default"]
        assert (read.queue_requests, read.queue_seconds) == (requests, 90)


def test_a_parameter_that_is_new_in_hearth_is_no_change_of_a_policy() -> None:
    """The version before was stored by a Hearth that had no such parameter."""
    before = json.loads(json.dumps(document(CHAT)))
    spelled = policy_document(CHAT.policy)
    del spelled["RoutingExtensions"]["queue_seconds"]
    before["endpoints"][0]["variants"][0]["policy"] = spelled
    assert changes(before, document(CHAT)) == []


def test_routers_are_told_no_parameter_that_is_as_it_is_anyway() -> None:
    """One of the release before may not know it, and refuse everything for its sake."""
    published = document(CHAT, replace(CHAT, name="keyed", policy=PREFIX))["endpoints"][0]["variants"]
    assert published[0]["policy"] == {"RoutingStrategy": "RANDOM"}
    assert published[1]["policy"]["RoutingExtensions"] == {"key_header": "x-talk", "hot_fraction": 0.5}
    assert [read_policy(one["policy"]) for one in published] == [RoutingPolicy(), PREFIX]


def test_a_router_follows_a_control_plane_that_knows_more_than_it(caplog: pytest.LogCaptureFixture) -> None:
    newer = json.loads(json.dumps(sealed(document(replace(CHAT, policy=PREFIX)), 9, {"chat": "ab" * 32})))
    newer["endpoints"][0]["variants"][0]["policy"]["RoutingExtensions"]["colder"] = True
    read = read_config(json.dumps(newer).encode())
    assert read.endpoints["chat"].variants["default"].policy == PREFIX and "colder" in caplog.text


def test_it_says_nothing_when_nothing_changed() -> None:
    assert changes(json.loads(json.dumps(document(CHAT))), document(CHAT)) == []
