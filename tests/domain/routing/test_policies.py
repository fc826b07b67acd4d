"""Policies are validated as the managed API does, everything wrong at once, and the other spellings are understood."""

from __future__ import annotations

from typing import Any

import pytest

from routing.domain.extensions import RoutingExtensions
from routing.domain.policies import (
    MAPPED,
    SPELLINGS,
    PolicyRefused,
    PrefixAwareRoutingConfig,
    RoutingPolicy,
    RoutingStrategy,
    policy_differences,
    policy_document,
    read_policy,
)

CONFIG = {"PrefixLength": 4096, "ConcurrencyThreshold": 16}


def refused(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(PolicyRefused) as caught:
        read_policy(document)
    assert all(one.detail and one.detail in str(caught.value) for one in caught.value.problems)
    return [(one.field, one.code.rpartition(":")[2]) for one in caught.value.problems]


def prefix(**config: Any) -> dict[str, Any]:
    return {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": CONFIG | config}


def test_it_is_random_unless_said_otherwise() -> None:
    assert read_policy({}) == RoutingPolicy(RoutingStrategy.RANDOM, None, RoutingExtensions(), ())


@pytest.mark.parametrize("strategy", ["RANDOM", "LEAST_OUTSTANDING_REQUESTS"])
def test_parameters_of_another_strategy_are_refused(strategy: str) -> None:
    assert read_policy({"RoutingStrategy": strategy}).prefix_aware is None
    document = {"RoutingStrategy": strategy, "PrefixAwareRoutingConfig": CONFIG}
    assert refused(document) == [("PrefixAwareRoutingConfig", "not-wanted")]


@pytest.mark.parametrize(("length", "threshold"), [(1024, 1), (65536, 1024), (4096, 16)])
def test_the_limits_themselves_are_fine(length: int, threshold: int) -> None:
    policy = read_policy(prefix(PrefixLength=length, ConcurrencyThreshold=threshold))
    assert policy.prefix_aware == PrefixAwareRoutingConfig(length, threshold)


@pytest.mark.parametrize("field", ["PrefixLength", "ConcurrencyThreshold"])
@pytest.mark.parametrize("value", [0, -1, 65537, 1e3, "1024", True, None, [1024]], ids=repr)
def test_numbers_beyond_the_limits_and_what_is_no_number_are_refused(field: str, value: object) -> None:
    code = "required" if value is None else "out-of-range"
    assert refused(prefix(**{field: value})) == [(f"PrefixAwareRoutingConfig.{field}", code)]


@pytest.mark.parametrize("value", [None, [], "4096", 7], ids=repr)
def test_prefix_aware_needs_both_parameters(value: object) -> None:
    document = {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": value}
    assert refused(document) == [("PrefixAwareRoutingConfig", "required")]
    assert refused({"RoutingStrategy": "PREFIX_AWARE"}) == [("PrefixAwareRoutingConfig", "required")]


@pytest.mark.parametrize("spelled", ["prefixaware", "nonsense", 7, None])
def test_a_strategy_is_given_once_whatever_it_is_called(spelled: object) -> None:
    document = {"RoutingStrategy": "RANDOM", "routingStrategy": spelled}
    assert refused(document) == [("routingStrategy", "given-twice")]
    with pytest.raises(PolicyRefused, match="give one of the two"):
        read_policy(document)


def test_everything_wrong_is_said_at_once() -> None:
    document = prefix(PrefixLength=1, Depth=3) | {"Speed": 1, "RoutingExtensions": {"hot_fraction": 7, "x": 1}}
    assert refused(document) == [
        ("Speed", "unknown-field"),
        ("PrefixAwareRoutingConfig.Depth", "unknown-field"),
        ("PrefixAwareRoutingConfig.PrefixLength", "out-of-range"),
        ("RoutingExtensions.hot_fraction", "out-of-range"),
        ("RoutingExtensions.x", "unknown-field"),
    ]


@pytest.mark.parametrize("strategy", ["prefix_aware", "KV_AWARE", "", 7, ["RANDOM"]], ids=repr)
def test_an_unknown_strategy_is_refused_with_those_there_are(strategy: object) -> None:
    assert refused({"RoutingStrategy": strategy}) == [("RoutingStrategy", "unknown-strategy")]
    with pytest.raises(PolicyRefused, match="LEAST_OUTSTANDING_REQUESTS"):
        read_policy({"RoutingStrategy": strategy})


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_hyperpod_s_spellings_are_mapped_and_say_what_they_became(spelled: str) -> None:
    policy = read_policy({"routingStrategy": spelled})
    assert policy.strategy is SPELLINGS[spelled]
    assert policy.notes == ((MAPPED[spelled],) if spelled in MAPPED else ())
    assert (policy.prefix_aware is None) is (policy.strategy is not RoutingStrategy.PREFIX_AWARE)


def test_a_session_is_keyed_by_its_header() -> None:
    assert read_policy({"routingStrategy": "session"}).extensions.key_header == "x-session-id"
    own = {"routingStrategy": "session", "RoutingExtensions": {"key_header": "X-Chat"}}
    assert read_policy(own).extensions.key_header == "x-chat"


@pytest.mark.parametrize("spelled", ["PREFIXAWARE", "random", "", 1], ids=repr)
def test_other_spellings_are_refused(spelled: object) -> None:
    assert refused({"routingStrategy": spelled}) == [("routingStrategy", "unknown-strategy")]


EXTENSIONS: list[tuple[str, object, bool]] = [
    ("adaptive_depth", False, True),
    ("adaptive_depth", 1, False),
    ("strict_text", True, True),
    ("body_key", "yes", False),
    ("hot_fraction", 0.5, True),
    ("hot_fraction", 1, True),
    ("hot_fraction", 0.01, False),
    ("hot_fraction", 1.5, False),
    ("hot_fraction", True, False),
    ("key_header", "x-conversation", True),
    ("key_header", "", True),
    ("key_header", "X-Request-ID", False),
    ("key_header", "a b", False),
    ("key_header", "a\r\nb", False),
    ("key_header", "x" * 65, False),
    ("key_header", None, False),
    ("body_bytes", 1024, True),
    ("body_bytes", 64 * 1024 * 1024, True),
    ("body_bytes", 64 * 1024 * 1024 + 1, False),
    ("body_bytes", 0, False),
    ("body_bytes", 2048.0, False),
    ("body_bytes", True, False),
    ("first_byte_seconds", 1, True),
    ("first_byte_seconds", 3600, True),
    ("first_byte_seconds", 0, False),
    ("first_byte_seconds", "600", False),
    ("first_byte_seconds", None, False),
    ("unanswered_threshold", 0, True),
    ("unanswered_threshold", 1024, True),
    ("unanswered_threshold", 1025, False),
    ("unanswered_threshold", -1, False),
    ("unanswered_threshold", True, False),
    ("queue_requests", 0, True),
    ("queue_requests", 4096, True),
    ("queue_requests", 4097, False),
    ("queue_requests", -1, False),
    ("queue_requests", True, False),
    ("queue_seconds", 1, True),
    ("queue_seconds", 600, True),
    ("queue_seconds", 601, False),
    ("queue_seconds", 0, False),
    ("queue_seconds", 30.0, False),
    ("queue_seconds", None, False),
]


@pytest.mark.parametrize(("field", "value", "fine"), EXTENSIONS, ids=repr)
def test_hearth_s_own_parameters_are_checked_too(field: str, value: object, fine: bool) -> None:
    document = {"RoutingExtensions": {field: value}}
    if fine:
        assert getattr(read_policy(document).extensions, field) == value
    else:
        assert refused(document) == [(f"RoutingExtensions.{field}", "out-of-range")]


def test_a_policy_that_may_not_look_must_be_told_where_the_key_is() -> None:
    document = prefix() | {"RoutingExtensions": {"inspect_bodies": False}}
    assert refused(document) == [("RoutingExtensions.inspect_bodies", "nothing-to-key")]
    document["RoutingExtensions"]["key_header"] = "x-chat"
    assert read_policy(document).strategy is RoutingStrategy.PREFIX_AWARE
    assert read_policy({"RoutingExtensions": {"inspect_bodies": False}}).strategy is RoutingStrategy.RANDOM


def test_a_policy_that_lets_requests_wait_for_room_has_a_place_for_them() -> None:
    document: dict[str, Any] = {"RoutingExtensions": {"queue_when_saturated": True, "queue_requests": 0}}
    assert refused(document) == [("RoutingExtensions.queue_requests", "nobody-waits")]
    document["RoutingExtensions"]["queue_requests"] = 1
    assert read_policy(document).extensions.queue_requests == 1


BASE = policy_document(read_policy({"RoutingStrategy": "RANDOM"}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"RoutingExtensions": {"record_keys": True}}, ["record_keys: off → on"]),
        ({"RoutingExtensions": {"key_header": "x-id", "hot_fraction": 0.5}},
         ["key_header: none → x-id", "hot_fraction: 0.25 → 0.5"]),
        ({"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
         ["RoutingStrategy: RANDOM → LEAST_OUTSTANDING_REQUESTS"]),
        ({"RoutingStrategy": "PREFIX_AWARE",
          "PrefixAwareRoutingConfig": {"PrefixLength": 2048, "ConcurrencyThreshold": 8}},
         ["RoutingStrategy: RANDOM → PREFIX_AWARE", "PrefixLength: 2048", "ConcurrencyThreshold: 8"]),
    ],
)  # fmt: skip
def test_whatever_is_other_is_named(change: dict[str, Any], words: list[str]) -> None:
    after = policy_document(read_policy({"RoutingStrategy": "RANDOM", **change}))
    assert policy_differences(BASE, after) == words


def test_numbers_are_named_where_both_have_them_and_old_documents_may_lack_what_is_new() -> None:
    one, other = (
        {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": {"PrefixLength": n, "ConcurrencyThreshold": 8}}
        for n in (2048, 4096)
    )
    assert policy_differences(one, other) == ["PrefixLength: 2048 → 4096"]
    assert policy_differences(one, policy_document(read_policy(one))) == [], "what is not there is the default"
    assert policy_differences(one, BASE) == ["RoutingStrategy: PREFIX_AWARE → RANDOM"]
