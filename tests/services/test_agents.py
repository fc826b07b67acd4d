"""A cluster without a supervisor gets one agent for each node of a pool, and again when somebody took it away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import NodeProjection, PoolLoop
from caches.services.agents import AGAIN_AFTER, agents_apply
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import Conflict, PoolAgent, Refused, Unreachable
from controlplane.clusters.models import NodePool
from tests import factories

pytestmark = pytest.mark.django_db


class Cluster:
    """Takes agents, or fails."""

    def __init__(self) -> None:
        self.agents: list[PoolAgent] = []
        self.error: Exception | None = None
        self.labels: list[tuple[str, dict[str, str | None]]] = []

    def set_node_labels(self, name: str, uid: str, labels: dict[str, str | None]) -> None:
        self.labels.append((name, labels))

    def apply_agent(self, agent: PoolAgent) -> None:
        if self.error is not None:
            raise self.error
        self.agents.append(agent)


@pytest.fixture
def pool(settings: Any) -> Iterator[NodePool]:
    settings.AGENT_IMAGE = "registry.example/hearth@sha256:1"
    cluster = factories.cluster(type="Kubernetes", address="in-cluster")
    made = factories.pool(of=cluster, name="gpu", selector={"pool": "gpu"}, cache_path="/mnt/nvme")
    PoolLoop.objects.create(pool=made)
    yield made


def apply(pool: NodePool, cluster: Cluster, now: Any = None) -> list[str]:
    return agents_apply(pool=pool, gateway=cluster, now=now or timezone.now())  # type: ignore[arg-type]


def test_the_agent_is_the_pools(pool: NodePool, settings: Any) -> None:
    settings.AGENT_API_SERVER, settings.AGENT_PULL_SECRETS = "https://10.0.0.1:6443", ["pull"]
    cluster = Cluster()
    assert apply(pool, cluster) == []
    [agent] = cluster.agents
    assert (agent.pool, agent.cache_path, agent.node_selector) == ("gpu", "/mnt/nvme", {POOL_LABEL: "gpu"})
    assert (agent.image, agent.server) == ("registry.example/hearth@sha256:1", "https://10.0.0.1:6443")
    assert agent.image_pull_secrets == ("pull",)


def test_it_is_applied_once_and_again_after_a_while(pool: NodePool) -> None:
    cluster, now = Cluster(), timezone.now()
    for at in (now, now + timedelta(seconds=30), now + AGAIN_AFTER + timedelta(seconds=1)):
        apply(pool, cluster, at)
    assert len(cluster.agents) == 2


@pytest.mark.parametrize(("field", "value"), [("name", "other"), ("cache_path", "/mnt/other")])
def test_a_changed_pool_changes_its_agents_at_once(pool: NodePool, field: str, value: object) -> None:
    cluster = Cluster()
    apply(pool, cluster)
    setattr(pool, field, value)
    apply(pool, cluster)
    assert len(cluster.agents) == 2


def test_a_new_image_is_rolled_out(pool: NodePool, settings: Any) -> None:
    cluster = Cluster()
    apply(pool, cluster)
    settings.AGENT_IMAGE = "registry.example/hearth@sha256:2"
    apply(pool, cluster)
    assert [agent.image[-1] for agent in cluster.agents] == ["1", "2"]


def test_a_missing_image_is_said_with_what_to_do(pool: NodePool, settings: Any) -> None:
    settings.AGENT_IMAGE = ""
    cluster = Cluster()
    [problem] = apply(pool, cluster)
    assert "HEARTH_AGENT_IMAGE" in problem and cluster.agents == []


@pytest.mark.parametrize("error", [Refused("not allowed"), Conflict("somebody else's", ("helm",))])
def test_a_refusal_is_said_and_tried_again(pool: NodePool, error: Exception) -> None:
    cluster = Cluster()
    cluster.error = error
    [problem] = apply(pool, cluster)
    assert str(error) in problem
    cluster.error = None
    assert apply(pool, cluster) == [] and len(cluster.agents) == 1


def test_a_cluster_that_does_not_answer_ends_the_round(pool: NodePool) -> None:
    cluster = Cluster()
    cluster.error = Unreachable("no answer")
    with pytest.raises(Unreachable):
        apply(pool, cluster)


def test_a_node_that_two_pools_select_gets_one_agent(pool: NodePool) -> None:
    factories.node(of=pool, name="mine")
    factories.node(of=pool, name="known", labels={POOL_LABEL: "gpu"})
    other = factories.pool(of=pool.cluster, name="other", selector={"pool": "gpu"})
    factories.node(of=other, name="theirs-now", labels={POOL_LABEL: "gpu"})
    factories.node(of=other, name="theirs", labels={POOL_LABEL: "other"})
    cluster = Cluster()
    apply(pool, cluster)
    assert cluster.labels == [("mine", {POOL_LABEL: "gpu"}), ("theirs-now", {POOL_LABEL: None})]


@pytest.mark.parametrize(
    ("found", "begun", "told"),
    [(None, True, 1), ("nonsense", True, 1), ("other", True, 0), (None, False, 0)],
    ids=["taken away", "rewritten", "moved here", "new"],
)
def test_a_mark_that_somebody_changed_is_put_back_and_audited(
    pool: NodePool, found: str | None, begun: bool, told: int
) -> None:
    factories.pool(of=pool.cluster, name="other")
    node = factories.node(of=pool, labels={} if found is None else {POOL_LABEL: found})
    if begun:
        NodeProjection.objects.create(node=node, generation=1, applied_at=timezone.now())
    cluster = Cluster()
    assert apply(pool, cluster) == []
    assert cluster.labels == [(node.name, {POOL_LABEL: "gpu"})]
    events = AuditEvent.objects.filter(action="node.label-restored")
    assert [(event.object_name, event.before) for event in events] == [(node.name, {POOL_LABEL: found})] * told


def test_a_node_that_is_gone_is_not_labelled(pool: NodePool) -> None:
    factories.node(of=pool, name="gone", lost_at=timezone.now())
    cluster = Cluster()
    apply(pool, cluster)
    assert cluster.labels == []


def test_the_local_fleet_starts_its_agents_itself(settings: Any) -> None:
    settings.AGENT_IMAGE = "x"
    cluster = Cluster()
    assert apply(factories.pool(), cluster) == [] and cluster.agents == []
