"""Which manifests a cluster has, from the names of their chunks alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.watches import listed

_CHUNK = re.compile(r"sha256-([0-9a-f]{64})\.")


def published_digests(client: KubeClient) -> list[str]:
    """In order; what somebody else put among them is left out."""

    def digest(item: Mapping[str, Any]) -> str | None:
        found = _CHUNK.match(str(item["metadata"]["name"]))
        return f"sha256:{found[1]}" if found else None

    digests, _ = listed(client, names.MANIFESTS, {}, digest, only_metadata=True)
    return sorted(set(digests))
