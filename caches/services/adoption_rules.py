"""What keeps a published version from being adopted, in sentences."""

from __future__ import annotations

from caches.models import SourceConnection
from controlplane.clusters.documents import ConnectionSpec, Origin

_DECIDING = ("type", "endpoint", "region", "addressing", "manifest")  # what says which store a connection is


def version_problem(origin: Origin | None) -> str:
    """Why nobody can know the version of a manifest; "" where its origin names it."""
    if origin is None:
        return "Nobody said where its bytes are."
    if not origin.model or not origin.version:
        return f"It was published without a name, from {origin.uri}."
    return ""


def connection_difference(row: SourceConnection, spec: ConnectionSpec) -> str:
    """How a connection of the same name differs from the published one in what says which store it is."""
    for name in _DECIDING:
        ours, theirs = str(getattr(row, name)), str(getattr(spec, name))
        if ours != theirs:
            return f"its {name} is {ours or 'not set'}, on the cluster it is {theirs or 'not set'}"
    return ""
