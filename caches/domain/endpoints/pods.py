"""What an endpoint's document says about its pods: what Hearth hands on, and what it will not make for a tenant.

Hearth creates the pods, so that nothing may be in them that the document's author could not have had otherwise:
no folder of a node, no power over it, no account but the namespace's default one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caches.domain.endpoints.reading import Part, is_label

MOST_VARIABLE_BYTES = 128 * 1024 - 1  # Linux starts no process with a longer one
MOST_ENVIRONMENT_BYTES = 512 * 1024
VOLUME = "model-weights"
RESERVED_VOLUMES = frozenset({
    "shm", "model-weights-copy", "parallel-copy-configmap", "lmcache-config", "gated-model-downloader-configmap",
    "hearth-store", "hearth-source", "hearth-tmp", "hearth-warm-up",
})  # fmt: skip
RESERVED_CONTAINERS = frozenset({"ensure", "server", "warm-up"})
RESERVED_MOUNTS = ("/hearth", "/hearth-warm-up", "/dev", "/proc", "/sys")
_ELSEWHERE = {"namespace", "secretNamespace"}
_POWERS = ("privileged", "allowPrivilegeEscalation", "procMount")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodParts:
    """Parts of a pod in the words of Kubernetes, checked and otherwise as they were given."""

    port: int = 8080
    port_name: str = "http"
    volume_name: str = VOLUME
    mount_path: str = "/opt/ml/model"
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    environment: Sequence[Json] = ()
    resources: Json = field(default_factory=dict)
    probes: Json = field(default_factory=dict)  # livenessProbe, readinessProbe, startupProbe
    health_path: str = "/ping"
    node_affinity: Json = field(default_factory=dict)
    init_containers: Sequence[Json] = ()
    volumes: Sequence[Json] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Json] = ()
    scheduler: str = ""


def read_pod_parts(body: Part, worker: Part | None, *, source_is_volume: bool) -> PodParts:
    """``worker`` None: a JumpStartModel, whose image says what runs in it."""
    extra, balancer = body.part("kubernetes"), body.part("loadBalancer")
    common: dict[str, Any] = {
        "health_path": balancer.matched("healthCheckPath", "/[!-~]{0,254}", "a path that begins with /", "/ping"),
        "node_affinity": body.part("nodeAffinity").values,
        "init_containers": _init_containers(extra),
        "volumes": _volumes(extra),
        "annotations": _annotations(extra),
        "tolerations": [part.values for part in extra.objects("tolerations", most=100)],
        "scheduler": extra.text("schedulerName", longest=253),
    }
    if extra.has("serviceAccountName"):
        detail = "kubernetes.serviceAccountName is not enabled: the pods of endpoints have no account of their own."
        extra.refuse("serviceAccountName", "service-account", detail)
    for part, name in ((extra, "volumes"), (extra, "initContainers"), (worker or body, "environmentVariables")):
        _check_namespaces(part, name)
    if worker is None:
        return PodParts(environment=_environment(body, "environmentVariables"), **common)
    port, mount = worker.part("modelInvocationPort", required=True), worker.part("modelVolumeMount", required=True)
    volume = mount.text("name", VOLUME, required=True, longest=63)
    _check_volume_name(mount, volume)
    names = [item.get("name") for item in common["volumes"]]
    if source_is_volume and volume not in names:
        mount.refuse("name", "volume-missing", f"kubernetes.volumes has no {volume!r}, which is to hold the model.")
    if not source_is_volume and volume in names:
        mount.refuse("name", "volume-reserved", f"The volume {volume!r} is made by Hearth and stands there twice.")
    probes = worker.part("probes")
    for name in probes.values:
        for action in ("httpGet", "tcpSocket"):
            probe = probes.part(str(name)).part(action)
            if probe.has("host"):
                probe.refuse("host", "probe-host", "A probe asks its own pod and no other address.")
    return PodParts(
        port=port.integer("containerPort", 8080, 1, 65535, required=True),
        port_name=port.matched("name", "http|grpc", "http or grpc", "http"),
        volume_name=volume,
        mount_path=_mount_path(mount),
        command=worker.texts("command"),
        args=worker.texts("args"),
        working_dir=worker.text("workingDir", longest=4096),
        environment=_environment(worker, "environmentVariables"),
        resources=worker.part("resources", required=True).values,
        probes={
            name: probes.part(name).values
            for name in ("livenessProbe", "readinessProbe", "startupProbe")
            if probes.has(name)
        },
        **common,
    )


def _check_namespaces(part: Part, name: str) -> None:
    """Nothing names an object of another namespace; a cluster that would follow such a name is not asked to."""
    rest: list[tuple[str, Any]] = [(part.at(name), part.values.get(name))]
    while rest:
        path, value = rest.pop()
        if isinstance(value, list):
            rest += [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, Mapping):
            rest += [(f"{path}.{key}", item) for key, item in value.items()]
            for key in value.keys() & _ELSEWHERE:
                detail = f"{path}.{key}: an endpoint uses objects of its own namespace, and names no other."
                part.problems.refuse(f"{path}.{key}", "other-namespace", detail)


def _check_volume_name(mount: Part, volume: str) -> None:
    if not is_label(volume):
        mount.refuse("name", "field-format", f"{volume[:80]!r} cannot be the name of a volume.")
    elif volume in RESERVED_VOLUMES:
        mount.refuse("name", "volume-reserved", f"The name {volume!r} is taken by a volume of every pod.")


def _mount_path(mount: Part) -> str:
    path = mount.folder("mountPath", "/opt/ml/model", longest=4096)
    if any(path == taken or path.startswith(f"{taken}/") for taken in RESERVED_MOUNTS):
        mount.refuse("mountPath", "path-not-allowed", f"{path[:80]!r} is a folder that the pod needs for other things.")
    return path


def _environment(part: Part, name: str) -> tuple[Json, ...]:
    variables = part.objects(name)
    total, seen = 0, set[str]()
    for variable in variables:
        key = variable.text("name", required=True, longest=1024)
        if key in seen:
            variable.refuse("name", "environment-twice", f"The variable {key[:80]!r} is there twice.")
        seen.add(key)
        value = variable.values.get("value")
        if value is not None and not isinstance(value, str):
            variable.refuse("value", "field-type", f"{variable.at('value')} must be a text.")
            continue
        size = len(key.encode("utf-8", "surrogatepass")) + len((value or "").encode("utf-8", "surrogatepass"))
        total += size
        if size > MOST_VARIABLE_BYTES:
            detail = f"The variable {key[:80]!r} has {size} bytes; no process starts with one above 128 KiB."
            variable.refuse("value", "environment-too-large", detail)
        if value is not None and "\x00" in value:
            variable.refuse("value", "field-characters", f"{variable.at('value')} has a zero byte.")
    if total > MOST_ENVIRONMENT_BYTES:
        detail = f"The environment has {total} bytes; at most {MOST_ENVIRONMENT_BYTES} are taken."
        part.refuse(name, "environment-too-large", detail)
    return tuple(variable.values for variable in variables)


def _volumes(extra: Part) -> tuple[Json, ...]:
    seen = set[str]()
    found = extra.objects("volumes", most=100)
    for volume in found:
        name = volume.text("name", required=True, longest=63)
        if name in RESERVED_VOLUMES:
            volume.refuse("name", "volume-reserved", f"The name {name!r} is taken by a volume of every pod.")
        elif name in seen:
            volume.refuse("name", "volume-reserved", f"The volume {name!r} is there twice.")
        seen.add(name)
        if volume.has("hostPath"):
            volume.refuse("hostPath", "host-path", "A pod of an endpoint mounts no folder of a node but its weights.")
    return tuple(volume.values for volume in found)


def _init_containers(extra: Part) -> tuple[Json, ...]:
    found = extra.objects("initContainers", most=20)
    for container in found:
        name = container.text("name", required=True, longest=63)
        if name in RESERVED_CONTAINERS:
            container.refuse("name", "container-reserved", f"The name {name!r} is taken by a container of every pod.")
        context = container.part("securityContext")
        for power in _POWERS:
            if context.values.get(power) not in (None, False):
                context.refuse(power, "power", "A container of an endpoint has no power over its node.")
        added = context.part("capabilities").values.get("add")
        if added:
            context.refuse("capabilities", "power", "A container of an endpoint has no power over its node.")
        for mount in container.objects("volumeMounts"):
            if mount.values.get("name") in RESERVED_VOLUMES:
                mount.refuse("name", "volume-reserved", f"{mount.values.get('name')!r} belongs to Hearth.")
        for port in container.objects("ports"):
            if port.values.get("hostPort"):
                port.refuse("hostPort", "power", "A container of an endpoint takes no port of its node.")
    return tuple(container.values for container in found)


def _annotations(extra: Part) -> Mapping[str, str]:
    part = extra.part("podTemplateAnnotations")
    for name, value in part.values.items():
        if not isinstance(value, str):
            part.refuse(str(name)[:100], "field-type", "An annotation's value must be a text.")
        if str(name).partition("/")[0].endswith("hearth.dev"):
            part.refuse(str(name)[:100], "annotation-reserved", "Annotations of hearth.dev are set by Hearth alone.")
    if len(json.dumps(dict(part.values), default=str)) > 200 * 1024:
        part.refuse("", "too-large", "Annotations have 200 KiB at most.")
    return {str(name): value for name, value in part.values.items() if isinstance(value, str)}
