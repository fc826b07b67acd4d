"""How one endpoint variant's requests are spread: a strategy and its parameters, as the managed API has them.

The contract is that of SageMaker's ``RoutingConfig``: the same names, the same limits, the same rule that the
parameters of PREFIX_AWARE are both there or both absent. What Hearth adds stands in an object of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from routing.domain.extensions import HEADER_CHARACTERS, PARAMETERS, Parameter, RoutingExtensions, whole_number

PREFIX_LENGTHS = (1024, 65536)
THRESHOLDS = (1, 1024)
HEADER = re.compile(rf"[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,{HEADER_CHARACTERS}}}")


class RoutingStrategy(StrEnum):
    RANDOM = "RANDOM"
    LEAST_OUTSTANDING_REQUESTS = "LEAST_OUTSTANDING_REQUESTS"
    PREFIX_AWARE = "PREFIX_AWARE"


# HyperPod's own spellings. Only `prefixaware` means the same here; the policy's notes say what the others became.
SPELLINGS: Mapping[str, RoutingStrategy] = {
    "prefixaware": RoutingStrategy.PREFIX_AWARE,
    "roundrobin": RoutingStrategy.LEAST_OUTSTANDING_REQUESTS,
    "session": RoutingStrategy.PREFIX_AWARE,
    "kvaware": RoutingStrategy.PREFIX_AWARE,
}
# What a HyperPod spelling leaves open: its schema has no such fields.
SPELLED_CONFIG = {"PrefixLength": 4096, "ConcurrencyThreshold": 32}
MAPPED: Mapping[str, str] = {
    "roundrobin": "roundrobin is served by LEAST_OUTSTANDING_REQUESTS: equal shares while requests cost the same",
    "session": "session is served by PREFIX_AWARE with the session's header as the key",
    "kvaware": "kvaware is served by PREFIX_AWARE: engines are not asked what they hold",
}


@dataclass(frozen=True, slots=True)
class PrefixAwareRoutingConfig:
    """``prefix_length``: bytes of a raw body, characters of an OpenAI request's message text.

    ``concurrency_threshold``: requests in flight on an instance, over all routers, at which it gets no more while
    another has room."""

    prefix_length: int
    concurrency_threshold: int


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """``prefix_aware`` is there exactly for PREFIX_AWARE. ``notes`` say what was mapped from another spelling."""

    strategy: RoutingStrategy = RoutingStrategy.RANDOM
    prefix_aware: PrefixAwareRoutingConfig | None = None
    extensions: RoutingExtensions = field(default_factory=RoutingExtensions)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    field: str
    code: str
    detail: str


class PolicyRefused(ValueError):
    """Everything that is wrong with a policy, at once."""

    def __init__(self, problems: tuple[PolicyProblem, ...]) -> None:
        super().__init__("; ".join(f"{one.field}: {one.detail}" for one in problems))
        self.problems = problems


def read_policy(document: Mapping[str, Any]) -> RoutingPolicy:
    """A RoutingPolicy of ``{RoutingStrategy, PrefixAwareRoutingConfig?, RoutingExtensions?}``.

    HyperPod's ``{routingStrategy: prefixaware | roundrobin | session | kvaware}`` is read too. Raises PolicyRefused.
    """
    problems: list[PolicyProblem] = []
    spelled, notes = document.get("routingStrategy"), tuple[str, ...]()
    if spelled is not None and "RoutingStrategy" not in document:
        document = _from_spelling(document, spelled, problems)
        notes = (MAPPED[str(spelled)],) if str(spelled) in MAPPED else ()
    if {"RoutingStrategy", "routingStrategy"} <= document.keys():
        detail = "it is HyperPod's name for RoutingStrategy: give one of the two"
        problems.append(PolicyProblem("routingStrategy", "routing:policy:given-twice", detail))
        document = {name: value for name, value in document.items() if name != "routingStrategy"}
    for name in sorted(set(document) - {"RoutingStrategy", "PrefixAwareRoutingConfig", "RoutingExtensions"}):
        problems.append(PolicyProblem(name, "routing:policy:unknown-field", "no such field; check its spelling"))
    strategy = _strategy(document.get("RoutingStrategy", RoutingStrategy.RANDOM), problems)
    config = _config(strategy, document.get("PrefixAwareRoutingConfig"), problems)
    extensions = _extensions(document.get("RoutingExtensions"), problems)
    if strategy is RoutingStrategy.PREFIX_AWARE and not (extensions.inspect_bodies or extensions.key_header):
        detail = "PREFIX_AWARE reads the beginning of requests: allow it, or name a key_header"
        problems.append(PolicyProblem("RoutingExtensions.inspect_bodies", "routing:policy:nothing-to-key", detail))
    if extensions.record_keys and not extensions.inspect_bodies:
        detail = "recording reads the beginning of requests: allow it with inspect_bodies"
        problems.append(PolicyProblem("RoutingExtensions.record_keys", "routing:policy:nothing-to-record", detail))
    if extensions.queue_when_saturated and not extensions.queue_requests:
        detail = "with queue_when_saturated at least one request must be allowed to wait"
        problems.append(PolicyProblem("RoutingExtensions.queue_requests", "routing:policy:nobody-waits", detail))
    if problems:
        raise PolicyRefused(tuple(problems))
    return RoutingPolicy(strategy, config, extensions, notes)


def _from_spelling(document: Mapping[str, Any], spelled: object, problems: list[PolicyProblem]) -> Mapping[str, Any]:
    strategy = SPELLINGS.get(str(spelled))
    if strategy is None:
        known = ", ".join(SPELLINGS)
        problems.append(PolicyProblem("routingStrategy", "routing:policy:unknown-strategy", f"one of {known}"))
        return {"RoutingStrategy": RoutingStrategy.RANDOM}
    rest = {name: value for name, value in document.items() if name != "routingStrategy"}
    if strategy is RoutingStrategy.PREFIX_AWARE:
        rest.setdefault("PrefixAwareRoutingConfig", dict(SPELLED_CONFIG))
    if spelled == "session":
        rest.setdefault("RoutingExtensions", {"key_header": "x-session-id"})
    return {**rest, "RoutingStrategy": strategy.value}


def _strategy(value: Any, problems: list[PolicyProblem]) -> RoutingStrategy:
    try:
        return RoutingStrategy(value)
    except ValueError:
        known = ", ".join(RoutingStrategy)
        problems.append(PolicyProblem("RoutingStrategy", "routing:policy:unknown-strategy", f"one of {known}"))
        return RoutingStrategy.RANDOM


def _config(strategy: RoutingStrategy, value: object, problems: list[PolicyProblem]) -> PrefixAwareRoutingConfig | None:
    name = "PrefixAwareRoutingConfig"
    if strategy is not RoutingStrategy.PREFIX_AWARE:
        if value is not None:
            problems.append(PolicyProblem(name, "routing:policy:not-wanted", f"must be absent with {strategy}"))
        return None
    if not isinstance(value, Mapping):
        detail = "PREFIX_AWARE needs PrefixLength and ConcurrencyThreshold"
        problems.append(PolicyProblem(name, "routing:policy:required", detail))
        return None
    for unknown in sorted(set(map(str, value)) - {"PrefixLength", "ConcurrencyThreshold"}):
        problems.append(PolicyProblem(f"{name}.{unknown}", "routing:policy:unknown-field", "no such field"))
    length = _whole(value, name, "PrefixLength", PREFIX_LENGTHS, problems)
    threshold = _whole(value, name, "ConcurrencyThreshold", THRESHOLDS, problems)
    return PrefixAwareRoutingConfig(length, threshold)


def _whole(
    value: Mapping[str, Any], within: str, name: str, limits: tuple[int, int], problems: list[PolicyProblem]
) -> int:
    number = value.get(name)
    low, high = limits
    if number is None:
        problems.append(PolicyProblem(f"{within}.{name}", "routing:policy:required", f"{low} to {high}"))
    elif type(number) is not int or not low <= number <= high:
        detail = f"{whole_number(low, high)}, not {number!r:.40}"
        problems.append(PolicyProblem(f"{within}.{name}", "routing:policy:out-of-range", detail))
    else:
        return number
    return low


def _extensions(value: object, problems: list[PolicyProblem]) -> RoutingExtensions:
    name = "RoutingExtensions"
    if value is None:
        return RoutingExtensions()
    if not isinstance(value, Mapping):
        problems.append(PolicyProblem(name, "routing:policy:out-of-range", "an object"))
        return RoutingExtensions()
    taken: dict[str, Any] = {}
    for key, given in value.items():
        one = PARAMETERS.get(str(key))
        if one is None:
            problems.append(PolicyProblem(f"{name}.{key}", "routing:policy:unknown-field", "no such field"))
        elif wanted := _wanted(one, given):
            problems.append(PolicyProblem(f"{name}.{key}", "routing:policy:out-of-range", wanted))
        else:
            taken[one.name] = float(given) if one.kind is float else given.lower() if one.kind is str else given
    return RoutingExtensions(**taken)


def _wanted(one: Parameter, given: object) -> str:
    """What it is to be, "" where it is that. True is no number."""
    if one.kind is int:
        fits = type(given) is int and one.least <= given <= one.most
    elif one.kind is float:
        fits = type(given) in (int, float) and one.least <= given <= one.most
    elif one.kind is str:
        fits = isinstance(given, str) and _header(given)
    else:
        fits = isinstance(given, bool)
    return "" if fits else one.wanted


def _header(value: str) -> bool:
    # x-request-id names a request, never a conversation: as a key it would scatter everything.
    return value == "" or (HEADER.fullmatch(value) is not None and value.lower() != "x-request-id")


def policy_document(policy: RoutingPolicy) -> dict[str, Any]:
    """What ``read_policy`` reads as the same policy: the managed API's names, every extension spelled out."""
    document: dict[str, Any] = {"RoutingStrategy": policy.strategy.value}
    if policy.prefix_aware is not None:
        document["PrefixAwareRoutingConfig"] = {
            "PrefixLength": policy.prefix_aware.prefix_length,
            "ConcurrencyThreshold": policy.prefix_aware.concurrency_threshold,
        }
    document["RoutingExtensions"] = {name: getattr(policy.extensions, name) for name in RoutingExtensions.__slots__}
    return document


def policy_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is other in the second of two ``policy_document``s, each as ``name: old → new``. A number that belongs to a
    strategy comes and goes with it: it is named where both have it."""
    found = [_difference("RoutingStrategy", before.get("RoutingStrategy"), after.get("RoutingStrategy"))]
    old, new = (each.get("PrefixAwareRoutingConfig") or {} for each in (before, after))
    found += [_difference(name, old.get(name, new[name]), new[name]) for name in new] if old else _given(new)
    usual = {name: getattr(RoutingExtensions(), name) for name in RoutingExtensions.__slots__}
    old, new = ({**usual, **(each.get("RoutingExtensions") or {})} for each in (before, after))
    found += [_difference(name, old[name], value) for name, value in new.items() if name in old]
    return [one for one in found if one]


def _given(config: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {value}" for name, value in config.items()]


def _difference(name: str, before: object, after: object) -> str:
    return "" if before == after else f"{name}: {_word(before)} → {_word(after)}"


def _word(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value) or "none"
