"""What somebody does to a local fleet from the command line, in the audit trail: launches change with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.accounts.actors import person_at_terminal
from controlplane.audit.services import audit_write
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.nodes import POOL_LABEL
from controlplane.clusters.local.serving import ENDPOINT_LABEL, endpoints_all, engines_all
from controlplane.clusters.models import Cluster, ClusterType, Node

OF_ENDPOINTS = ("serve", "unserve", "scale", "kill")
Facts = Mapping[str, Any]


def fleet_facts(fleet: LocalFleet, verb: str, name: str) -> Facts | None:
    """What an act of ``verb`` can change, as it is now; None while there is no such node or endpoint."""
    if verb in OF_ENDPOINTS:
        return _endpoint_facts(fleet, name)
    row = next((row for row in fleet.nodes() if row.node.name == name), None)
    if row is None:
        return None
    return {
        "uid": row.node.uid,
        "pool": row.node.labels.get(POOL_LABEL, ""),
        "capacity_bytes": row.node.capacity_bytes,
        "schedulable": row.node.schedulable,
        "stopped": row.node.stopped,
        "other_bytes": row.other_bytes,
        "in_use": sorted({digest for one in row.consumers for digest in one.digests}),
    }


def _endpoint_facts(fleet: LocalFleet, name: str) -> Facts | None:
    """``name`` may be an engine's: then its endpoint is meant."""
    with fleet.store.read() as session:
        engines = [one for one in engines_all(session).values() if name in (one.uid, one.name.rpartition("/")[2])]
        names = {name, *(one.labels[ENDPOINT_LABEL] for one in engines)}
        found = next((one for one in endpoints_all(session) if one.name in names), None)
    if found is None:
        return None
    return {
        "endpoint": found.name, "uid": found.uid, "digest": found.digest, "replicas": found.replicas,
        "model": found.model, "pool": found.pool,
    }  # fmt: skip


def fleet_changed(*, fleet: LocalFleet, verb: str, name: str, before: Facts | None, message: str) -> bool:
    """Write down what was done, if that changed anything (a crash changes nothing that lasts). False where not: a fleet
    that is no cluster of Hearth's has no trail."""
    after = fleet_facts(fleet, verb, name)
    if before == after and (verb != "kill" or after is None):
        return False
    cluster = _cluster_of(fleet.folder)
    if cluster is None:
        return False
    facts = before or after or {}
    node = None if verb in OF_ENDPOINTS else Node.objects.filter(cluster=cluster, uid=facts.get("uid", "")).first()
    audit_write(
        actor=person_at_terminal(),
        action=f"fleet.{verb}",
        object_type="Endpoint" if verb in OF_ENDPOINTS else "node",
        object_id=str(node.pk if node is not None else facts.get("uid", "")),
        object_name=str(facts.get("endpoint") or name),
        before=before,
        after=after,
        message=message,
    )
    return True


def _cluster_of(folder: Path) -> Cluster | None:
    there = folder.resolve()
    clusters = Cluster.objects.filter(type=ClusterType.LOCAL)
    return next((one for one in clusters if Path(one.address).resolve() == there), None)
