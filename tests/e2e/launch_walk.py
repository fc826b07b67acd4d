"""Each class of launch, provoked with engine processes and seen on the Cold starts page under its label."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caches.domain.launches.events import CONTAINER
from caches.domain.launches.losses import HEARD_WITHIN
from caches.domain.launches.words import launch_id
from controlplane.clusters.documents import Consumer
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.scaling import endpoint_scale, engine_kill
from controlplane.clusters.local.serving import ENDPOINT_LABEL, engines_all
from tests.waiting import until

Row = Mapping[str, Any]
PATIENCE = 240.0
NEW_NODE = "z-1"
SIZE = 512 * 1024 * 1024


class LaunchWalk:
    """``rows`` reads the launches that the page shows. The demo's endpoint is ``chat``, on two nodes."""

    def __init__(self, fleet: LocalFleet, rows: Callable[[], Sequence[Row]]) -> None:
        self._fleet, self._rows = fleet, rows

    def provoke(self) -> None:
        """A crash, one more on a node that served, one on a node that just came, and then that node is lost."""
        first, second = self._ready(2)
        self._seen({_id(first): "NewModelVersion", _id(second): "NewModelVersion"})
        endpoint_scale(self._fleet, "chat", 3, node=first.node_name)
        self._fleet.add(NEW_NODE, pool="pool-a", capacity_bytes=SIZE)
        endpoint_scale(self._fleet, "chat", 4, node=NEW_NODE)
        scaled = time.monotonic()
        engine_kill(self._fleet, second.uid)
        four = self._ready(4, crashed=second.uid)
        cold, new = sorted(
            (one for one in four if one.uid not in (first.uid, second.uid)), key=lambda one: one.node_name == NEW_NODE
        )
        self._seen({_id(cold): "ColdPodOnWarmNode", _id(new): "PodOnNewNode", _id(second, 1): "WarmPodRestart"})
        weights = {row["id"]: row["weights"] for row in self._rows()}
        assert weights[_id(cold)] == "Hit"
        # A busy machine starts an engine more slowly than a new node gets its copy.
        assert weights[_id(new)] in ("Hit", "Partial", "Miss")

        known = {one.uid for one in four}
        # A start just before a loss may have been its successor: the loss is heard of late.
        alone = scaled + HEARD_WITHIN.total_seconds() + 3
        until(lambda: time.monotonic() > alone, "no start before it counts", every=1)
        self._fleet.remove(NEW_NODE)
        (recovered,) = [one for one in self._ready(4, without=NEW_NODE) if one.uid not in known]
        self._seen({_id(recovered): "RecoveryAfterNodeLoss"})
        endpoint_scale(self._fleet, "chat", 2)

    def _ready(self, count: int, *, crashed: str = "", without: str = "") -> list[Consumer]:
        found: list[Consumer] = []

        def ready() -> bool:
            with self._fleet.store.read() as session:
                engines = [one for one in engines_all(session).values() if one.labels[ENDPOINT_LABEL] == "chat"]
            found[:] = sorted((one for one in engines if one.ready), key=lambda one: one.name)
            restarted = not crashed or any(one.uid == crashed and one.restart_count for one in found)
            return len(found) == count and restarted and without not in {one.node_name for one in found}

        until(ready, f"{count} engines are ready", seconds=PATIENCE, every=0.5)
        return list(found)

    def _seen(self, wanted: Mapping[str, str]) -> None:
        """On the page by their ids, ready and labelled so."""

        def labelled() -> bool:
            rows = {row["id"]: row for row in self._rows()}
            found = {key: rows[key]["event_class"] for key in wanted if key in rows and rows[key]["state"] == "Ready"}
            return found == dict(wanted)

        until(labelled, f"the page shows {sorted(wanted.values())}", seconds=PATIENCE, every=1)


def _id(engine: Consumer, run: int = 0) -> str:
    return str(launch_id(cluster="local", pod_uid=engine.uid, container=CONTAINER, restart_count=run))
