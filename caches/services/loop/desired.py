"""Storing what a plan desires of every entry before any node hears of it, in a few statements for any number."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from caches.domain.plans import Plan
from caches.models import Artifact, CacheEntry
from caches.selectors.entry_rows import OF_ARTIFACT, Entries, EntryRow, entry_rows
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import Node
from controlplane.ids import new_id

AT_ONCE = 5000  # rows in one statement


def desired_write(*, nodes: Sequence[Node], rows: Entries, plan: Plan, now: datetime) -> Entries:
    """Make the entries of these nodes want what the plan wants, with rows for new ones; returns them as they are then.

    ``rows`` are all entries of these nodes as they were read. An entry whose node is gone for good is left as it is.
    """
    with transaction.atomic():
        rows = _with_new(nodes, rows, plan, now)
        wanted: dict[str, list[UUID]] = {"": [], Action.ENSURE: [], Action.EVICT: []}
        written: dict[UUID, dict[str, EntryRow]] = {}
        for node in nodes:
            actions = {item.digest: item.action for item in plan.desired[node.uid]}
            written[node.pk] = dict(rows[node.pk])
            for digest, row in rows[node.pk].items():
                action = actions.get(digest, "")
                if row.desired != action:
                    written[node.pk][digest] = row._replace(desired=str(action))
                    wanted[action].append(row.pk)
        for action, ids in wanted.items():
            changes: dict[str, object] = {"desired": action, "updated_at": now}
            if action == Action.ENSURE:
                changes["wanted_at"] = now
            if ids:
                CacheEntry.objects.filter(pk__in=ids).exclude(state=EntryState.LOST).update(**changes)
    return written


def _with_new(nodes: Sequence[Node], rows: Entries, plan: Plan, now: datetime) -> Entries:
    missing = [
        (node, item.digest)
        for node in nodes
        for item in plan.desired[node.uid]
        if item.action is Action.ENSURE and item.digest not in rows[node.pk]
    ]
    if not missing:
        return rows
    artifacts = {
        artifact.digest: artifact
        for artifact in Artifact.objects.filter(digest__in={digest for _, digest in missing}).defer("manifest")
    }
    made = [(node.pk, artifacts[digest]) for node, digest in missing if digest in artifacts]
    fresh = [row for start in range(0, len(made), AT_ONCE) for row in _insert(made[start : start + AT_ONCE], now)]
    if len(fresh) < len(made):  # the mirror has made some of them at the same time
        return {**rows, **entry_rows([node for node in nodes if node.pk in {node_id for node_id, _ in made}])}
    known = {node_id: dict(of) for node_id, of in rows.items()}
    for row in fresh:
        known[row.node_id][row.digest] = row
    return known


def _insert(made: Sequence[tuple[UUID, Artifact]], now: datetime) -> list[EntryRow]:
    """One statement in which only what differs between the rows is repeated; returns those that were not there."""
    ids = [new_id() for _ in made]
    varying: dict[str, tuple[str, list[Any]]] = {
        "id": ("uuid", ids),
        "node_id": ("uuid", [node_id for node_id, _ in made]),
        "artifact_id": ("uuid", [artifact.pk for _, artifact in made]),
        "bytes_total": ("bigint", [artifact.size_bytes for _, artifact in made]),
    }
    same = CacheEntry(desired=Action.ENSURE, wanted_at=now, created_at=now, updated_at=now)
    columns, values, parameters = [], [], []
    for field in CacheEntry._meta.concrete_fields:
        columns.append(connection.ops.quote_name(str(field.column)))
        if field.column in varying:
            values.append(f"made.{connection.ops.quote_name(str(field.column))}")
        else:
            values.append(f"%s::{field.db_type(connection)}")
            parameters.append(field.get_db_prep_save(getattr(same, field.attname), connection))
    arrays = ", ".join(f"%s::{kind}[]" for kind, _ in varying.values())
    names = ", ".join(connection.ops.quote_name(name) for name in varying)
    table = connection.ops.quote_name(CacheEntry._meta.db_table)
    sql = (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
        f"FROM unnest({arrays}) AS made ({names}) ON CONFLICT DO NOTHING RETURNING id"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*parameters, *(items for _, items in varying.values())])
        inserted = {key for (key,) in cursor.fetchall()}
    like = {artifact.pk: _row(artifact, same) for _, artifact in made}
    return [
        like[artifact.pk]._replace(pk=key, node_id=node_id)
        for key, (node_id, artifact) in zip(ids, made, strict=True)
        if key in inserted
    ]


def _row(artifact: Artifact, entry: CacheEntry) -> EntryRow:
    return EntryRow._make(getattr(artifact if name in OF_ARTIFACT else entry, name) for name in EntryRow._fields)
