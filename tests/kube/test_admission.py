"""What a token can do with NodeCaches, on a real API server: agents write their own machine's status, and nothing else.

The tokens are those that pods get: bound to the pod, naming its machine and the machine's uid.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.clusters.gateway import GatewayError, Kind, ObservedNodeCache, Refused
from controlplane.clusters.kubernetes import names, objects
from tests.contracts.kube import STORE
from tests.contracts.observing import DIGEST, spec, status
from tests.kube.guarded import Guarded
from tests.kube.installed import client_of, token_of

OTHERS = "of n-1 writes no other NodeCache"
SUCCESSOR = "belongs to another machine"


def cache_of(guarded: Guarded, node: str) -> ObservedNodeCache:
    for item in guarded.contract.gateway.list(Kind.NODE_CACHE).items:
        if isinstance(item, ObservedNodeCache) and item.node_name == node:
            return item
    raise AssertionError(f"no NodeCache {node}")


def status_steps(uid: str, node: str) -> tuple[dict[str, Any], ...]:
    """What an agent sends, without asking whose object it is."""
    body = {
        "nodeName": node, "nodeUid": uid, "observedGeneration": 1, "reportedAt": "2026-01-01T00:00:00Z",
        "capacity": {"capacityBytes": 1, "usedBytes": 0, "otherBytes": 0, "reservedBytes": 0},
    }  # fmt: skip
    return ({"op": "add", "path": "/status", "value": body},)


def test_an_agent_reports_for_its_own_machine(guarded: Guarded) -> None:
    uid = guarded.contract.add_node("n-1")
    link = guarded.link("n-1", uid)
    link.report(first := status("n-1", uid))
    assert cache_of(guarded, "n-1").status == first, "it made the object itself"

    guarded.hearth().apply_node_cache(wanted := spec("n-1", uid, DIGEST))
    link.report(then := status("n-1", uid, used=9))
    assert (cache_of(guarded, "n-1").spec, cache_of(guarded, "n-1").status) == (wanted, then)


def test_an_agent_writes_no_status_of_another_node(guarded: Guarded) -> None:
    guarded.contract.add_node("n-1")
    uid = guarded.contract.add_node("n-2")
    guarded.contract.gateway.apply_node_cache(spec("n-2", uid, DIGEST))
    stolen = guarded.agent("n-1")
    with pytest.raises(Refused, match=OTHERS):
        stolen.patch(f"{names.NODE_CACHES}/n-2/status", status_steps(uid, "n-2"), manager="hearth-agent")
    assert cache_of(guarded, "n-2").status is None


def test_an_agent_writes_no_status_of_the_machine_that_took_its_name(guarded: Guarded) -> None:
    guarded.contract.add_node("n-1")
    stolen = guarded.agent("n-1")  # its pod is still there: nobody has noticed yet
    guarded.admin.delete(f"{names.NODES}/n-1")
    new = guarded.contract.add_node("n-1")
    guarded.contract.gateway.apply_node_cache(spec("n-1", new, DIGEST))
    for uid in (new, "whatever"):
        with pytest.raises(Refused, match=SUCCESSOR):
            stolen.patch(f"{names.NODE_CACHES}/n-1/status", status_steps(uid, "n-1"), manager="hearth-agent")
    assert cache_of(guarded, "n-1").status is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"name": "n-2"}, OTHERS),
        ({"uid": "another"}, SUCCESSOR),
        ({"owner": "another"}, SUCCESSOR),
        ({"spec": {"desired": []}}, "never writes what is wanted"),
        ({"spec": {"limits": {"paused": False}}}, "never writes what is wanted"),
        ({"spec": {"connections": [{"name": "x", "type": "S3"}]}}, "never writes what is wanted"),
        ({"spec": {"pool": "mine"}}, "never writes what is wanted"),
    ],
    ids=["as it should be", "name", "uid", "owner", "desired", "limits", "connections", "pool"],
)
def test_an_agent_makes_the_empty_object_of_its_own_machine_only(
    guarded: Guarded, change: dict[str, Any], says: str
) -> None:
    uid = guarded.contract.add_node("n-1")
    document = objects.first_node_cache(change.get("name", "n-1"), change.get("uid", uid))
    document["metadata"]["ownerReferences"][0]["uid"] = change.get("owner", uid)
    document["spec"] |= change.get("spec", {})
    agent = guarded.agent("n-1")
    if not says:
        assert agent.create(names.NODE_CACHES, document, manager="hearth-agent")["metadata"]["uid"]
        return
    with pytest.raises(Refused, match=says):
        agent.create(names.NODE_CACHES, document, manager="hearth-agent")


def test_an_agent_changes_no_spec_not_even_its_own(guarded: Guarded) -> None:
    uid = guarded.contract.add_node("n-1")
    guarded.contract.gateway.apply_node_cache(wanted := spec("n-1", uid, DIGEST))
    agent, path = guarded.agent("n-1"), f"{names.NODE_CACHES}/n-1"
    with pytest.raises(Refused, match="cannot patch"):
        agent.merge(path, {"spec": {"desired": []}}, manager="hearth-agent")
    with pytest.raises(Refused, match="cannot delete"):
        agent.delete(path)
    # Beside its status it can send what it likes: nothing else of the object is taken.
    steps = ({"op": "replace", "path": "/spec/desired", "value": []}, *status_steps(uid, "n-1"))
    agent.patch(f"{path}/status", steps, manager="hearth-agent")
    assert cache_of(guarded, "n-1").spec == wanted


def test_an_agents_account_without_a_machine_writes_nothing(guarded: Guarded) -> None:
    uid = guarded.contract.add_node("n-1")
    guarded.contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    unbound = client_of(guarded.cluster, token_of(guarded.admin, names.NODES_NAMESPACE, "hearth-agent"))
    with pytest.raises(Refused, match="an agent of no node"):
        unbound.patch(f"{names.NODE_CACHES}/n-1/status", status_steps(uid, "n-1"), manager="hearth-agent")


def test_nobody_else_writes_a_status(guarded: Guarded) -> None:
    uid = guarded.contract.add_node("n-1")
    guarded.contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    path = f"{names.NODE_CACHES}/n-1/status"
    for client, says in ((guarded.admin, "agent of its node alone"), (guarded.hearth().client, "cannot patch")):
        with pytest.raises(Refused, match=says):
            client.patch(path, status_steps(uid, "n-1"), manager="kubectl-edit")
    assert cache_of(guarded, "n-1").status is None


@pytest.mark.parametrize("by", ["link", "request"])
def test_a_secret_of_another_namespace_is_out_of_reach(guarded: Guarded, by: str) -> None:
    """A pin leads to a connection, and that to a Secret by name: there is no name that leads out of the namespace."""
    uid = guarded.contract.add_node("n-1")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs"}, "stringData": {"key": "x"}}
    for namespace in ("default", names.SYSTEM_NAMESPACE):
        guarded.admin.apply(f"/api/v1/namespaces/{namespace}/secrets/theirs", secret, manager="test")
    guarded.contract.gateway.apply_secret("ours", {"key": "y"})
    agent = guarded.agent("n-1")
    if by == "link":
        link = guarded.link("n-1", uid, agent)
        assert link.secret("ours") == {"key": "y"}
        for name in (
            "theirs",
            "../../default/secrets/theirs",
            "default/theirs",
            "..%2f..%2fdefault%2fsecrets%2ftheirs",
        ):
            with pytest.raises(GatewayError):
                link.secret(name)
        return
    for client in (agent, guarded.hearth().client):
        for namespace in ("default", names.SYSTEM_NAMESPACE):
            with pytest.raises(Refused, match="403"):
                client.get(f"/api/v1/namespaces/{namespace}/secrets/theirs")
        for path in ("/api/v1/secrets", names.SECRETS):
            with pytest.raises(Refused, match="403"):
                client.get(path)


@pytest.mark.parametrize(
    ("path", "read_only", "says"),
    [
        (STORE, True, ""),
        (STORE, False, "readOnly true"),
        (f"{STORE}/weights", False, "readOnly true"),
        ("/somewhere/else/hearth", False, ""),
        ("/var/log", False, ""),
    ],
)
def test_a_served_container_mounts_a_store_read_only(guarded: Guarded, path: str, read_only: bool, says: str) -> None:
    mount = {"name": "store", "mountPath": "/hearth", **({"readOnly": True} if read_only else {})}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "consumer-"},
        "spec": {
            "nodeSelector": {"no": "node"},
            "initContainers": [{"name": "ensure", "image": "none", "volumeMounts": [{**mount, "readOnly": False}]}],
            "containers": [{"name": "server", "image": "none", "volumeMounts": [mount]}],
            "volumes": [{"name": "store", "hostPath": {"path": path}}],
        },
    }  # fmt: skip
    pods = "/api/v1/namespaces/default/pods"
    if says:
        with pytest.raises(Refused, match=says):
            guarded.admin.create(pods, pod, manager="test")
        return
    made = guarded.admin.create(pods, pod, manager="test")
    guarded.admin.delete(f"{pods}/{made['metadata']['name']}", grace_seconds=0)


def test_what_is_added_to_a_running_pod_reaches_no_folder_of_its_node(guarded: Guarded) -> None:
    """Whoever may debug a pod of an endpoint could otherwise write what all nodes or all teams read."""

    def mounted(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "mountPath": f"/{name}", **more}

    init = {"name": "ensure", "image": "none", "volumeMounts": [mounted("hearth-source", readOnly=True)]}
    folders = {"store": STORE, "hearth-source": "/fsx"}
    pod: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "debugged"},
        "spec": {
            "nodeSelector": {"no": "node"}, "initContainers": [init],
            "containers": [{"name": "server", "image": "none"}],
            "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
        },
    }  # fmt: skip
    pods = "/api/v1/namespaces/default/pods"
    init["volumeMounts"] = [mounted("hearth-source")]
    with pytest.raises(Refused, match="that an ensure step reads is mounted with readOnly true"):
        guarded.admin.create(pods, pod, manager="test")
    init["volumeMounts"] = [mounted("hearth-source", readOnly=True)]
    guarded.admin.create(pods, pod, manager="test")
    try:
        for name in folders:
            added = {"name": f"debug-{name}", "image": "none", "volumeMounts": [mounted(name, readOnly=True)]}
            with pytest.raises(Refused, match="added to a running pod mounts neither"):
                debug(guarded, pods, added)
        debug(guarded, pods, {"name": "debug", "image": "none"})
    finally:
        guarded.admin.delete(f"{pods}/debugged", grace_seconds=0)


def debug(guarded: Guarded, pods: str, container: dict[str, Any]) -> None:
    """As ``kubectl debug`` does it."""
    body = {"spec": {"ephemeralContainers": [container]}}
    guarded.admin.merge(f"{pods}/debugged/ephemeralcontainers", body, manager="kubectl-debug")
