"""Server-side apply of a folder of YAML documents, for tests and the development cluster. People use kubectl."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes.client import KubeClient

MANAGER = "hearth-install"
DEFINITION = "CustomResourceDefinition"
BINDING = "ValidatingAdmissionPolicyBinding"
# What others need is there first. A policy that is bound before its parameters are there refuses everything.
ORDER = ("Namespace", DEFINITION, "ServiceAccount", "PriorityClass", "ClusterRole", "Role")
LAST = len(ORDER) + 1
PATIENCE_SECONDS = 60.0  # until definitions are served


def documents(folder: Path) -> list[dict[str, Any]]:
    """Every object in the folder's YAML files, those that others need first; kustomizations are left out."""
    found = [
        document
        for path in sorted(folder.rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if isinstance(document, dict) and document.get("kind") not in (None, "Kustomization", "Component")
    ]
    return sorted(found, key=lambda item: _turn(item["kind"]))


def _turn(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else LAST if kind == BINDING else len(ORDER)


def install(client: KubeClient, objects: Sequence[Mapping[str, Any]]) -> None:
    """Apply everything, and what is no definition once the definitions are served. NotFound when they never are.

    In this order an API server knows the kind of a policy's parameters at once; one that met the policy first looks
    for it again after half a minute.
    """
    definitions = [item for item in objects if item["kind"] == DEFINITION]
    apply_documents(client, definitions)
    deadline = time.monotonic() + PATIENCE_SECONDS
    for definition in definitions:
        while not _is_served(client, definition):
            if time.monotonic() > deadline:
                raise NotFound(f"The API server does not serve {definition['metadata']['name']}.")
            time.sleep(0.05)
    apply_documents(client, [item for item in objects if item["kind"] != DEFINITION])


def _is_served(client: KubeClient, definition: Mapping[str, Any]) -> bool:
    """Told of to those who look for kinds, and answered."""
    spec = definition["spec"]
    base = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
    plural = spec["names"]["plural"]
    try:
        if plural not in [resource["name"] for resource in client.get(base).get("resources") or ()]:
            return False
        client.get(f"{base}/{plural}", {"limit": 1})
    except NotFound:
        return False
    return True


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
