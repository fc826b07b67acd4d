"""One decision, explained: by the very code that routers run, under the newest configuration. Nothing is kept of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from controlplane.errors import Invalid, Missing, Transient
from controlplane.serving.models import Variant
from routing.dataplane.config import read_config
from routing.dataplane.fleet import Fleet
from routing.dataplane.fleet import Variant as Fleeted
from routing.dataplane.routes import TARGET_VARIANT, TENANT, Refusal, Request, Route, asked_for, route
from routing.domain.deciding import Key, Outcome, key_of
from routing.domain.keys import Boundary
from routing.domain.policies import RoutingStrategy
from routing.domain.publishing import sealed
from routing.domain.recordings import RECORDED_MINUTES, Kept
from routing.domain.requests import RequestKind
from routing.models import Configuration, RoutedEndpoint
from routing.selectors.names import names_of
from routing.selectors.routers import in_flight
from routing.services.recordings import recording_read

NO_OBJECT = (
    "The body is no JSON object, so neither text nor a model or key was found in it. A router sends it on as it is: "
    "what is wrong with it is for the engine to say."
)
SHOWN_DECISIONS = 50
SHOWN_DIGITS = 8  # of 16: enough to compare two explanations by, too little to be a key
_WHY: Mapping[Outcome, str] = {
    Outcome.PRIMARY: "The instance that its key belongs to has room.",
    Outcome.MOVED: "Where its key went last: too much waited then where it belongs, and this one holds it now.",
    Outcome.RELIEF: "Where its key belongs clearly more waits for the beginning of its answer than elsewhere.",
    Outcome.SIBLING: "The instance that its key belongs to is at a threshold, or too much waits there; another copy on "
    "that machine has room.",
    Outcome.SPILL: "The instance that its key belongs to is at a threshold; this is the next in the key's order with "
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
    name: str
    address: str
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class Happened:
    """A recorded request: its half digest, what it got and how long that took (``ttft`` in seconds)."""

    id: str
    at: datetime
    outcome: str
    uid: str
    name: str
    depth: int
    key: str
    prompt_tokens: int | None
    cached_tokens: int | None
    ttft: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``refused`` says why a router would answer itself; everything else is empty then. ``drawn``: chance took part.
    ``note``: what is odd about the request itself, or ""."""

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
    happened: Happened | None = None
    note: str = ""


def decision_explain(
    *, variant: Variant, path: str, body: str, tenant: str = "", headers: Mapping[str, str] | None = None
) -> Explanation:
    """``path`` as a client of the router asks for it. Raises errors.Transient before the first publication, and
    errors.Invalid for what could be no request."""
    newest, fleet = published_fleet(variant)
    found = route(fleet, _request(variant, path, body, tenant, headers or {}))
    if isinstance(found, Refusal):
        strategy = _variant(fleet, variant).config.policy.strategy
        refused = f"{found.status}: {found.detail}"
        return Explanation(newest.version, strategy, "", "", refused, False, "", 0, False, (), ())
    assert isinstance(found, Route), "its address names an endpoint"
    explained = _explained(variant, newest, found.variant, found.key, lambda: tuple(found.boundaries()))
    return replace(explained, note=_odd(path, body))


def recorded_explain(*, variant: Variant, decision_id: str) -> Explanation:
    """One of decisions_list(): what it got, and what it would get now. Raises errors.Missing for one that was not
    recorded or is past its hour, and errors.Transient."""
    kept = _kept(variant, decision_id)
    newest, fleet = published_fleet(variant)
    there = _variant(fleet, variant)
    policy, hot = there.config.policy, there.config.hot
    limit = policy.prefix_aware.prefix_length if policy.prefix_aware else 0
    found = tuple(one for one in kept.boundaries if one.depth <= limit)
    named = policy.extensions.body_key or policy.extensions.key_header
    own = Key(kept.own, override=True) if kept.own and named else None
    explained = _explained(variant, newest, there, lambda: own or key_of(policy, found, hot), lambda: found)
    note = f"When it was asked: {_WHY[Outcome(kept.outcome)]}" if kept.outcome in _RELIEVED else ""
    return replace(explained, happened=_happened(kept, names_of(variant, {kept.instance})), note=note)


def _explained(
    variant: Variant,
    newest: Configuration,
    there: Fleeted,
    key: Callable[[], Key | None],
    found: Callable[[], Sequence[Boundary]],
) -> Explanation:
    strategy = there.config.policy.strategy
    known = in_flight()
    there.in_flight.update(known.counts)
    decision = there.decide(key, time.monotonic())
    addresses = {one.member.id: f"{one.host}:{one.port}" for one in there.config.instances}
    names = names_of(variant, decision.candidates)
    chosen = decision.key
    return Explanation(
        config_version=newest.version,
        strategy=strategy,
        outcome=decision.outcome.value,
        why=_WHY[decision.outcome] + (_MAY_WAIT if decision.outcome is Outcome.PRIMARY and there.avoids_waits else ""),
        refused="",
        drawn=strategy is not RoutingStrategy.PREFIX_AWARE or decision.outcome not in _CERTAIN,
        key=_shown(chosen.digest) if chosen is not None and (chosen.depth or chosen.override) else "",
        key_depth=chosen.depth if chosen is not None else 0,
        overridden=chosen.override if chosen is not None else False,
        boundaries=tuple(
            ExplainedBoundary(
                one.depth,
                _shown(one.digest),
                one.digest in there.config.hot,
                chosen is not None and not chosen.override and chosen.digest == one.digest,
            )
            for one in found()
        ),
        candidates=tuple(Candidate(uid, names[uid], addresses[uid], known.of(uid)) for uid in decision.candidates),
    )


_RELIEVED = (Outcome.MOVED, Outcome.RELIEF)
_MAY_WAIT = (
    " A router goes elsewhere while clearly more waits there for the beginning of its answer (avoid_waits); what waits "
    "is known to routers alone, so none of it counts here."
)
_CERTAIN = (Outcome.PRIMARY, Outcome.SIBLING, Outcome.SPILL, Outcome.NOBODY)


def published_fleet(variant: Variant) -> tuple[Configuration, Fleet]:
    """What a router holds, of this endpoint alone. Raises errors.Transient before the first publication."""
    newest = Configuration.objects.first()
    routed = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).first()
    there = newest.document["endpoints"] if newest is not None else ()
    names = {(one["name"], each["name"]) for one in there for each in one["variants"]}
    if newest is None or routed is None or (routed.name, variant.name) not in names:
        raise Transient(
            "routing:config:not-published",
            f"Routers were not told of this endpoint yet, or not of its variant {variant.name}.",
            next_step="Ask again in two seconds; the worker and the beat must be running.",
        )
    fleet = Fleet()
    document = sealed(newest.document, newest.version, {routed.name: routed.secret})
    fleet.apply(read_config(json.dumps(document).encode()))
    fleet.hear(fleet.config.routers - 1, {})  # what is in flight is counted over all of them
    variant.endpoint.routed = routed
    return newest, fleet


def _request(variant: Variant, path: str, body: str, tenant: str, headers: Mapping[str, str]) -> Request:
    lines = [(_sent(name.lower()), _sent(value)) for name, value in headers.items()]
    lines.append((TARGET_VARIANT, variant.name.encode()))
    if tenant:
        lines.append((TENANT, _sent(tenant)))
    if not path.startswith("/") or not path.isascii() or not path.isprintable():
        raise Invalid("routing:explain:path", "A path begins with a slash.", next_step="For example /v1/completions.")
    # Whatever model a body names: the endpoint is known here.
    target = path if path.startswith("/endpoints/") else f"/endpoints/{variant.endpoint.routed.name}{path}"
    return Request(b"POST", target.encode(), lines, _sent(body))


def _odd(path: str, body: str) -> str:
    """A router sends on whatever came; somebody who asks why nothing was found in it wants to know."""
    asked = asked_for(Request(b"POST", path.encode(), [], b""))
    if isinstance(asked, Refusal) or asked.kind is RequestKind.RAW:
        return ""
    try:
        is_object = isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        is_object = False
    return "" if is_object else NO_OBJECT


def _sent(text: str) -> bytes:
    """Whatever came: what is no text is refused where a router refuses it."""
    return text.encode("utf-8", "surrogatepass")


def decisions_list(*, variant: Variant, minutes: int = RECORDED_MINUTES) -> tuple[Sequence[Happened], int]:
    """The newest recorded requests, newest first, and how many of that time were not kept. Raises
    errors.Transient while Redis does not answer."""
    recording = recording_read(variant=variant, minutes=minutes, most=SHOWN_DECISIONS)
    names = names_of(variant, {one.instance for one in recording.requests})
    return [_happened(one, names) for one in reversed(recording.requests)], recording.passed


def _kept(variant: Variant, decision_id: str) -> Kept:
    at = decision_id.partition("-")[0]
    if at.isdigit() and len(at) < 16:
        for one in recording_read(variant=variant, minutes=RECORDED_MINUTES).requests:
            if _id(one) == decision_id:
                return one
    raise Missing(
        "routing:decision:not-found",
        f"There is no recorded decision {decision_id:.40}.",
        next_step="List them again: they are kept for an hour, and only where the policy asks for it.",
    )


def _happened(kept: Kept, names: Mapping[str, str]) -> Happened:
    first = kept.own or (kept.boundaries[0].digest if kept.boundaries else 0)
    return Happened(
        _id(kept),
        _believed(kept.at),
        kept.outcome,
        kept.instance,
        names.get(kept.instance, kept.instance),
        kept.depth,
        _shown(first) if first else "",
        kept.prompt_tokens,
        kept.cached_tokens,
        kept.ttft,
    )


def _believed(at: float) -> datetime:
    """What a router's clock said, or now where that is later than now."""
    return datetime.fromtimestamp(min(at, time.time()), UTC)


def _id(kept: Kept) -> str:
    """By its time and the beginning of its key: two of one millisecond and one key are alike anyway."""
    first = kept.own or (kept.boundaries[0].digest if kept.boundaries else 0)
    return f"{round(1000 * kept.at)}-{_shown(first)}"


def _variant(fleet: Fleet, variant: Variant) -> Fleeted:
    return fleet.endpoints[variant.endpoint.routed.name].variants[variant.name]


def _shown(digest: int) -> str:
    return f"{digest:016x}"[:SHOWN_DIGITS]
