"""What a router knows: endpoints, their variants, policies, instances and hot sets, as one versioned JSON document.

The control plane publishes it; a router keeps the last one in a file, so that it starts and runs without anybody.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from routing.domain.extensions import RoutingExtensions
from routing.domain.placement import Member
from routing.domain.policies import PolicyRefused, RoutingPolicy, read_policy

log = logging.getLogger(__name__)

MOST_VERSION = 2**48  # as the control plane has it: a version above all others could never be followed by another


class BadConfig(ValueError):
    """The document is no configuration; the one before stays in force."""


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """``id`` is the uid of the pod or engine, ``address`` host and port. Who drains finishes what it has. ``check``: a
    path by which routers see for themselves that it is well, "" where somebody else does."""

    member: Member
    host: str
    port: int
    tls: bool = False
    draining: bool = False
    check: str = ""


@dataclass(frozen=True, slots=True)
class VariantConfig:
    """``weight``: share of the requests that name no variant, over the sum of the weights.

    ``queue_requests`` may wait ``queue_seconds`` each while there is no instance for them; with ``queue_unreached``
    also those that reached none, as somebody takes the place of instances that are gone.
    """

    name: str
    weight: float
    policy: RoutingPolicy
    hot: frozenset[int]
    instances: tuple[InstanceConfig, ...]
    queue_requests: int = 0
    queue_seconds: float = 30.0
    queue_unreached: bool = False


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """``models``: what clients of the OpenAI API may call it by, beside its name."""

    name: str
    secret: bytes
    models: frozenset[str]
    variants: Mapping[str, VariantConfig]


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """``routers``: how many processes share the traffic, so that local thresholds add up."""

    version: int
    routers: int
    endpoints: Mapping[str, EndpointConfig]

    def by_model(self, model: str) -> EndpointConfig | None:
        """The endpoint that a request to ``/v1/…`` means: by its name or a model of it, or the only one there is."""
        if found := self.endpoints.get(model):
            return found
        named = [one for one in self.endpoints.values() if model in one.models]
        if len(named) == 1:
            return named[0]
        return next(iter(self.endpoints.values())) if len(self.endpoints) == 1 and not named else None

    def names(self) -> dict[str, str]:
        """Whatever a request may say as its model, in order, and the name of the endpoint that it means."""
        claims = Counter(model for one in self.endpoints.values() for model in one.models)
        found = {model: one.name for one in self.endpoints.values() for model in one.models if claims[model] == 1}
        return dict(sorted((found | {name: name for name in self.endpoints}).items()))


def read_config(document: bytes) -> RouterConfig:
    """Raises BadConfig, which names the place and never a secret."""
    try:
        data = json.loads(document)
        endpoints = [_endpoint(one) for one in data["endpoints"]]
        config = RouterConfig(
            _version(data["version"]),
            max(1, int(data.get("routers", 1))),
            MappingProxyType({one.name: one for one in endpoints}),
        )
    except PolicyRefused as error:
        raise BadConfig(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BadConfig(f"not a configuration: {type(error).__name__} at {str(error)[:80]!r}") from None
    if len(config.endpoints) != len(endpoints):
        raise BadConfig("two endpoints have one name")
    return config


def _version(value: Any) -> int:
    if not 0 <= (version := int(value)) < MOST_VERSION:
        raise BadConfig(f"a version is 0 or more and below {MOST_VERSION}")
    return version


def _endpoint(data: Mapping[str, Any]) -> EndpointConfig:
    variants = [_variant(one) for one in data["variants"]]
    secret = _secret(data["secret"])
    return EndpointConfig(
        _name(data["name"]),
        secret,
        frozenset(map(str, filter(None, data.get("models", ())))),
        MappingProxyType({one.name: one for one in variants}),
    )


def _secret(value: str) -> bytes:
    try:
        secret = bytes.fromhex(value)
    except (TypeError, ValueError):
        secret = b""
    if not 16 <= len(secret) <= 64:
        # Said without the value.
        raise BadConfig("an endpoint's secret is 16 to 64 bytes in hexadecimal")
    return secret


def _variant(data: Mapping[str, Any]) -> VariantConfig:
    queue = data.get("queue", {})
    return VariantConfig(
        _name(data["name"]),
        _finite(data.get("weight", 1)),
        read_policy(_known(data.get("policy", {}))),
        frozenset(int(one, 16) for one in data.get("hot", ())),
        tuple(_instance(one) for one in data["instances"]),
        max(0, int(queue.get("requests", 0))),
        _finite(queue.get("seconds", 30.0)),
        bool(queue.get("unreached")) and int(queue.get("requests", 0)) > 0,
    )


def _known(policy: Any) -> Mapping[str, Any]:
    """Without parameters that only a newer control plane knows: while routers are upgraded, those of before have to
    follow what becomes of instances."""
    extensions = policy.get("RoutingExtensions")
    if not isinstance(extensions, Mapping) or not (unknown := set(extensions) - set(RoutingExtensions.__slots__)):
        return dict(policy)
    log.warning(
        "a policy has parameters that this router does not know: %s", ", ".join(sorted(map(str, unknown)))[:200]
    )
    known = {name: value for name, value in extensions.items() if name not in unknown}
    return {**policy, "RoutingExtensions": known}


def _name(value: object) -> str:
    text = str(value)
    text.encode()  # half a character is no name: it could not be hashed nor exposed
    return text


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise BadConfig(f"a weight and a time are finite, not {number}")
    return max(0.0, number)


def _instance(data: Mapping[str, Any]) -> InstanceConfig:
    host, _, port = str(data["address"]).rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise BadConfig(f"an address is host:port, not {data['address']!r:.80}")
    member = Member(_name(data["id"]), _finite(data.get("weight", 1)), str(data.get("home", "")))
    tls, draining = bool(data.get("tls")), bool(data.get("draining"))
    return InstanceConfig(member, host.strip("[]"), int(port), tls, draining, _path(data.get("check", "")))


def _path(value: object) -> str:
    # It becomes a line of a request.
    if not isinstance(value, str) or not re.fullmatch(r"(/[!-~]*)?", value):
        raise BadConfig("a path to ask for begins with / and has no spaces")
    return value
