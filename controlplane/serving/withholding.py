"""Where instances run, for those who may see all of it: an endpoint is a cluster's, its nodes are of pools."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.accounts.access import is_within
from controlplane.serving.models import Instance


def with_places(rows: Sequence[Instance], targets: frozenset[str] | None) -> Sequence[Instance]:
    """The same, and of those on nodes of pools that are not within ``targets`` (accounts.access.readable_targets) no
    node and no address; so too while it is not known which pool's a node is. They are for showing, never to be saved.
    Select ``node__pool`` and ``endpoint__cluster``."""
    for row in rows:
        if targets is None or row.runs_on is None:
            continue
        pool = row.node.pool if row.node is not None else None
        cluster = row.endpoint.cluster.name
        if not is_within(targets, f"{cluster}.{pool.name}" if pool is not None else cluster):
            row.node, row.node_name, row.address = None, "", ""
    return rows
