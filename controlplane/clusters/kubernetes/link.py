"""NodeLink in a pod: how the agent of a Kubernetes node hears what it must do and says what it found.

Imports neither Django nor the official client. Every time in a status is stamped in the API server's time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from controlplane.clusters import codec
from controlplane.clusters.documents import Action, Desired, EntryState, Manifest, NodeCacheStatus, Origin
from controlplane.clusters.gateway import Conflict, GatewayError, NotFound, Refused, Unreachable
from controlplane.clusters.kubernetes import manifests, names, objects
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.own_cache import OwnCache
from controlplane.clusters.kubernetes.secrets import secret_read
from controlplane.clusters.kubernetes.watches import listed

Json = Mapping[str, Any]


def node_uid(client: KubeClient, node_name: str) -> str:
    """The uid that the node has now; NotFound when there is no such node."""
    if not names.is_object_name(node_name):
        raise NotFound(f"{node_name!r:.80} cannot be the name of a node.")
    node = client.get(f"{names.NODES}/{node_name}", only_metadata="PartialObjectMetadata")
    return str(node["metadata"]["uid"])


class KubernetesLink:
    """See caches.agent.link.NodeLink. ``close`` ends its watch."""

    def __init__(self, client: KubeClient, node_name: str, node_uid: str) -> None:
        if not names.is_object_name(node_name):
            raise NotFound(f"{node_name!r:.80} cannot be the name of a node.")
        self.node_name, self.node_uid = node_name, node_uid
        self._client = client
        self._own = OwnCache(client, node_name)
        self._path = f"{names.NODE_CACHES}/{node_name}"

    def close(self) -> None:
        self._own.close()

    def desired(self) -> Desired | None:
        stored = self._mine(self._own.current())
        if stored is None:
            return None
        try:
            spec = objects.spec_of(stored)
        except ValueError as error:
            raise Unreachable(f"The NodeCache {self.node_name} cannot be read: {error}") from None
        return Desired(generation=int(stored["metadata"]["generation"]), spec=spec)

    def wait(self, known_generation: int, timeout_seconds: float) -> bool:
        """See NodeLink.wait. A spec that is gone is no news: the agent goes on with the last one."""

        def news(stored: Json | None) -> bool:
            mine = self._mine(stored)
            return mine is not None and int(mine["metadata"]["generation"]) != known_generation

        return self._own.wait(news, timeout_seconds)

    def manifest(self, digest: str) -> Manifest:
        query = {"labelSelector": f"{names.MANIFEST_LABEL}={manifests.label_of(digest)}"}
        chunks, _ = listed(self._client, names.MANIFESTS, query, lambda item: item, page_items=8)
        return manifests.assembled(digest, chunks)

    def origin(self, digest: str) -> Origin:
        query = {"labelSelector": f"{names.MANIFEST_LABEL}={manifests.label_of(digest)}"}
        chunks, _ = listed(self._client, names.MANIFESTS, query, lambda item: item, only_metadata=True)
        return manifests.origin_of(digest, chunks)

    def secret(self, name: str) -> Mapping[str, str]:
        return secret_read(self._client, name)

    def report(self, status: NodeCacheStatus) -> None:
        """See NodeLink.report: one request while nothing is odd."""
        if (status.node_name, status.node_uid) != (self.node_name, self.node_uid):
            raise Conflict(f"This link writes for {self.node_name} {self.node_uid} only.")
        body = self._status(status)
        try:
            return self._write(body)
        except (NotFound, Refused):
            self._prepare()
        self._write(body)

    def _write(self, body: Json) -> None:
        """Replace the status, on the condition that the object is this incarnation's: one request for both."""
        steps = (
            {"op": "test", "path": "/spec/nodeUid", "value": self.node_uid},
            {"op": "add", "path": "/status", "value": body},
        )
        try:
            self._client.patch(f"{self._path}/status", steps, manager=names.AGENT_MANAGER)
        except Conflict as error:
            # Other writers were first, again and again. For the agent Conflict means that its node is another one.
            raise Unreachable(str(error)) from None

    def _status(self, status: NodeCacheStatus) -> Json:
        wanted = self._lines_wanted()
        ready = sum(1 for entry in status.entries if entry.state is EntryState.READY)
        summary = {"desired": wanted, "ready": ready, "free": _size(status.capacity.free_bytes)}
        return {**codec.encode(self._client.clock.to_server(status)), "summary": summary}

    def _lines_wanted(self) -> int:
        stored = self._mine(self._own.seen())
        lines = (stored or {}).get("spec", {}).get("desired") or ()
        return sum(1 for line in lines if line.get("action") == Action.ENSURE)

    def _prepare(self) -> None:
        """Make the NodeCache where there is none. Conflict when the node is another one now; Unreachable while the
        object of the machine that had the name before is still there."""
        try:
            if self._mine(self._client.get(self._path)) is not None:
                return
            self._still_there()
            raise Unreachable(f"The NodeCache of the machine that was {self.node_name} before is not gone yet.")
        except NotFound:
            self._still_there()
            with contextlib.suppress(Conflict):  # Hearth was first
                document = objects.first_node_cache(self.node_name, self.node_uid)
                self._client.create(names.NODE_CACHES, document, manager=names.AGENT_MANAGER)

    def _still_there(self) -> None:
        try:
            found = node_uid(self._client, self.node_name)
        except NotFound as error:
            raise Conflict(f"Node {self.node_name} is gone: {error}") from None
        if found != self.node_uid:
            raise Conflict(f"Node {self.node_name} is {found} now; this agent belongs to {self.node_uid}.")

    def event(self, reason: str, message: str) -> None:
        """Best effort: an event that the API server does not take is dropped."""
        event = objects.agent_event(
            node_name=self.node_name, node_uid=self.node_uid, reason=reason, message=message,
            at=self._client.clock.now(), instance=self.node_name,
        )  # fmt: skip
        with contextlib.suppress(GatewayError):
            self._client.create(names.EVENTS, event, manager=names.AGENT_MANAGER)

    def disk(self) -> tuple[int, int] | None:
        """None: a node's disk is what its file system says."""
        return None

    def _mine(self, stored: Json | None) -> Json | None:
        """The object if this incarnation owns it."""
        if stored is None or (stored.get("spec") or {}).get("nodeUid") != self.node_uid:
            return None
        return stored


def _size(count: float) -> str:
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(count) < 1024:
            return f"{count:.0f}{unit}" if count >= 10 or not unit else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.0f}Pi"
