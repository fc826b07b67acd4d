"""Trials of launches as rows: what the operation of one holds, over or going on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.utils import timezone

from caches.domain.launches.trials import KINDS, order_of
from caches.models import Launch, ModelVersion
from caches.selectors.launches.trials import trial_found
from controlplane.clusters.models import Cluster
from controlplane.operations.models import FINAL_STATES, Operation

CONDITIONS = {
    "host": "lab-1", "system": "Linux 6.1 x86_64", "cores": 2, "memory_bytes": 8 * 2**30, "load": 0.4,
    "python": "3.11.7", "engine": "llama.cpp (xllamacpp 1.0), on the CPU", "nodes": 8, "other_engines": 2,
}  # fmt: skip


def launch_trial(
    cluster: Cluster, version: ModelVersion, *, launches: Sequence[Launch] = (), state: str = "Succeeded",
    runs: int = 1, seed: int = 3, target: float = 10.0, **fields: Any,
) -> Operation:  # fmt: skip
    """``launches`` are measured, whatever they are, as kinds in turn."""
    now = timezone.now()
    order = [kind.value for kind in order_of(runs, seed)]
    pairs = [[KINDS[number % len(KINDS)].value, str(one.pk)] for number, one in enumerate(launches)]
    params = {
        "cluster_id": str(cluster.pk), "version_id": str(version.pk), "digest": version.artifact.digest,  # type: ignore[union-attr]
        "size_bytes": 1000, "runs": runs, "seed": seed, "target_seconds": target, "order": order,
        "_at": len(pairs) + 1, "_launches": pairs, "_conditions": CONDITIONS,
    }  # fmt: skip
    result = None
    if state == "Succeeded":
        said = {"version": version.full_name, "model_bytes": 1000, "runs": runs, "seed": seed, "order": order}
        result = {
            **said, "target_seconds": target, **trial_found(params),
            "conditions": {**CONDITIONS, "load_after": 0.8}, "caveats": ["It was read a moment ago."],
        }  # fmt: skip
    return Operation.objects.create(
        kind="LaunchTrial", state=state, subject_type="cluster", subject_id=str(cluster.pk),
        subject_name=f"{cluster.name} {version.full_name}", started_by="ada", params=params, result=result,
        started_at=now - timedelta(minutes=2), ended_at=now if state in FINAL_STATES else None, **fields,
    )  # fmt: skip
