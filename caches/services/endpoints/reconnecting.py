"""A document that names another source connection for what is served: read through that one from then on.

Another connection may lead to other bytes under the same name, so the place is registered through it first. The same
bytes go on being served, and only who brings them is another one; other bytes are another rollout.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from caches.domain.endpoints.specs import EndpointSpec
from caches.domain.rollouts import SERVED, RolloutState
from caches.models import Rollout
from caches.services.endpoints.rollouts import rollout_begin
from caches.services.endpoints.versions import version_of
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.endpoints import WorkloadStatus
from controlplane.serving.models import Endpoint

ASK_AGAIN = timedelta(seconds=15)  # for a place that the new connection refused
LONGEST_CHAIN = 20  # of rollouts that never served, one after the other
REGISTERING = "What it leads to is being registered; what serves goes on."


def connection_follow(*, endpoint: Endpoint, rollout: Rollout, spec: EndpointSpec, now: datetime) -> Rollout:
    """The rollout that the document means with the connection that it names now; ``connection_problem`` says why that
    one is not read yet. Repeating it is harmless."""
    if rollout.connection == spec.options.connection:
        if rollout.connection_problem:  # it was taken back
            _note(rollout, "", None)
        return rollout
    if rollout.version is None:
        # Whatever it is, it is looked for through the new one anyway.
        return _moved(rollout, spec)
    asked = rollout.connection_asked_at
    waits = rollout.connection_problem not in ("", REGISTERING)
    if waits and asked is not None and now - asked < ASK_AGAIN:
        return rollout
    found = version_of(cluster=endpoint.cluster, spec=spec)
    if found.version is None and found.wanted:
        _note(rollout, found.refused or REGISTERING, now)
        return rollout
    if found.version is None or found.version.artifact_id == rollout.version.artifact_id:
        if found.version is not None and found.version.pk != rollout.version_id:
            _follow(rollout, found.version.pk)
            rollout.version = found.version
        return _moved(rollout, spec)
    return rollout_begin(endpoint=endpoint, spec=spec, version=found.version)


def connection_said(rollout: Rollout, spec: EndpointSpec, work: WorkloadStatus | None) -> str | None:
    """Why the connection that the document names is not what is served through, "" where it is; None where it names
    none. A rollout that failed served nobody, unless its pods came all the same."""
    if rollout.connection_problem or not spec.options.connection:
        return rollout.connection_problem or None
    if rollout.state in SERVED or rollout.connection == _served_through(rollout):
        return ""
    which = f"rollout to what it leads to (number {rollout.number})"
    if rollout.state != RolloutState.FAILED:
        return f"A {which} is on its way; what serves goes on until then."
    if work is not None and work.rollout == rollout.mark and is_whole(work):
        return ""
    return f"The {which} failed; what served before it goes on, through what it was read through then."


def is_whole(work: WorkloadStatus) -> bool:
    """Every replica is of the template that was applied last, and serves."""
    return work.observed and work.wanted == work.updated == work.total and work.available >= work.wanted


def _served_through(rollout: Rollout) -> str:
    """The connection of what served last before the rollout; its own where nothing did."""
    row = rollout.previous
    for _ in range(LONGEST_CHAIN):
        if row is None:
            break
        if row.state in SERVED:
            return row.connection
        row = row.previous
    return rollout.connection


def _follow(rollout: Rollout, version_id: object) -> None:
    Rollout.objects.filter(pk=rollout.pk, version=rollout.version_id).update(version=version_id)
    audit_write(
        actor=SYSTEM,
        action="rollout.connection",
        object_type="rollout",
        object_id=str(rollout.pk),
        object_name=f"{rollout.endpoint.full_name} {rollout.number}",
        before={"connection": rollout.connection},
        after={"version": str(version_id)},
        message="The document names another connection, which leads to the same bytes.",
    )


def _moved(rollout: Rollout, spec: EndpointSpec) -> Rollout:
    rollout.connection = spec.options.connection
    Rollout.objects.filter(pk=rollout.pk).update(connection=rollout.connection)
    _note(rollout, "", None)
    return rollout


def _note(rollout: Rollout, problem: str, now: datetime | None) -> None:
    rollout.connection_problem, rollout.connection_asked_at = problem[:1000], now
    Rollout.objects.filter(pk=rollout.pk).update(connection_problem=problem[:1000], connection_asked_at=now)
