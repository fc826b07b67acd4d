"""Ready-labels: exactly the entries that are Ready and stay have one, whoever put it there or took it away.

Rows remember what Hearth did (``labeled_at``, ``unlabeled_at``), so that another hand's change is told from its own,
repaired and audited. Labels with random uids belong to other controllers and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from caches.domain.labels import is_ready_label, ready_label
from caches.models import CacheEntry
from caches.selectors.entry_rows import EntryRow
from caches.services.loop.fan_out import fan_out
from caches.services.loop.round_budget import RoundBudget
from caches.services.unknown_copies import unknown_labels
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.models import Node
from controlplane.clusters.node_labels import node_labels_told

# A watcher tells of a label later than Hearth has set it; within this time a missing one is nobody's doing.
SEEN_WITHIN = timedelta(seconds=30)

Rows = Mapping[str, EntryRow]  # by digest
Leaving = AbstractSet[tuple[str, str]]  # node uid, digest


@dataclass(slots=True)
class _Change:
    """What one node's labels need. ``put_back`` and ``swept`` are the repairs of another hand's changes."""

    patch: dict[str, str | None] = field(default_factory=dict)
    labeled: list[UUID] = field(default_factory=list)
    cleared: list[UUID] = field(default_factory=list)
    put_back: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)


def labels_apply(
    *,
    nodes: Sequence[Node],
    rows: Mapping[UUID, Rows],
    leaving: Leaving,
    gateway: ClusterGateway,
    now: datetime,
    budget: RoundBudget | None = None,
) -> list[str]:
    """Make the labels right on these nodes; returns what could not be done, as sentences. GatewayError as raised."""
    _leaving_remember(nodes, rows, leaving)
    unknown: dict[UUID, set[str]] = {node.pk: set() for node in nodes}
    for node_id, digest in unknown_labels(nodes):
        unknown[node_id].add(ready_label(digest))
    changes = [(node, _change(node, rows[node.pk], leaving, unknown[node.pk], now)) for node in nodes]
    asked = [(node, change) for node, change in changes if change.patch]
    answers, failure = fan_out(
        lambda item: gateway.set_node_labels(item[0].name, item[0].uid, item[1].patch), asked, budget=budget
    )
    done = [answer.item for answer in answers if answer.error is None]
    silent = [(node, change) for node, change in changes if not change.patch]
    _remember([change for _, change in (*done, *silent)], now)
    node_labels_told({node.pk: change.patch for node, change in done})
    for node, change in done:
        _audit_repairs(node, change)
    if failure is not None:
        raise failure
    # Their incarnations are gone: the watcher will say so.
    return [f"{answer.item[0].name}: {answer.error}" for answer in answers if answer.error is not None]


def _remember(changes: Sequence[_Change], now: datetime) -> None:
    labeled = [pk for change in changes for pk in change.labeled]
    cleared = [pk for change in changes for pk in change.cleared]
    if labeled:
        CacheEntry.objects.filter(pk__in=labeled).update(labeled_at=now)
    if cleared:
        CacheEntry.objects.filter(pk__in=cleared).update(labeled_at=None)


def _leaving_remember(nodes: Sequence[Node], rows: Mapping[UUID, Rows], leaving: Leaving) -> None:
    """Since when labels are away. Forgotten before a label comes back: the time must never outlive the absence.

    They were taken away in the course of this round, so that its beginning would be too early.
    """
    since, back = [], []
    for node in nodes:
        for digest, row in rows[node.pk].items():
            away = (node.uid, digest) in leaving or row.desired == Action.EVICT
            if away and (row.unlabeled_at is None or ready_label(digest, row.kind) in node.labels):
                since.append(row.pk)
            elif not away and row.unlabeled_at is not None:
                back.append(row.pk)
    if since:
        CacheEntry.objects.filter(pk__in=since).update(unlabeled_at=timezone.now())
    if back:
        CacheEntry.objects.filter(pk__in=back).update(unlabeled_at=None)


def _change(node: Node, rows: Rows, leaving: Leaving, unknown: AbstractSet[str], now: datetime) -> _Change:
    change = _Change()
    present = {name for name in node.labels if is_ready_label(name)} - unknown
    known: set[str] = set()
    for digest, row in rows.items():
        label = ready_label(digest, row.kind)
        known.add(label)
        stays = row.state == EntryState.READY and row.desired != Action.EVICT and (node.uid, digest) not in leaving
        if stays and label not in present:
            change.patch[label] = "true"
            change.labeled.append(row.pk)
            if row.labeled_at is not None and _was_seen(node, row.labeled_at):
                change.put_back.append(label)
        elif stays and row.labeled_at is None:
            change.labeled.append(row.pk)
        elif not stays and label in present:
            change.patch[label] = None
            change.cleared.append(row.pk)
            if row.labeled_at is None:
                change.swept.append(label)
        elif not stays and row.labeled_at is not None:
            change.cleared.append(row.pk)
    change.swept += sorted(present - known)
    change.patch |= dict.fromkeys(present - known, None)
    return change


def _was_seen(node: Node, labeled_at: datetime) -> bool:
    """Whether the cluster has spoken of the node long enough after the label was set to have told of it."""
    return node.observed_at is not None and node.observed_at > labeled_at + SEEN_WITHIN


def _audit_repairs(node: Node, change: _Change) -> None:
    for action, labels, message in (
        ("node.label-restored", change.put_back, "Somebody removed the ready-label of a warm copy: it is back."),
        ("node.label-swept", change.swept, "The node had a ready-label for a copy that is not Ready: it is removed."),
    ):
        if labels:
            audit_write(
                actor=SYSTEM, action=action, object_type="node", object_id=str(node.pk), object_name=node.name,
                after={"labels": sorted(labels)}, message=message,
            )  # fmt: skip
