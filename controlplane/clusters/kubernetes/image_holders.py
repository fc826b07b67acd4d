"""The DaemonSet that holds one image on nodes of one pool: what is held is in use, so no kubelet collects it. Pure.

Where the cluster truly has image volumes, a small container that is on the nodes anyway mounts the image; elsewhere the
image itself runs a command that does nothing. Which nodes, the DaemonSet names one by one: the loop admits them in
batches, and a node that it takes back loses its pod.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import ImageHolder, Refused
from controlplane.clusters.kubernetes.agent_workload import toleration_object
from controlplane.clusters.kubernetes.names import IMAGES_NAMESPACE, MANAGED_BY

HOLDER_LABEL = {"app.kubernetes.io/name": "hearth-image"}
IMAGE_LABEL = "cache.hearth.dev/image"  # the first 12 hex digits of the digest
REFERENCE_ANNOTATION = "cache.hearth.dev/reference"
PRIORITY_CLASS = "hearth-images"
VOLUME = "image"
NAME_LENGTH = 63
NOBODY = 65534
# Ends at once when it is told to; the shell's own words but for sleep.
IDLE = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]
IDLE_HELPER = ["python", "-c", "import signal; signal.signal(15, lambda *_: exit(0)); signal.pause()"]

_REFERENCE = re.compile(r"[^\s@]{1,400}@sha256:(?P<hex>[0-9a-f]{64})")
_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def mark_of(reference: str) -> str:
    """The twelve digits by which names and labels tell images apart. Refused for what names no digest."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise Refused(f"{reference!r:.200} is no image by its digest.")
    return found["hex"][:12]


def pool_word(pool: str) -> str:
    """The pool in names and labels: itself, or shortened with a checksum where a name would be too long."""
    most = NAME_LENGTH - len("hearth-image--") - 12
    if len(pool) <= most and _PLAIN.fullmatch(pool):
        return pool
    mark = hashlib.sha256(pool.encode()).hexdigest()[:8]
    plain = re.sub("[^a-z0-9]", "-", pool.lower()).strip("-")
    return f"{plain[: most - 9].rstrip('-')}-{mark}".lstrip("-")


def holder_name(pool: str, reference: str) -> str:
    """``hearth-image-<pool>-<12 hex>``."""
    return f"hearth-image-{pool_word(pool)}-{mark_of(reference)}"


def holder_set(holder: ImageHolder, *, volume: bool = False) -> dict[str, Any]:
    """What Hearth applies. ``volume``: the cluster stores image volumes and its nodes mount them."""
    name, mark = holder_name(holder.pool, holder.reference), mark_of(holder.reference)
    labels = {**HOLDER_LABEL, POOL_LABEL: pool_word(holder.pool), IMAGE_LABEL: mark}
    marked = {"labels": {**MANAGED_BY, **labels}, "annotations": {REFERENCE_ANNOTATION: holder.reference}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": IMAGES_NAMESPACE, **marked},
        "spec": {
            "selector": {"matchLabels": labels},
            # Another set of nodes is another template: the pods that are there must not be made again for it.
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "template": {"metadata": marked, "spec": _pod(holder, volume)},
        },
    }


def _pod(holder: ImageHolder, volume: bool) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/os": "linux", **holder.node_selector},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _nodes(holder)}},
        "tolerations": [toleration_object(one) for one in holder.tolerations],
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(holder, volume)],
    }
    if volume:
        source = {"reference": holder.reference, "pullPolicy": "IfNotPresent"}
        pod["volumes"] = [{"name": VOLUME, "image": source}]
    if holder.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in holder.pull_secrets]
    return pod


def _nodes(holder: ImageHolder) -> dict[str, Any]:
    """A field may be compared with one name only, so each node is a term of its own."""
    terms: list[dict[str, Any]] = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in sorted(set(holder.nodes))
    ]
    if not terms:
        # No node both has and has not a label; an empty term is not allowed, and no term at all would be every node.
        terms = [{"matchExpressions": [{"key": POOL_LABEL, "operator": word} for word in ("Exists", "DoesNotExist")]}]
    return {"nodeSelectorTerms": terms}


def _container(holder: ImageHolder, volume: bool) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "holder",
        "image": holder.helper_image if volume else holder.reference,
        "imagePullPolicy": "IfNotPresent",
        "command": IDLE_HELPER if volume else IDLE,
        # An image for accelerators asks its runtime for all of them, by a variable of its own.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if volume:
        container["volumeMounts"] = [{"name": VOLUME, "mountPath": "/image", "readOnly": True}]
    return container


def keeps_volume(stored: dict[str, Any]) -> bool:
    """Whether a server that was given an image volume still has it in what it stored: older ones drop it silently."""
    volumes = stored["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume.get("name") == VOLUME and (volume.get("image") or {}).get("reference") for volume in volumes)


_RUNTIME = re.compile(r"(?P<name>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)")
_MOUNTING = {"containerd": (2, 1), "cri-o": (1, 31)}
_KUBELET = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)")
_MOUNTING_KUBELET = (1, 35)  # earlier ones only where somebody switched it on, which they tell nobody


def mounts_images(runtime: str, kubelet: str) -> bool:
    """Whether a node mounts images as volumes, by its runtime (``containerd://2.1.4``) and kubelet (``v1.35.0``): an
    older kubelet would wait for the volume for ever. Unknown ones do not."""
    found, agent = _RUNTIME.match(runtime), _KUBELET.match(kubelet)
    if found is None or agent is None or found["name"] not in _MOUNTING:
        return False
    able = (int(found["major"]), int(found["minor"])) >= _MOUNTING[found["name"]]
    return able and (int(agent["major"]), int(agent["minor"])) >= _MOUNTING_KUBELET
