"""Somebody else's cluster for the tests: they get it through a Screen, and it is as it was when they are done.

One run of tests at a time; what a killed one left the next takes away, or ``python -m tests.plugins.given FILE``.
"""

from __future__ import annotations

import functools
import json
import ssl
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controlplane.clusters.gateway import GatewayError
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.embedded.kube.api import Client
from tests.plugins.screen import Screen
from tests.plugins.screened import MARK
from tests.waiting import until

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
BEAT_SECONDS = 5.0
_FIRST = ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
_LAST = ("customresourcedefinitions", "namespaces")
_HEARTHS = (names.SYSTEM_NAMESPACE, names.NODES_NAMESPACE, names.IMAGES_NAMESPACE)


class GivenClient(Client):
    """Through the screen, which brings the credentials."""

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class GivenCluster:
    """What tests use of a KubeCluster without nodes. It stops, starts and forgets for the tests alone."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.folder, self.server, self._screen = folder, screen.address, screen
        self.kubeconfig = folder / "admin.kubeconfig"
        named = {"cluster": "hearth", "user": "hearth"}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "hearth",
            "clusters": [{"name": "hearth", "cluster": {"server": self.server}}],
            "users": [{"name": "hearth", "user": {}}], "contexts": [{"name": "hearth", "context": named}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(document))
        self.client = GivenClient(self.server, folder, "")

    def stop_api_server(self) -> None:
        self._screen.stop()

    def start_api_server(self) -> None:
        self._screen.start()

    def restart_api_server(self) -> None:
        self._screen.stop()
        self._screen.start()

    def compact(self) -> None:
        self._screen.compact()


@contextmanager
def given(kubeconfig: str, folder: Path) -> Iterator[GivenCluster]:
    """The cluster of a kubeconfig (``FILE`` or ``FILE#CONTEXT``). AssertionError where Hearth is installed already."""
    access = access_for(kubeconfig)
    screen = Screen(access, uuid.uuid4().hex[:12])
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(screen.admin, ended), daemon=True)
    try:
        sweep(screen.admin)
        for name in _HEARTHS:
            assert not _is_there(screen.admin, name), (
                f"The given cluster has a namespace {name}: tests would change it."
            )
        beating.start()
        yield GivenCluster(folder, screen)
    finally:
        ended.set()
        if beating.ident is not None:
            beating.join(60)
        screen.close()
        sweep(screen.admin)


def _is_there(client: KubeClient, namespace: str) -> bool:
    with suppress(GatewayError):
        return bool(client.get(f"/api/v1/namespaces/{namespace}"))
    return False


def _beat(client: KubeClient, ended: threading.Event) -> None:
    """What kubelets do: nodes without it become Unknown. Theirs is that of the nodes which tests made."""
    while not ended.wait(BEAT_SECONDS):
        with suppress(GatewayError):
            for node in client.get(names.NODES, {"labelSelector": MARK})["items"]:
                if ended.is_set():
                    return
                with suppress(GatewayError):
                    _renew(client, node["metadata"])


def _renew(client: KubeClient, node: Mapping[str, Any]) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
    lease = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node["name"], "labels": {MARK: node["labels"][MARK]}, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node["name"], "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }  # fmt: skip
    client.apply(f"{LEASES}/{node['name']}", lease, manager="test", force=True)


# -- taking everything away -------------------------------------------------------------------------------------------


def sweep(client: KubeClient) -> int:
    """Remove every object that any run of tests made, and wait until the last is gone. Returns how many there were."""
    found = sorted(_marked(client), key=lambda row: (row[0] not in _FIRST, row[0] in _LAST))
    for resource, path in found:
        if resource not in _LAST:
            with suppress(GatewayError):  # nobody is there any more who would do it
                client.merge(path, {"metadata": {"finalizers": None}}, manager="test")
        client.delete(path, grace_seconds=0 if resource == "pods" else None)
    until(lambda: not _marked(client), "nothing of the tests is left", seconds=300, every=1.0)
    return len(found)


def _marked(client: KubeClient) -> list[tuple[str, str]]:
    """Resource and path of everything that is marked, whatever kind it is of; events go by themselves."""
    found: list[tuple[str, str]] = []
    for group in _groups(client):
        with suppress(GatewayError):  # a group that went meanwhile
            for resource in client.get(group).get("resources") or ():
                name = str(resource["name"])
                if "/" not in name and name != "events" and {"list", "delete"} <= set(resource["verbs"]):
                    found += [(name, path) for path in _paths(client, group, name)]
    return found


def _paths(client: KubeClient, group: str, resource: str) -> Iterator[str]:
    query = {"labelSelector": MARK}
    with suppress(GatewayError):  # a kind that went meanwhile
        page = client.get(f"{group}/{resource}", query, only_metadata="PartialObjectMetadataList")
        for item in page.get("items") or ():
            metadata = item["metadata"]
            place = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
            yield f"{group}{place}/{resource}/{metadata['name']}"


def _groups(client: KubeClient) -> list[str]:
    found = ["/api/v1"]
    for group in client.get("/apis")["groups"]:
        found.append(f"/apis/{group['preferredVersion']['groupVersion']}")
    return found


if __name__ == "__main__":
    print(f"{sweep(KubeClient(lambda: access_for(sys.argv[1])))} objects of tests were taken away.")
