"""A node of the local fleet: an object in the store, and a folder that is its disk.

``<fleet>/nodes/<name>/`` is the disk. Its size is a quota in the node's object; the sparse file ``<fleet>/fills/<uid>``
stands for everything on that disk that is not Hearth's. Imports no Django.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from controlplane.clusters import codec
from controlplane.clusters.gateway import Conflict, Kind, NotFound, ObservedNode
from controlplane.clusters.local.store import Session, Stored

POOL_LABEL = "hearth.dev/pool"
ZONE_LABEL = "topology.kubernetes.io/zone"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class LocalNode:
    """The spec of a node object. ``stopped`` asks the supervisor to keep the node's agent down (unreachable)."""

    name: str
    uid: str
    labels: Mapping[str, str]
    capacity_bytes: int
    created_at: datetime
    schedulable: bool = True
    stopped: bool = False
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalNodeStatus:
    """What the supervisor last said of the node's agent; None once it stopped saying anything."""

    ready: bool | None = None


def valid_name(name: str) -> bool:
    """Whether a name can be a node's, a pool's or a secret's: lower case letters, digits and inner dashes, up to 63."""
    return _NAME.fullmatch(name) is not None


def node_folder(fleet: Path, name: str) -> Path:
    """The node's disk."""
    return fleet / "nodes" / name


def fill_file(fleet: Path, uid: str) -> Path:
    """Named by incarnation, so that a replaced node's fill never counts for its successor."""
    return fleet / "fills" / uid


def other_bytes(fleet: Path, uid: str) -> int:
    """What is on the disk besides Hearth's store."""
    try:
        return fill_file(fleet, uid).stat().st_size
    except FileNotFoundError:
        return 0


def node_get(session: Session, name: str, uid: str | None = None) -> LocalNode:
    """NotFound when there is no such node, Conflict when another incarnation has the name now."""
    stored = session.get(Kind.NODE, name)
    if stored is None:
        raise NotFound(f"No node {name}.")
    node = codec.loads(LocalNode, stored.spec)
    if uid is not None and node.uid != uid:
        raise Conflict(f"Node {name} is {node.uid} now, not {uid}.")
    return node


def node_put(session: Session, node: LocalNode, ready: bool | None) -> None:
    status = codec.dumps(LocalNodeStatus(ready=ready))
    session.put(Kind.NODE, node.name, node.uid, spec=codec.dumps(node), status=status)


def node_ready(session: Session, name: str) -> bool | None:
    stored = session.get(Kind.NODE, name)
    return None if stored is None else _ready(stored)


def node_set_ready(session: Session, name: str, uid: str, ready: bool | None) -> None:
    """Write what the supervisor knows; another incarnation's word is dropped."""
    stored = session.get(Kind.NODE, name)
    if stored is not None and stored.uid == uid:
        session.put(Kind.NODE, name, uid, spec=stored.spec, status=codec.dumps(LocalNodeStatus(ready=ready)))


def node_change(session: Session, name: str, uid: str | None = None, **changes: Any) -> LocalNode:
    """Change fields of a node's spec and keep its status."""
    node = replace(node_get(session, name, uid), **changes)
    node_put(session, node, node_ready(session, name))
    return node


def node_delete(session: Session, name: str) -> None:
    """Remove the node and what it owns: its NodeCache, its consumers, its lease."""
    session.delete(Kind.NODE_CACHE, name)
    for stored in session.all(Kind.CONSUMER):
        if stored.name.startswith(f"{name}/"):
            session.delete(Kind.CONSUMER, stored.name)
    session.connection.execute("DELETE FROM leases WHERE name=?", (name,))
    session.delete(Kind.NODE, name)


def observed_node(stored: Stored) -> ObservedNode:
    """The node as the gateway reports it."""
    node = codec.loads(LocalNode, stored.spec)
    return ObservedNode(
        name=node.name,
        uid=node.uid,
        labels=node.labels,
        ready=_ready(stored),
        schedulable=node.schedulable,
        created_at=node.created_at,
        taints=node.taints,
    )


def _ready(stored: Stored) -> bool | None:
    return None if stored.status is None else codec.loads(LocalNodeStatus, stored.status).ready
