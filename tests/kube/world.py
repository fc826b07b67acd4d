"""The whole control plane against a real API server: rows, rounds and listings are real, machines are only objects.

Agents are played by the real KubernetesLink, step by step: ``obey`` does at once what a spec says and reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from controlplane.clusters.documents import Desired
from controlplane.clusters.gateway import GatewayError, NotFound
from controlplane.clusters.kubernetes import names, objects
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.link import KubernetesLink
from controlplane.clusters.models import ClusterType
from controlplane.clusters.registry import override_gateway
from controlplane.clusters.watching import ClusterWatcher
from controlplane.embedded.kube.simulator import SimulatedFleet
from tests import factories
from tests.plugins.kube import KubeApi
from tests.services.world import MIB, World

POOL = {"hearth.dev/pool": "gpu"}
AGENTS = 8  # that report at the same time


class KubeWorld(World):
    """One cluster with one pool ``gpu`` of simulated nodes ``n-0000``, ``n-0001`` …; clean the API server first."""

    def __init__(
        self,
        cluster: KubeApi,
        *,
        nodes: int = 2,
        capacity_bytes: int = 1000 * MIB,
        watch: bool = False,
        **pool: Any,
    ) -> None:
        self.kube = cluster
        self.capacity_bytes = capacity_bytes
        address = str(cluster.kubeconfig)
        self.begin(factories.cluster(type=ClusterType.KUBERNETES, address=address, observed_at=None), **pool)
        self.api = KubernetesGateway(address).client  # of people and other controllers: its requests are not Hearth's
        self.agents = SimulatedFleet(cluster.client, nodes, prefix="n", labels=POOL)
        self.agents.create()
        for name, uid in self.agents.uids.items():
            self.join(name, uid)
        if not watch:
            self.observe()

    @property
    def names(self) -> list[str]:
        return sorted(self.links)

    def join(self, name: str, uid: str) -> None:
        """An agent starts on this node; it reports when it is told to."""
        self.links[name] = KubernetesLink(self.api, name, uid)
        self.held[name] = {}

    def known(self, name: str) -> Desired | None:
        """Asked for afresh: what an agent's watch would tell a moment later."""
        try:
            stored = self.api.get(f"{names.NODE_CACHES}/{name}")
        except NotFound:
            return None
        spec = objects.spec_of(stored)
        if spec.node_uid != self.links[name].node_uid:
            return None
        return Desired(int(stored["metadata"]["generation"]), spec)

    def disk(self, name: str) -> tuple[int, int]:
        return self.capacity_bytes, 0

    def report_all(self) -> None:
        self._each(self.report)

    def obey(self, *names: str) -> None:
        self._each(super().obey, names)

    def _each(self, work: Callable[[str], object], names: tuple[str, ...] = ()) -> None:
        with ThreadPoolExecutor(AGENTS) as pool:
            list(pool.map(work, names or tuple(self.links)))

    def _told(self) -> Any:
        return [known and (known.generation, known.spec) for known in map(self.known, self.names)]

    def labels(self, name: str) -> dict[str, str]:
        """The node's labels as the API server has them."""
        return dict(self.api.get(f"{names.NODES}/{name}")["metadata"]["labels"])

    def label(self, name: str, labels: dict[str, str | None]) -> None:
        """By hand, as ``kubectl label`` does."""
        self.api.merge(f"{names.NODES}/{name}", {"metadata": {"labels": labels}}, manager="kubectl-label")

    def edit(self, name: str, **spec: Any) -> None:
        """By hand, as ``kubectl edit`` does; fields of the spec by their names in JSON."""
        self.api.merge(f"{names.NODE_CACHES}/{name}", {"spec": spec}, manager="kubectl-edit")

    def answers(self) -> bool:
        """Whether the API server serves NodeCaches now; just after a start it does not."""
        try:
            self.generations()
        except GatewayError:
            return False
        return True

    def generations(self) -> dict[str, int]:
        """Of every NodeCache that there is."""
        items = self.api.get(names.NODE_CACHES)["items"]
        return {item["metadata"]["name"]: int(item["metadata"]["generation"]) for item in items}

    @contextmanager
    def through(self, client: KubeClient) -> Iterator[KubernetesGateway]:
        """Hearth speaks to the API server through this client, for instance that of a faulty proxy."""
        gateway = KubernetesGateway("through-the-proxy", client=client)
        before, self.gateway = self.gateway, gateway
        override_gateway(self.cluster.pk, gateway)
        try:
            yield gateway
        finally:
            override_gateway(self.cluster.pk, None)
            self.gateway = before

    @contextmanager
    def watched(self, watch_seconds: float = 5.0) -> Iterator[ClusterWatcher]:
        """A watcher at work, as ``watch_cluster`` starts one."""
        watcher = ClusterWatcher(
            cluster_id=self.cluster.pk, name="prod", gateway=lambda: self.gateway, watch_seconds=watch_seconds
        )
        watcher.start()
        try:
            yield watcher
        finally:
            watcher.stop()
            watcher.join(60)
            assert not watcher.is_alive()


def sent(client: KubeClient) -> Callable[[], dict[str, int]]:
    """How many requests were sent since this was asked for, by method."""
    before = dict(client.requests())
    return lambda: {
        method: count - before.get(method, 0)
        for method, count in client.requests().items()
        if count > before.get(method, 0)
    }
