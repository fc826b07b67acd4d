"""What a trial found, from the launches that it provoked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from caches.domain.launches.events import CONTAINER
from caches.domain.launches.words import LaunchState, launch_id
from caches.models import Launch, ModelVersion
from caches.selectors.launches.trials import trial_beside, trial_found
from controlplane.clusters.models import Cluster
from controlplane.operations.models import Operation

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


def trial_result(operation: Operation, *, after: Mapping[str, Any]) -> dict[str, Any]:
    """The operation's result: how each kind fared, every launch, and under which conditions."""
    params = operation.params
    version = ModelVersion.objects.select_related("model").get(pk=params["version_id"])
    return {
        "version": version.full_name,
        "model_bytes": params["size_bytes"],
        "runs": params["runs"],
        "seed": params["seed"],
        "target_seconds": float(params["target_seconds"]),
        "order": params["order"],
        **trial_found(params),
        "not_measured": trial_beside(operation),
        "conditions": {**params.get("_conditions", {}), "load_after": after["load"]},
        "caveats": list(CAVEATS),
    }
