"""What a holder's pod says of its image on its node. Pure.

Only a container that runs is proof: lists of images on Node objects are cut off and old.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from controlplane.clusters.documents import Reason
from controlplane.clusters.gateway import ImagePresence
from controlplane.clusters.kubernetes.image_holders import REFERENCE_ANNOTATION
from controlplane.clusters.kubernetes.objects import time_of
from controlplane.clusters.kubernetes.said import said, without_query

Json = Mapping[str, Any]
MESSAGE_LENGTH = 500
FULL_LIST = 50  # a kubelet names no more images than that, the largest; others are told to name even fewer
SMALL = 16 * 1024 * 1024  # bytes: every node has an image as small as that, the one that all pods stand on

_PULLING = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULL_FAILED = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
_BAD_SIGNATURE = "SignatureValidationFailed"
# What registries and runtimes say, in the order in which it is looked for.
_WORDS: tuple[tuple[Reason, re.Pattern[str]], ...] = (
    (Reason.INSUFFICIENT_CAPACITY, re.compile(r"no space left|disk quota", re.IGNORECASE)),
    (
        Reason.INTEGRITY_MISMATCH,
        re.compile(r"digest mismatch|unexpected commit digest|failed commit|\bsignature\b|checksum", re.IGNORECASE),
    ),
    (
        Reason.INVALID_REQUEST,
        re.compile(r"no match for platform|no child with platform|invalid reference", re.IGNORECASE),
    ),
    (
        Reason.ACCESS_DENIED,
        re.compile(
            r"\b40[13]\b|unauthorized|forbidden|denied|authentication required|authorization failed|no basic auth",
            re.IGNORECASE,
        ),
    ),
)
_NOT_HOLDABLE = (
    "The image cannot be held: this cluster has no image volumes, and its command for that ends at once (it needs "
    "/bin/sh and sleep)."
)
# The runtime's and the kubelet's words for a container that they lost sight of, with its node or with themselves.
_LOST = frozenset({"Unknown", "ContainerStatusUnknown"})
AT_ONCE = timedelta(minutes=1)  # a command that ran for longer does what it is for: somebody ended it
_STOPPED = "The holder was stopped with its node, which says nothing of the image; the node starts it again."
_NOT_MOUNTED = "The image cannot be held: its node does not mount it as a volume."


def presence_of(pod: Json, node_uid: str, node_made_at: datetime | None) -> ImagePresence | None:
    """What the pod says; None where it belongs to no node or is no holder's."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    reference = str((metadata.get("annotations") or {}).get(REFERENCE_ANNOTATION, ""))
    node = node_of(pod)
    if not node or not reference:
        return None

    def found(ready: bool | None, reason: Reason | None = None, message: str = "", **more: bool) -> ImagePresence:
        word = reason.value if reason is not None else ""
        return ImagePresence(node, node_uid, reference, ready, word, said(message, MESSAGE_LENGTH), **more)

    if metadata.get("deletionTimestamp"):
        return found(False, message="The holder is being removed.", leaving=True)
    if not spec.get("nodeName"):
        return found(False, Reason.NODE_UNAVAILABLE, _unscheduled(pod))
    made_at = time_of(metadata.get("creationTimestamp"))
    if node_made_at is not None and made_at is not None and made_at < node_made_at:
        return found(None, message="The holder's pod is older than its node.")
    phase = (pod.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        status = pod["status"]
        return found(False, Reason.NODE_UNAVAILABLE, str(status.get("message") or status.get("reason") or phase))
    return _of_container(pod, reference, found)


def _of_container(pod: Json, reference: str, found: Callable[..., ImagePresence]) -> ImagePresence:
    status = next(iter((pod.get("status") or {}).get("containerStatuses") or ()), None)
    if status is None:
        return found(False, message="The node is about to pull it.")
    state = status.get("state") or {}
    if "running" in state:
        if status.get("imageID") and _runs(pod, reference):
            return found(True)
        return found(False, Reason.INTERNAL, "The holder runs another image.")
    waiting = state.get("waiting") or {}
    word, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if "terminated" not in state and word in _PULLING:
        return found(False, message="The node pulls it.")
    if word in _PULL_FAILED:
        return found(False, pull_reason(message), message or word)
    if word == _BAD_SIGNATURE:
        return found(False, Reason.INTEGRITY_MISMATCH, message or word)
    if word == "InvalidImageName":
        return found(False, Reason.INVALID_REQUEST, message or word)
    ended = _ended(status)
    if ("terminated" in state or word == "CrashLoopBackOff") and ended and not _ended_itself(ended):
        return found(None, message=_STOPPED)
    why = _why(ended) or message or word
    what = _NOT_MOUNTED if pod["spec"].get("volumes") else _NOT_HOLDABLE
    return found(False, Reason.INVALID_REQUEST, f"{what} {why}".strip(), holdable=False)


def pull_reason(message: str) -> Reason:
    """What a failed pull counts as: its own words decide, and what they do not tell is the registry's fault."""
    # An address may have anything in what follows its ?.
    told = without_query(message)
    return next((reason for reason, words in _WORDS if words.search(told)), Reason.SOURCE_UNAVAILABLE)


def listed_digests(node: Json) -> frozenset[str] | None:
    """The digests that a node lists; None where its list may be cut off and what it leaves out says nothing."""
    images = (node.get("status") or {}).get("images") or ()
    if len(images) >= FULL_LIST or (images and min(int(image.get("sizeBytes") or 0) for image in images) > SMALL):
        return None
    names = (str(name) for image in images for name in image.get("names") or ())
    return frozenset(name.rpartition("@")[2] for name in names if "@sha256:" in name)


def _runs(pod: Json, reference: str) -> bool:
    """Whether the pod's one container is of this image, or has it as a volume."""
    spec = pod["spec"]
    volumes = [(volume.get("image") or {}).get("reference") for volume in spec.get("volumes") or ()]
    return reference in volumes or any(one.get("image") == reference for one in spec.get("containers") or ())


def node_of(pod: Json) -> str:
    """The node that the pod is on, or that it waits for; "" where neither is said."""
    spec = pod.get("spec") or {}
    return str(spec.get("nodeName") or _wanted_node(spec))


def _wanted_node(spec: Json) -> str:
    """The node that a DaemonSet's pod waits for."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms") or ()
    names = [value for term in terms for field in term.get("matchFields") or () for value in field.get("values") or ()]
    return str(names[0]) if len(names) == 1 else ""


def _unscheduled(pod: Json) -> str:
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"The node takes no holder: {condition.get('message') or condition.get('reason') or ''}"
    return "The scheduler has not placed the holder yet."


def _conditions(pod: Json) -> Iterable[Json]:
    return (pod.get("status") or {}).get("conditions") or ()


def _ended(status: Json) -> Json:
    """How the container ended: now or, where it is about to start again, the last time."""
    states = (status.get("state") or {}, status.get("lastState") or {})
    return next((ended for state in states if (ended := state.get("terminated"))), {})


def _ended_itself(ended: Json) -> bool:
    """Whether its command came to its end, so that it would again."""
    if ended.get("reason") in _LOST:
        return False
    began_at, ended_at = time_of(ended.get("startedAt")), time_of(ended.get("finishedAt"))
    return began_at is None or ended_at is None or ended_at - began_at < AT_ONCE


def _why(ended: Json) -> str:
    if not ended or not _ended_itself(ended):
        return ""
    return str(ended.get("message") or f"It ended with {ended.get('exitCode')}.").strip()
