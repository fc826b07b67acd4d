"""Filesystem connections in a pod: of its node's folders it sees those that its pool names, and no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from caches.sources import open_source
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import Permanent

if TYPE_CHECKING:
    from caches.sources.base import Source


class Mounted:
    """``open_source`` of a pod that has these ``folders`` of its node."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(PurePosixPath(folder) for folder in folders)

    def __call__(self, connection: ConnectionSpec, secret: Mapping[str, str]) -> Source:
        """As caches.sources.open_source. Permanent(AccessDenied) when nothing of the connection is mounted here."""
        if connection.type != SourceType.FILESYSTEM:
            return open_source(connection, secret)
        seen = tuple(str(place) for root in connection.allowed for place in self._seen(PurePosixPath(root)))
        if not seen:
            roots = ", ".join(connection.allowed)
            raise Permanent(
                "agent:user:not-mounted",
                f"The agents of this pool do not see {roots} of their nodes.",
                reason=Reason.ACCESS_DENIED,
                next_step="Add the folder to the pool's source_paths and to sourcePaths of the cluster's CacheRoots.",
            )
        return open_source(replace(connection, allowed=seen), secret)

    def _seen(self, root: PurePosixPath) -> tuple[PurePosixPath, ...]:
        """What this pod sees of a root: all of it, or the folders in it that are mounted."""
        if any(root.is_relative_to(folder) for folder in self._folders):
            return (root,)
        return tuple(folder for folder in self._folders if folder.is_relative_to(root))
