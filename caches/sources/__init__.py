"""Stores that artifacts come from. The only package that talks to them; imports no Django, nodes use it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import Permanent

if TYPE_CHECKING:
    from caches.sources.base import Source
    from caches.sources.registry import RegistryClient


def open_source(connection: ConnectionSpec, secret: Mapping[str, str], *, allow_private: bool = True) -> Source:
    """A Source for this connection; close it after use.

    ``secret`` has access_key_id, secret_access_key and maybe session_token for S3 and JumpStart, token for
    HuggingFace; {} reads anonymously.
    Permanent(InvalidRequest) when its address is refused, Transient when its name does not resolve.
    """
    # Imported when needed: a node that reads from a filesystem never loads an S3 client.
    if connection.type == SourceType.S3:
        from caches.sources.s3 import S3Source

        return S3Source(connection, secret, allow_private=allow_private)
    if connection.type == SourceType.HUGGING_FACE:
        from caches.sources.huggingface import HuggingFaceSource

        return HuggingFaceSource(connection, secret, allow_private=allow_private)
    if connection.type == SourceType.JUMP_START:
        from caches.sources.jumpstart import JumpStartSource

        return JumpStartSource(connection, secret, allow_private=allow_private)
    if connection.type == SourceType.REGISTRY:
        raise Permanent(
            "source:user:holds-images",
            f"Connection {connection.name} leads to a registry of container images, not to files.",
            reason=Reason.INVALID_REQUEST,
            next_step="Register a version through a connection of another type, and an image through this one.",
        )
    from caches.sources.filesystem import FilesystemSource

    return FilesystemSource(connection)


def open_registry(
    connection: ConnectionSpec | None, secret: Mapping[str, str], *, allow_private: bool = True
) -> RegistryClient:
    """A client for the registry of this connection, or (None) for the one that a reference names, without credentials.

    ``secret`` has username and password, or token. Close it after use; raises as ``open_source``.
    """
    from caches.sources.registry import RegistryClient

    return RegistryClient(connection, secret, allow_private=allow_private)
