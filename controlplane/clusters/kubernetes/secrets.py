"""Credentials of source connections as Secrets in the nodes' namespace. Their values appear in no message."""

from __future__ import annotations

import base64
import binascii
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
    except (binascii.Error, UnicodeDecodeError):
        raise Unreachable(f"The secret {name} holds bytes that are no text.") from None


def secret_delete(client: KubeClient, name: str) -> None:
    """Remove it if Hearth wrote it; a Secret of somebody else stays."""
    path = _path(name)
    try:
        metadata = client.get(path, only_metadata="PartialObjectMetadata")["metadata"]
    except NotFound:
        return
    if names.MANAGED_BY.items() <= (metadata.get("labels") or {}).items():
        client.delete(path, uid=metadata["uid"])


def _path(name: str) -> str:
    if not names.is_object_name(name):
        raise NotFound(f"{name!r:.80} cannot be the name of a Secret.")
    return f"{names.SECRETS}/{name}"
