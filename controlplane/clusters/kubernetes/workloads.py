"""Deployments by name, and the logs of a pod by its uid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.watches import listed


def workload_path(namespace: str, name: str) -> str:
    """Where a Deployment lies; NotFound for what cannot be a name."""
    for part in (namespace, name):
        if not names.is_object_name(part):
            raise NotFound(f"{part!r:.80} cannot be the name of an object.")
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


def pod_logs(client: KubeClient, known: Callable[[], Mapping[str, str]], uid: str, max_bytes: int) -> bytes:
    """The first ``max_bytes`` of the first container's log. NotFound when no pod has the uid."""
    name = known().get(uid) or _find(client, uid)
    namespace, _, pod = name.partition("/")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    stored = client.get(path)
    if stored["metadata"]["uid"] != uid:
        raise NotFound(f"Pod {name} is another one now; {uid} is gone.")
    container = stored["spec"]["containers"][0]["name"]
    query = {"container": container, "limitBytes": max(1, max_bytes)}
    return client.text(f"{path}/log", query, max_bytes=max_bytes)


def _find(client: KubeClient, uid: str) -> str:
    def named(item: Mapping[str, Any]) -> str | None:
        metadata = item["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}" if metadata["uid"] == uid else None

    found, _ = listed(client, names.PODS, {}, named, only_metadata=True)
    if not found:
        raise NotFound(f"No pod has the uid {uid}.")
    return found[0]
