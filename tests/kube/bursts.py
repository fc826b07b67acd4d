"""How long each pod of a burst took from the request for it until it was ready, by what its kubelet said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the request; None where nobody said it. ``found`` is what the ensure step said: hit, miss, …"""

    pod: str
    node: str
    found: str
    scheduled: float | None
    started: float | None  # the served container
    ready: float | None

    def __str__(self) -> str:
        steps = (("scheduled", self.scheduled), ("started", self.started), ("ready", self.ready))
        told = ", ".join(f"{name} {'unknown' if at is None else f'{at:.0f} s'}" for name, at in steps)
        return f"{self.pod} on {self.node}: {self.found or 'unknown'}; {told}"


def burst(requested: datetime, pods: Iterable[Json], events: Sequence[Json]) -> list[Start]:
    """One line for each pod that was made since the request, the first that was ready first. The API server's times
    are whole seconds: a pod of the request's own second counts."""
    since = requested.replace(microsecond=0)
    found = [_start(requested, pod, events) for pod in pods if _time(pod["metadata"]["creationTimestamp"]) >= since]
    return sorted(found, key=lambda one: (one.ready is None, one.ready, one.pod))


def _start(requested: datetime, pod: Json, events: Sequence[Json]) -> Start:
    conditions = {one["type"]: one for one in pod["status"].get("conditions") or () if one.get("status") == "True"}

    def turned(name: str) -> float | None:
        at = conditions.get(name, {}).get("lastTransitionTime")
        return _after(requested, at)

    return Start(
        pod=pod["metadata"]["name"],
        node=str(pod["spec"].get("nodeName") or ""),
        found=_found(pod),
        scheduled=turned("PodScheduled"),
        started=min((at for at in _started(requested, pod, events) if at is not None), default=None),
        ready=turned("Ready"),
    )


def _started(requested: datetime, pod: Json, events: Sequence[Json]) -> Iterable[float | None]:
    """When the kubelet started the served container; later times are those of its restarts."""
    for event in events:
        of = event.get("involvedObject") or {}
        is_mine = of.get("uid") == pod["metadata"]["uid"] and of.get("fieldPath") == "spec.containers{server}"
        if is_mine and event.get("reason") == "Started" and (event.get("source") or {}).get("component") == "kubelet":
            yield _after(requested, event.get("firstTimestamp") or event.get("eventTime"))


def _found(pod: Json) -> str:
    """What the ensure step ended with; "" while it has not."""
    for status in pod["status"].get("initContainerStatuses") or ():
        if status.get("name") == "ensure":
            message = status.get("state", {}).get("terminated", {}).get("message") or "{}"
            try:
                return str(json.loads(message).get("found", ""))
            except ValueError:
                return ""
    return ""


def _after(requested: datetime, at: str | None) -> float | None:
    return max(0.0, (_time(at) - requested).total_seconds()) if at else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
