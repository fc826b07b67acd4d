"""Fleets of simulated nodes: objects that look like nodes to everything but a kubelet.

A thousand of them are there in seconds, on the same API server as real ones. They carry a label and a taint
``hearth.dev/simulated``, so that pods keep away. Start the cluster with a long ``silence``: nobody renews leases.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from urllib.parse import urlsplit

from controlplane.embedded.kube.api import ApiError, Client, Document

LABEL = "hearth.dev/simulated"
_TAINT = {"key": LABEL, "value": "true", "effect": "NoSchedule"}
_THREADS = 8
_PATIENCE = 30.0  # seconds for one call
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class SimulatedFleet:
    """``size`` nodes ``<prefix>-0000``, ``<prefix>-0001`` and so on; use as many fleets as there are pools."""

    def __init__(
        self, client: Client, size: int, *, prefix: str = "sim", labels: Mapping[str, str] = _NO_LABELS
    ) -> None:
        self.names = [f"{prefix}-{index:04}" for index in range(size)]
        self.uids: dict[str, str] = {}
        self._labels = {**labels, LABEL: "true"}
        self._client = client
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    def create(self) -> None:
        """Create every node, Ready."""
        self._each(self._create, self.names)

    def set_ready(self, ready: bool, names: Sequence[str] = ()) -> None:
        """Let nodes (all of them unless named) become Ready, or not Ready."""
        status = {"status": {"conditions": [_condition(ready)]}}

        def change(name: str) -> None:
            self._call("PATCH", f"/api/v1/nodes/{name}/status", status, "application/strategic-merge-patch+json")

        self._each(change, names or self.names)

    def replace(self, name: str) -> str:
        """Another machine under the same name; returns its uid."""

        def swap(name: str) -> None:
            self._call("DELETE", f"/api/v1/nodes/{name}")
            self._create(name)

        self._each(swap, [name])
        return self.uids[name]

    def report(self, resource: str, status: Callable[[str], Document], names: Sequence[str] = ()) -> None:
        """Write the status of each node's object of a kind such as ``/apis/<group>/<version>/<plural>``."""

        def write(name: str) -> None:
            body = {"status": status(name)}
            self._call("PATCH", f"{resource}/{name}/status", body, "application/merge-patch+json")

        self._each(write, names or self.names)

    def delete(self) -> None:
        """Remove every node that was created."""
        self._each(lambda name: self._call("DELETE", f"/api/v1/nodes/{name}"), list(self.uids))
        self.uids.clear()

    def _create(self, name: str) -> None:
        node: Document = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**self._labels, "kubernetes.io/hostname": name}},
            "spec": {"taints": [_TAINT]},
            "status": {
                "conditions": [_condition(True)],
                "addresses": [{"type": "Hostname", "address": name}],
                "capacity": {"cpu": "64", "memory": "512Gi", "pods": "110"},
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
            },
        }
        # The status counts when a node is created, unlike that of custom resources.
        made = self._call("POST", "/api/v1/nodes", node, "application/json")
        self.uids[name] = str(made["metadata"]["uid"])

    def _each(self, work: Callable[[str], object], names: Iterable[str]) -> None:
        self._local = threading.local()
        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="simulated-fleet") as pool:
                for _ in pool.map(work, names):
                    pass
        finally:
            while self._open:
                self._open.pop().close()

    def _call(self, verb: str, path: str, body: Document | None = None, kind: str = "application/json") -> Document:
        """One call on this thread's own connection: a handshake for each would cost more than the call."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            address = urlsplit(self._client.server)
            host = address.hostname or ""
            if address.scheme == "https":
                connection = http.client.HTTPSConnection(
                    host, address.port, timeout=_PATIENCE, context=self._client.tls
                )
            else:
                connection = http.client.HTTPConnection(host, address.port, timeout=_PATIENCE)
            self._local.connection = connection
            self._open.append(connection)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(verb, path, body=data, headers={"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._local.connection = None
            raise ApiError(0, f"{verb} {path} failed: {error}") from error
        if answer.status >= 300:
            raise ApiError(answer.status, f"{verb} {path} was refused ({answer.status}): {text[:500]!r}")
        return dict(json.loads(text))


def _condition(ready: bool) -> Document:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "Simulated",
        "message": "",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
