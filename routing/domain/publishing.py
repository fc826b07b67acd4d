"""The document that routers read, and what is other in it than in the one before. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from routing.domain.policies import RoutingPolicy, policy_differences, policy_document

Json = Mapping[str, Any]

_PLACE = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9_][A-Za-z0-9_.-]*):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Copy:
    """One instance that may get requests; ``home`` names the machine. ``check``: a path that routers ask by themselves,
    where nobody else says whether it is ready."""

    id: str
    address: str
    home: str = ""
    weight: float = 1.0
    tls: bool = False
    check: str = ""


@dataclass(frozen=True, slots=True)
class PublishedVariant:
    """``waits``: requests wait for the first instance while there is none. ``replaced``: others take the place of
    instances that are gone, so requests that reached none wait as well. Nobody starts one at addresses."""

    name: str
    policy: RoutingPolicy
    policy_version: int
    copies: Sequence[Copy]
    membership_version: int = 0
    hot: Sequence[str] = ()
    hot_version: int = 0
    weight: float = 1.0
    waits: bool = True
    replaced: bool = True


@dataclass(frozen=True, slots=True)
class PublishedEndpoint:
    name: str
    models: Sequence[str] = ()
    variants: Sequence[PublishedVariant] = field(default_factory=tuple)


def place_of(address: str, port: int) -> str:
    """``host:port`` of an address that may lack the port. An address of IPv6 gets its brackets.

    "" of what is none: one instance at an odd address must not keep routers from reading all the others.
    """
    match = _PLACE.fullmatch(place := _with_port(address, port))
    return place if match and 0 < int(match[1]) < 65536 else ""


def _with_port(address: str, port: int) -> str:
    if address.startswith("["):
        return address if not address.endswith("]") else f"{address}:{port}"
    if address.count(":") > 1:
        return f"[{address}]:{port}"
    return address if ":" in address else f"{address}:{port}"


def contents(routers: int, endpoints: Sequence[PublishedEndpoint]) -> dict[str, Any]:
    """All that routers are told but version and secrets, in one order whatever the order of the rows."""
    return {
        "routers": routers,
        "endpoints": [
            {
                "name": endpoint.name,
                "models": sorted(set(endpoint.models)),
                "variants": [_variant(one) for one in sorted(endpoint.variants, key=lambda one: one.name)],
            }
            for endpoint in sorted(endpoints, key=lambda one: one.name)
        ],
    }


def _variant(variant: PublishedVariant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "weight": variant.weight,
        "policy": _least_policy(variant.policy),
        "policy_version": variant.policy_version,
        "membership_version": variant.membership_version,
        "queue": _queue(variant),
        "hot": sorted(variant.hot),
        "hot_version": variant.hot_version,
        "instances": [
            {"id": one.id, "address": one.address, "weight": one.weight, "home": one.home}
            | ({"tls": True} if one.tls else {})
            | ({"check": one.check} if one.check else {})
            for one in sorted(variant.copies, key=lambda one: one.id)
        ],
    }


def _least_policy(policy: RoutingPolicy) -> dict[str, Any]:
    """Without the extensions that are as they are anyway: routers of a release before may know fewer, and refuse a
    whole configuration for one of them."""
    document, usual = policy_document(policy), policy_document(RoutingPolicy())["RoutingExtensions"]
    given = {name: value for name, value in document.pop("RoutingExtensions").items() if value != usual[name]}
    return {**document, "RoutingExtensions": given} if given else document


def _queue(variant: PublishedVariant) -> dict[str, int | bool]:
    """Requests for a variant without any instance wait for the first: so one that was scaled to none can come back."""
    extensions = variant.policy.extensions
    queue = {"requests": extensions.queue_requests if variant.waits else 0, "seconds": extensions.queue_seconds}
    return {**queue, "unreached": True} if variant.replaced else queue


def digest_of(document: Json) -> str:
    """Equal for equal contents, hexadecimal."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def sealed(document: Json, version: int, secrets: Mapping[str, str]) -> dict[str, Any]:
    """What a router reads: with the version, and each endpoint's secret by its name."""
    endpoints = [{**one, "secret": secrets[one["name"]]} for one in document["endpoints"] if one["name"] in secrets]
    return {**document, "version": version, "endpoints": endpoints}


def changes(before: Json, after: Json) -> list[dict[str, str]]:
    """What a person would call the difference, one sentence for each variant and kind."""
    found = list(_routers(before, after))
    old, new = dict(_variants(before)), dict(_variants(after))
    for key in sorted(old.keys() | new.keys()):
        found += [
            {"endpoint": key[0], "variant": key[1], "kind": kind, "detail": detail}
            for kind, detail in _differences(old.get(key), new.get(key))
        ]
    return found


def _routers(before: Json, after: Json) -> Iterator[dict[str, str]]:
    old, new = before.get("routers", 1), after["routers"]
    if old != new:
        yield {"endpoint": "", "variant": "", "kind": "Routers", "detail": f"{old} → {new} processes"}


def _variants(document: Json) -> Iterator[tuple[tuple[str, str], Json]]:
    for endpoint in document.get("endpoints", ()):
        for variant in endpoint["variants"]:
            yield (endpoint["name"], variant["name"]), variant


def _differences(old: Json | None, new: Json | None) -> Iterator[tuple[str, str]]:
    if new is None:
        yield "Endpoint", "gone"
        return
    if old is None:
        yield "Endpoint", f"new, {len(new['instances'])} instances, {named_policy(new['policy'])}"
        return
    if policy_differences(old["policy"], new["policy"]):  # a parameter that is new in Hearth changes nothing by itself
        yield "Policy", _policy(old["policy"], new["policy"])
    if old["weight"] != new["weight"]:
        yield "Weight", f"{old['weight']:g} → {new['weight']:g}"
    before, after = ({one["id"]: one for one in side["instances"]} for side in (old, new))
    if before != after:
        joined, left = len(after.keys() - before.keys()), len(before.keys() - after.keys())
        yield "Membership", f"{len(before)} → {len(after)} instances (+{joined}, -{left})"
    if old["hot"] != new["hot"]:
        yield "HotSet", f"{len(old['hot'])} → {len(new['hot'])} beginnings that everybody sends"


def _policy(old: Json, new: Json) -> str:
    """The strategy, where that is another one, and every other parameter that is."""
    before, after = named_policy(old), named_policy(new)
    own = ("RoutingStrategy", "PrefixLength", "ConcurrencyThreshold")  # they are in the names
    rest = [one for one in policy_differences(old, new) if not one.startswith(own)]
    return "; ".join([f"{before} → {after}" if before != after else before, *rest])


def named_policy(policy: Json) -> str:
    """Its strategy, and the numbers of PREFIX_AWARE: ``PREFIX_AWARE 4096/32``."""
    config = policy.get("PrefixAwareRoutingConfig")
    strategy = str(policy["RoutingStrategy"])
    return f"{strategy} {config['PrefixLength']}/{config['ConcurrencyThreshold']}" if config else strategy
