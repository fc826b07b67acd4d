"""Setting one taint of one node incarnation. Taints are one list with many writers: read, change, compare, write."""

from __future__ import annotations

from controlplane.clusters.gateway import Conflict
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient

ATTEMPTS = 4
EFFECT = "NoSchedule"


def taint_set(client: KubeClient, path: str, node_uid: str, taint: str, present: bool) -> None:
    """Conflict when the uid is another one, or when other writers were first every time."""
    for attempt in range(ATTEMPTS):
        node = client.get(path)
        metadata = node["metadata"]
        if metadata["uid"] != node_uid:
            raise Conflict(f"Node {metadata['name']} is {metadata['uid']} now; {node_uid} is gone.")
        taints = list((node.get("spec") or {}).get("taints") or ())
        kept = [item for item in taints if item.get("key") != taint]
        if present == (len(kept) < len(taints)):
            return
        wanted = [*kept, {"key": taint, "effect": EFFECT}] if present else kept
        document = {
            "metadata": {"uid": node_uid, "resourceVersion": metadata["resourceVersion"]},
            "spec": {"taints": wanted},
        }
        try:
            client.merge(path, document, manager=names.MANAGER)
            return
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
