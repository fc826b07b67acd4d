"""Rows of endpoints and instances from what the watcher saw. Repeating any of it changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import ObservedEndpoint
from controlplane.clusters.models import Node
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance, Variant

ENDPOINT_LABEL = "hearth.dev/endpoint"
DEFAULT_VARIANT = "default"


def endpoints_observe(*, cluster_id: UUID, items: Sequence[ObservedEndpoint], at: datetime) -> None:
    """Write what was seen. An older generation than the stored one is a late word and is left out."""
    known = {row.uid: row for row in Endpoint.objects.filter(cluster_id=cluster_id, uid__in=[i.uid for i in items])}
    for item in items:
        row = known.get(item.uid)
        if row is not None and row.generation > item.generation:
            continue
        fields = _fields(item)
        if row is not None and all(getattr(row, name) == value for name, value in fields.items()):
            Endpoint.objects.filter(pk=row.pk).update(observed_at=at)
            continue
        with transaction.atomic():
            made, _ = Endpoint.objects.update_or_create(
                cluster_id=cluster_id, uid=item.uid, defaults={**fields, "observed_at": at}
            )
            Variant.objects.get_or_create(endpoint=made, name=DEFAULT_VARIANT)


def endpoints_missing(
    *, cluster_id: UUID, at: datetime, kind: str = "", present: Collection[str] = (), gone: Collection[str] = ()
) -> None:
    """Endpoints that the cluster no longer has: of ``kind`` all but ``present``, or those in ``gone`` (uids).

    Released ones go. The others stay, with what was made for them, until somebody says that they may go: an empty
    list may also be a cluster that lost its definitions.
    """
    rows = Endpoint.objects.filter(cluster_id=cluster_id)
    rows = rows.filter(kind=kind).exclude(uid__in=list(present)) if kind else rows.filter(uid__in=list(gone))
    rows.filter(released_at__isnull=False).delete()
    rows.filter(released_at__isnull=True, gone_at__isnull=True).update(gone_at=at)


def instances_observe(*, cluster_id: UUID, items: Iterable[Consumer], at: datetime, complete: bool = False) -> None:
    """Pods that carry an endpoint's label. ``complete``: pods that are not among them are gone."""
    seen = [item for item in items if ENDPOINT_LABEL in item.labels]
    endpoints = {
        (row.namespace, row.name): row.pk
        for row in Endpoint.objects.filter(cluster_id=cluster_id, gone_at__isnull=True)
        .exclude(kind=STATIC_KIND)
        .only("namespace", "name")
    }
    nodes: dict[str, UUID] = {}
    if seen and endpoints:
        uids = {item.node_uid for item in seen}
        nodes = dict(Node.objects.filter(cluster_id=cluster_id, uid__in=uids).values_list("uid", "pk"))
    kept = []
    for item in seen:
        namespace, _, name = item.name.partition("/")
        endpoint_id = endpoints.get((namespace, item.labels[ENDPOINT_LABEL]))
        if endpoint_id is None:
            continue
        kept.append(item.uid)
        fields = {
            "name": name,
            "node_id": nodes.get(item.node_uid),
            "node_name": item.node_name,
            "node_uid": item.node_uid,
            "digest": min(item.digests, default=""),
            "ready": item.ready,
            "restart_count": item.restart_count,
            "warm_up": str(storable(item.warm_up))[:300],
            "wait_reason": item.wait_reason,
            "wait_message": str(storable(item.wait_message))[:500],
            "leaving": item.leaving,
            "address": item.address,
            "observed_at": at,
        }
        _audit_warm_up(endpoint_id, item)
        Instance.objects.update_or_create(endpoint_id=endpoint_id, uid=item.uid, defaults=fields)
    if complete:
        rows = Instance.objects.filter(endpoint__cluster_id=cluster_id).exclude(endpoint__kind=STATIC_KIND)
        rows.exclude(uid__in=kept).delete()


def instances_place(*, cluster_id: UUID, node_uids: Collection[str]) -> None:
    """Those that were seen before their nodes were take them now. Nodes that have no rows yet change nothing."""
    waiting = Instance.objects.filter(endpoint__cluster_id=cluster_id, node=None).exclude(node_uid="")
    heard_of = set(waiting.values_list("node_uid", flat=True)) & set(node_uids)
    if heard_of:
        for uid, pk in Node.objects.filter(cluster_id=cluster_id, uid__in=heard_of).values_list("uid", "pk"):
            waiting.filter(node_uid=uid).update(node_id=pk, updated_at=timezone.now())


def _audit_warm_up(endpoint_id: UUID, item: Consumer) -> None:
    """That a pod serves although its warm-up failed is written down when it is seen first."""
    if item.warm_up in ("", "ok"):
        return
    known = Instance.objects.filter(endpoint_id=endpoint_id, uid=item.uid).exclude(warm_up="")
    if not known.exists():
        audit_write(
            actor=SYSTEM,
            action="endpoint.warm-up-failed",
            object_type="endpoint",
            object_id=str(endpoint_id),
            object_name=item.name[:300],
            after={"pod": item.uid, "serves": True},
            message=str(storable(item.warm_up))[:300],
        )


def instances_forget(*, cluster_id: UUID, uids: Collection[str]) -> None:
    """Pods that ended."""
    Instance.objects.filter(endpoint__cluster_id=cluster_id, uid__in=list(uids)).delete()


def storable(value: Any) -> Any:
    """The same JSON without what PostgreSQL cannot hold: zero bytes and halves of characters become U+FFFD.

    A document is anybody's, and one that could not be stored would keep all others from being seen.
    """
    if isinstance(value, str):
        if "\x00" not in value and value.isascii():
            return value
        return value.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {storable(str(name)): storable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner) for inner in value]
    return value


def _fields(item: ObservedEndpoint) -> dict[str, object]:
    return {
        "kind": item.of.kind,
        "namespace": item.of.namespace,
        "name": item.of.name,
        "generation": item.generation,
        "document": storable(item.spec),
        "annotations": storable(item.annotations),
        "finalizers": list(item.finalizers),
        "status": storable(item.status),
        "deleting_at": item.deleting_at,
        "gone_at": None,
    }
