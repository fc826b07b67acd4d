"""Recorded requests against another policy or another number of instances: at once, or as an Operation where it takes
longer than a second. Nothing is changed by it, and nothing of it is kept but figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.errors import FieldError, Invalid, Missing
from controlplane.operations.models import FINAL_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_run,
    operation_start,
    operation_succeed,
)
from controlplane.serving.models import Variant
from routing.domain.figures import QUANTILES
from routing.domain.placement import Member
from routing.domain.policies import RoutingPolicy, policy_document
from routing.domain.recordings import RECORDED_MINUTES, Recording
from routing.domain.trying import FARTHEST, Column, Trial, members_of, try_out
from routing.selectors.names import names_of
from routing.selectors.policies import policy_in_force
from routing.services.explaining import published_fleet
from routing.services.policies import policy_read
from routing.services.recordings import recording_read

FEWEST = 2  # requests
MOST_INSTANCES, MOST_ROUTERS = 256, 64
AT_ONCE_SECONDS = 1.0
SECONDS_FOR_EACH = 60e-6  # request and run, and a third of that for each of its beginnings: measured on a slow machine


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be tried. ``document`` None: the policy in force; ``instances`` and ``routers`` 0: as many as now."""

    minutes: int
    document: Mapping[str, Any] | None = None
    instances: int = 0
    routers: int = 0

    def params(self) -> dict[str, Any]:
        return {
            "minutes": self.minutes,
            "document": self.document,
            "instances": self.instances,
            "routers": self.routers,
        }


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that a run needs; ``seconds`` that it may take."""

    asked: Asked
    policy: RoutingPolicy
    members: Sequence[Member]
    routers: int
    recording: Recording

    @property
    def seconds(self) -> float:
        some = self.recording.requests
        return SECONDS_FOR_EACH * (len(some) * (3 + len(self.members) / 5) + sum(len(one.boundaries) for one in some))


def replay_prepare(*, variant: Variant, asked: Asked) -> Prepared:
    """Raises errors.Invalid for what cannot be tried, Missing where too little is recorded, Transient while Redis does
    not answer or nothing was published."""
    for name, value, least, most in (
        ("minutes", asked.minutes, 1, RECORDED_MINUTES),
        ("instances", asked.instances, 0, MOST_INSTANCES),
        ("routers", asked.routers, 0, MOST_ROUTERS),
    ):
        if not least <= value <= most:
            raise _wrong(name, f"Must be a whole number from 1 to {most}.")
    policy = policy_read(asked.document) if asked.document is not None else policy_in_force(variant)[0]
    _, fleet = published_fleet(variant)
    config = fleet.endpoints[variant.endpoint.routed.name].variants[variant.name].config
    current = [one.member for one in config.instances if one.member.weight > 0]
    members = members_of(current, asked.instances or len(current))
    if not members:
        raise _wrong("instances", "No instance is ready: say how many there would be.")
    recording = recording_read(variant=variant, minutes=asked.minutes)
    if (count := len(recording.requests)) < FEWEST:
        raise Missing(
            "routing:recording:empty",
            f"{'One request was' if count else 'No requests were'} recorded in the last {asked.minutes} minutes.",
            next_step="Take a longer time, or wait for traffic."
            if policy_in_force(variant)[0].extensions.record_keys
            else "Turn on the recording of keys in the policy, and wait for traffic.",
        )
    return Prepared(asked, policy, members, asked.routers or fleet.config.routers, recording)


def replay_run(*, variant: Variant, prepared: Prepared) -> dict[str, Any]:
    """The result as REST shows it, as plain JSON."""
    began = time.perf_counter()
    trial = try_out(prepared.recording, prepared.policy, prepared.members, prepared.routers)
    names = names_of(variant, {*trial.happened.shares, *trial.tried.shares})
    first = prepared.recording.requests[0].at
    return {
        "variant_id": str(variant.pk),
        "since": _iso(first),
        "until": _iso(first + trial.seconds),
        "requests": trial.requests,
        "passed": trial.passed,
        "measured_hit_rate": trial.measured_hit_rate,
        "policy": policy_document(prepared.policy),
        "instances": len(prepared.members),
        "routers": prepared.routers,
        "happened": _column(trial.happened, names),
        "tried": _column(trial.tried, names),
        "widest": None
        if trial.widest is None
        else {name: _column(one, names) for name, one in zip(("happened", "tried"), trial.widest, strict=True)},
        "describes": trial.describes,
        "farthest": FARTHEST,
        "model": _model(trial),
        "assumptions": list(trial.assumptions),
        "took_seconds": round(time.perf_counter() - began, 3),
    }


def replay_start(*, actor: Actor, variant: Variant, asked: Asked) -> Operation:
    """The same as an Operation, whose ``result`` it becomes."""
    return operation_start(
        actor=actor,
        kind=OperationKind.ROUTING_REPLAY,
        subject_type="endpoint",
        subject_id=str(variant.endpoint_id),
        subject_name=f"{variant.endpoint.cluster.name} {variant.endpoint.full_name}",
        params={"variant_id": str(variant.pk), "asked": asked.params()},
    )


def replay_step(operation_id: UUID) -> bool:
    """The step of its Operation. Repeating it costs a repeat."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None or operation.state in FINAL_STATES:
        return True
    if operation.state == OperationState.CANCELING:
        operation_acknowledge(operation_id=operation_id, message="Nothing was replayed.")
        return True
    operation_run(operation_id=operation_id)
    rows = Variant.objects.select_related("endpoint__cluster", "endpoint__routed")
    variant = rows.filter(pk=operation.params["variant_id"]).first()
    if variant is None:
        raise Missing("routing:variant:not-found", "The variant is gone.", next_step="List the endpoints.")
    prepared = replay_prepare(variant=variant, asked=Asked(**operation.params["asked"]))
    result = replay_run(variant=variant, prepared=prepared)
    if not operation_succeed(operation_id=operation_id, result=result, message=f"{result['requests']} requests."):
        operation_acknowledge(operation_id=operation_id, message="Cancelled while it ran.")
    return True


def replay_get(*, variant: Variant, operation_id: UUID) -> Operation:
    """Raises errors.Missing, also for one of another variant."""
    found = Operation.objects.filter(pk=operation_id, kind=OperationKind.ROUTING_REPLAY).first()
    if found is None or found.params.get("variant_id") != str(variant.pk):
        raise Missing(
            "routing:replay:not-found",
            f"There is no replay {operation_id} of this variant.",
            next_step="Start one.",
        )
    return found


def _column(column: Column, names: Mapping[str, str]) -> dict[str, Any]:
    low, high = column.band
    ttft = (None if one is None else round(one, 6) for one in column.ttft)
    return {
        "hit_rate": None if column.hit_rate is None else round(column.hit_rate, 4),
        "ttft": dict(zip(QUANTILES, ttft, strict=True)),
        "spill": None if column.spill is None else round(column.spill, 4),
        "saturated": None if column.saturated is None else round(column.saturated, 4),
        "band": [round(low, 4), round(high, 4)],
        "outside": column.outside,
        "shares": [
            {"uid": uid, "name": uid if uid.startswith("new-") else names[uid], "share": round(share, 4),
             "fair": column.fair[uid]}
            for uid, share in column.shares.items()
        ],
    }  # fmt: skip


def _model(trial: Trial) -> dict[str, Any]:
    shape = trial.shape
    return {
        "cache_blocks": shape.cache_blocks,
        "cache_blocks_that_fit": list(trial.sizes),
        "block_tokens": shape.block_tokens,
        "prefill_tokens_per_second": round(shape.prefill_rate, 1),
        "decode_tokens_per_second": round(shape.decode_rate, 2),
    }


def _iso(at: float) -> str:
    return datetime.fromtimestamp(min(at, timezone.now().timestamp()), UTC).isoformat().replace("+00:00", "Z")


def _wrong(name: str, detail: str) -> Invalid:
    return Invalid(
        "request:user:invalid",
        f"{name}: {detail}",
        next_step=f"Correct {name}.",
        errors=[FieldError(name, "invalid", detail)],
    )
