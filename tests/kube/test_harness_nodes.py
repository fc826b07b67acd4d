"""The nodes of the harness: pods run on them, each has its own disk, and they take faults as machines do."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from controlplane.embedded.kube import cgroups, links
from controlplane.embedded.kube.api import ApiError, Client
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.kube.node import MEBIBYTE, KubeNode
from controlplane.embedded.problems import EmbeddedError
from tests.kube import pods

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


@pytest.fixture
def extra(kube_cluster: KubeCluster) -> Iterator[KubeNode]:
    """A node that a test may break; taken away afterwards."""
    kube_cluster.add_node("extra", labels={"pool": "extra"}, taints=["only=extra:NoSchedule"], disk_bytes=8 * MEBIBYTE)
    yield kube_cluster.nodes["extra"]
    kube_cluster.nodes["extra"].remove()


def test_it_shows_each_node_its_own_disk_at_the_same_path(kube_cluster: KubeCluster) -> None:
    for node in ("node-a", "node-b"):
        pods.run(kube_cluster, f"disk-{node}", node, f"echo {node} > /store/whose && cat /store/whose")
    a, b = kube_cluster.nodes["node-a"], kube_cluster.nodes["node-b"]
    assert (a.store / "whose").read_text() == "node-a\n"
    assert (b.store / "whose").read_text() == "node-b\n"
    assert pods.logs(kube_cluster, "disk-node-b") == "node-b\n"
    assert list(kube_cluster.cache_path.iterdir()) == []


def test_it_reaches_pods_of_other_nodes_and_the_api_server(kube_cluster: KubeCluster) -> None:
    server = pods.run(kube_cluster, "net-server", "node-a", "echo here > /tmp/index.html; httpd -f -p 8080 -h /tmp")
    address = server["status"]["podIP"]
    # A pod that runs may not listen yet.
    asks = f"until printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc {address} 8080 | grep here; do sleep 1; done; "
    asks += "until nc -w 10 $KUBERNETES_SERVICE_HOST 443 </dev/null; do sleep 1; done; echo the door is open"
    pods.run(kube_cluster, "net-client", "node-b", asks)
    said = pods.logs(kube_cluster, "net-client")
    assert "here\n" in said
    assert "the door is open" in said


def test_it_leaves_pods_no_way_out_of_the_cluster(kube_cluster: KubeCluster) -> None:
    pods.run(kube_cluster, "net-out", "node-a", "cat /proc/net/route")
    destinations = {line.split()[1] for line in pods.logs(kube_cluster, "net-out").splitlines()[1:]}
    # A default route is written 00000000; every address of the cluster ends in the byte 0A, for 10.
    assert destinations
    assert {route for route in destinations if not route.endswith("0A")} == set()
    whole = kube_cluster.control.network.whole
    assert [row["type"] for row in links.routes() if row["dst"] == whole] == ["blackhole"]


def test_it_gives_labels_and_taints_to_a_new_node(kube_cluster: KubeCluster, extra: KubeNode) -> None:
    node = kube_cluster.client.get("/api/v1/nodes/extra")
    assert node["metadata"]["labels"]["pool"] == "extra"
    assert {"key": "only", "value": "extra", "effect": "NoSchedule"} in node["spec"]["taints"]


def test_it_has_a_disk_that_really_fills(extra: KubeNode) -> None:
    extra.fill(7 * MEBIBYTE)
    with pytest.raises(OSError, match="No space left"):
        (extra.store / "more").write_bytes(os.urandom(2 * MEBIBYTE))
    (extra.store / "more").unlink()
    free = extra.store_bytes()[1]
    with pytest.raises(EmbeddedError, match=r"no room.*the 7 MiB from before stay"):
        extra.fill(9 * MEBIBYTE)
    assert extra.store_bytes()[1] == free, "what was refused takes nothing back either"
    extra.fill(3 * MEBIBYTE)
    assert extra.store_bytes()[1] > free
    extra.fill(0)
    assert (extra.store / "more").write_bytes(b"x" * 2 * MEBIBYTE)


def test_it_keeps_pods_running_while_a_node_is_dead(kube_cluster: KubeCluster, extra: KubeNode) -> None:
    before = pods.run(kube_cluster, "survivor", "extra", "while true; do sleep 1; done")
    extra.kill()
    alive = cgroups.processes(extra.cgroup)
    extra.start()
    assert alive
    after = kube_cluster.client.get(f"{pods.PODS}/survivor")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (
        after["status"]["containerStatuses"][0]["containerID"]
        == before["status"]["containerStatuses"][0]["containerID"]
    )


def test_it_ends_every_process_of_a_node_that_loses_power(kube_cluster: KubeCluster, extra: KubeNode) -> None:
    pods.run(kube_cluster, "victim", "extra", "while true; do sleep 1; done")
    (extra.store / "kept").write_text("still here")
    extra.kill(pods=True)
    assert cgroups.processes(extra.cgroup) == set()
    extra.start()
    assert (extra.store / "kept").read_text() == "still here"


def test_it_replaces_a_machine_under_the_same_name(kube_cluster: KubeCluster, extra: KubeNode) -> None:
    (extra.store / "old").write_text("of the old machine")
    old = extra.uid
    new = extra.replace()
    assert new.uid != old
    assert list(new.store.iterdir()) == []
    assert kube_cluster.nodes["extra"] is new
    pods.run(kube_cluster, "on-new-machine", "extra", "echo works")
    assert pods.logs(kube_cluster, "on-new-machine") == "works\n"


def test_it_obeys_the_api_server_alone(kube_cluster: KubeCluster) -> None:
    url = f"https://{kube_cluster.nodes['node-a'].address}:10250/pods"
    stranger = ssl.create_default_context()
    stranger.check_hostname = False
    stranger.verify_mode = ssl.CERT_NONE
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=60, context=stranger)
    with refused.value:
        assert refused.value.code == 401


def test_it_holds_nodes_to_their_own_objects(kube_cluster: KubeCluster) -> None:
    as_a = Client(kube_cluster.server, kube_cluster.folder / "pki", "node-node-a")
    with pytest.raises(ApiError) as refused:
        as_a.merge("/api/v1/nodes/node-b", {"metadata": {"labels": {"stolen": "yes"}}})
    assert refused.value.status == 403
    assert "stolen" not in json.dumps(kube_cluster.client.get("/api/v1/nodes/node-b"))
