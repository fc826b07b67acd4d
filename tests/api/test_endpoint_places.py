"""An endpoint is a cluster's, its nodes are of pools: who sees one pool is told of no other's nodes and addresses."""

from __future__ import annotations

import pytest
from django.test import Client

from caches.domain.gating import Target
from caches.selectors.endpoints import nodes_seen
from controlplane.accounts.models import Scope
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node
from controlplane.serving.models import Endpoint, Instance
from tests import factories
from tests.api.conftest import api_for

pytestmark = pytest.mark.django_db
MINE, HIDDEN = ("chat-0", "node-mine", "127.0.0.1:7001"), ("chat-1", "node-hidden", "127.0.0.1:7002")


@pytest.fixture
def endpoint() -> Endpoint:
    made = factories.endpoint(name="chat")
    for pool_name, (name, node, address) in zip(("a", "b"), (MINE, HIDDEN), strict=True):
        of = factories.pool(of=made.cluster, name=pool_name)
        factories.instance(of=made, name=name, node=factories.node(of=of, name=node), address=address)
    poolless = factories.node(of=factories.pool(of=made.cluster), name="poolless")
    Node.objects.filter(pk=poolless.pk).update(pool=None)
    factories.instance(of=made, name="chat-2", node=poolless)
    factories.instance(of=made, name="chat-3", node_name="unheard", node_uid="uid-unheard")  # its node has no row yet
    factories.variant(of=made)
    return made


def test_rest_withholds_nodes_and_addresses_of_pools_that_are_not_seen(endpoint: Endpoint) -> None:
    def seen(target: str) -> tuple[dict[str, str | None], dict[str, tuple[str | None, str]]]:
        api = api_for(factories.user(role="Viewer", target=target), Scope.READ)
        of_endpoint = api.get(f"endpoints/{endpoint.pk}").json()["instances"]
        rows = api.get(f"instances?endpoint_id={endpoint.pk}").json()["items"]
        for row in rows:
            alone = api.get(f"instances/{row['id']}").json()
            assert (alone["node"], alone["address"]) == (row["node"], row["address"])
        return {one["name"]: one["node"] for one in of_endpoint}, {
            one["name"]: (one["node"], one["address"]) for one in rows
        }

    of_endpoint, rows = seen(f"{endpoint.cluster.name}.a")
    assert of_endpoint == {"chat-0": "node-mine", "chat-1": None, "chat-2": None, "chat-3": None}
    assert rows == {"chat-0": MINE[1:], "chat-1": (None, ""), "chat-2": (None, ""), "chat-3": (None, "")}
    for everything in (endpoint.cluster.name, ""):
        of_endpoint, rows = seen(everything)
        assert of_endpoint["chat-1"] == "node-hidden" and rows["chat-1"] == HIDDEN[1:]
        assert of_endpoint["chat-2"] == "poolless" and of_endpoint["chat-3"] == rows["chat-3"][0] == "unheard"
    assert Instance.objects.exclude(address="").filter(node__isnull=False).count() == 3, "nothing was written"
    assert Instance.objects.exclude(address="").exclude(node_name="").count() == 1


@pytest.mark.parametrize("page", ["", "/routing", "/routing.json?table=instances"])
def test_pages_and_exports_withhold_them_too(endpoint: Endpoint, page: str) -> None:
    def shown(target: str) -> str:
        client = Client()
        client.force_login(factories.user(role="Viewer", target=target))
        answer = client.get(f"/endpoints/{endpoint.pk}{page}")
        assert answer.status_code == 200
        return answer.content.decode()

    local, whole = shown(f"{endpoint.cluster.name}.a"), shown(endpoint.cluster.name)
    hidden = Instance.objects.select_related("node").get(name="chat-1")
    assert "node-mine" in local and "chat-1" in local, "that it is there, and how it is, is the endpoint's"
    for secret in ("node-hidden", "poolless", "unheard", HIDDEN[2], str(hidden.node_id)):
        assert secret not in local
    assert all(name in whole for name in ("node-hidden", "poolless", "unheard"))
    assert ">unheard</a>" not in whole, "there is no page of it yet"


def test_of_the_nodes_that_a_rollout_waits_for_those_are_named_that_are_seen(endpoint: Endpoint) -> None:
    waited = [Target(name, EntryState.QUEUED) for name in ("node-mine", "node-hidden", "poolless")]

    def seen(targets: frozenset[str] | None) -> list[str]:
        return [one.node for one in nodes_seen(waited, cluster=endpoint.cluster, targets=targets)]

    assert seen(frozenset({f"{endpoint.cluster.name}.a"})) == ["node-mine"] and seen(frozenset()) == []
    assert seen(None) == seen(frozenset({endpoint.cluster.name})) == ["node-mine", "node-hidden", "poolless"]
