"""Pods for tests of the harness: a shell script on a named node, and what it printed."""

from __future__ import annotations

import contextlib
import urllib.request

from controlplane.embedded import records
from controlplane.embedded.kube.api import ApiError, Client, Document
from controlplane.embedded.kube.cluster import KubeCluster

PODS = "/api/v1/namespaces/default/pods"


def run(cluster: KubeCluster, name: str, node: str, script: str, *, image: str = "") -> Document:
    """Run a shell script as a pod on a node until it ends or is ready; returns the pod. Its store is at ``/store``."""
    container = {
        "name": "main",
        "image": image or cluster.pause_image,
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "store", "mountPath": "/store"}],
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "store", "hostPath": {"path": str(cluster.cache_path)}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def created() -> bool:
        # The namespace's service account follows the namespace by a moment.
        with contextlib.suppress(ApiError):
            cluster.client.post(PODS, pod)
            return True
        return False

    assert records.wait_until(created, 120)
    assert records.wait_until(lambda: _settled(cluster.client, name), 150), cluster.client.get(f"{PODS}/{name}")[
        "status"
    ]
    return cluster.client.get(f"{PODS}/{name}")


def _settled(client: Client, name: str) -> bool:
    status = client.get(f"{PODS}/{name}")["status"]
    ready = any(row["type"] == "Ready" and row["status"] == "True" for row in status.get("conditions", []))
    return ready or status["phase"] in {"Succeeded", "Failed"}


def logs(cluster: KubeCluster, name: str) -> str:
    """What a pod printed, through the API server and the kubelet; waits for the script's end."""
    ended = records.wait_until(lambda: _phase(cluster.client, name) in {"Succeeded", "Failed"}, 150)
    assert ended, f"the script of {name} does not end"
    url = f"{cluster.server}{PODS}/{name}/log"
    with urllib.request.urlopen(url, timeout=60, context=cluster.client.tls) as answer:
        return str(answer.read().decode())


def _phase(client: Client, name: str) -> str:
    return str(client.get(f"{PODS}/{name}")["status"]["phase"])
