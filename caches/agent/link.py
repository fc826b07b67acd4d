"""The agent's road to its cluster: desired state in, status out.

Implementations live beside their cluster (``controlplane/clusters/local/link.py``, later ``kubernetes/link.py``),
need no Django and are chosen by the entry point. A link never invents an answer: where the cluster cannot be reached
it raises ``controlplane.clusters.gateway.Unreachable`` and the agent goes on with what it last knew, removing nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from controlplane.clusters.documents import Desired, Manifest, NodeCacheStatus, Origin


class NodeLink(Protocol):
    """Bound to one node incarnation (name and uid)."""

    node_name: str
    node_uid: str

    def desired(self) -> Desired | None:
        """The current spec, or None where there is none or it belongs to another uid. None removes nothing."""
        ...

    def wait(self, known_generation: int, timeout_seconds: float) -> bool:
        """Block until the generation differs from the known one (True) or the time is up (False)."""
        ...

    def manifest(self, digest: str) -> Manifest:
        """The files of an artifact. The caller recomputes the digest; NotFound when it was not published."""
        ...

    def origin(self, digest: str) -> Origin:
        """Where its bytes can be had; NotFound when nobody said so."""
        ...

    def secret(self, name: str) -> Mapping[str, str]:
        """Credentials by name, read when needed and never kept; NotFound when missing."""
        ...

    def report(self, status: NodeCacheStatus) -> None:
        """Replace the whole status. Conflict when the node's uid is another one now: the agent must stop writing."""
        ...

    def event(self, reason: str, message: str) -> None:
        """A line for people (best effort)."""
        ...

    def disk(self) -> tuple[int, int] | None:
        """(capacity, other) in bytes where the cluster knows better than statvfs (a quota); None: use statvfs."""
        ...
