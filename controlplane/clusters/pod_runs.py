"""What a cluster says of the starts of one pod: where it was placed, and every run of its containers that is known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One run of one container, by its node's clock; None is not known. ``reason``: why it ended (``OOMKilled``,
    ``Error 137``), ``message``: what it left behind when it did."""

    container: str
    restart_count: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod of an endpoint, or one that says which weights it uses. Created, scheduled and leaving by the server's
    clock, the others by the node's; None has not happened.

    ``container`` is the one that serves and ``runs`` are its, the latest last; ``waits_to_restart`` after that one.
    ``ensures`` are runs of the step that makes the weights present. ``ready_at``: since when the latest run is ready.
    """

    uid: str
    name: str  # namespace/name
    endpoint: str  # by its label; "" for a pod of somebody else
    digest: str  # what it says it uses; "" for none
    node_name: str  # "" before it is placed
    container: str
    created_at: datetime
    scheduled_at: datetime | None = None
    ready_at: datetime | None = None
    leaving_at: datetime | None = None
    leaving_reason: str = ""
    runs: tuple[ContainerRun, ...] = ()
    waits_to_restart: bool = False
    ensures: tuple[ContainerRun, ...] = ()
