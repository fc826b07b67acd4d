"""Pods as an API server has them while their containers come and go; times are seconds after one moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

T0 = datetime(2030, 3, 31, 0, 30, tzinfo=UTC)
DIGEST = f"sha256:{'a1' * 32}"
FOUND = '{"found": "miss", "bytes": 1048576, "seconds": 7.5, "source": "models", "message": ""}'


def moment(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(at: float) -> dict[str, Any]:
    return {"running": {"startedAt": stamp(at)}}


def ended(since: float, at: float, code: int = 0, reason: str = "", message: str = "") -> dict[str, Any]:
    reason = reason or ("Error" if code else "Completed")
    told = {"startedAt": stamp(since), "finishedAt": stamp(at), "exitCode": code, "reason": reason}
    return {"terminated": {**told, **({"message": message} if message else {})}}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def container(
    state: dict[str, Any],
    *,
    count: int = 0,
    last: dict[str, Any] | None = None,
    ready: bool = False,
    name: str = "server",
) -> dict[str, Any]:
    """One line of containerStatuses."""
    return {"name": name, "restartCount": count, "state": state, "lastState": last or {}, "ready": ready}


def pod(
    *statuses: dict[str, Any],
    ensure: dict[str, Any] | None = None,
    node: str = "n-1",
    ready: float | None = None,
    scheduled: float | None = 1,
    disrupted: tuple[float, str] | None = None,
    containers: tuple[str, ...] = ("server",),
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """A pod of the endpoint default/chat, made at T0 and placed on n-1."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": stamp(at), "reason": reason}
        for kind, at, reason in (
            ("PodScheduled", scheduled, ""),
            ("Ready", ready, ""),
            ("DisruptionTarget", *(disrupted or (None, ""))),
        )
        if at is not None
    ]
    return {
        "metadata": {
            "name": "chat-0",
            "namespace": "default",
            "uid": "pod-uid",
            "creationTimestamp": stamp(0),
            "labels": {"hearth.dev/endpoint": "chat"} if labels is None else labels,
            "annotations": {"cache.hearth.dev/weights": DIGEST} if annotations is None else annotations,
            **metadata,
        },
        "spec": {"containers": [{"name": name} for name in containers], **({"nodeName": node} if node else {})},
        "status": {
            "conditions": conditions,
            "containerStatuses": list(statuses),
            "initContainerStatuses": [ensure] if ensure else [],
        },
    }
