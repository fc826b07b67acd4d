"""Credentials of source connections as Secrets: in the nodes' namespace for agents, and in that of the images' holders
for the kubelets that pull them. Their values appear in no message."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from controlplane.clusters.gateway import NotFound, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient


def secret_apply(client: KubeClient, name: str, data: Mapping[str, str]) -> None:
    """Replace what Hearth wrote. Conflict when somebody else holds a key; nobody else's keys are touched."""
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": names.NODES_NAMESPACE, "labels": dict(names.MANAGED_BY)},
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }
    client.apply(_path(name), document, manager=names.MANAGER)


def secret_read(client: KubeClient, name: str) -> Mapping[str, str]:
    """NotFound when there is none."""
    try:
        data = client.get(_path(name)).get("data") or {}
        return {key: base64.b64decode(value, validate=True).decode() for key, value in data.items()}
    except ValueError:  # no base64, or no UTF-8
        raise Unreachable(f"The secret {name} holds bytes that are no text.") from None


def secret_value(client: KubeClient, namespace: str, name: str, key: str) -> str:
    """What a Secret of any namespace has under a key. NotFound when there is none; Refused without a right to it."""
    if not (names.is_object_name(namespace) and names.is_object_name(name)):
        raise NotFound(f"{namespace!r:.80}, {name!r:.80} cannot name a Secret.")
    data = client.get(f"/api/v1/namespaces/{namespace}/secrets/{name}").get("data") or {}
    if key not in data:
        raise NotFound(f"The Secret {namespace}/{name} has no key {key}.")
    try:
        return base64.b64decode(data[key], validate=True).decode()
    except ValueError:  # no base64, or no UTF-8
        return ""


def secret_delete(client: KubeClient, name: str) -> None:
    """Remove it if Hearth wrote it; a Secret of somebody else stays."""
    path = _path(name)
    try:
        metadata = client.get(path, only_metadata="PartialObjectMetadata")["metadata"]
    except NotFound:
        return
    if names.MANAGED_BY.items() <= (metadata.get("labels") or {}).items():
        client.delete(path, uid=metadata["uid"])


def pull_secret_apply(client: KubeClient, name: str, registry: str, username: str, password: str) -> None:
    """What holders name among their imagePullSecrets. Written without being read: Hearth may not read it back."""
    login = {"username": username, "password": password}
    login["auth"] = base64.b64encode(f"{username}:{password}".encode()).decode()
    content = json.dumps({"auths": {registry: login}})
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": names.IMAGES_NAMESPACE, "labels": dict(names.MANAGED_BY)},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(content.encode()).decode()},
    }
    client.apply(_path(name, names.IMAGE_SECRETS), document, manager=names.MANAGER)


def pull_secret_delete(client: KubeClient, name: str) -> None:
    """No error when there is none. Only names of Hearth's own making are passed here."""
    client.delete(_path(name, names.IMAGE_SECRETS))


def _path(name: str, folder: str = names.SECRETS) -> str:
    if not names.is_object_name(name):
        raise NotFound(f"{name!r:.80} cannot be the name of a Secret.")
    return f"{folder}/{name}"
