"""Sharing a store's byte rate: each node that reads from it now gets an equal part.

A node that starts or ends changes the parts of the others in their pools' next rounds, so for some seconds the sum may
be over the limit by what one node was given; it is never forgotten.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from uuid import UUID

from caches.models import CacheEntry
from caches.selectors.artifact_facts import artifact_origins
from controlplane.clusters.documents import Action, ConnectionSpec, EntryState

FLOOR = 1024  # bytes per second: a share never rounds down to nothing, which would read as unlimited


def store_rates_shared(connections: Mapping[str, ConnectionSpec]) -> dict[str, ConnectionSpec]:
    """The same connections with ``bytes_per_second`` as one node's share, over the nodes of every pool and cluster."""
    limited = {name for name, spec in connections.items() if spec.bytes_per_second is not None}
    readers = _readers() if limited else {}
    return {
        name: dataclasses.replace(spec, bytes_per_second=_share(spec.bytes_per_second, len(readers.get(name, ()))))
        for name, spec in connections.items()
    }


def _share(limit: int | None, readers: int) -> int | None:
    return None if limit is None else max(FLOOR, limit // max(1, readers))


def _readers() -> Mapping[str, set[UUID]]:
    """Nodes with an entry that is wanted and not Ready, by the connection it is fetched through."""
    unsettled = CacheEntry.objects.filter(desired=Action.ENSURE, node__lost_at__isnull=True)
    pairs = list(unsettled.exclude(state=EntryState.READY).values_list("artifact__digest", "node_id"))
    origins = artifact_origins({digest for digest, _ in pairs})
    found: dict[str, set[UUID]] = defaultdict(set)
    for digest, node_id in pairs:
        if digest in origins:
            found[origins[digest].facts.connection].add(node_id)
    return found
