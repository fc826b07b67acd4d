"""The Deployment and the Service of an endpoint, as documents. Pure.

An ensure step brings the weights on any node; the served container sees one artifact of the node's store, read-only.
Nothing is required of a node but what the document itself requires: warm nodes are preferred.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from caches.domain.endpoints.specs import INSTANCE_TYPE_LABEL, EndpointSpec
from caches.domain.endpoints.warm_up import container, volume
from caches.domain.labels import ready_label
from controlplane.clusters.documents import SourceType

ENDPOINT_LABEL = "hearth.dev/endpoint"
VERSION_LABEL = "hearth.dev/version"  # the first hex digits of the digest that a pod serves
MANAGED_BY = {"app.kubernetes.io/managed-by": "hearth"}
WEIGHTS_ANNOTATION = "cache.hearth.dev/weights"
STORE, TREE, TMP, SOURCE = "/hearth/store", "/hearth/weights", "hearth-tmp", "hearth-source"
_ENSURES = (STORE, "/model", "/tmp", "/dev", "/proc", "/sys")  # where the ensure step has other things
WARM_WEIGHT = 100
# A pod that goes still gets requests until everybody has heard of it. Its server is told to end after that.
DRAIN_SECONDS = 10
END_SECONDS = 30  # that the server then has for what it answers
LONGEST_PREFERENCE = 50  # the weight of the first instance type; those that follow weigh less

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """What the pods serve. ``digest`` "": the pod brings its weights itself. ``source`` is HEARTH_SOURCE's JSON.

    ``image`` is as it is run, by digest where that is known; ``host_path`` the root of the nodes' stores, "" where pods
    have no node's store and fetch into one of their own.
    """

    image: str
    ensure_image: str
    host_path: str
    digest: str = ""
    source: str = ""

    @property
    def mounted(self) -> str:
        """The folder of nodes that the ensure step reads: the connection's root where ``source`` is a file system,
        for whoever may read through the connection may read all of it. "" for what is asked over the network."""
        told = json.loads(self.source) if self.source else {}
        if told.get("connection", {}).get("type") != SourceType.FILESYSTEM:
            return ""
        folder = PurePosixPath(unquote(urlsplit(told["uri"]).path))
        roots = [str(PurePosixPath(root)) for root in told["connection"]["allowed"] if folder.is_relative_to(root)]
        return roots[0] if roots and _may_be_mounted(roots[0]) else ""


def selector(name: str) -> dict[str, str]:
    """The labels that a Deployment and a Service select by; they never change while an endpoint lives."""
    return {"app": name, ENDPOINT_LABEL: name}


def deployment(spec: EndpointSpec, served: Served, *, owner: Mapping[str, Any] | None = None) -> Json:
    """The Deployment. ``replicas`` is in it; whoever applies it leaves them out where an autoscaler owns them."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(spec, owner),
        "spec": {
            "replicas": spec.replicas,
            "progressDeadlineSeconds": spec.deploy_seconds,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector(spec.name)},
            # No moment without the replicas that were asked for.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": _pod_metadata(spec, served), "spec": _pod(spec, served)},
        },
    }


def service(spec: EndpointSpec, *, owner: Mapping[str, Any] | None = None) -> Json:
    """A ClusterIP Service named as the endpoint, on the port that the model server takes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, owner),
        "spec": {
            "selector": selector(spec.name),
            "ports": [{"name": spec.pod.port_name, "port": spec.pod.port, "targetPort": spec.pod.port}],
        },
    }


def _metadata(spec: EndpointSpec, owner: Mapping[str, Any] | None) -> Json:
    made: Json = {
        "name": spec.name,
        "namespace": spec.namespace,
        "labels": {**MANAGED_BY, **selector(spec.name)},
    }
    if owner is not None:
        made["ownerReferences"] = [dict(owner)]
    return made


def _pod_metadata(spec: EndpointSpec, served: Served) -> Json:
    annotations = dict(spec.pod.annotations)
    labels = {**MANAGED_BY, **selector(spec.name)}
    if served.digest:
        annotations[WEIGHTS_ANNOTATION] = served.digest
        labels[VERSION_LABEL] = served.digest.removeprefix("sha256:")[:12]
    return {"labels": labels, "annotations": annotations}


def _pod(spec: EndpointSpec, served: Served) -> Json:
    parts = spec.pod
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": DRAIN_SECONDS + END_SECONDS,
        "initContainers": [*_ensure(spec, served), *copy.deepcopy(list(parts.init_containers))],
        "containers": _containers(spec, served),
        "volumes": [*_own_volumes(spec, served), *copy.deepcopy(list(parts.volumes))],
    }
    if affinity := node_affinity(spec, served):
        pod["affinity"] = {"nodeAffinity": affinity}
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if parts.tolerations:
        pod["tolerations"] = copy.deepcopy(list(parts.tolerations))
    if parts.scheduler:
        pod["schedulerName"] = parts.scheduler
    return pod


def _containers(spec: EndpointSpec, served: Served) -> list[Json]:
    """The model server first: tools that ask for no container by name mean it."""
    server = _server(spec, served)
    asked = spec.options.warm_up
    if asked is None:
        return [server]
    readiness = server["readinessProbe"]
    return [server, container(asked, image=served.ensure_image, port=spec.pod.port, readiness=readiness)]


def node_affinity(spec: EndpointSpec, served: Served) -> Json:
    """What the document asks for, and a preference for nodes that hold the weights."""
    made: Json = copy.deepcopy(dict(spec.pod.node_affinity))
    preferred: list[Json] = list(made.get("preferredDuringSchedulingIgnoredDuringExecution") or ())
    if len(spec.instance_types) > 1:
        wanted = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": list(spec.instance_types)}
        made["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        preferred += _in_order(spec.instance_types)
    if served.digest:
        # Whether or not the cache is on: a switch of it is no reason to replace pods that serve.
        there = {"key": ready_label(served.digest), "operator": "Exists"}
        preferred.append({"weight": WARM_WEIGHT, "preference": {"matchExpressions": [there]}})
    if preferred:
        made["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    return made


def _in_order(types: Sequence[str]) -> list[Json]:
    step = LONGEST_PREFERENCE // len(types)
    return [
        {
            "weight": max(1, LONGEST_PREFERENCE - rank * step),
            "preference": {"matchExpressions": [{"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [name]}]},
        }
        for rank, name in enumerate(types)
    ]


def _ensure(spec: EndpointSpec, served: Served) -> list[Json]:
    """The step that makes the weights present; where no agent can help it fetches with the pod's own credentials."""
    if not served.digest:
        return []
    environment: list[Json] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    if served.source:
        environment.append({"name": "HEARTH_SOURCE", "value": served.source})
    if secret := spec.options.source_secret:
        for name, key in (("AWS_ACCESS_KEY_ID", "access-key-id"), ("AWS_SECRET_ACCESS_KEY", "secret-access-key")):
            reference = {"name": secret, "key": key, "optional": True}
            environment.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    if (name := spec.source.token_secret[0]) and served.source:
        # A pod whose weights are there starts without the Secret too.
        reference = {"name": name, "key": spec.source.token_secret[1], "optional": True}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    step: Json = {
        "name": "ensure",
        "image": served.ensure_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "caches.agent.ensure_step"],
        "args": [f"--digest={served.digest}", f"--store={STORE}", "--model=/model", f"--mount={TREE}"],
        "env": environment,
        "securityContext": {
            # Root without power fills the store itself when its agent is dead.
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [
            {"name": "hearth-store", "mountPath": STORE},
            {"name": spec.pod.volume_name, "mountPath": "/model"},
            {"name": TMP, "mountPath": "/tmp"},
            *([_source_mount(served)] if served.mounted else ()),
        ],
    }
    return [step]


def _source_mount(served: Served) -> Json:
    """Where its connection says it is, and whatever is mounted below it read-only too where the node's runtime can."""
    return {"name": SOURCE, "mountPath": served.mounted, "readOnly": True, "recursiveReadOnly": "IfPossible"}


def _may_be_mounted(folder: str) -> bool:
    """Not where that would hide what the ensure step itself needs, and not with a name that no API server takes."""
    return ":" not in folder and not any(PurePosixPath(taken).is_relative_to(folder) for taken in _ENSURES)


def _server(spec: EndpointSpec, served: Served) -> Json:
    parts = spec.pod
    mounts: list[Json] = [{"name": parts.volume_name, "mountPath": parts.mount_path, "readOnly": True}]
    if served.digest:
        path = f"weights/{served.digest.replace(':', '-')}"
        mounts.append({"name": "hearth-store", "mountPath": TREE, "subPath": path, "readOnly": True})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    server: Json = {
        "name": "server",
        "image": served.image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": parts.port_name, "containerPort": parts.port}],
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        "volumeMounts": mounts,
        **copy.deepcopy(dict(parts.probes)),
    }
    # The vendor's default: without it a pod would take requests before its model is loaded.
    server.setdefault("readinessProbe", {"httpGet": {"path": parts.health_path, "port": parts.port}})
    for name, value in (
        ("command", list(parts.command)),
        ("args", list(parts.args)),
        ("workingDir", parts.working_dir),
        ("env", copy.deepcopy(list(parts.environment))),
        ("resources", copy.deepcopy(dict(parts.resources))),
    ):
        if value:
            server[name] = value
    return server


def _own_volumes(spec: EndpointSpec, served: Served) -> list[Json]:
    made: list[Json] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if served.digest:
        path = {"path": f"{served.host_path.rstrip('/')}/hearth", "type": "DirectoryOrCreate"}
        made += [
            {"name": "hearth-store", **({"hostPath": path} if served.host_path else {"emptyDir": {}})},
            {"name": spec.pod.volume_name, "emptyDir": {}},
            {"name": TMP, "emptyDir": {"sizeLimit": "64Mi"}},
        ]
    if served.digest and served.mounted:
        # Of no type: pods whose weights are warm start where the file system is not mounted, too.
        made.append({"name": SOURCE, "hostPath": {"path": served.mounted}})
    return [*made, volume()] if spec.options.warm_up is not None else made
