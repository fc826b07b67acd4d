"""ClusterGateway on an API server. See controlplane.clusters.gateway for what each call promises."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

from controlplane.clusters.documents import Consumer, Manifest, NodeCacheSpec, Origin
from controlplane.clusters.gateway import (
    Capabilities,
    Conflict,
    EventType,
    Gone,
    ImageHolder,
    ImagePresence,
    Kind,
    Listing,
    NotFound,
    Observed,
    PoolAgent,
    Refused,
    Unreachable,
    WatchEvent,
    Workload,
)
from controlplane.clusters.kubernetes import image_calls, manifests, names, objects
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.agent_workload import agents_selector, daemon_set, daemon_set_name, may_run
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.endpoint_calls import KubernetesEndpoints
from controlplane.clusters.kubernetes.errors import Invalid
from controlplane.clusters.kubernetes.kinds import Kinds
from controlplane.clusters.kubernetes.manifest_list import published_digests
from controlplane.clusters.kubernetes.secrets import (
    pull_secret_apply,
    pull_secret_delete,
    secret_apply,
    secret_delete,
)
from controlplane.clusters.kubernetes.taints import taint_set
from controlplane.clusters.kubernetes.watches import Told, listed, watched
from controlplane.clusters.kubernetes.workloads import pod_logs, workload_path

log = logging.getLogger(__name__)
ABSENT = "0"  # in a token: the cluster did not have the kind; no listing has this version
_TYPES = {"ADDED": EventType.ADDED, "MODIFIED": EventType.MODIFIED, "DELETED": EventType.DELETED}


class KubernetesGateway(KubernetesEndpoints):
    """``address`` as in access_for. Connects to nothing before the first call; thread-safe."""

    def __init__(self, address: str, *, client: KubeClient | None = None) -> None:
        self.client = client or KubeClient(lambda: access_for(address))
        self._mark = hashlib.sha256(address.encode()).hexdigest()[:12]
        self._kinds = Kinds(self.client)

    def capabilities(self) -> Capabilities:
        version = self.client.get("/version")
        return Capabilities(
            workloads=True,
            images=True,
            taints=True,
            server_side_apply=True,
            agents=True,
            version=f"kubernetes/{version.get('gitVersion', '')}",
        )

    # observation

    def list(self, kind: Kind) -> Listing:
        source = self._kinds.source(kind)
        source.begin()
        if not source.is_there():
            return Listing(items=(), token=self._token(kind, ABSENT))
        found: tuple[Sequence[Observed], str] = listed(self.client, source.path, source.query, source.listed)
        uid = self._cluster_uid() if kind is Kind.NODE else ""
        return Listing(items=tuple(found[0]), token=self._token(kind, found[1]), cluster_uid=uid)

    def watch(self, kind: Kind, token: str, timeout_seconds: float) -> Iterator[WatchEvent]:
        """See ClusterGateway.watch. Ends with a bookmark; changes that say nothing new to Hearth are left out."""
        version = self._version(kind, token)
        source = self._kinds.source(kind)
        if version == ABSENT:
            if source.is_there():
                raise Gone(f"The cluster has the kind {kind.value} now.")
            time.sleep(timeout_seconds)  # nothing can be watched
            yield WatchEvent(EventType.BOOKMARK, kind, token, None)
            return
        told_last: dict[str, Observed] = {}  # by uid, of this watch alone
        for told in watched(self.client, source.path, source.query, version, timeout_seconds):
            version = told.version
            if told.type == "BOOKMARK":
                yield WatchEvent(EventType.BOOKMARK, kind, self._token(kind, version), None)
                continue
            if (event := self._event(kind, told, told_last)) is not None:
                yield event
            yield from self._late(kind, version)
        yield from self._late(kind, version)
        yield WatchEvent(EventType.BOOKMARK, kind, self._token(kind, version), None)

    def _late(self, kind: Kind, version: str) -> Iterator[WatchEvent]:
        token = self._token(kind, version)
        return (WatchEvent(EventType.ADDED, kind, token, one) for one in self._kinds.source(kind).late())

    def _event(self, kind: Kind, told: Told, told_last: dict[str, Observed]) -> WatchEvent | None:
        source = self._kinds.source(kind)
        if told.type not in _TYPES:
            return None
        change, seen = _TYPES[told.type], source.changed(told.type, told.object)
        if seen is None:
            return None
        observed, ended = seen
        if ended:
            change = EventType.DELETED
        uid = str(told.object["metadata"].get("uid", ""))
        before = told_last.pop(uid, None)
        if change is not EventType.DELETED:
            told_last[uid] = observed
            if change is EventType.MODIFIED and before is not None and source.same(before, observed):
                return None
        return WatchEvent(change, kind, self._token(kind, told.version), observed)

    def consumers(self, node_name: str, node_uid: str) -> tuple[Consumer, ...]:
        self._incarnation(node_name, node_uid)
        return self._kinds.consumers_on(node_name, node_uid)

    # node caches

    def apply_node_cache(self, spec: NodeCacheSpec, *, take_over: bool = False) -> int:
        """See ClusterGateway: one request, and a second one about the node where the object is new or in the way."""
        path, document = self._object(names.NODE_CACHES, spec.node_name), objects.node_cache_document(spec)
        try:
            applied = self.client.apply(path, document, manager=names.MANAGER, force=take_over)
        except (Invalid, Conflict):
            # That of an earlier incarnation refuses every spec for this one: its uid is immutable, or its agent's.
            self._incarnation(spec.node_name, spec.node_uid)
            if not self._remove_earlier(path, spec.node_uid):
                raise
            applied = self.client.apply(path, document, manager=names.MANAGER)
        generation = int(applied["metadata"]["generation"])
        if generation == 1:
            self._only_for_the_living(path, spec, applied["metadata"]["uid"])
        return generation

    def _only_for_the_living(self, path: str, spec: NodeCacheSpec, uid: str) -> None:
        """Nobody looks after an object of a machine that is gone: take it back, NotFound."""
        try:
            self._incarnation(spec.node_name, spec.node_uid)
        except NotFound:
            self.client.delete(path, uid=uid)
            raise

    def _remove_earlier(self, path: str, node_uid: str) -> bool:
        try:
            stored = self.client.get(path)
        except NotFound:
            return True
        if (stored.get("spec") or {}).get("nodeUid") == node_uid:
            return False
        self.client.delete(path, uid=stored["metadata"]["uid"])
        return True

    def delete_node_cache(self, node_name: str, node_uid: str) -> None:
        path = self._object(names.NODE_CACHES, node_name)
        try:
            stored = self.client.get(path)
        except NotFound:
            return
        if (stored.get("spec") or {}).get("nodeUid") == node_uid:
            self.client.delete(path, uid=stored["metadata"]["uid"])

    def apply_manifest(self, manifest: Manifest, origin: Origin | None = None) -> None:
        wanted = {chunk["metadata"]["name"]: chunk for chunk in manifests.chunks_of(manifest)}
        note = manifests.origin_note(origin) if origin is not None else {}
        present = self._manifest_notes(manifest.digest)
        if present.keys() != wanted.keys():
            self._publish(manifest, wanted, present.keys(), note)
        for name in sorted(wanted.keys() & present.keys()):
            if note and not note.items() <= present[name].items():
                document = {"metadata": {"annotations": note}}
                self.client.merge(f"{names.MANIFESTS}/{name}", document, manager=names.MANAGER)

    def _publish(
        self, manifest: Manifest, wanted: Mapping[str, Any], present: AbstractSet[str], note: Mapping[str, str]
    ) -> None:
        if manifests.whole_sets(present - wanted.keys()):
            known = manifests.assembled(manifest.digest, self._manifest_chunks(manifest.digest))
            if manifests.identity(known) != manifests.identity(manifest):
                raise Conflict(f"{manifest.digest} is published with other files.")
        for name in sorted(wanted.keys() - present):
            chunk = {**wanted[name], "metadata": {**wanted[name]["metadata"], "annotations": dict(note)}}
            try:
                self.client.create(names.MANIFESTS, chunk, manager=names.MANAGER)
            except Conflict:
                continue  # another process publishes the same
        for name in sorted(present - wanted.keys()):
            self.client.delete(f"{names.MANIFESTS}/{name}")

    def delete_manifest(self, digest: str) -> None:
        for name in sorted(self._manifest_names(digest)):
            self.client.delete(f"{names.MANIFESTS}/{name}")

    def _manifest_names(self, digest: str) -> AbstractSet[str]:
        return self._manifest_notes(digest).keys()

    def _manifest_notes(self, digest: str) -> dict[str, Mapping[str, str]]:
        """The chunks of a digest by name, each with its annotations."""
        query = {"labelSelector": f"{names.MANIFEST_LABEL}={manifests.label_of(digest)}"}
        prefix = f"sha256-{digest[7:]}."

        def note(item: Mapping[str, Any]) -> tuple[str, Mapping[str, str]] | None:
            found = str(item["metadata"]["name"])
            return (found, item["metadata"].get("annotations") or {}) if found.startswith(prefix) else None

        found, _ = listed(self.client, names.MANIFESTS, query, note, only_metadata=True)
        return dict(found)

    def _manifest_chunks(self, digest: str) -> Sequence[Mapping[str, Any]]:
        query = {"labelSelector": f"{names.MANIFEST_LABEL}={manifests.label_of(digest)}"}
        chunks, _ = listed(self.client, names.MANIFESTS, query, lambda item: item, page_items=8)
        return chunks

    def manifests(self) -> Iterator[tuple[Manifest, Origin | None]]:
        for digest in published_digests(self.client):
            chunks = self._manifest_chunks(digest)
            try:
                manifest = manifests.assembled(digest, chunks)
            except (NotFound, Unreachable) as error:
                log.warning("%s", error)
                continue
            origin = None
            with contextlib.suppress(NotFound, Unreachable):
                origin = manifests.origin_of(digest, chunks)
            yield manifest, origin

    def apply_secret(self, name: str, data: Mapping[str, str]) -> None:
        secret_apply(self.client, name, data)

    def delete_secret(self, name: str) -> None:
        secret_delete(self.client, name)

    def apply_pull_secret(self, name: str, registry: str, username: str, password: str) -> None:
        pull_secret_apply(self.client, name, registry, username, password)

    def delete_pull_secret(self, name: str) -> None:
        pull_secret_delete(self.client, name)

    def set_node_labels(self, node_name: str, node_uid: str, labels: Mapping[str, str | None]) -> None:
        document = {"metadata": {"uid": node_uid, "labels": dict(labels)}}
        path = self._object(names.NODES, node_name)
        try:
            self.client.merge(path, document, manager=names.MANAGER)
        except Invalid as error:
            # A uid is immutable: that of another incarnation is refused like a value that is not allowed.
            self._incarnation(node_name, node_uid, otherwise=Conflict)
            raise error from None

    def set_node_taint(self, node_name: str, node_uid: str, taint: str, present: bool) -> None:
        taint_set(self.client, self._object(names.NODES, node_name), node_uid, taint, present)

    # agents

    def apply_agent(self, agent: PoolAgent) -> None:
        document = daemon_set(agent)
        self.client.apply(f"{names.DAEMON_SETS}/{daemon_set_name(agent.pool)}", document, manager=names.MANAGER)

    def delete_agent(self, pool: str) -> None:
        self.client.delete(f"{names.DAEMON_SETS}/{daemon_set_name(pool)}")

    def has_agents(self, pool: str) -> bool:
        pods = self.client.get(names.AGENT_PODS, {"labelSelector": agents_selector(pool)})
        return any(may_run(pod, datetime.now(UTC)) for pod in pods["items"])

    # images

    def apply_image_holder(self, holder: ImageHolder) -> None:
        image_calls.holder_apply(self.client, holder)

    def delete_image_holder(self, pool: str, reference: str) -> None:
        image_calls.holder_delete(self.client, pool, reference)

    def renew_image_holder(self, pool: str, reference: str, node_name: str) -> None:
        image_calls.holder_renew(self.client, pool, reference, node_name)

    def image_holders(self, pool: str) -> tuple[str, ...]:
        return image_calls.holders_list(self.client, pool)

    def image_presence(self, pool: str) -> tuple[ImagePresence, ...]:
        return image_calls.image_presences(self.client, pool)

    def images_listed(self, node_name: str, node_uid: str) -> frozenset[str] | None:
        return image_calls.images_listed(self.client, node_name, node_uid)

    # workloads

    def apply_workload(self, workload: Workload) -> None:
        path = workload_path(workload.namespace, workload.name)
        metadata = {**_mapping(workload.document.get("metadata")), "name": workload.name}
        document = {
            "apiVersion": "apps/v1", "kind": "Deployment", **workload.document,
            "metadata": {**metadata, "namespace": workload.namespace},
        }  # fmt: skip
        self.client.apply(path, document, manager=names.MANAGER)

    def delete_workload(self, namespace: str, name: str) -> None:
        self.client.delete(workload_path(namespace, name))

    def logs(
        self,
        consumer_uid: str,
        max_bytes: int,
        *,
        name: str = "",
        container: str = "",
        restart_count: int | None = None,
    ) -> bytes:
        known = name or self._kinds.pod_names().get(consumer_uid, "")
        return pod_logs(self.client, known, consumer_uid, max_bytes, container, restart_count)

    # helpers

    def _incarnation(self, node_name: str, node_uid: str, *, otherwise: type[NotFound | Conflict] = NotFound) -> None:
        node = self.client.get(self._object(names.NODES, node_name), only_metadata="PartialObjectMetadata")
        if node["metadata"]["uid"] != node_uid:
            raise otherwise(f"Node {node_name} is {node['metadata']['uid']} now; {node_uid} is gone.")

    def _cluster_uid(self) -> str:
        try:
            return str(self.client.get(names.CLUSTER, only_metadata="PartialObjectMetadata")["metadata"]["uid"])
        except (NotFound, Refused):
            return ""  # whoever installed Hearth did not allow it

    def _object(self, path: str, name: str) -> str:
        if not names.is_object_name(name):
            raise NotFound(f"{name!r:.80} cannot be the name of an object.")
        return f"{path}/{name}"

    def _token(self, kind: Kind, version: str) -> str:
        return f"{kind.value}.{self._mark}.{version}"

    def _version(self, kind: Kind, token: str) -> str:
        of_kind, _, rest = token.partition(".")
        mark, _, version = rest.partition(".")
        if of_kind != kind.value or mark != self._mark or not (version.isascii() and version.isdigit()):
            raise Gone("The token is of another kind or another cluster.")
        return version


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
