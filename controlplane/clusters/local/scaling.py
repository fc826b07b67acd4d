"""More or fewer engines, where they go, and crashes on command: what brings launches of each kind about.

Every verb works from any process through the fleet's folder; a running supervisor follows. Imports no Django.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import NotFound
from controlplane.clusters.local import nodes
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.link import event_put
from controlplane.clusters.local.nodes import LocalNode
from controlplane.clusters.local.serving import (
    ENDPOINT_LABEL,
    LocalEndpoint,
    endpoint_put,
    endpoints_all,
    engine_made,
    engine_put,
    engines_all,
    replicas_check,
    scheduled,
    takes_engines,
)
from controlplane.clusters.local.store import Session
from controlplane.errors import Invalid


class NotServed(NotFound):
    """There is no such endpoint or engine."""


def endpoint_scale(fleet: LocalFleet, name: str, replicas: int, *, node: str = "") -> LocalEndpoint:
    """Have so many engines of the endpoint. New ones go to ``node`` where one is named, whoever else has a copy.

    NotServed without such an endpoint, NotFound without such a node; Invalid for a number that cannot be, or a
    node that takes no engine.
    """
    replicas_check(replicas)
    with fleet.store.write() as session:
        known = next((one for one in endpoints_all(session) if one.name == name), None)
        if known is None:
            raise NotServed(f"No endpoint {name:.80}.")
        endpoint = replace(known, replicas=replicas)
        endpoint_put(session, endpoint)
        if node:  # in the same transaction, or else the supervisor would choose
            _place(session, endpoint, nodes.node_get(session, node))
    return endpoint


def engine_kill(fleet: LocalFleet, name: str) -> Consumer:
    """Crash an engine that is ready: ``name`` is its own, its uid, or its endpoint's (then any of those).

    It is started again, as a container would be. NotServed without such an engine, Invalid while none is ready.
    """
    with fleet.store.read() as session:
        engines = sorted(engines_all(session).values(), key=lambda one: one.name)
    found = [one for one in engines if name in (one.uid, one.name.rpartition("/")[2], one.labels[ENDPOINT_LABEL])]
    if not found:
        raise NotServed(f"No engine and no endpoint with engines is named {name:.80}.")
    ready = next((one for one in found if one.ready), None)
    if ready is None:
        raise Invalid(
            "fleet:user:not-ready",
            f"No engine of {name:.80} is ready: there is nothing that could crash.",
            next_step="Wait until 'manage.py fleet engines' shows it ready.",
        )
    _kill_file(fleet, ready.uid).touch()
    return ready


def kill_wanted(fleet: LocalFleet, uid: str) -> bool:
    """For the supervisor: whether its process is to be killed now. Says so once."""
    with contextlib.suppress(FileNotFoundError):
        _kill_file(fleet, uid).unlink()
        return True
    return False


def _kill_file(fleet: LocalFleet, uid: str) -> Path:
    return fleet.folder / "engines" / uid / "kill"


def _place(session: Session, endpoint: LocalEndpoint, node: LocalNode) -> None:
    if not takes_engines(node, endpoint):
        raise Invalid(
            "fleet:user:node-unfit",
            f"{node.name} takes no engine of {endpoint.name}: it is cordoned or stopped, or of another pool.",
            next_step=f"manage.py fleet uncordon {node.name} (or start {node.name}), or name another node.",
        )
    engines = engines_all(session).values()
    own = [one for one in engines if one.labels[ENDPOINT_LABEL] == endpoint.name and not one.leaving]
    for _ in range(endpoint.replicas - len(own)):
        engine = engine_made(endpoint, node)
        engine_put(session, engine)
        event_put(session, scheduled(engine))
