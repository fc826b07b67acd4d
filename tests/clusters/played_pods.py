"""An API server's answers about pods that are starting and change over and over, in place of the client that asks."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.clock import ServerClock
from tests.clusters.pod_documents import DIGEST

STATES = ("ContainerCreating", "PodInitializing", "ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff")
NODES = 40


class PlayedPods:
    """``count`` pods on NODES nodes. ``lines`` of a watch are as many as were ``put``, then its end."""

    def __init__(self, count: int) -> None:
        self.clock = ServerClock()
        self.now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.there = dict.fromkeys(range(count), 0)  # how often each changed
        self.version = 1
        self._told: deque[tuple[str, int, int]] = deque()
        self._quiet = threading.Event()  # never set: whoever watches while nothing happens waits a moment
        self._nodes = [self._named(f"n-{number}") for number in range(NODES)]

    def put(self, change: str, number: int) -> None:
        """ADDED, MODIFIED or DELETED, of the pod of that number; the next watch tells it."""
        if change == "DELETED":
            self.there.pop(number)
        else:
            self.there[number] = self.there.get(number, 0) + 1
        self._told.append((change, number, self.there.get(number, 0)))

    @property
    def waits(self) -> int:
        return len(self._told)

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, only_metadata: str = "") -> Mapping[str, Any]:
        if path == names.PODS:
            return self._page([*self.there], query or {})
        if path == names.NODES:
            return {"items": self._nodes, "metadata": {"resourceVersion": "1"}}
        if path in (names.NODE_CACHES, names.ALL_EVENTS):
            return {"items": [], "metadata": {"resourceVersion": "1"}}
        if path == names.CLUSTER:
            return {"metadata": {"uid": "played"}}
        raise NotFound(path)

    @contextmanager
    def lines(self, path: str, query: Mapping[str, object], *, read_seconds: float) -> Iterator[Iterator[bytes]]:
        watched = path == names.PODS and "fieldSelector" not in query
        if not (watched and self._told):
            self._quiet.wait(0.1)
        yield self._lines() if watched else iter(())

    def _lines(self) -> Iterator[bytes]:
        while self._told:
            change, number, changes = self._told.popleft()
            self.version += 1
            document = {"type": change, "object": self.pod(number, changes)}
            yield json.dumps(document).encode()

    def _page(self, numbers: list[int], query: Mapping[str, Any]) -> Mapping[str, Any]:
        begin = int(query.get("continue") or 0)
        end = begin + int(query.get("limit") or len(numbers))
        following = {"continue": str(end)} if end < len(numbers) else {}
        items = [self.pod(number, self.there[number]) for number in numbers[begin:end]]
        return {"items": items, "metadata": {"resourceVersion": str(self.version), **following}}

    def pod(self, number: int, changes: int) -> dict[str, Any]:
        """A pod that is not ready, as many restarts behind it as it changed often."""
        restarts = max(0, changes - len(STATES))
        return {
            "metadata": {
                **self._named(f"pod-{number}")["metadata"],
                "namespace": "default",
                "resourceVersion": str(self.version),
                "annotations": {names.WEIGHTS_ANNOTATION: DIGEST},
            },
            "spec": {
                "nodeName": f"n-{number % NODES}",
                "containers": [{"name": "server", "image": "none", "env": [{"name": "A", "value": "x" * 500}]}],
            },
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now}],
                "containerStatuses": [
                    {
                        "name": "server",
                        "restartCount": restarts,
                        "state": {"waiting": {"reason": STATES[changes % len(STATES)]}},
                        "lastState": self._last(restarts),
                        "ready": False,
                    }
                ],
            },
        }

    def _last(self, restarts: int) -> dict[str, Any]:
        if not restarts:
            return {}
        return {"terminated": {"startedAt": self.now, "finishedAt": self.now, "exitCode": 1, "reason": "Error"}}

    def _named(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": self.now}, "status": {}}
