"""Deployments by name, and the logs of a pod by its uid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.clusters.gateway import NodeUnreachable, NotFound, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.watches import listed

# A kubelet that has not begun to answer after that is silent, however long the API server itself waits for it.
KUBELET_SECONDS = 10.0


def workload_path(namespace: str, name: str) -> str:
    """Where a Deployment lies; NotFound for what cannot be a name."""
    for part in (namespace, name):
        if not names.is_object_name(part):
            raise NotFound(f"{part!r:.80} cannot be the name of an object.")
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


def pod_logs(
    client: KubeClient, name: str, uid: str, max_bytes: int, container: str = "", restart_count: int | None = None
) -> bytes:
    """See ClusterGateway.logs. The kubelet keeps the log of a container's run, and of the one before it.
    NodeUnreachable where it is silent."""
    namespace, _, pod = (name or _find(client, uid)).partition("/")
    if not (names.is_object_name(namespace) and names.is_object_name(pod)):
        raise NotFound(f"{name!r:.80} cannot be the name of a pod.")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    stored = client.get(path)
    if stored["metadata"]["uid"] != uid:
        raise NotFound(f"Pod {name} is another one now; {uid} is gone.")
    container = container or str(stored["spec"]["containers"][0]["name"])
    query: dict[str, object] = {"container": container, "limitBytes": max(1, max_bytes), "timestamps": "true"}
    if restart_count is not None and _is_previous(stored, container, restart_count):
        query["previous"] = "true"
    try:
        return client.text(f"{path}/log", query, max_bytes=max_bytes, read_seconds=KUBELET_SECONDS)
    except Unreachable as error:
        raise NodeUnreachable(str(error)) from None  # the API server has just answered; it is the kubelet that has to


def _is_previous(pod: Mapping[str, Any], container: str, restart_count: int) -> bool:
    """Whether it is the last run, and not the one of now. NotFound when it is neither."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    status: Mapping[str, Any] = next((one for one in statuses if one.get("name") == container), {})
    count, state = int(status.get("restartCount") or 0), status.get("state") or {}
    waits = not (state.get("running") or state.get("terminated"))
    if restart_count == (count if waits else count - 1) and (status.get("lastState") or {}).get("terminated"):
        return True
    if restart_count == count and not waits:
        return False
    raise NotFound(f"Nobody keeps the log of run {restart_count} of {container}.")


def _find(client: KubeClient, uid: str) -> str:
    def named(item: Mapping[str, Any]) -> str | None:
        metadata = item["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}" if metadata["uid"] == uid else None

    found, _ = listed(client, names.PODS, {}, named, only_metadata=True)
    if not found:
        raise NotFound(f"No pod has the uid {uid}.")
    return found[0]
