"""Why a pod does not run what it should, as the scheduler and its kubelet say it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.clusters.documents import WaitReason
from controlplane.clusters.kubernetes.said import said

Json = Mapping[str, Any]
MESSAGE_LENGTH = 500
ENSURE = "ensure"  # the step of ours that makes the weights present
# What every container goes through.
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})
_REASONS = {
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError",
         "InvalidImageName", "SignatureValidationFailed"), WaitReason.IMAGE_PULL_FAILED
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "PreCreateHookError"), WaitReason.CONFIGURATION_ERROR
    ),
    "CrashLoopBackOff": WaitReason.CRASHING,
}  # fmt: skip


def wait_of(pod: Json, *, excused: str = "") -> tuple[str, str]:
    """The WaitReason and the cluster's own words for it, or "" twice. ``excused`` is a container whose ends are none of
    anybody's business: it ends once it is done."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if metadata.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return "", ""
    if not spec.get("nodeName"):
        return _unscheduled(status)
    for container in _containers(status):
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        word = str(waiting.get("reason") or "")
        name = str(container.get("name") or "")
        if word in _ON_ITS_WAY:
            if name != excused and (ended := _again(container)):
                return WaitReason.CRASHING, said(f"{name}: {ended}", MESSAGE_LENGTH)
            continue
        reason = _REASONS.get(word, WaitReason.START_FAILED)
        if reason is WaitReason.CRASHING and name == excused:
            continue
        ended = _ended(container) if reason is WaitReason.CRASHING else ""
        words = [name, word, ended, waiting.get("message")]
        return reason, said(": ".join(str(part) for part in words if part), MESSAGE_LENGTH)
    return _probed(spec, status, excused)


def _probed(spec: Json, status: Json, excused: str) -> tuple[str, str]:
    """The first container that runs and whose probe is waited for. Which one, and since when: what it answers instead
    is said in events alone."""
    made = {str(one.get("name")): one for one in spec.get("containers") or ()}
    for container in status.get("containerStatuses") or ():
        name, running = str(container.get("name") or ""), (container.get("state") or {}).get("running")
        if running is None or container.get("ready") or name == excused:
            continue
        kind = "readiness" if container.get("started") or "startupProbe" not in made.get(name, {}) else "startup"
        if probe := made.get(name, {}).get(f"{kind}Probe"):
            since = str(running.get("startedAt") or "").replace("T", " ").replace("Z", " UTC")
            runs = f"it runs since {since}" if since else "it runs"
            words = f"{name}: {runs}, and its {kind} probe has not succeeded yet: {_asked(probe)}"
            return WaitReason.NOT_ANSWERING, said(words, MESSAGE_LENGTH)
    return "", ""


def _asked(probe: Json) -> str:
    """What a probe asks, in a few words."""
    if web := probe.get("httpGet"):
        return f"GET {web.get('path') or '/'} on port {web.get('port')}"
    if (plain := probe.get("tcpSocket") or probe.get("grpc")) is not None:
        return f"a connection to port {plain.get('port')}"
    return "a command in the container"


def _containers(status: Json) -> Iterator[Json]:
    """Those that come first hold the others up."""
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _unscheduled(status: Json) -> tuple[str, str]:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            words = condition.get("message") or condition.get("reason") or "the scheduler says no more"
            return WaitReason.UNSCHEDULABLE, said(words, MESSAGE_LENGTH)
    return "", ""


def _again(container: Json) -> str:
    """How its last run ended, of one that runs again after an error and is not ready yet: it crashes until it is."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    before = state.get("terminated") or last.get("terminated") or {}
    if container.get("ready") or not container.get("restartCount") or not before.get("exitCode"):
        return ""
    return f"{_ended({**container, 'lastState': {'terminated': before}})}; it is started again"


def _ended(container: Json) -> str:
    """How its last run ended. What it left behind may be lines of its log, which are not for everybody; the ensure
    step alone says in a field of its own why it failed."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    code, why = ended.get("exitCode"), str(ended.get("reason") or "")
    if code is None:
        return ""
    told = _ensure_told(str(ended.get("message") or "")) if container.get("name") == ENSURE else ""
    words = f"it ended with exit code {code}" + (f" ({why})" if why and why != "Error" else "")
    return f"{words}: {told}" if told else words


def _ensure_told(left: str) -> str:
    try:
        found = json.loads(left)
    except ValueError:
        return ""
    return str(found.get("message") or "").rstrip(".") if isinstance(found, dict) and "found" in found else ""
