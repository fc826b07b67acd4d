"""One decision, explained: by the very code that routers run, under the newest configuration. Nothing is kept of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.errors import Invalid, Transient
from controlplane.serving.models import Variant
from routing.dataplane.config import read_config
from routing.dataplane.fleet import Fleet
from routing.dataplane.routes import TARGET_VARIANT, TENANT, Refusal, Request, Route, route
from routing.domain.deciding import Decision, Outcome
from routing.domain.policies import RoutingStrategy
from routing.domain.publishing import sealed
from routing.models import Configuration, RoutedEndpoint
from routing.selectors.routers import in_flight

SHOWN_DIGITS = 8  # of 16: enough to compare two explanations by, too little to be a key
_WHY: Mapping[Outcome, str] = {
    Outcome.PRIMARY: "The instance that its key belongs to has room.",
    Outcome.SIBLING: "The instance that its key belongs to is at the threshold; another copy on that machine has room.",
    Outcome.SPILL: "The instance that its key belongs to is at the threshold; this is the next in the key's order with "
    "room.",
    Outcome.SATURATED: "All instances are at the threshold: the least busy one gets it.",
    Outcome.ALL_HOT: "Every beginning up to PrefixLength is everybody's, so none says where it belongs: the least busy "
    "one gets it. A greater PrefixLength would reach what is its own.",
    Outcome.NO_KEY: "There is nothing to make a key of: the least busy one gets it.",
    Outcome.LEAST_BUSY: "LEAST_OUTSTANDING_REQUESTS: the least busy one gets it.",
    Outcome.RANDOM: "RANDOM: drawn by weight; the next time it may be another one.",
    Outcome.NOBODY: "No instance is ready.",
}


@dataclass(frozen=True, slots=True)
class ExplainedBoundary:
    depth: int
    digest: str
    hot: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """``in_flight`` over all routers; None where no router was heard of, which is then decided as 0."""

    uid: str
    address: str
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``refused`` says why a router would answer itself; everything else is empty then. ``drawn``: chance took part."""

    config_version: int
    strategy: str
    outcome: str
    why: str
    refused: str
    drawn: bool
    key: str
    key_depth: int
    overridden: bool
    boundaries: tuple[ExplainedBoundary, ...]
    candidates: tuple[Candidate, ...]


def decision_explain(
    *, variant: Variant, path: str, body: str, tenant: str = "", headers: Mapping[str, str] | None = None
) -> Explanation:
    """``path`` as a client of the router asks for it. Raises errors.Transient before the first publication, and
    errors.Invalid for what could be no request."""
    newest, fleet = _fleet(variant)
    found = route(fleet, _request(variant, path, body, tenant, headers or {}))
    strategy = fleet.endpoints[variant.endpoint.routed.name].variants[variant.name].config.policy.strategy
    if isinstance(found, Refusal):
        return Explanation(
            newest.version, strategy, "", "", f"{found.status}: {found.detail}", False, "", 0, False, (), ()
        )
    known = in_flight()
    found.variant.in_flight.update(known.counts)
    decision = found.variant.decide(found.key, time.monotonic())
    addresses = {one.member.id: f"{one.host}:{one.port}" for one in found.variant.config.instances}
    key = decision.key
    return Explanation(
        config_version=newest.version,
        strategy=strategy,
        outcome=decision.outcome.value,
        why=_WHY[decision.outcome],
        refused="",
        drawn=strategy is not RoutingStrategy.PREFIX_AWARE or decision.outcome not in _CERTAIN,
        key=_shown(key.digest) if key is not None and (key.depth or key.override) else "",
        key_depth=key.depth if key is not None else 0,
        overridden=key.override if key is not None else False,
        boundaries=_boundaries(found, decision),
        candidates=tuple(Candidate(uid, addresses[uid], known.of(uid)) for uid in decision.candidates),
    )


_CERTAIN = (Outcome.PRIMARY, Outcome.SIBLING, Outcome.SPILL, Outcome.NOBODY)


def _fleet(variant: Variant) -> tuple[Configuration, Fleet]:
    """What a router holds, of this endpoint alone."""
    newest = Configuration.objects.first()
    routed = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).first()
    names = {one["name"] for one in newest.document["endpoints"]} if newest is not None else set()
    if newest is None or routed is None or routed.name not in names:
        raise Transient(
            "routing:config:not-published",
            "Routers were not told of this endpoint yet.",
            next_step="Ask again in two seconds; the worker and the beat must be running.",
        )
    fleet = Fleet()
    document = sealed(newest.document, newest.version, {routed.name: routed.secret})
    fleet.apply(read_config(json.dumps(document).encode()))
    variant.endpoint.routed = routed
    return newest, fleet


def _request(variant: Variant, path: str, body: str, tenant: str, headers: Mapping[str, str]) -> Request:
    lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    lines.append((TARGET_VARIANT, variant.name.encode()))
    if tenant:
        lines.append((TENANT, tenant.encode()))
    if not path.startswith("/") or not path.isascii() or not path.isprintable():
        raise Invalid("routing:explain:path", "A path begins with a slash.", next_step="For example /v1/completions.")
    # Whatever model a body names: the endpoint is known here.
    target = path if path.startswith("/endpoints/") else f"/endpoints/{variant.endpoint.routed.name}{path}"
    return Request(b"POST", target.encode(), lines, body.encode("utf-8", "surrogatepass"))


def _boundaries(found: Route, decision: Decision) -> tuple[ExplainedBoundary, ...]:
    hot, key = found.variant.config.hot, decision.key
    return tuple(
        ExplainedBoundary(
            one.depth, _shown(one.digest), one.digest in hot, key is not None and key.digest == one.digest
        )
        for one in found.boundaries()
    )


def _shown(digest: int) -> str:
    return f"{digest:016x}"[:SHOWN_DIGITS]
