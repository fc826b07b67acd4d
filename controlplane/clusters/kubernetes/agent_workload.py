"""The DaemonSet that puts one agent on every node of a pool. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import PoolAgent, Refused, Toleration
from controlplane.clusters.kubernetes.names import AGENT_LABEL, MANAGED_BY, NODES_NAMESPACE
from controlplane.clusters.kubernetes.objects import time_of

SERVICE_ACCOUNT = "hearth-agent"
# Long enough for the agent to sync and journal what it has; what is partial is resumed by the next one.
GRACE_SECONDS = 60
LATE = timedelta(seconds=30)  # a busy node, or a clock that differs
NAME_LENGTH = 63  # a pod's label holds it
# Touched by the agent's loop, with the monotonic clock's time (caches/agent/alive.py). In memory: neither a full disk
# nor a slow one makes a sound agent look dead.
ALIVE_FOLDER = "/run/agent"
HEARTBEAT_FILE = f"{ALIVE_FOLDER}/heartbeat"
SILENT_SECONDS = 180  # longer than a round in which every request runs into its time limit
# No file is no verdict: an agent that never wrote one knows nothing of it. An age below zero is of another boot.
_PROBE = (
    f"import os, sys, time; f = '{HEARTBEAT_FILE}'; "
    f"sys.exit(os.path.exists(f) and abs(time.monotonic() - os.stat(f).st_mtime) > {SILENT_SECONDS})"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")


def daemon_set_name(pool: str) -> str:
    """``hearth-agent-<pool>``, shortened with a checksum where it would be too long; always an object's name."""
    name = f"hearth-agent-{pool}"
    if _LABEL.fullmatch(name):
        return name
    mark = hashlib.sha256(pool.encode()).hexdigest()[:8]
    plain = re.sub("[^a-z0-9]", "-", name.lower())
    return f"{plain[: NAME_LENGTH - 9].rstrip('-')}-{mark}"


def agents_selector(pool: str) -> str:
    """By which the pods of a pool's agents are listed."""
    labels = {**AGENT_LABEL, POOL_LABEL: daemon_set_name(pool).removeprefix("hearth-agent-")}
    return ",".join(f"{name}={value}" for name, value in labels.items())


def may_run(pod: Mapping[str, Any], now: datetime) -> bool:
    """Whether a process of the pod may still be there. One on a node that is dead is not waited for beyond its time:
    it is ended before anything else once the node is back."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    ends = time_of(pod["metadata"].get("deletionTimestamp"))
    return ends is None or now < ends + LATE


def daemon_set(agent: PoolAgent) -> dict[str, Any]:
    """What Hearth applies. Refused for a cache or source path that is no plain folder below the root."""
    path = agent.cache_path.rstrip("/")
    for folder in (path, *agent.source_paths):
        if not _PATH.fullmatch(folder) or {".", ".."} & set(folder.split("/")):
            raise Refused(f"{folder!r} is no folder of a node that an agent may have.")
    name = daemon_set_name(agent.pool)
    labels = {**AGENT_LABEL, POOL_LABEL: name.removeprefix("hearth-agent-")}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NODES_NAMESPACE, "labels": {**MANAGED_BY, **labels}},
        "spec": {
            "selector": {"matchLabels": labels},
            # One at a time: a pool never has more than one node without its agent because of an update.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "minReadySeconds": 5,
            "template": {"metadata": {"labels": {**MANAGED_BY, **labels}}, "spec": _pod(agent, path)},
        },
    }


def _pod(agent: PoolAgent, path: str) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "serviceAccountName": SERVICE_ACCOUNT,
        "nodeSelector": {"kubernetes.io/os": "linux", **agent.node_selector},
        "tolerations": [toleration_object(toleration) for toleration in agent.tolerations],
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(agent, path)],
        "volumes": [
            {"name": "store", "hostPath": {"path": path, "type": "DirectoryOrCreate"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "alive", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            *(_source(number, folder) for number, folder in enumerate(agent.source_paths)),
        ],
    }
    if agent.priority_class:
        pod["priorityClassName"] = agent.priority_class
    if agent.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in agent.image_pull_secrets]
    return pod


def _source(number: int, folder: str) -> dict[str, Any]:
    # Never made where it is missing: an empty folder would look like a source without files.
    return {"name": f"source-{number}", "hostPath": {"path": folder, "type": "Directory"}}


def _source_mount(number: int, folder: str) -> dict[str, Any]:
    """Where connections say it is. What the node mounts there later does not come in: it would come writable."""
    return {"name": f"source-{number}", "mountPath": folder, "readOnly": True, "recursiveReadOnly": "IfPossible"}


def _container(agent: PoolAgent, path: str) -> dict[str, Any]:
    command = ["python", "-m", "caches.agent", "--kubernetes", "--node", "$(NODE_NAME)", "--root", path]
    for folder in agent.source_paths:
        command += ["--source", folder]
    if agent.server:
        command += ["--server", agent.server]
    return {
        "name": "agent",
        "image": agent.image,
        "command": command,
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "HEARTH_HEARTBEAT_FILE", "value": HEARTBEAT_FILE},
        ],
        "livenessProbe": _liveness(),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            # Root inside, without any power over the machine: the store is root's, so that no other pod may write it.
            "runAsUser": 0,
            "runAsGroup": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "store", "mountPath": path},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "alive", "mountPath": ALIVE_FOLDER},
            *(_source_mount(number, folder) for number, folder in enumerate(agent.source_paths)),
        ],
    }


def _liveness() -> dict[str, Any]:
    """Ends an agent whose loop hangs; the next one goes on from its journal. Five times in a row, because agents that
    are restarted for a slow disk, a busy node or a silent API server do more harm than one that hangs."""
    return {
        "exec": {"command": ["python", "-I", "-S", "-c", _PROBE]},
        "initialDelaySeconds": 60,
        "periodSeconds": 60,
        "timeoutSeconds": 50,
        "failureThreshold": 5,
    }


def toleration_object(toleration: Toleration) -> dict[str, str]:
    """As it stands in a pod's specification."""
    made = {"operator": "Equal" if toleration.value else "Exists"}
    for name in ("key", "value", "effect"):
        if text := getattr(toleration, name):
            made[name] = text
    return made
