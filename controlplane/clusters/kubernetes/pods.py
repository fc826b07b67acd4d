"""Which digests a pod holds. Pure.

A pod names digests by a mount below ``…/hearth/weights/<folder>`` of a hostPath, or by annotation. A pod that mounts
a store and names none holds everything in it, because nobody can know what it opened.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controlplane.clusters.documents import ANY_DIGEST, Consumer
from controlplane.clusters.kubernetes.names import AGENT_LABEL, ENDPOINT_LABEL, NODES_NAMESPACE, WEIGHTS_ANNOTATION
from controlplane.clusters.kubernetes.pod_waits import wait_of

Json = Mapping[str, Any]
WARM_UP_CONTAINER = "warm-up"
_IN_STORE = re.compile(r"/hearth(?:/(?P<inside>.*))?\Z", re.DOTALL)
_FOLDER = re.compile(r"weights/(sha256)-([0-9a-f]{64})(?:/.*)?\Z", re.DOTALL)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


def consumer_of(pod: Json, node_uid: str, *, ended: bool = False) -> Consumer | None:
    """The consumer that a pod is, None for a pod that holds nothing: terminal, not placed, or without any of it. One of
    an endpoint counts all the same, except a terminal one. With ``ended`` what a pod was, whatever its phase."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    serves = ENDPOINT_LABEL in (metadata.get("labels") or {})
    if not ended and status.get("phase") in ("Succeeded", "Failed"):
        return None
    digests = _digests(pod)
    if not serves and not (digests and spec.get("nodeName")):
        return None
    statuses = status.get("containerStatuses") or ()
    reason, message = wait_of(pod, excused=WARM_UP_CONTAINER)
    return Consumer(
        uid=metadata["uid"],
        name=f"{metadata.get('namespace', '')}/{metadata['name']}",
        node_name=str(spec.get("nodeName") or ""),
        node_uid=node_uid,
        digests=digests,
        ready=_ready(metadata, status),
        # The warm-up's container ends once when it is done, which is no restart of anything that serves.
        restart_count=sum(int(one.get("restartCount", 0)) for one in statuses if one.get("name") != WARM_UP_CONTAINER),
        labels=dict(metadata.get("labels") or {}),
        address=str(status.get("podIP") or ""),
        warm_up=_warm_up(statuses),
        wait_reason=reason,
        wait_message=message,
        leaving=bool(metadata.get("deletionTimestamp")),
    )


def _ready(metadata: Json, status: Json) -> bool:
    """One that is on its way out finishes what it has and gets nothing new, though its kubelet still calls it ready."""
    conditions = status.get("conditions") or ()
    is_ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return is_ready and not metadata.get("deletionTimestamp")


def _warm_up(statuses: Iterable[Json]) -> str:
    """What the warm-up's container said when it ended."""
    for status in statuses:
        if status.get("name") != WARM_UP_CONTAINER:
            continue
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            if ended := state.get("terminated"):
                return _outcome(str(ended.get("message") or ""), ended.get("exitCode"))
    return ""


def _outcome(message: str, code: object) -> str:
    try:
        said = json.loads(message)
        if isinstance(said, dict) and isinstance(said.get("warm"), bool):
            return "ok" if said["warm"] else str(said.get("message") or "It failed.")[:300]
    except ValueError:
        pass
    return f"It ended with exit code {code} and said nothing."


def _digests(pod: Json) -> frozenset[str]:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    if metadata.get("namespace") == NODES_NAMESPACE and AGENT_LABEL.items() <= labels.items():
        return frozenset()
    named = set(_annotated(metadata))
    blind = False
    for inside in _mounts(pod.get("spec") or {}):
        if match := _FOLDER.match(inside):
            named.add(f"{match[1]}:{match[2]}")
        else:
            blind = True
    return frozenset(named) if named or not blind else frozenset({ANY_DIGEST})


def _annotated(metadata: Json) -> Iterator[str]:
    """What the annotation names. A word that is no digest may mean any: better too much than too little."""
    value = (metadata.get("annotations") or {}).get(WEIGHTS_ANNOTATION)
    for word in str(value or "").replace(",", " ").split():
        yield word if _DIGEST.match(word) else ANY_DIGEST


def _mounts(spec: Json) -> Iterator[str]:
    """For every mount of a store by any container: the path inside the store, "" for the store itself."""
    volumes = {
        volume.get("name"): str(volume["hostPath"].get("path", ""))
        for volume in spec.get("volumes") or ()
        if isinstance(volume.get("hostPath"), dict)
    }
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            for mount in container.get("volumeMounts") or ():
                host = volumes.get(mount.get("name"))
                if host is None:
                    continue
                # An expression is not known here; what it is put below is.
                below = str(mount.get("subPath") or "")
                path = posixpath.normpath(f"/{host}/{below}")
                if match := _IN_STORE.search(path):
                    yield match["inside"] or ""
