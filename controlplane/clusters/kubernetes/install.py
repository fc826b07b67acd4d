"""Server-side apply of a folder of YAML documents, for tests and the development cluster. People use kubectl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes.client import KubeClient

MANAGER = "hearth-install"
# What others need is there first.
ORDER = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "PriorityClass", "ClusterRole", "Role")


def documents(folder: Path) -> list[dict[str, Any]]:
    """Every object in the folder's YAML files, those that others need first; kustomizations are left out."""
    found = [
        document
        for path in sorted(folder.rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if isinstance(document, dict) and document.get("kind") not in (None, "Kustomization", "Component")
    ]
    return sorted(found, key=lambda item: ORDER.index(item["kind"]) if item["kind"] in ORDER else len(ORDER))


def apply_documents(client: KubeClient, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> None:
    """Apply each. NotFound for a kind that the server does not know (yet)."""
    plurals: dict[str, dict[str, tuple[str, bool]]] = {}
    for item in objects:
        client.apply(object_path(client, item, plurals), item, manager=MANAGER, dry_run=dry_run)


def object_path(
    client: KubeClient, item: Mapping[str, Any], plurals: dict[str, dict[str, tuple[str, bool]]] | None = None
) -> str:
    """Where an object lies, by asking the server for its kinds; ``plurals`` remembers the answers."""
    plurals = {} if plurals is None else plurals
    version, kind = str(item["apiVersion"]), str(item["kind"])
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind not in plurals.get(version, {}):
        resources = client.get(base).get("resources") or ()
        plurals[version] = {
            resource["kind"]: (resource["name"], bool(resource["namespaced"]))
            for resource in resources
            if "/" not in resource["name"]
        }
    if kind not in plurals[version]:
        raise NotFound(f"The server has no {kind} of {version}.")
    plural, namespaced = plurals[version][kind]
    metadata = item["metadata"]
    place = f"/namespaces/{metadata.get('namespace') or 'default'}" if namespaced else ""
    return f"{base}{place}/{plural}/{metadata['name']}"
