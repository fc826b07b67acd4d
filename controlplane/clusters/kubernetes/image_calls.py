"""Applying, removing and looking at holders on an API server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import Conflict, ImageHolder, ImagePresence, NotFound, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.image_holders import (
    HOLDER_LABEL,
    IMAGE_LABEL,
    REFERENCE_ANNOTATION,
    holder_name,
    holder_set,
    keeps_volume,
    mark_of,
    mounts_images,
    pool_word,
)
from controlplane.clusters.kubernetes.image_pods import listed_digests, node_of, presence_of
from controlplane.clusters.kubernetes.objects import time_of
from controlplane.clusters.kubernetes.watches import listed

Json = Mapping[str, Any]


def holder_apply(client: KubeClient, holder: ImageHolder) -> None:
    """See ClusterGateway.apply_image_holder."""
    document = holder_set(holder, volume=_has_volumes(client, holder))
    path = f"{names.IMAGE_DAEMON_SETS}/{holder_name(holder.pool, holder.reference)}"
    client.apply(path, document, manager=names.MANAGER)
    _remove_outlived(client, holder)


def holder_delete(client: KubeClient, pool: str, reference: str) -> None:
    """See ClusterGateway.delete_image_holder."""
    client.delete(f"{names.IMAGE_DAEMON_SETS}/{holder_name(pool, reference)}")


def holder_renew(client: KubeClient, pool: str, reference: str, node_name: str) -> None:
    """See ClusterGateway.renew_image_holder."""
    for pod in _pods(client, pool, reference):
        if (pod.get("spec") or {}).get("nodeName") == node_name and not pod["metadata"].get("deletionTimestamp"):
            _remove(client, pod)


def holders_list(client: KubeClient, pool: str) -> tuple[str, ...]:
    """The references that holders of this pool are there for."""

    def reference(item: Json) -> str | None:
        return (item["metadata"].get("annotations") or {}).get(REFERENCE_ANNOTATION)

    found, _ = listed(client, names.IMAGE_DAEMON_SETS, {"labelSelector": _labels(pool)}, reference, only_metadata=True)
    return tuple(sorted(set(found)))


def image_presences(client: KubeClient, pool: str) -> tuple[ImagePresence, ...]:
    """See ClusterGateway.image_presence."""
    nodes = _nodes(client)

    def seen(pod: Json) -> ImagePresence | None:
        uid, made_at = nodes.get(node_of(pod), ("", None))
        return presence_of(pod, uid, made_at) if uid else None

    found, _ = listed(client, names.IMAGE_PODS, {"labelSelector": _labels(pool)}, seen)
    return tuple(found)


def images_listed(client: KubeClient, node_name: str, node_uid: str) -> frozenset[str] | None:
    """See ClusterGateway.images_listed."""
    if not names.is_object_name(node_name):
        raise NotFound(f"{node_name!r:.80} cannot be the name of an object.")
    node = client.get(f"{names.NODES}/{node_name}")
    if node["metadata"]["uid"] != node_uid:
        raise NotFound(f"Node {node_name} is {node['metadata']['uid']} now; {node_uid} is gone.")
    return listed_digests(node)


def volumes_stored(client: KubeClient) -> bool:
    """Whether the server stores image volumes: it is asked to store one, and for nothing."""
    reference = f"hearth/probe@sha256:{'0' * 64}"
    probe = holder_set(ImageHolder("probe", reference, helper_image="none"), volume=True)
    path = f"{names.IMAGE_DAEMON_SETS}/{probe['metadata']['name']}"
    try:
        return keeps_volume(client.apply(path, probe, manager=names.MANAGER, dry_run=True))
    except (Refused, NotFound):
        return False


def _has_volumes(client: KubeClient, holder: ImageHolder) -> bool:
    if not holder.helper_image or not holder.nodes:
        return False

    def mounts(node: Json) -> tuple[str, bool]:
        info = (node.get("status") or {}).get("nodeInfo") or {}
        said = (str(info.get(name, "")) for name in ("containerRuntimeVersion", "kubeletVersion"))
        return node["metadata"]["name"], mounts_images(*said)

    found, _ = listed(client, names.NODES, {"labelSelector": _selector(holder.node_selector)}, mounts)
    able = [mounting for name, mounting in found if name in holder.nodes]
    if not able or not all(able):
        return False
    return volumes_stored(client)


def _remove_outlived(client: KubeClient, holder: ImageHolder) -> None:
    """Pods that are older than their node say nothing about it, and those that pull without the credentials of now do
    so for ever: the controller makes new ones."""
    pods = _pods(client, holder.pool, holder.reference)
    nodes = _nodes(client) if pods else {}
    for pod in pods:
        known = nodes.get((pod.get("spec") or {}).get("nodeName", ""))
        made_at = time_of(pod["metadata"].get("creationTimestamp"))
        outlived = known and known[1] is not None and made_at is not None and made_at < known[1]
        if outlived or not (_runs(pod) or set(holder.pull_secrets) <= _pull_secrets(pod)):
            _remove(client, pod)


def _runs(pod: Json) -> bool:
    """Whether it needs no pull any more."""
    told = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in (one.get("state") or {}) for one in told)


def _pull_secrets(pod: Json) -> set[str]:
    """Its account may have given it more."""
    return {str(one.get("name")) for one in (pod.get("spec") or {}).get("imagePullSecrets") or ()}


def _pods(client: KubeClient, pool: str, reference: str) -> list[Json]:
    """Those of one holder."""
    labels = f"{_labels(pool)},{IMAGE_LABEL}={mark_of(reference)}"
    found, _ = listed(client, names.IMAGE_PODS, {"labelSelector": labels}, lambda pod: pod)
    return list(found)


def _remove(client: KubeClient, pod: Json) -> None:
    """The very pod: the controller makes another one."""
    with suppress(Conflict):  # it was replaced meanwhile
        client.delete(f"{names.IMAGE_PODS}/{pod['metadata']['name']}", uid=pod["metadata"]["uid"])


def _nodes(client: KubeClient) -> dict[str, tuple[str, datetime | None]]:
    """Uid and time of making of every node, by name."""

    def fact(item: Json) -> tuple[str, tuple[str, datetime | None]]:
        metadata = item["metadata"]
        return metadata["name"], (metadata["uid"], time_of(metadata.get("creationTimestamp")))

    found, _ = listed(client, names.NODES, {}, fact, only_metadata=True)
    return dict(found)


def _labels(pool: str) -> str:
    return _selector({**HOLDER_LABEL, POOL_LABEL: pool_word(pool)})


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
