"""Listing in pages and watching line by line: what comes is handed on at once, and nothing raw is kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from controlplane.clusters.gateway import Gone, Unreachable
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.errors import status_error

T = TypeVar("T")
Json = Mapping[str, Any]
PAGE_ITEMS = 500
LIST_ATTEMPTS = 3
# The API server sends its last bookmark about two seconds before a watch's end: asked for longer than it is wanted,
# a watch ends at that bookmark, with a version that moved. A glance is not worth the wait.
BOOKMARK_SECONDS = 3
GLANCE_SECONDS = 2.0
SLACK_SECONDS = 10.0  # silence beyond the end that the server promised means that the connection is dead


@dataclass(frozen=True, slots=True)
class Told:
    """One line of a watch. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; ``version`` continues after it."""

    type: str
    object: Json
    version: str


def listed(
    client: KubeClient,
    path: str,
    query: Mapping[str, object],
    take: Callable[[Json], T | None],
    *,
    only_metadata: bool = False,
    page_items: int = PAGE_ITEMS,
) -> tuple[list[T], str]:
    """Every object of a consistent listing as ``take`` makes it (None leaves it out), and the version it shows.

    Starts again when a compaction takes the version away between two pages, and gives up with Gone after a few.
    """
    for attempt in range(LIST_ATTEMPTS):
        try:
            return _listed(client, path, query, take, only_metadata, page_items)
        except Gone:
            if attempt == LIST_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _listed(
    client: KubeClient,
    path: str,
    query: Mapping[str, object],
    take: Callable[[Json], T | None],
    only_metadata: bool,
    page_items: int,
) -> tuple[list[T], str]:
    taken: list[T] = []
    following = ""
    while True:
        asked = {**query, "limit": page_items, **({"continue": following} if following else {})}
        page = client.get(path, asked, only_metadata="PartialObjectMetadataList" if only_metadata else "")
        for item in page.get("items") or ():
            if (made := take(item)) is not None:
                taken.append(made)
        metadata = page.get("metadata") or {}
        following = str(metadata.get("continue") or "")
        if not following:
            return taken, str(metadata.get("resourceVersion") or "")


def watched(
    client: KubeClient, path: str, query: Mapping[str, object], version: str, timeout_seconds: float
) -> Iterator[Told]:
    """Changes after ``version`` for about ``timeout_seconds``. Gone when the server has forgotten the version."""
    seconds = max(1, math.ceil(timeout_seconds)) + (BOOKMARK_SECONDS if timeout_seconds > GLANCE_SECONDS else 0)
    deadline = time.monotonic() + timeout_seconds
    asked = {
        **query,
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": seconds,
    }
    with client.lines(path, asked, read_seconds=seconds + SLACK_SECONDS) as lines:
        for line in lines:
            told = _told(line, path)
            yield told
            over = time.monotonic() - deadline
            # Whoever does not end a watch when asked to must not keep it: nothing would be listed afresh any more.
            if over >= (0.0 if told.type == "BOOKMARK" else BOOKMARK_SECONDS + SLACK_SECONDS):
                return


def _told(line: bytes, path: str) -> Told:
    try:
        document = json.loads(line)
        kind, changed = document["type"], document["object"]
        if kind == "ERROR":
            raise status_error(changed, path=path, now=datetime.now(UTC))
        return Told(kind, changed, str(changed["metadata"]["resourceVersion"]))
    except (ValueError, KeyError, TypeError):
        raise Unreachable(f"{path}: the watch told something that is no change.") from None
