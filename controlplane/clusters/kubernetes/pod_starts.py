"""What the status of a pod says of its starts. Pure.

The kubelet numbers a container's runs by its restart count, which rises when the next one starts: while it waits for
that, the last state is the run of this number, and afterwards of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from controlplane.clusters.kubernetes.names import AGENT_LABEL, ENDPOINT_LABEL, WEIGHTS_ANNOTATION
from controlplane.clusters.kubernetes.objects import time_of
from controlplane.clusters.kubernetes.pods import WARM_UP_CONTAINER
from controlplane.clusters.pod_runs import ContainerRun, ObservedPod

Json = Mapping[str, Any]
SERVER, ENSURE = "server", "ensure"
MESSAGE_LENGTH = 1000


def has_launches(metadata: Json) -> bool:
    """Whether its starts are launches: a pod of an endpoint, or one that says which weights it uses."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return (ENDPOINT_LABEL in labels or bool(annotations.get(WEIGHTS_ANNOTATION))) and not (
        AGENT_LABEL.items() <= labels.items()
    )


def observed_pod(pod: Json) -> ObservedPod | None:
    """None for one whose starts are no launches."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    created = time_of(metadata.get("creationTimestamp"))
    container = _serving(spec.get("containers") or ())
    if created is None or not container or not has_launches(metadata):
        return None
    conditions = {str(one.get("type")): one for one in status.get("conditions") or ()}
    runs = tuple(_runs(status.get("containerStatuses") or (), container))
    leaving, why = _leaving(metadata, status, conditions.get("DisruptionTarget") or {})
    return ObservedPod(
        uid=metadata["uid"],
        name=f"{metadata.get('namespace', '')}/{metadata['name']}",
        endpoint=str((metadata.get("labels") or {}).get(ENDPOINT_LABEL, "")),
        digest=_digest((metadata.get("annotations") or {}).get(WEIGHTS_ANNOTATION)),
        node_name=str(spec.get("nodeName") or ""),
        container=container,
        created_at=created,
        scheduled_at=_since(conditions.get("PodScheduled")) if spec.get("nodeName") else None,
        ready_at=_ready(conditions.get("Ready"), status.get("containerStatuses") or (), container, runs),
        leaving_at=leaving,
        leaving_reason=why,
        runs=runs,
        waits_to_restart=bool(runs) and leaving is None and _waits(status.get("containerStatuses") or (), container),
        ensures=tuple(_runs(status.get("initContainerStatuses") or (), ENSURE)),
    )


def _serving(containers: Iterable[Json]) -> str:
    """The one that Hearth calls the server, else the first that is not there for a warm-up."""
    found = [str(one.get("name") or "") for one in containers if one.get("name") != WARM_UP_CONTAINER]
    return SERVER if SERVER in found else next(iter(found), "")


def _digest(value: object) -> str:
    return next(iter(str(value or "").replace(",", " ").split()), "")[:80]


def _since(condition: Json | None) -> datetime | None:
    """When the condition became true; None while it is not."""
    if condition is None or condition.get("status") != "True":
        return None
    return time_of(condition.get("lastTransitionTime"))


def _ready(
    condition: Json | None, statuses: Iterable[Json], container: str, runs: tuple[ContainerRun, ...]
) -> datetime | None:
    """A pod says that it is ready for a moment after its container ended: that is no readiness of the next run."""
    at = _since(condition)
    ready = any(one.get("name") == container and one.get("ready") for one in statuses)
    if at is None or not ready or not runs or runs[-1].ended_at is not None:
        return None
    started = runs[-1].started_at
    return at if started is None or at >= started else None


def _waits(statuses: Iterable[Json], container: str) -> bool:
    return any(one.get("name") == container and "waiting" in (one.get("state") or {}) for one in statuses)


def _leaving(metadata: Json, status: Json, disruption: Json) -> tuple[datetime | None, str]:
    """When it was asked to go, and why."""
    if (at := _since(disruption)) is not None:
        return at, str(disruption.get("reason") or "Disrupted")
    if (at := time_of(metadata.get("deletionTimestamp"))) is not None:
        # Until then it has time to end.
        grace = timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0))
        return at - grace, str(status.get("reason") or "Deleted")
    if status.get("phase") == "Failed" and not status.get("containerStatuses"):
        # Its node would not have it (no device, no room any more), and nobody deletes such a pod.
        at = time_of(status.get("startTime")) or time_of(metadata.get("creationTimestamp"))
        return at, str(status.get("reason") or "Failed")
    return None, ""


def _runs(statuses: Iterable[Json], container: str) -> Iterator[ContainerRun]:
    for status in statuses:
        if status.get("name") != container:
            continue
        count, state, last = (
            int(status.get("restartCount") or 0),
            status.get("state") or {},
            status.get("lastState") or {},
        )
        now = next((state[one] for one in ("running", "terminated") if state.get(one) is not None), None)
        if (before := last.get("terminated")) and (now is None or count > 0):
            yield _run(container, count if now is None else count - 1, before)
        if now is not None:
            yield _run(container, count, now)


def _run(container: str, number: int, state: Json) -> ContainerRun:
    code = state.get("exitCode")
    reason = str(state.get("reason") or "")
    return ContainerRun(
        container=container,
        restart_count=number,
        started_at=time_of(state.get("startedAt")),
        ended_at=time_of(state.get("finishedAt")),
        exit_code=code if isinstance(code, int) else None,
        reason=f"{reason} {code}".strip() if code and reason in ("", "Error") else reason,
        message=str(state.get("message") or "")[:MESSAGE_LENGTH],
    )
