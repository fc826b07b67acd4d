"""The part of the gateway that is about endpoints, their workloads and the mirrors of their caches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from controlplane.clusters.endpoints import CacheMirror, EndpointName, EndpointOwner, MirrorKind, WorkloadStatus
from controlplane.clusters.gateway import Conflict, NotFound
from controlplane.clusters.kubernetes import endpoint_objects as objects
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.secrets import secret_value
from controlplane.clusters.kubernetes.workloads import workload_path

Json = Mapping[str, Any]


class KubernetesEndpoints:
    """See controlplane.clusters.endpoints.EndpointCalls."""

    client: KubeClient

    def endpoint_owner(self) -> EndpointOwner:
        try:
            return objects.owner_of(self.client.get(objects.API))
        except NotFound:
            return EndpointOwner.NOBODY

    def apply_endpoint(self, document: Json, *, dry_run: bool = False) -> None:
        metadata = document.get("metadata") or {}
        of = EndpointName(
            str(document.get("kind")), str(metadata.get("namespace") or "default"), str(metadata.get("name"))
        )
        path = objects.endpoint_path(of, api=objects.endpoint_api(str(document.get("apiVersion"))))
        self.client.apply(path, document, manager=names.MANAGER, dry_run=dry_run)

    def set_endpoint_cache(self, of: EndpointName, uid: str, config: Json) -> None:
        document = {
            "apiVersion": objects.API_VERSION,
            "kind": of.kind,
            "metadata": {"name": of.name, "namespace": of.namespace, "uid": uid},
            "spec": {"modelCacheConfig": dict(config)},
        }
        self.client.apply(objects.endpoint_path(of), document, manager=names.CACHE_MANAGER)

    def delete_endpoint(self, of: EndpointName, uid: str) -> None:
        self.client.delete(objects.endpoint_path(of), uid=uid)

    def set_endpoint_finalizer(self, of: EndpointName, uid: str, present: bool) -> None:
        path = objects.endpoint_path(of)
        try:
            metadata = self.client.get(path, only_metadata="PartialObjectMetadata")["metadata"]
        except NotFound:
            return
        had = list(metadata.get("finalizers") or ())
        if metadata["uid"] != uid or (names.FINALIZER in had) == present:
            return
        wanted = [*had, names.FINALIZER] if present else [name for name in had if name != names.FINALIZER]
        changed = {"uid": uid, "resourceVersion": metadata["resourceVersion"], "finalizers": wanted}
        self.client.merge(path, {"metadata": changed}, manager=names.MANAGER)

    def set_endpoint_status(self, of: EndpointName, uid: str, status: Json) -> None:
        path = objects.endpoint_path(of)
        steps: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        self.client.patch(f"{path}/status", steps, manager=names.MANAGER)

    def apply_served(self, deployment: Json, service: Json) -> None:
        metadata = service["metadata"]
        path = _service_path(metadata["namespace"], metadata["name"])
        self._ours(path)
        self.client.apply(path, service, manager=names.MANAGER)
        metadata = deployment["metadata"]
        path = workload_path(metadata["namespace"], metadata["name"])
        self._ours(path)
        try:
            self.client.apply(path, deployment, manager=names.MANAGER)
        except Conflict as error:
            # An autoscaler took the replicas over. Left out they stay as they are, for somebody else holds them.
            if not _is_about_replicas(error):
                raise
            without = copy.deepcopy(dict(deployment))
            del without["spec"]["replicas"]
            self.client.apply(path, without, manager=names.MANAGER)

    def delete_served(self, namespace: str, name: str) -> None:
        for path in (workload_path(namespace, name), _service_path(namespace, name)):
            try:
                uid = self._ours(path)
            except Conflict:
                continue  # somebody else's by the same name
            if uid:
                self.client.delete(path, uid=uid)

    def _ours(self, path: str) -> str:
        """The uid of what is there, "" where nothing is; Conflict when Hearth did not make it."""
        try:
            metadata = self.client.get(path, only_metadata="PartialObjectMetadata")["metadata"]
        except NotFound:
            return ""
        if not names.MANAGED_BY.items() <= (metadata.get("labels") or {}).items():
            raise Conflict(f"{path} was made by somebody else; Hearth does not touch it.")
        return str(metadata["uid"])

    def workload_status(self, namespace: str, name: str) -> WorkloadStatus | None:
        try:
            return objects.workload_status(self.client.get(workload_path(namespace, name)))
        except NotFound:
            return None

    def service_is_ours(self, namespace: str, name: str) -> bool | None:
        try:
            return bool(self._ours(_service_path(namespace, name))) or None
        except Conflict:
            return False

    def endpoint_secret(self, namespace: str, name: str, key: str) -> str:
        return secret_value(self.client, namespace, name, key)

    def apply_cache_mirror(self, mirror: CacheMirror) -> None:
        path = objects.mirror_path(mirror.kind, mirror.namespace, mirror.name)
        self.client.apply(path, objects.mirror_document(mirror), manager=names.MANAGER, force=True)
        self.client.merge(f"{path}/status", {"status": dict(mirror.status)}, manager=names.MANAGER)

    def delete_cache_mirror(self, kind: MirrorKind, namespace: str, name: str) -> None:
        self.client.delete(objects.mirror_path(kind, namespace, name))


def _service_path(namespace: str, name: str) -> str:
    return objects.object_path("/api/v1", "services", namespace, name)


def _is_about_replicas(error: Conflict) -> bool:
    return "spec.replicas" in str(error)
