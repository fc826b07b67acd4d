"""Which files of a place belong to a version, and their manifest made from the store alone. Imports no Django."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

from caches.domain.manifests import manifest_build
from caches.sources.base import Source
from controlplane.clusters.documents import FileRecord, Manifest

PARALLEL = 16


def wanted(path: str, allow: Sequence[str], ignore: Sequence[str]) -> bool:
    """Whether a relative path passes: any allow pattern (none: all), no ignore pattern. ``folder/`` means below it."""
    return (not allow or _any(path, allow)) and not _any(path, ignore)


def manifest_of(source: Source, uri: str, allow: Sequence[str] = (), ignore: Sequence[str] = ()) -> Manifest:
    """The manifest that registering this place would give now; Permanent and Transient as the source raises them."""
    records: list[FileRecord] = []
    token = ""
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="describe") as pool:
        while True:
            page = source.list_page(uri, token)
            paths = [file.path for file in page.files if wanted(file.path, allow, ignore)]
            records += pool.map(lambda path: source.describe(uri, path), paths)
            token = page.next_token
            if not token:
                return manifest_build(records)


def _any(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)
