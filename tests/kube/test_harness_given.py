"""Somebody else's cluster, played by our own: tests that come through a Screen see and touch nothing of its owner's."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.clusters.gateway import Gone, Kind, Refused, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import Access, access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.embedded.kube.cluster import KubeCluster
from tests.contracts.kube import add_node
from tests.contracts.observing import changes
from tests.kube.installed import token_of
from tests.plugins.given import sweep
from tests.plugins.screen import Screen
from tests.plugins.screened import MARK, is_too_old, marked, target_of

MAPS = "/api/v1/namespaces/default/configmaps"
THEIRS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"key": "kept"}}
THEIR_NODE = f"{names.NODES}/theirs"


@pytest.fixture
def owner(own_kube_api: KubeCluster) -> Iterator[KubeClient]:
    """Who has a node and a ConfigMap there."""
    client = KubeClient(lambda: access_for(str(own_kube_api.kubeconfig)))
    add_node(client, "theirs")
    client.apply(f"{MAPS}/theirs", THEIRS, manager="owner")
    yield client
    for path in (THEIR_NODE, f"{MAPS}/theirs"):
        client.delete(path)


@pytest.fixture
def screen(own_kube_api: KubeCluster, owner: KubeClient) -> Iterator[Screen]:
    made = Screen(access_for(str(own_kube_api.kubeconfig)), "one")
    yield made
    made.close()
    sweep(owner)


@pytest.fixture
def client(screen: Screen) -> KubeClient:
    return _client(screen)


def _client(screen: Screen, authorization: str = "") -> KubeClient:
    return KubeClient(lambda: Access(server=screen.address, authorization=lambda again: authorization))


def _names(client: KubeClient, path: str) -> list[str]:
    return [item["metadata"]["name"] for item in client.get(path).get("items") or ()]


def test_it_shows_only_what_tests_made_and_takes_only_that_away(owner: KubeClient, client: KubeClient) -> None:
    gateway = KubernetesGateway("screened", client=client)
    token = gateway.list(Kind.NODE).token
    add_node(client, "ours")
    add_node(owner, "later")
    try:
        assert _names(client, names.NODES) == ["ours"]
        told = changes(gateway, Kind.NODE, token, at_least=1)
        assert {getattr(event.object, "name", "") for event in told} == {"ours"}
        client.create(MAPS, {**THEIRS, "metadata": {"generateName": "ours-"}}, manager="test")
        client.delete(MAPS)
        client.delete(names.NODES)
        assert {"theirs", "later"} <= set(_names(owner, names.NODES)), "all of them were meant, ours alone are gone"
        assert "ours" not in _names(owner, names.NODES)
        assert owner.get(f"{MAPS}/theirs")["data"] == {"key": "kept"}
        assert _names(client, MAPS) == []
    finally:
        owner.delete(f"{names.NODES}/later")


WRITES: tuple[Callable[[KubeClient], object], ...] = (
    lambda client: client.apply(f"{MAPS}/theirs", {**THEIRS, "data": {}}, manager="owner", force=True),
    lambda client: client.merge(f"{MAPS}/theirs", {"data": {"key": "x"}}, manager="test"),
    lambda client: client.patch(THEIR_NODE, [{"op": "remove", "path": "/metadata/labels"}], manager="test"),
    lambda client: client.merge(f"{THEIR_NODE}/status", {"status": {"capacity": {"cpu": "1"}}}, manager="test"),
    lambda client: client.merge("/api/v1/namespaces/default", {"metadata": {"labels": {"x": "y"}}}, manager="test"),
    lambda client: client.delete(f"{MAPS}/theirs"),
    lambda client: client.delete(THEIR_NODE),
)


def test_it_refuses_to_write_what_was_there_before(owner: KubeClient, client: KubeClient) -> None:
    def theirs() -> tuple[Any, ...]:
        node = owner.get(THEIR_NODE)
        return owner.get(f"{MAPS}/theirs"), node["metadata"]["labels"], node["status"].get("capacity")

    before = theirs()
    for write in WRITES:
        with pytest.raises(Refused, match="was there before"):
            write(client)
        assert theirs() == before


def test_a_token_counts_more_than_the_kubeconfigs_user(owner: KubeClient, screen: Screen) -> None:
    token = token_of(owner, "default", "default")
    with pytest.raises(Refused, match="system:serviceaccount:default:default"):
        _client(screen, f"Bearer {token}").get(names.NODES)


def test_it_stops_starts_and_forgets_for_tests_alone(owner: KubeClient, screen: Screen, client: KubeClient) -> None:
    gateway = KubernetesGateway("screened", client=client)
    token = gateway.list(Kind.NODE).token
    screen.stop()
    with pytest.raises(Unreachable):
        client.get("/version")
    assert owner.get("/version")
    screen.start()
    assert client.get("/version")
    assert changes(gateway, Kind.NODE, token) == []
    add_node(client, "ours")
    screen.compact()
    with pytest.raises(Gone):
        list(gateway.watch(Kind.NODE, token, 0.0))
    assert len(gateway.list(Kind.NODE).items) == 1


def test_nothing_is_left_and_all_of_the_owners(owner: KubeClient, client: KubeClient) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "screened"}}
    client.apply("/api/v1/namespaces/screened", space, manager="test")
    stuck = {"metadata": {"name": "stuck", "finalizers": ["example.com/never"]}}
    client.create("/api/v1/namespaces/screened/configmaps", {**THEIRS, **stuck}, manager="test")
    add_node(client, "ours")
    assert sweep(owner) >= 3
    assert "screened" not in _names(owner, "/api/v1/namespaces")
    assert "theirs" in (left := _names(owner, names.NODES)) and "ours" not in left
    assert sweep(owner) == 0


# -- what is sent, without a server ------------------------------------------------------------------------------------

TEMPLATE = {"spec": {"template": {"metadata": {"labels": {"app": "x"}}, "spec": {"nodeSelector": {"gpu": "yes"}}}}}


@pytest.mark.parametrize(
    ("method", "path", "document", "labelled", "kept_away"),
    [
        ("POST", "/api/v1/namespaces/default/pods", {"kind": "Pod", "spec": {}}, True, True),
        ("POST", "/api/v1/namespaces/default/pods", {"kind": "Pod", "spec": {"nodeName": "n-1"}}, True, False),
        ("PATCH", "/apis/apps/v1/namespaces/x/daemonsets/d", {"kind": "DaemonSet", **TEMPLATE}, True, True),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {"kind": "ClusterRoleBinding"}, True, False),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectreviews", {"kind": "SelfSubjectReview"}, False, False),
        ("POST", "/api/v1/namespaces/x/serviceaccounts/y/token", {"kind": "TokenRequest"}, False, False),
        ("PATCH", "/apis/cache.hearth.dev/v1alpha1/nodecaches/n/status", {"kind": "NodeCache"}, False, False),
        ("DELETE", "/api/v1/nodes/n-1", {"kind": "DeleteOptions"}, False, False),
    ],
)  # fmt: skip
def test_what_tests_make_is_marked_and_kept_away(
    method: str, path: str, document: dict[str, Any], labelled: bool, kept_away: bool
) -> None:
    kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
    sent = marked(target_of(path), method, kind, json.dumps(document).encode(), "one", anywhere=False)
    told = json.loads(sent)
    assert (told.get("metadata", {}).get("labels", {}).get(MARK) == "one") is labelled
    assert sent.decode().count("nodeSelector") == kept_away
    if "template" in told.get("spec", {}):
        assert told["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "yes", MARK: "one"}


@pytest.mark.parametrize(
    ("address", "is_old"),
    [
        ("/api/v1/nodes?watch=true&resourceVersion=6", True),
        ("/api/v1/nodes?watch=true&resourceVersion=7", False),
        ("/api/v1/nodes?watch=true&resourceVersion=0", False),
        ("/api/v1/nodes?watch=true", False),
        ("/api/v1/nodes?resourceVersion=6", False),
        ("/api/v1/nodes?continue=" + base64.urlsafe_b64encode(b'{"rv":6}').decode().rstrip("="), True),
        ("/api/v1/nodes?continue=" + base64.urlsafe_b64encode(b'{"rv":9}').decode(), False),
        ("/api/v1/nodes?continue=nonsense", False),
    ],
)
def test_what_was_forgotten_is_too_old(address: str, is_old: bool) -> None:
    assert is_too_old(target_of(address), 7) is is_old


@pytest.mark.parametrize(
    "address",
    [
        "/version", "/apis", "/api/v1", "/api/v1/nodes", "/api/v1/nodes/n-1", "/api/v1/nodes/n-1/status",
        "/api/v1/namespaces", "/api/v1/namespaces/x", "/api/v1/namespaces/x/status", "/api/v1/namespaces/x/pods",
        "/apis/apps/v1/namespaces/x/deployments/d/scale", "/api/v1/namespaces/x/pods/p/log?limitBytes=10",
    ],
)  # fmt: skip
def test_what_it_does_not_change_is_sent_as_it_came(address: str) -> None:
    assert target_of(address).full == address
