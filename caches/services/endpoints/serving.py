"""Serving one endpoint: its version, its pin, its gate, its rollout, and then its Deployment and Service."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from caches.domain.endpoints.specs import GROUP, EndpointReading, EndpointSpec
from caches.domain.endpoints.status import CacheFacts, StatusFacts, WarmUpFacts, WorkFacts, cache_facts
from caches.domain.endpoints.workload import Served, deployment, service
from caches.domain.gating import Gate, GateState, GateType, cold_words, gate
from caches.domain.rollouts import BEFORE_SWITCH, Kept, RolloutFacts, RolloutState, VersionFacts, WorkloadFacts
from caches.domain.states import any_moving
from caches.domain.text import plural
from caches.models import ModelVersion, Rollout
from caches.models.rollouts import LIVE_STATES
from caches.selectors.endpoint_targets import CacheTargets, cache_targets, gate_targets
from caches.selectors.rollout_sides import kept_before
from caches.services.connections import connection_spec
from caches.services.endpoints.images import EndpointImage, endpoint_image
from caches.services.endpoints.jumpstart import served_spec
from caches.services.endpoints.pins import Pinned, pin_ensure, pins_release
from caches.services.endpoints.reconnecting import connection_follow, connection_said, is_whole
from caches.services.endpoints.refusals import NO_ENSURE_IMAGE
from caches.services.endpoints.rollouts import rollout_begin, rollout_step, serving, what_served
from caches.services.endpoints.tokens import token_follow
from caches.services.endpoints.versions import Registered, base_place, version_of
from caches.services.endpoints.waiting import NOBODY, Waits, pods_waiting
from controlplane.clusters import codec
from controlplane.clusters.endpoints import ROLLOUT_ANNOTATION, EndpointName, WorkloadStatus
from controlplane.clusters.gateway import ClusterGateway, Conflict, Refused
from controlplane.serving.models import Endpoint

ASK_AGAIN = timedelta(seconds=15)  # for a version that could not be registered
_HOLDS = (RolloutState.SWITCHING, RolloutState.HOLDING)  # or is about to


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round came to, for the status and for the mirrors. ``weights`` None: that cache is off."""

    status: StatusFacts
    spec: EndpointSpec | None = None
    targets: CacheTargets | None = None
    weights: CacheFacts | None = None


@dataclass(frozen=True, slots=True)
class _Warming:
    """How far the weights are. ``whole`` is the gate over all targets, whatever the endpoint's own policy."""

    pinned: Pinned
    gate: Gate | None = None
    whole: Gate | None = None
    moving: bool = False
    cold: str = ""  # which targets are not ready, and why


def own_name(endpoint: Endpoint) -> EndpointName:
    return EndpointName(endpoint.kind, endpoint.namespace, endpoint.name)


def ensure_image() -> str:
    """What the ensure step of pods runs; Refused where nobody configured it."""
    if not settings.AGENT_IMAGE:
        raise Refused(NO_ENSURE_IMAGE)
    return str(settings.AGENT_IMAGE)


def name_taken(other: Endpoint | None) -> None:
    """Conflict where another endpoint had the name first."""
    if other is not None:
        raise Conflict(f"The {other.kind} {other.full_name} has this name; give one of them another.")


def refused_outcome(endpoint: Endpoint, reading: EndpointReading) -> Outcome:
    """Nothing was done: what serves goes on serving."""
    facts = StatusFacts(
        endpoint.name, endpoint.generation, timezone.now(), refusals=reading.refusals, ignored=reading.ignored
    )
    return Outcome(facts)


def holds_end(endpoint: Endpoint) -> None:
    """What a round does of holds where nothing else can be done, as the document is refused: what has ended lets go."""
    now, ended = timezone.now(), False
    for held in Rollout.objects.filter(endpoint=endpoint, state=RolloutState.HOLDING).select_related("previous"):
        facts = RolloutFacts(
            state=RolloutState.HOLDING,
            version=VersionFacts(True),
            now=now,
            released=held.released_at is not None,
            held_until=held.held_until,
            kept=kept_before(held),
        )
        ended |= rollout_step(rollout=held, facts=facts).state != RolloutState.HOLDING
    newest = Rollout.objects.filter(endpoint=endpoint).select_related("previous").order_by("-number").first()
    if ended and newest is not None:
        _release(endpoint, newest, weights=True, image=True)


def endpoint_serve(
    *, endpoint: Endpoint, reading: EndpointReading, spec: EndpointSpec, gateway: ClusterGateway
) -> Outcome:
    """One round of one endpoint; GatewayError when the cluster does not answer."""
    now = timezone.now()
    rollout = rollout_begin(endpoint=endpoint, spec=spec)
    targets = cache_targets(endpoint.cluster, spec)
    token = _token(endpoint, spec, gateway, now)
    rollout = connection_follow(endpoint=endpoint, rollout=rollout, spec=spec, now=now)
    registered = _registered(endpoint, rollout, spec, now)
    warming = _warm(endpoint, spec, rollout, registered, targets, now)
    spec = served_spec(spec, registered.version)
    image = endpoint_image(
        endpoint=endpoint, spec=spec, rollout=rollout, version=registered.version, targets=targets, now=now,
        refused=registered.refused,
    )  # fmt: skip
    work = gateway.workload_status(endpoint.namespace, endpoint.name)
    waits = pods_waiting(endpoint, registered.version)
    facts = replace(_facts(rollout, registered, warming, work, spec, now, waits.new), naming=image.pending)
    rollout = rollout_step(rollout=rollout, facts=facts)
    for held in Rollout.objects.filter(endpoint=endpoint, state=RolloutState.HOLDING).exclude(pk=rollout.pk):
        rollout_step(rollout=held, facts=_facts(held, Registered(), _Warming(Pinned()), None, spec, now))
    # Before what the cluster may refuse: a hold that has ended keeps nothing.
    _release(endpoint, rollout, weights=spec.cache.weights, image=spec.cache.image)
    if rollout.opened_at is not None and rollout.state != RolloutState.FAILED:
        _apply(endpoint, spec, image, rollout, registered.version, targets, work, gateway)
    weights = _weights(spec, targets, rollout, registered, warming)
    status = StatusFacts(
        name=endpoint.name,
        generation=endpoint.generation,
        now=now,
        ignored=reading.ignored,
        state=RolloutState(rollout.state),
        reason=rollout.reason,
        message=rollout.message,
        weights=weights,
        token=token,
        connection=connection_said(rollout, spec, work),
        image=image.cache,
        moved=image.moved,
        work=_work(endpoint, rollout, work, waits.some),
        warm_up=_warm_up(endpoint) if spec.options.warm_up is not None else None,
    )
    return Outcome(status, spec, targets, weights)


def _token(endpoint: Endpoint, spec: EndpointSpec, gateway: ClusterGateway, now: datetime) -> str | None:
    """Why the token that the document names cannot be read, "" where it can; None where it names none."""
    base = base_place(spec) if spec.source.token_secret[0] else ""
    if isinstance(base, str):
        return None
    token = token_follow(cluster=endpoint.cluster, spec=spec, base=base.connection, gateway=gateway, now=now)
    return "" if token.missing and spec.source.token_optional else token.problem


def _registered(endpoint: Endpoint, rollout: Rollout, spec: EndpointSpec, now: datetime) -> Registered:
    """The rollout's version, looked for while it has none; not every round when that failed."""
    if rollout.version_id is not None:
        rows = ModelVersion.objects.select_related("model", "artifact", "connection").defer("artifact__manifest")
        found = rows.filter(pk=rollout.version_id, artifact__isnull=False).first()
        if found is not None:
            return Registered(found)
    if rollout.reason == "VersionRefused" and now - rollout.updated_at < ASK_AGAIN:
        return Registered(refused=rollout.message)
    found_now = version_of(cluster=endpoint.cluster, spec=spec)
    if found_now.version is not None:
        Rollout.objects.filter(pk=rollout.pk).update(version=found_now.version)
        rollout.version = found_now.version
    elif found_now.refused:
        Rollout.objects.filter(pk=rollout.pk).update(updated_at=now)
    return found_now


def _warm(
    endpoint: Endpoint,
    spec: EndpointSpec,
    rollout: Rollout,
    registered: Registered,
    targets: CacheTargets,
    now: datetime,
) -> _Warming:
    if registered.version is None or not spec.cache.weights or not targets.pools:
        return _Warming(Pinned())
    pinned = pin_ensure(endpoint=endpoint, spec=spec, version=registered.version, targets=targets)
    if pinned.pin is None:
        return _Warming(pinned)
    found = gate_targets(pinned.pin, now=now)
    if not found:
        return _Warming(pinned)
    began, policy = rollout.warming_at or now, spec.options.gate
    whole = gate(GateType.ALL, 100, found, started_at=began, now=now)
    counted = found
    if policy.type in (GateType.COUNT, GateType.PERCENT) and whole.state is not GateState.OPEN:
        # Some nodes are to stay cold for now: pods must be able to tell them from the others.
        counted = gate_targets(pinned.pin, now=now, labelled=True)
    return _Warming(
        pinned,
        gate(policy.type, policy.value, counted, started_at=began, now=now),
        whole,
        any_moving(target.state for target in found),
        cold_words(found),
    )


def _facts(
    rollout: Rollout,
    registered: Registered,
    warming: _Warming,
    work: WorkloadStatus | None,
    spec: EndpointSpec,
    now: datetime,
    waits: Waits = NOBODY,
) -> RolloutFacts:
    seen = None
    if work is not None:
        current = work.observed and work.rollout == rollout.mark
        counts = (work.wanted, work.updated, work.available, work.total)
        seen = WorkloadFacts(current, *counts, work.failed, waits.reason, waits.sentence)
    known = registered.version is not None or not registered.wanted
    return RolloutFacts(
        state=RolloutState(rollout.state),
        version=VersionFacts(known, registered.refused),
        now=now,
        no_room=warming.pinned.no_room,
        gate=warming.gate,
        released=rollout.released_at is not None,
        workload=seen,
        has_predecessor=rollout.previous_id is not None,
        hold_seconds=spec.options.hold_seconds,
        held_until=rollout.held_until,
        kept=kept_before(rollout) if rollout.state in _HOLDS else Kept(),
    )


def _release(endpoint: Endpoint, rollout: Rollout, *, weights: bool, image: bool) -> None:
    """What serves and what comes keeps its pins of the caches that are on (``weights``, ``image``). What a hold keeps
    for the way back stays until that hold ends, whatever is switched meanwhile, and on the way back until its pods have
    come."""
    kept, held = [rollout], []
    before = rollout.previous
    if rollout.state in LIVE_STATES and before is not None and before.state == RolloutState.ROLLED_BACK:
        held.append(rollout)
    current = serving(endpoint)
    if current is not None and current.pk != rollout.pk:
        kept.append(current)
        # Where that one never served, those before it still do.
        kept += [row for row in (what_served(current),) if row is not None]
    if rollout.state not in (*BEFORE_SWITCH, RolloutState.DONE) and rollout.previous is not None:
        kept.append(rollout.previous)
    for holding in Rollout.objects.filter(endpoint=endpoint, state=RolloutState.HOLDING).select_related("previous"):
        kept.append(holding)
        held += [row for row in (holding.previous,) if row is not None]
    keep = {row.version_id for row in held + (kept if weights else []) if row.version_id is not None}
    images = {(row.version_id, row.resolved_image_id) for row in held + (kept if image else [])}
    pins_release(endpoint=endpoint, keep=keep, images=images)


def _apply(
    endpoint: Endpoint,
    spec: EndpointSpec,
    image: EndpointImage,
    rollout: Rollout,
    version: ModelVersion | None,
    targets: CacheTargets,
    work: WorkloadStatus | None,
    gateway: ClusterGateway,
) -> None:
    """Write what serves, when it is not what was written last or when it is gone."""
    source = _pod_source(version)
    if rollout.pods_source and (rollout.pods_number or rollout.state in (RolloutState.HOLDING, RolloutState.DONE)):
        # Pods that serve are not made again because somebody changed a connection or named another one.
        source = rollout.pods_source
    owner = {"apiVersion": f"{GROUP}/v1", "kind": endpoint.kind, "name": endpoint.name, "uid": endpoint.uid}
    served = Served(
        image=image.reference,
        ensure_image=ensure_image(),
        host_path=targets.host_path if targets.is_root else "",
        digest=version.artifact.digest if version is not None and version.artifact is not None else "",
        source=source,
    )
    made = copy.deepcopy(deployment(spec, served, owner=owner))
    made["spec"]["template"]["metadata"]["annotations"][ROLLOUT_ANNOTATION] = rollout.mark
    answered = service(spec, owner=owner)
    mark = hashlib.sha256(json.dumps([made, answered], sort_keys=True).encode()).hexdigest()
    if mark != rollout.applied_hash or work is None or work.rollout != rollout.mark:
        gateway.apply_served(made, answered)
    if (mark, source) != (rollout.applied_hash, rollout.pods_source):
        Rollout.objects.filter(pk=rollout.pk).update(applied_hash=mark, pods_source=source)


def _pod_source(version: ModelVersion | None) -> str:
    """Where a pod may fetch by itself; its credentials are its own namespace's, never Hearth's."""
    if version is None:
        return ""
    connection = replace(connection_spec(version.connection), secret_name="", namespaces=())
    return json.dumps({"connection": json.loads(codec.dumps(connection)), "uri": version.uri}, sort_keys=True)


def _weights(
    spec: EndpointSpec, targets: CacheTargets, rollout: Rollout, registered: Registered, warming: _Warming
) -> CacheFacts | None:
    if not spec.cache.weights or not spec.source.is_cacheable:
        return None
    if not targets.pools:
        return CacheFacts("Failed", 0, 0, targets.why)
    if registered.refused:
        return CacheFacts("Failed", 0, 0, registered.refused)
    if warming.pinned.no_room:
        return CacheFacts("Pending", 0, 0, warming.pinned.no_room)
    facts = cache_facts(warming.whole, moving=warming.moving, cold=warming.cold)
    return facts if facts.state == "Ready" else replace(facts, gate=_gate_words(spec, rollout, warming.gate))


def _gate_words(spec: EndpointSpec, rollout: Rollout, own: Gate | None) -> str:
    """That pods start although not every target is warm, where the document says so; "" while they do not."""
    some = spec.options.gate.type in (GateType.COUNT, GateType.PERCENT)
    if own is None or spec.options.gate.type is GateType.ALL:
        return ""
    if rollout.opened_at is None and own.state is not GateState.OPEN:
        return ""
    return f"The gate asks for {plural(own.required, 'node')} and is open." if some else "The gate is open."


def _warm_up(endpoint: Endpoint) -> WarmUpFacts:
    said = dict(endpoint.instances.filter(leaving=False).values_list("name", "warm_up"))
    failed = {name: why.rstrip(".") for name, why in said.items() if why not in ("", "ok")}
    return WarmUpFacts(len(said), sum(why == "ok" for why in said.values()), failed)


def _work(endpoint: Endpoint, rollout: Rollout, work: WorkloadStatus | None, waits: Waits) -> WorkFacts | None:
    if work is None:
        return None
    available = work.available
    if endpoint.instances.filter(leaving=True).exists():
        # Its controller may not have seen yet that they leave.
        available = min(available, endpoint.instances.filter(leaving=False, ready=True).count())
    current = work.observed and work.rollout == rollout.mark
    complete = current and is_whole(work)
    return WorkFacts(work.total, work.wanted, available, complete, work.failed, waits.reason, waits.sentence)
