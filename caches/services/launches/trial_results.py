"""What a trial found, from the launches that it provoked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from caches.domain.launches.events import CONTAINER
from caches.domain.launches.trials import KindResult, Measured, results_of
from caches.domain.launches.words import EventClass, LaunchState, launch_id
from caches.models import Launch, ModelVersion
from controlplane.clusters.models import Cluster

# Where the numbers may be taken for what they are not.
CAVEATS = (
    "A model that was read a moment ago comes from memory: cold pods load faster here than from a disk.",
    "Engines here take no accelerator: idle seconds are what one for each engine would have been idle.",
)


def launch_key(cluster: Cluster, engine_uid: str, restart_count: int) -> UUID:
    """The launch of that run of the engine."""
    return launch_id(cluster=cluster.name, pod_uid=engine_uid, container=CONTAINER, restart_count=restart_count)


def launches_settled(launches: Sequence[Sequence[str]]) -> bool:
    """Whether each was seen to be ready, and nothing that was seen of it waits."""
    keys = [key for _, key in launches]
    ready = Launch.objects.filter(pk__in=keys, state=LaunchState.READY, stale_at__isnull=True)
    return ready.exclude(ready_seconds=None).count() == len(set(keys))


def trial_result(params: Mapping[str, Any], *, after: Mapping[str, Any]) -> dict[str, Any]:
    """The operation's result: how each kind fared, every launch, and under which conditions."""
    found = Launch.objects.in_bulk([UUID(key) for _, key in params["_launches"]])
    version = ModelVersion.objects.select_related("model").get(pk=params["version_id"])
    measured = [(key, _measured(EventClass(kind), found.get(UUID(key)))) for kind, key in params["_launches"]]
    target = float(params["target_seconds"])
    return {
        "version": version.full_name,
        "model_bytes": params["size_bytes"],
        "runs": params["runs"],
        "seed": params["seed"],
        "target_seconds": target,
        "order": params["order"],
        "kinds": [_document(one) for one in results_of([one for _, one in measured], target)],
        "launches": [
            {
                "id": key,
                "wanted": one.wanted.value,
                "event_class": one.found.value,
                "weights": one.weights,
                "ready_seconds": one.ready_seconds,
                "idle_seconds": one.idle_seconds,
            }
            for key, one in measured
        ],
        "conditions": {**params.get("_conditions", {}), "load_after": after["load"]},
        "caveats": list(CAVEATS),
    }


def _measured(wanted: EventClass, launch: Launch | None) -> Measured:
    if launch is None:
        return Measured(wanted, EventClass.UNKNOWN, "Unknown", None, None)
    waiting = launch.phase_seconds[0] if launch.phase_seconds else None
    return Measured(wanted, EventClass(launch.event_class), launch.weights, launch.ready_seconds, waiting)


def _document(one: KindResult) -> dict[str, Any]:
    low, high = one.within_interval or (None, None)
    return {
        "event_class": one.wanted.value,
        "runs": one.runs,
        "labelled_so": one.as_wanted,
        "hits": one.hits,
        "seconds": list(one.seconds),
        "median_seconds": one.median,
        "p95_seconds": one.p95,
        "within_target": one.within,
        "within_target_low": low,
        "within_target_high": high,
        "idle_seconds": one.idle_seconds,
    }
