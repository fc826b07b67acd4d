"""The test's hand inside the program: one process with Django set up, told what to do a JSON line at a time.

The tests' own Django speaks to the tests' database; this one speaks to the database of the program under test.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django

django.setup()

from django.db import close_old_connections  # noqa: E402

from caches.models import CacheEntry, EntryChange, ModelVersion, PoolLoop, SourceConnection  # noqa: E402
from caches.services.catalogue import version_register  # noqa: E402
from caches.services.connections import connection_create  # noqa: E402
from caches.services.pins import PinSpec, pin_create  # noqa: E402
from controlplane.audit.services import SYSTEM  # noqa: E402
from controlplane.clusters.models import Cluster, Node, NodePool  # noqa: E402
from controlplane.operations.models import Operation  # noqa: E402


def prepare(fleet: str, root: str, rate: int) -> dict[str, Any]:
    """One pool over the whole fleet, slow enough to be interrupted, and a source."""
    cluster = Cluster.objects.create(name="local", type="Local", address=fleet)
    pool = NodePool.objects.create(
        cluster=cluster,
        name="all",
        selector={"kubernetes.io/arch": "amd64"},
        node_bytes_per_second=rate,
        status_interval_seconds=1,
        freshness_seconds=60,
    )
    connection_create(actor=SYSTEM, name="files", type="Filesystem", allowed=[root])
    return {"pool": str(pool.pk)}


def nodes() -> dict[str, Any]:
    return {"ready": Node.objects.filter(ready=True, lost_at=None, capacity_bytes__isnull=False).count()}


def register(model: str, uri: str) -> dict[str, Any]:
    files = SourceConnection.objects.get(name="files")
    version, operation = version_register(actor=SYSTEM, model=model, version="v1", connection=files, uri=uri)
    return {"version": str(version.pk), "operation": str(operation.pk)}


def pin(version: str, pool: str) -> dict[str, Any]:
    made, operation = pin_create(actor=SYSTEM, spec=PinSpec(version_id=version, pool_ids=(pool,)))  # type: ignore[arg-type]
    return {"pin": str(made.pk), "operation": str(operation.pk)}


def look(version: str) -> dict[str, Any]:
    """Everything a test waits for, about one version."""
    row = ModelVersion.objects.select_related("artifact").get(pk=version)
    entries = CacheEntry.objects.filter(artifact=row.artifact, node__lost_at=None).select_related("node")
    return {
        "version": row.state,
        "digest": row.artifact.digest if row.artifact else "",
        "entries": {
            entry.node.name: {
                "state": entry.state,
                "reason": entry.reason,
                "uid": entry.node.uid,
                "bytes_done": entry.bytes_done,
                "bytes_moved": entry.bytes_moved,
            }
            for entry in entries
        },
        "operations": {
            f"{operation.kind} {operation.subject_name}": operation.state
            for operation in Operation.objects.filter(subject_name=row.full_name)
        },
        "loops": [
            {"waiting": loop.wanted_round - loop.done_round, "error": loop.error, "at": str(loop.reconciled_at)}
            for loop in PoolLoop.objects.all()
        ],
        "failures": EntryChange.objects.filter(entry__in=entries, new_state="Failed").count(),
    }


VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare,
    "nodes": nodes,
    "register": register,
    "pin": pin,
    "look": look,
}


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        close_old_connections()
        try:
            answer = VERBS[asked.pop("verb")](**asked)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
