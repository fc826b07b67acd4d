"""Whether an instance serves now, and an endpoint. It is derived here, at reading time, and stored nowhere.

What a cluster runs is as its watcher said, while that is fresh. Of addresses that a person gave routers alone know; who
hears them registers here, and the readers of endpoints need not know routing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from django.db.models import Min

from controlplane.clusters.freshness import DEFAULT_FRESHNESS_SECONDS, is_fresh
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance


class ServingState(StrEnum):
    READY = "Ready"
    PARTIAL = "Partial"  # some addresses of a static endpoint answer, others do not
    NOT_READY = "NotReady"
    TERMINATING = "Terminating"  # its end was asked for: it finishes what it has and gets nothing new
    UNKNOWN = "Unknown"


# Of an endpoint: what its status does not say, and what outlives its cluster's object.
PENDING, NOTHING_GIVEN, GONE = "Pending", "DeploymentPending", "Gone"
NODE_NOT_READY = "NodeNotReady"  # a reason beside those of WaitReason: the cluster says nothing of such a pod


@dataclass(frozen=True, slots=True)
class Standing:
    """``state``: a ServingState; of an endpoint of a cluster what its status says. ``since``: from when on nobody
    knows; None while somebody does, and where nobody ever did. ``last_known``: what an Unknown one was. ``detail``: how
    it came to that in a few words, or "". ``reason``: why a pod does not run what it should, a WaitReason or
    NODE_NOT_READY; "" while it waits for nothing, and where its whole cluster is silent."""

    state: str
    since: datetime | None = None
    last_known: str | None = None
    detail: str = ""
    reason: str = ""

    @property
    def wait_message(self) -> str:
        """The words for ``reason``; "" without one."""
        return self.detail if self.reason else ""

    @property
    def ready(self) -> bool | None:
        """None: nobody knows."""
        return None if self.state == ServingState.UNKNOWN else self.state in (ServingState.READY, ServingState.PARTIAL)


@dataclass(frozen=True, slots=True)
class RoutersSay:
    """``heard``: some router was heard of lately, otherwise the last one was until ``silent_since``. ``left_out``: uids
    that every router leaves out because they do not answer or fail."""

    heard: bool = False
    left_out: frozenset[str] = frozenset()
    silent_since: datetime | None = None


RoutersReader = Callable[[], RoutersSay]
_readers: list[RoutersReader] = []


def register_routers_reader(reader: RoutersReader) -> None:
    """Called once from an AppConfig.ready()."""
    _readers.append(reader)


def routers_say() -> RoutersSay:
    """What the registered reader knows; nothing without one."""
    return _readers[-1]() if _readers else RoutersSay()


def node_trouble(node: Node | None, *, now: datetime) -> str:
    """Why what the cluster says of pods on this node is old news, with its name, since when nothing came from it; ""
    where it is not. A cluster that does not know whether a node is ready hears nothing of its kubelet."""
    said = _trouble(node)
    since = _silent_since(node, now) if node is not None and said and node.lost_at is None else None
    return f"{said} and was not heard of since {since:%Y-%m-%d %H:%M:%S} UTC" if since is not None else said


def _trouble(node: Node | None) -> str:
    if node is None:
        return ""
    if node.lost_at is not None:
        return f"its node {node.name} is gone"
    return "" if node.ready else f"its node {node.name} is not ready"


def _silent_since(node: Node, now: datetime) -> datetime | None:
    """When its agent was heard of last, where that is a while ago; or when it was gone."""
    fresh = is_fresh(node.reported_at, freshness_seconds=DEFAULT_FRESHNESS_SECONDS, now=now)
    return node.lost_at or (None if fresh else node.reported_at)


class Standings:
    """How rows stand at ``now``, any number of them in three statements. Instances need ``endpoint__cluster`` and
    ``node`` at hand, endpoints ``cluster``. ``said``: what routers say, where the caller has it already."""

    def __init__(self, *, now: datetime, said: RoutersSay | None = None) -> None:
        self._now = now
        self._said = said
        self._limits: Mapping[UUID, float] | None = None
        self._addresses: Mapping[UUID, Collection[str]] | None = None

    def of_instance(self, row: Instance) -> Standing:
        if row.endpoint.kind == STATIC_KIND:
            return self._of_address(row.uid)
        state = ServingState.READY if row.ready and row.address else ServingState.NOT_READY
        if row.leaving:
            state = ServingState.TERMINATING
        if unheard := self._silence(row.endpoint.cluster, state):
            return unheard
        if state == ServingState.NOT_READY and row.node and (trouble := _trouble(row.node)):
            since = _silent_since(row.node, self._now)
            return Standing(ServingState.UNKNOWN, since, state, trouble, NODE_NOT_READY)
        return Standing(state, detail=row.wait_message, reason=row.wait_reason)

    def of_endpoint(self, row: Endpoint) -> Standing:
        if row.kind == STATIC_KIND:
            return self._of_static(row)
        if row.gone_at is not None:
            return Standing(GONE)
        state = str(row.said.get("state") or PENDING)
        return self._silence(row.cluster, state) or Standing(state)

    def knows(self, cluster: Cluster) -> bool:
        """Whether what is stored of the cluster's endpoints and pods still counts."""
        return self._silence(cluster, "") is None

    def _silence(self, cluster: Cluster, last_known: str) -> Standing | None:
        """None while the cluster's watcher was heard of lately."""
        limit = self._limit(cluster)
        if is_fresh(cluster.observed_at, freshness_seconds=limit, now=self._now):
            return None
        ran_out = cluster.observed_at + timedelta(seconds=limit) if cluster.observed_at is not None else None
        detail = f"nothing is heard of {cluster.name}"
        return Standing(ServingState.UNKNOWN, ran_out, last_known or None, detail)

    def _limit(self, cluster: Cluster) -> float:
        """The least that a pool of it allows: its nodes are Unknown no sooner."""
        if self._limits is None:
            rows = NodePool.objects.order_by().values_list("cluster_id").annotate(least=Min("freshness_seconds"))
            self._limits = dict(rows)
        return self._limits.get(cluster.pk, DEFAULT_FRESHNESS_SECONDS)

    def _routers(self) -> RoutersSay:
        if self._said is None:
            self._said = routers_say()
        return self._said

    def _of_address(self, uid: str) -> Standing:
        said = self._routers()
        if not said.heard:
            return Standing(ServingState.UNKNOWN, said.silent_since, None, "no router says")
        if uid in said.left_out:
            return Standing(ServingState.NOT_READY, detail="every router leaves it out")
        return Standing(ServingState.READY)

    def _of_static(self, row: Endpoint) -> Standing:
        if self._addresses is None:
            found: dict[UUID, list[str]] = defaultdict(list)
            rows = Instance.objects.filter(endpoint__kind=STATIC_KIND).order_by()
            for endpoint_id, uid in rows.values_list("endpoint_id", "uid"):
                found[endpoint_id].append(uid)
            self._addresses = found
        uids = self._addresses.get(row.pk, ())
        if not uids:
            return Standing(NOTHING_GIVEN, detail="no address is given")
        each = [self._of_address(uid) for uid in uids]
        if each[0].state == ServingState.UNKNOWN:
            return each[0]
        ready = sum(one.state == ServingState.READY for one in each)
        state = ServingState.PARTIAL if ready else ServingState.NOT_READY
        words = f"{ready} of {len(each)} address{' answers' if len(each) == 1 else 'es answer'}"
        return Standing(ServingState.READY if ready == len(each) else state, detail=words)
