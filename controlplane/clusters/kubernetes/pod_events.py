"""Events of pods whose starts are launches, told after the pods themselves: the two come over two watches.

Remembers uids, and a bounded number of events that wait for their pod; most are of pods that nobody asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from controlplane.clusters.gateway import ClusterEvent
from controlplane.clusters.kubernetes import objects

# What is not in the status of the pod already.
REASONS = frozenset(
    {"FailedScheduling", "Pulling", "Pulled", "Failed", "BackOff", "Killing", "Preempted", "Evicted",
     "TaintManagerEviction", "NodeNotReady", "FailedMount", "FailedCreatePodSandBox"}
)  # fmt: skip
MOST_WAITING = 2000
WAITS_SECONDS = 60.0
# By then whoever reads the pods has handed the pod on.
AFTER_SECONDS = 1.0
_LONG_AGO = float("-inf")


def pod_event(item: Mapping[str, Any]) -> ClusterEvent | None:
    """An event that says something of a pod's start, None for any other."""
    about = item.get("involvedObject") or {}
    if about.get("kind") != "Pod" or not about.get("uid") or item.get("reason") not in REASONS:
        return None
    return objects.observed_event(item)


class Launching:
    """Uids of the pods whose starts are launches: those of the latest listing and of the one before it. The reader of
    pods writes them, and the reader of events asks."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._clock = now
        self._seen: dict[str, float] = {}  # since when
        self._before: dict[str, float] = {}
        self._waiting: dict[str, tuple[float, ClusterEvent]] = {}  # by the event's uid, the longest first

    @property
    def is_empty(self) -> bool:
        return not self._seen and not self._before

    def turn(self) -> None:
        """A complete listing of pods starts."""
        self._before, self._seen = self._seen, {}

    def add(self, uid: str, *, listed: bool = False) -> None:
        """``listed``: whoever reads events does so after the listing, however many there are."""
        if uid not in self._seen:
            self._seen[uid] = self._before.get(uid, _LONG_AGO if listed else self._clock())

    def learn(self, uids: Iterable[str]) -> None:
        """Pods that are known although nobody reads them."""
        self._before = dict.fromkeys(uids, _LONG_AGO)

    def takes(self, event: ClusterEvent) -> bool:
        """Whether the event can be told now; otherwise it waits for its pod, for a while."""
        if self._known(event.object_uid):
            self._waiting.pop(event.uid, None)
            return True
        self._waiting.pop(event.uid, None)
        self._waiting[event.uid] = self._clock(), event
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return False

    def late(self) -> Sequence[ClusterEvent]:
        """Events whose pod is known by now."""
        if not self._waiting:
            return []
        over = self._clock() - WAITS_SECONDS
        for uid in [uid for uid, (since, _) in self._waiting.items() if since < over]:
            del self._waiting[uid]
        told = [event for _, event in self._waiting.values() if self._known(event.object_uid)]
        for event in told:
            del self._waiting[event.uid]
        return told

    def _known(self, uid: str) -> bool:
        since = self._seen.get(uid, self._before.get(uid))
        return since is not None and self._clock() - since >= AFTER_SECONDS
