"""Whether an address can be that of a cluster, before anybody relies on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

LARGEST_BYTES = 4 * 1024 * 1024
IN_CLUSTER = "in-cluster"


def address_problem(address: str) -> str:
    """Why nobody can connect by ``in-cluster``, ``<kubeconfig>`` or ``<kubeconfig>#<context>``; "" where nothing
    speaks against it. Connects to nothing, and quotes nothing of a file but the names of contexts."""
    if address == IN_CLUSTER:
        inside = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        return "" if inside else "in-cluster is for a Hearth that runs in a pod, and this one does not"
    path, _, context = address.partition("#")
    if not path.startswith(("/", "~/")):
        return "a kubeconfig is named by an absolute path, as Hearth's processes see it"
    document = _read(Path(path).expanduser())
    if isinstance(document, str):
        return f"{path} {document}"
    known = {str(item["name"]): item for item in document["contexts"] if isinstance(item, dict) and "name" in item}
    context = context or str(document.get("current-context") or "")
    if not context:
        return f"{path} has no current context: name one as {path}#<context>; it has {_listed(known)}"
    if context not in known:
        return f"{path} has no context {context}; it has {_listed(known)}"
    return ""


def _read(path: Path) -> dict[str, Any] | str:
    """The kubeconfig, or what is wrong with it."""
    try:
        if not path.is_file():
            return "is no file that Hearth can see"
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(data) > LARGEST_BYTES:
        return "is too large for a kubeconfig"
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return "is no kubeconfig: it is not YAML"
    if not isinstance(document, dict) or not isinstance(document.get("contexts"), list):
        return "is no kubeconfig: it has no contexts"
    return document


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(sorted(names)[:10]) or "none"
