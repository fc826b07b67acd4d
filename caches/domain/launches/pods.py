"""What a pod's status says of its launches: which run it is about, and what was seen of it. A pure function of the
status, so that whoever hears of a pod twice has seen nothing new."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from caches.domain.launches.events import Runs, ensured
from caches.domain.launches.observations import Observation, facts_of
from caches.domain.launches.words import Clock, Mark, Observer
from controlplane.clusters.pod_runs import ObservedPod

Run = tuple[int, Observation]


def pod_observations(pod: ObservedPod, node_uid: str = "") -> Runs:
    """(restart count, observation) of everything that the pod says; ``node_uid`` of the machine that it was placed on,
    "" while that is not known."""
    return [*_placed(pod, node_uid), *_ensured(pod), *_runs(pod, node_uid), *_left(pod)]


def latest_run(pod: ObservedPod) -> int:
    """The run that is going on, or that is waited for."""
    if not pod.runs:
        return 0
    return pod.runs[-1].restart_count + pod.waits_to_restart


def run_began(pod: ObservedPod, run: int) -> datetime | None:
    """When a run's launch began; None where the run before it is no longer told of."""
    if run == 0:
        return pod.created_at
    return next((one.ended_at for one in pod.runs if one.restart_count == run - 1), None)


def _names(pod: ObservedPod) -> dict[str, object]:
    endpoint = f"{pod.name.partition('/')[0]}/{pod.endpoint}" if pod.endpoint else ""
    return {"pod": pod.name, "endpoint": endpoint, "digest": pod.digest}


def _placed(pod: ObservedPod, node_uid: str) -> Iterator[Run]:
    yield 0, Observation(Observer.CLUSTER, Mark.CREATED, pod.created_at, facts=facts_of(_names(pod)))
    if pod.scheduled_at is not None:
        facts = facts_of({"node": pod.node_name, "node_uid": node_uid})
        yield 0, Observation(Observer.CLUSTER, Mark.SCHEDULED, pod.scheduled_at, facts=facts)


def _ensured(pod: ObservedPod) -> Iterator[Run]:
    """Every attempt of the ensure step: of the run that came after it, which is the first unless the pod began anew."""
    begun = {one.restart_count + 1: one.ended_at for one in pod.runs if one.ended_at is not None}
    for attempt in pod.ensures:
        started, ended = attempt.started_at, attempt.ended_at
        run = max((run for run, at in begun.items() if started is not None and started >= at), default=0)
        if started is not None:
            yield run, Observation(Observer.ENSURE, Mark.ENSURE_STARTED, started, clock=Clock.NODE)
        if ended is not None:
            yield run, ensured(ended, attempt.message, Clock.NODE, failed=bool(attempt.exit_code))


def _runs(pod: ObservedPod, node_uid: str) -> Iterator[Run]:
    for one in pod.runs:
        if one.started_at is not None:
            yield one.restart_count, Observation(Observer.CLUSTER, Mark.STARTED, one.started_at, clock=Clock.NODE)
        if one.ended_at is not None:
            facts = facts_of({"reason": one.reason[:200]})
            yield (
                one.restart_count,
                Observation(Observer.CLUSTER, Mark.ENDED, one.ended_at, clock=Clock.NODE, facts=facts),
            )
    latest = latest_run(pod)
    if latest > 0 and (began := run_began(pod, latest)) is not None:
        facts = facts_of({**_names(pod), "node": pod.node_name, "node_uid": node_uid})
        yield latest, Observation(Observer.CLUSTER, Mark.RESTARTED, began, clock=Clock.NODE, facts=facts)
    if pod.ready_at is not None:
        yield latest, Observation(Observer.READINESS, Mark.READY, pod.ready_at, clock=Clock.NODE)


def _left(pod: ObservedPod) -> Iterator[Run]:
    if pod.leaving_at is not None:
        facts = facts_of({"reason": pod.leaving_reason[:200]})
        yield latest_run(pod), Observation(Observer.CLUSTER, Mark.ENDED, pod.leaving_at, facts=facts)
