"""Asking a registry what a reference names. The client is a source like any other and knows no rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from caches.models import SourceConnection
from caches.services.connections import connection_registry


class ResolvedImage(Protocol):
    """What a registry says of a reference. ``digest`` is that of the manifest, or of the index where there are several
    platforms; the sizes are those of the platform that needs most."""

    @property
    def digest(self) -> str: ...
    @property
    def media_type(self) -> str: ...
    @property
    def platforms(self) -> Sequence[str]: ...
    @property
    def compressed_bytes(self) -> int: ...
    @property
    def unpacked_bytes(self) -> int: ...


class ImageResolver(Protocol):
    """Raises only ``controlplane.errors``: Permanent or Transient with a Reason, as sources do."""

    def resolve(self, reference: str) -> ResolvedImage:
        """The digest that the reference names now, with its sizes."""
        ...

    def current_digest(self, reference: str) -> str:
        """The digest alone, by the cheapest request there is."""
        ...

    def close(self) -> None: ...


def open_resolver(connection: SourceConnection | None) -> ImageResolver:
    """A client for the registry of this connection, or for the reference's own without credentials."""
    return connection_registry(connection)


@contextmanager
def image_resolver(connection: SourceConnection | None) -> Iterator[ImageResolver]:
    """open_resolver(), closed afterwards."""
    resolver = open_resolver(connection)
    try:
        yield resolver
    finally:
        resolver.close()
