"""What a trial does to the local fleet: an endpoint of its own on nodes of its own, and all of it away again.

Every verb looks first and does what is missing, so that a repeat changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from caches.domain.launches.words import TRIAL_NAME, TRIAL_NAMESPACE, is_trial
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import Conflict, NotFound
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.scaling import endpoint_scale, engine_kill
from controlplane.clusters.local.serving import (
    ENDPOINT_LABEL,
    endpoint_end,
    endpoint_serve,
    endpoints_all,
    engines_all,
)
from controlplane.clusters.models import Cluster

POOL = "trial"  # no pool of Hearth's selects it: nothing is warmed there
SPARE = 1.5  # of the model's size: a node of a trial holds this model and no other
LEAST_DISK = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TrialFleet:
    """``name`` is the trial's endpoint and begins the names of its nodes."""

    fleet: LocalFleet
    name: str

    @classmethod
    def of(cls, cluster: Cluster, name: str) -> TrialFleet:
        return cls(LocalFleet(Path(cluster.address)), name)

    def serve(self, digest: str, model: str) -> None:
        """An endpoint without engines."""
        with self.fleet.store.read() as session:
            known = any(one.name == self.name for one in endpoints_all(session))
        if not known:
            endpoint_serve(self.fleet.store, self.name, digest, replicas=0, model=model, at_once=True)

    def node(self, number: int, size_bytes: int) -> str:
        """The trial's n-th node, which is empty when it is new; its name."""
        name = f"{self.name}-{number}"
        with contextlib.suppress(Conflict):
            self.fleet.add(name, pool=POOL, capacity_bytes=max(LEAST_DISK, int(size_bytes * SPARE)))
        return name

    def start_on(self, node: str) -> None:
        """One engine, on that node."""
        endpoint_scale(self.fleet, self.name, 1, node=node)

    def stop(self) -> bool:
        """No engine any more; True once it is gone."""
        endpoint_scale(self.fleet, self.name, 0)
        return self.engine() is None

    def crash(self) -> None:
        """Kill the engine's process."""
        engine_kill(self.fleet, self.name)

    def engine(self) -> Consumer | None:
        """The one engine, as the fleet knows it now."""
        with self.fleet.store.read() as session:
            found = [one for one in engines_all(session).values() if one.labels[ENDPOINT_LABEL] == self.name]
        return next(iter(found), None)

    def clear(self) -> None:
        """Take away everything that has the trial's name."""
        endpoint_end(self.fleet.store, self.name)
        for row in self.fleet.nodes():
            if row.node.name.startswith(f"{self.name}-"):
                with contextlib.suppress(NotFound):
                    self.fleet.remove(row.node.name)


def trials_left(cluster: Cluster, going_on: Collection[str]) -> list[str]:
    """Names of trials that nobody drives any more and that left something in the fleet."""
    fleet = LocalFleet(Path(cluster.address))
    with fleet.store.read() as session:
        names = {one.name for one in endpoints_all(session)}
    names |= {row.node.name.rpartition("-")[0] for row in fleet.nodes()}
    return sorted(name for name in names if is_trial(f"{TRIAL_NAMESPACE}/{name}") and name not in going_on)


def conditions(cluster: Cluster, *, name: str) -> Mapping[str, Any]:
    """What the machine is and does: whoever repeats a trial needs it to compare."""
    fleet = LocalFleet(Path(cluster.address))
    with fleet.store.read() as session:
        others = sum(one.labels[ENDPOINT_LABEL] != name for one in engines_all(session).values())
    nodes = [row for row in fleet.nodes() if not row.node.name.startswith(TRIAL_NAME)]
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "engine": f"llama.cpp (xllamacpp {_version('xllamacpp')}), on the CPU",
        "nodes": len(nodes),
        "other_engines": others,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
