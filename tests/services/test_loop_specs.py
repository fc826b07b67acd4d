"""A spec's hash: the same for the same, another for everything that a node would have to be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from caches.domain.plans import DesiredItem
from caches.selectors.entry_rows import EntryRow, entry_rows
from caches.selectors.pool_view import pool_view
from caches.services.loop.specs import SpecDesk
from controlplane.clusters.documents import Action, ConnectionSpec, SourceType
from controlplane.clusters.models import Node, NodePool
from tests import factories

pytestmark = pytest.mark.django_db


class Case:
    """One node that is told one line; change any part of it."""

    def __init__(self) -> None:
        version = factories.version()
        row = factories.entry(of=version.artifact)
        assert row.node.pool is not None and row.observed_at is not None
        self.pool: NodePool = NodePool.objects.select_related("cluster").get(pk=row.node.pool.pk)
        self.node: Node = row.node
        self.view = pool_view(self.pool, now=row.observed_at)
        self.items = [DesiredItem(row.artifact.digest, Action.ENSURE, 0, "Pinned")]
        self.rows: dict[str, EntryRow] = dict(entry_rows([row.node])[row.node.pk])
        spec = ConnectionSpec(version.connection.name, SourceType.FILESYSTEM, secret_name="store")
        self.connections = {spec.name: spec}
        self.secrets: dict[str, dict[str, str]] = {"store": {"key": "one"}}

    def change(self, **rows: Any) -> None:
        self.rows = {digest: row._replace(**rows) for digest, row in self.rows.items()}

    def connect(self, **fields: Any) -> None:
        self.connections = {name: replace(spec, **fields) for name, spec in self.connections.items()}

    def hash(self) -> str:
        desk = SpecDesk(self.pool, self.view, self.connections, self.secrets)
        spec = desk.spec(self.node, self.items, self.rows)
        again = desk.spec_hash(spec)
        assert desk.spec_hash(desk.spec(self.node, self.items, self.rows)) == again
        return again


CHANGES: dict[str, Callable[[Case], object]] = {
    "order": lambda case: setattr(case, "items", [replace(item, order=1) for item in case.items]),
    "action": lambda case: setattr(case, "items", [replace(item, action=Action.EVICT) for item in case.items]),
    "nothing desired": lambda case: case.items.clear(),
    "verify": lambda case: case.change(verify_round=1),
    "retry": lambda case: case.change(retry_round=1),
    "rotated": lambda case: case.secrets.update(store={"key": "two"}),
    "unreadable": lambda case: case.secrets.clear(),
    "rate": lambda case: case.connect(bytes_per_second=5),
    "capacity": lambda case: setattr(case.node, "capacity_bytes", 5),
    "machine": lambda case: setattr(case.node, "uid", "another"),
    "pool's limit": lambda case: setattr(case.pool, "max_downloads_per_node", 9),
    "interval": lambda case: setattr(case.pool, "status_interval_seconds", 9.0),
    "pause": lambda case: setattr(case, "view", replace(case.view, policy=replace(case.view.policy, paused=True))),
}
SAME: dict[str, Callable[[Case], object]] = {
    "nothing": lambda case: None,
    "another's secret": lambda case: case.secrets.update(other={"key": "two"}),
    "another's connection": lambda case: case.connections.update(other=ConnectionSpec("other", SourceType.S3)),
    "why": lambda case: setattr(case, "items", [replace(item, reason="Kept", pin_id="p") for item in case.items]),
    "observed": lambda case: case.change(bytes_done=1, state="Repairing"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_a_node_must_hear_of_changes_the_hash(what: str) -> None:
    case = Case()
    before = case.hash()
    CHANGES[what](case)
    assert case.hash() != before


@pytest.mark.parametrize("what", SAME)
def test_what_a_node_is_not_told_does_not(what: str) -> None:
    case = Case()
    before = case.hash()
    SAME[what](case)
    assert case.hash() == before
