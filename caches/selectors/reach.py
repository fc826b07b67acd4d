"""Which operations and audit events a reader may see. One rule: whoever may see all that it is about sees it.

Work on the catalogue belongs to no pool and is there for everybody. What is about people, tokens or webhooks, and what
is about rows that are gone, is for those who see the whole fleet.
"""

from __future__ import annotations

from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast

from caches.models import CacheEntry, Pin
from caches.selectors.nodes import Targets
from controlplane.accounts.access import targets_filter
from controlplane.clusters.models import Cluster, Node, NodePool

CATALOGUE = ("version", "model", "image", "connection")
POOL = ("pool", "NodePool")


def reach(targets: Targets, *, subject: str) -> Q:
    """A condition on rows with ``{subject}_type``, ``_id`` and ``_name``, for readers limited to ``targets``."""
    if targets is None:
        return Q()
    kind, key = f"{subject}_type__in", f"{subject}_id__in"
    nodes = Node.objects.filter(_of_node(targets))
    entries = CacheEntry.objects.filter(_of_node(targets, "node__"))
    seen = Q(**{kind: CATALOGUE})
    seen |= Q(**{kind: ("pin",), key: _keys(_pins(targets))})
    seen |= Q(**{kind: ("entry",), key: _keys(entries)})
    seen |= Q(**{kind: ("node",), key: _keys(nodes)})
    for target in sorted(targets):
        # By name, because the operation that deletes a pool outlives it.
        below = Q(**{f"{subject}_name": target}) | Q(**{f"{subject}_name__startswith": f"{target}."})
        seen |= Q(**{kind: POOL}) & below
        seen |= Q(**{kind: ("Cluster",), f"{subject}_name": target.partition(".")[0]})
    named = Cluster.objects.filter(name__in={target.partition(".")[0] for target in targets})
    seen |= Q(**{kind: ("cluster",), key: _keys(named)})  # trials, whose name says more
    return seen


def pools_named_within(targets: Targets, field: str) -> Q:
    """A condition on a JSON field: the pools that it lists, if any, may all be seen (a pin may have left others)."""
    if targets is None:
        return Q()
    rows = NodePool.objects.filter(targets_filter(targets, cluster="cluster__name", pool="name"))
    names = [pool.full_name for pool in rows.select_related("cluster")]
    nothing = Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__pools__isnull": True})
    return nothing | Q(**{f"{field}__pools__contained_by": names})


def nodes_within(targets: Targets) -> QuerySet[Node]:
    """Every incarnation that may be seen, gone or not."""
    return Node.objects.filter(_of_node(targets))


def _of_node(targets: Targets, prefix: str = "") -> Q:
    return targets_filter(targets, cluster=f"{prefix}cluster__name", pool=f"{prefix}pool__name")


def _pins(targets: Targets) -> QuerySet[Pin]:
    """Pins, also removed ones, with a pool that may be seen and none that may not."""
    visible = targets_filter(targets, cluster="cluster__name", pool="name")
    pools, hidden = NodePool.objects.filter(visible), NodePool.objects.exclude(visible)
    return Pin.objects.filter(pools__in=pools).exclude(pools__in=hidden)


def _keys(
    rows: QuerySet[Pin] | QuerySet[CacheEntry] | QuerySet[Node] | QuerySet[Cluster],
) -> QuerySet[Pin] | QuerySet[CacheEntry] | QuerySet[Node] | QuerySet[Cluster]:
    """Their ids as the text that subjects are named by."""
    return rows.order_by().annotate(key=Cast("pk", CharField())).values("key")  # type: ignore[return-value]
