"""What operations and audit events are about, and whether it is still there to be looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any
from uuid import UUID

from django.db.models import CharField, QuerySet, Value
from django.db.models.functions import Cast

from caches.models import CacheEntry, Image, ModelVersion, Pin, SourceConnection
from controlplane.clusters.models import Node, NodePool

Subject = tuple[str, str]  # type and id, as they are stored

# A removed pin keeps its row and has no page any more.
_ROWS: Mapping[str, Callable[[], QuerySet[Any]]] = {
    "pin": lambda: Pin.objects.filter(removed_at__isnull=True),
    "entry": lambda: CacheEntry.objects.all(),
    "node": lambda: Node.objects.all(),
    "version": lambda: ModelVersion.objects.all(),
    "image": lambda: Image.objects.all(),
    "connection": lambda: SourceConnection.objects.all(),
    "pool": lambda: NodePool.objects.all(),
    "NodePool": lambda: NodePool.objects.all(),
}


def subjects_there(subjects: Iterable[Subject]) -> Set[Subject]:
    """Those that have a page, in one query (none where there is nothing to ask)."""
    asked: dict[str, set[UUID]] = defaultdict(set)
    for kind, key in subjects:
        if kind in _ROWS and (id := _uuid(key)) is not None:
            asked[kind].add(id)
    parts = [
        _ROWS[kind]()
        .filter(pk__in=ids)
        .order_by()
        .annotate(kind=Value(kind, CharField()), key=Cast("pk", CharField()))
        .values_list("kind", "key")
        for kind, ids in asked.items()
    ]
    return set(parts[0].union(*parts[1:], all=True)) if parts else set()


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
