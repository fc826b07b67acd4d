"""Controlled trials: launches of each kind provoked in random order on nodes that are the trial's own, and measured.

A trial is an operation. Its params say what comes next; every step looks at the fleet and does one thing, so that a
killed worker costs a repeat. What an ended trial left behind goes with the next sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.launches.trials import MOST_RUNS, order_of, seconds_left
from caches.domain.launches.words import EventClass
from caches.models import ModelVersion
from caches.selectors.launches.trials import versions_to_try
from caches.selectors.trials import trial_name
from caches.services.launches.trial_fleet import TrialFleet, conditions, trials_left
from caches.services.launches.trial_results import launch_key, launches_settled, trial_result
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import GatewayError
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.errors import Clash, FieldError, Invalid, Permanent, Transient
from controlplane.locks import transaction_lock
from controlplane.operations.models import ACTIVE_STATES, FINAL_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_progress,
    operation_start,
    operation_succeed,
)

PATIENCE = timedelta(minutes=10)  # for one launch: more than any engine of the local fleet takes
SETTLING = timedelta(seconds=90)  # for the last launch to be assembled
DEFAULT_RUNS, DEFAULT_TARGET = 5, 10.0
MOST_TARGET = 86400.0
SAID = 5  # versions that a refusal names


def trial_start(
    *, actor: Actor, cluster: Cluster, version: ModelVersion, runs: int, seed: int, target_seconds: float
) -> Operation:
    """Begin a trial: ``runs`` launches of each kind. Invalid for what cannot be tried, Clash while one goes on."""
    artifact = version.artifact
    if cluster.type != ClusterType.LOCAL:
        raise Invalid(
            "trial:user:cluster",
            f"{cluster.name} is no local fleet: a trial starts and kills engines, and makes nodes.",
            next_step="Name a local fleet, such as the one of 'make run'.",
        )
    if artifact is None:
        raise Invalid(
            "trial:user:version",
            f"{version.full_name} is not available: it has no files yet.",
            next_step="Wait until its registration has ended.",
        )
    if not artifact.servable_locally:
        raise _not_servable(version)
    _check(runs, target_seconds)
    with transaction.atomic():
        transaction_lock(f"trial:{cluster.pk}")
        active = Operation.objects.filter(kind=OperationKind.LAUNCH_TRIAL, subject_id=str(cluster.pk))
        twin = active.filter(state__in=ACTIVE_STATES).first()
        if twin is not None:
            raise Clash(
                "trial:user:running",
                f"A trial goes on in {cluster.name} already: operation {twin.pk}.",
                next_step="Wait for it, or cancel it.",
            )
        order = [kind.value for kind in order_of(runs, seed)]
        params = {
            "cluster_id": str(cluster.pk), "version_id": str(version.pk), "digest": artifact.digest,
            "size_bytes": artifact.size_bytes, "runs": runs, "seed": seed, "target_seconds": target_seconds,
            "order": order,
        }  # fmt: skip
        operation = operation_start(
            actor=actor,
            kind=OperationKind.LAUNCH_TRIAL,
            subject_type="cluster",
            subject_id=str(cluster.pk),
            subject_name=f"{cluster.name} {version.full_name}",
            params=params,
        )
        audit_write(
            actor=actor, action="trial.start", object_type="cluster", object_id=str(cluster.pk),
            object_name=cluster.name, before=None, operation_id=operation.pk,
            after={"version": version.full_name, "runs": runs, "seed": seed, "target_seconds": target_seconds},
            message=f"A trial of {version.full_name}.",
        )  # fmt: skip
    return operation


def trial_step(*, operation_id: UUID) -> bool:
    """One look and at most one act. True while it waits for the fleet, and when it has ended."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None or operation.state in FINAL_STATES:
        return True
    cluster = Cluster.objects.get(pk=operation.params["cluster_id"])
    trial = _Trial(operation, cluster, TrialFleet.of(cluster, trial_name(operation.pk)), timezone.now())
    try:
        if operation.state == OperationState.CANCELING:
            trial.fleet.clear()
            operation_acknowledge(operation_id=operation_id, message="Everything that it made is gone.")
            return True
        return trial.step()
    except GatewayError as error:
        raise Transient("trial:fleet:unreachable", str(error), next_step="Is the fleet there?") from error
    except Permanent:
        trial.fleet.clear()
        raise


def trials_sweep() -> int:
    """Take away what trials left that nobody drives any more. Returns how many."""
    swept = 0
    for cluster in Cluster.objects.filter(type=ClusterType.LOCAL):
        active = Operation.objects.filter(kind=OperationKind.LAUNCH_TRIAL, state__in=ACTIVE_STATES)
        going_on = {trial_name(key) for key in active.values_list("pk", flat=True)}
        try:
            for name in trials_left(cluster, going_on):
                TrialFleet.of(cluster, name).clear()
                swept += 1
        except GatewayError:
            continue  # no fleet, nothing to sweep
    return swept


@dataclass(slots=True)
class _Trial:
    """``order`` is preceded by one launch that is not measured: the first of a version at an endpoint is a new version.

    params that a retry begins without: ``_at`` is which launch comes (0 is the one before), ``_expects`` the engine and
    run that it is once it was provoked, ``_node`` the number of the node in use, ``_launches`` what is over.
    """

    operation: Operation
    cluster: Cluster
    fleet: TrialFleet
    now: datetime

    def step(self) -> bool:
        params = self.operation.params
        at = params.get("_at", 0)
        if at > len(params["order"]):
            return self._conclude()
        if (expected := params.get("_expects")) is not None:
            return self._await(expected, at)
        return self._provoke(EventClass(params["order"][at - 1]) if at else None, at)

    def _provoke(self, kind: EventClass | None, at: int) -> bool:
        """Bring the launch about; the next steps wait for it. Whatever is cut short is provoked afresh."""
        self._prepare()
        engine = self.fleet.engine()
        if kind is EventClass.WARM_RESTART and engine is not None:
            self._expect(engine.uid, engine.restart_count + 1, at, measured=True)
            return False
        # The engine before is gone before the next one starts: they would share the machine.
        if engine is not None and not self.fleet.stop():
            return True
        node = self.operation.params.get("_node", 0)
        if kind in (None, EventClass.NEW_NODE):
            node += 1  # written before it is used: one that a killed worker used is new no more
            self._say(at, node=node)
        self.fleet.start_on(self.fleet.node(node, self.operation.params["size_bytes"]))
        if (engine := self.fleet.engine()) is not None:
            self._expect(engine.uid, 0, at, measured=kind in (EventClass.COLD_POD, EventClass.NEW_NODE))
        return True

    def _prepare(self) -> None:
        params = self.operation.params
        version = ModelVersion.objects.select_related("model").get(pk=params["version_id"])
        self.fleet.serve(params["digest"], version.model.name)
        if "_conditions" not in params:
            params["_conditions"] = dict(conditions(self.cluster, name=self.fleet.name))

    def _await(self, expected: Mapping[str, Any], at: int) -> bool:
        engine = self.fleet.engine()
        if engine is None or engine.uid != expected["uid"]:
            self._say(at, expects=None)  # somebody took it away: it is provoked again
            return False
        if engine.ready and engine.restart_count >= expected["restart"]:
            self._measured(engine, expected, at)
            return False
        if self.now - datetime.fromisoformat(expected["since"]) > PATIENCE:
            raise Permanent(
                "trial:fleet:not-ready",
                f"A launch was not ready after {PATIENCE.total_seconds() / 60:.0f} minutes.",
                next_step="Look at the launch, and at the fleet's log.",
            )
        if engine.ready:  # what is to crash has not yet
            self.fleet.crash()
        return True

    def _measured(self, engine: Consumer, expected: Mapping[str, Any], at: int) -> None:
        launches = [*self.operation.params.get("_launches", [])]
        if expected["measured"]:
            key = launch_key(self.cluster, engine.uid, engine.restart_count)
            launches.append([self.operation.params["order"][at - 1], str(key)])
        following = at + 1 if expected["measured"] or not at else at
        self._say(following, expects=None, launches=launches)

    def _conclude(self) -> bool:
        """The last launch is assembled a moment after it was ready."""
        params = self.operation.params
        since = datetime.fromisoformat(params.setdefault("_measured_at", self.now.isoformat()))
        if not launches_settled(params.get("_launches", [])) and self.now - since < SETTLING:
            operation_progress(operation_id=self.operation.pk, params=params, message="Waiting for the last launch.")
            return True
        result = trial_result(self.operation, after=conditions(self.cluster, name=self.fleet.name))
        self.fleet.clear()
        operation_succeed(operation_id=self.operation.pk, result=result, message="Every launch was measured.")
        return True

    def _expect(self, uid: str, restart: int, at: int, *, measured: bool) -> None:
        since = self.now.isoformat()
        self._say(at, expects={"uid": uid, "restart": restart, "since": since, "measured": measured})

    def _say(self, at: int, **changes: Any) -> None:
        """Write where it is. A cancel that came meanwhile wins: nothing is written then, and the next step sees it."""
        params = self.operation.params
        params |= {"_at": at, **{f"_{name}": value for name, value in changes.items()}}
        done, total = len(params.get("_launches", [])), len(params["order"])
        spent = (self.now - (self.operation.started_at or self.operation.created_at)).total_seconds()
        operation_progress(
            operation_id=self.operation.pk, params=params, message=f"{done} of {total} launches measured",
            eta_seconds=seconds_left(spent, done, total),
        )  # fmt: skip


def cluster_for_trials(name: str = "") -> Cluster:
    """The local fleet of that name, or the only one there is. Raises Invalid."""
    rows = Cluster.objects.filter(type=ClusterType.LOCAL)
    found = list(rows.filter(name=name) if name else rows.order_by("name")[:2])
    if len(found) != 1:
        raise Invalid(
            "trial:user:cluster",
            f"There is no local fleet {name}." if name else f"There are {len(found) or 'no'} local fleets.",
            next_step="Name the cluster of a local fleet, such as 'local' of 'make run'.",
            errors=[FieldError("cluster", "trial:user:cluster", "Not one local fleet.")],
        )
    return found[0]


def _not_servable(version: ModelVersion) -> Invalid:
    """Its engines would crash until patience is over, and their launches would be in every figure."""
    known = [one.full_name for one in versions_to_try()[: SAID + 1]]
    others = ", ".join(known[:SAID]) + (" and others" if len(known) > SAID else "")
    told = "Must be a single GGUF file."
    return Invalid(
        "trial:user:not-servable",
        f"{version.full_name} cannot be served by the engines of a local fleet: they serve a single GGUF file.",
        next_step=f"Name one that can be: {others}." if known else "Register a model that is a single GGUF file first.",
        errors=[FieldError("version", "trial:user:not-servable", told)],
    )


def _check(runs: int, target_seconds: float) -> None:
    wrong = []
    if not 1 <= runs <= MOST_RUNS:
        wrong.append(FieldError("runs", "trial:user:runs", f"Must be from 1 to {MOST_RUNS}."))
    if not 0 < target_seconds <= MOST_TARGET:
        wrong.append(FieldError("target_seconds", "trial:user:target", "Must be more than 0, and a day at most."))
    if wrong:
        raise Invalid(
            "trial:user:input", " ".join(f"{one.field}: {one.detail}" for one in wrong),
            next_step="Correct what is named.", errors=wrong,
        )  # fmt: skip
