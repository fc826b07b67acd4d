"""Where apps register to hear what the watcher sees, so that controlplane imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from django.db import transaction

from controlplane.clusters.gateway import ObservationSink
from controlplane.clusters.models import Cluster

ClusterListener = Callable[[Cluster], object]
PoolsListener = Callable[[frozenset[UUID]], object]

_sinks: list[ObservationSink] = []
_pools_listeners: list[PoolsListener] = []
_cluster_listeners: list[ClusterListener] = []


def register_sink(sink: ObservationSink) -> None:
    """Called once from an AppConfig.ready(); order of registration is order of delivery."""
    _sinks.append(sink)


def registered_sinks() -> tuple[ObservationSink, ...]:
    """Every sink, in order of registration."""
    return tuple(_sinks)


def register_cluster_listener(listener: ClusterListener) -> None:
    """Called once from an AppConfig.ready(). The listener gets a cluster at whose address another one answers now,
    which holds nothing of what Hearth wrote; within the transaction that remembers the new one."""
    _cluster_listeners.append(listener)


def tell_cluster_replaced(cluster: Cluster) -> None:
    """Tell the listeners now."""
    for listener in _cluster_listeners:
        listener(cluster)


def register_pools_listener(listener: PoolsListener) -> None:
    """Called once from an AppConfig.ready(). The listener gets the ids of pools whose settings changed, or that
    won or lost nodes. Of what nodes are themselves sinks hear."""
    _pools_listeners.append(listener)


def tell_pools_changed(pool_ids: Iterable[UUID | None]) -> None:
    """Tell the listeners once the transaction commits. Telling may be lost, by a crash or with a
    pool that is deleted meanwhile: the loop's beat makes up."""
    changed = frozenset(pool_id for pool_id in pool_ids if pool_id is not None)
    if changed:
        for listener in _pools_listeners:
            transaction.on_commit(partial(listener, changed), robust=True)
