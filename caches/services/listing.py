"""Reading a source into file records: which files count, their checksums in parallel, and their form between steps."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from caches.domain.manifests import path_problem
from caches.sources.base import ListedFile, Source
from caches.sources.problems import shown
from controlplane.clusters.documents import Algorithm, FileRecord, Reason
from controlplane.errors import FieldError, Invalid, Permanent, Transient

MAX_FILES = 20_000
MAX_PATTERNS = 100
PARALLEL = 16


class TooSlow(Transient):
    """A page took longer than a step may; the caller asks for a smaller one."""


def check_patterns(**lists: Sequence[str]) -> None:
    """Refuse patterns that are empty, over-long or too many."""
    errors = [
        FieldError(f"source.{name}", "version:user:pattern", "Patterns are 1 to 200 characters, at most 100 of them.")
        for name, patterns in lists.items()
        if len(patterns) > MAX_PATTERNS or not all(0 < len(pattern) <= 200 for pattern in patterns)
    ]
    if errors:
        raise Invalid("version:user:pattern", errors[0].detail, next_step="Correct the patterns.", errors=errors)


def check_paths(files: Iterable[ListedFile]) -> None:
    """Permanent for the first path that must not be written on a node."""
    for file in files:
        if problem := path_problem(file.path):
            raise Permanent(
                "version:user:unsafe-path",
                f"{shown(file.path)}: {problem}.",
                reason=Reason.INVALID_REQUEST,
                next_step="Rename the file at the source, or leave it out with an ignore pattern.",
            )


def describe_all(source: Source, uri: str, files: Sequence[ListedFile], *, seconds: float) -> list[FileRecord]:
    """Ask the store for every file's checksum, 16 at a time. TooSlow when it takes longer than ``seconds``."""
    deadline = time.monotonic() + seconds
    pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="describe")
    try:
        tasks = [pool.submit(source.describe, uri, file.path) for file in files]
        records = []
        for task in tasks:
            try:
                records.append(task.result(timeout=max(0.0, deadline - time.monotonic())))
            except TimeoutError as error:
                raise TooSlow("source:source:slow", "The store answers slowly.", reason="SourceUnavailable") from error
        return records
    finally:
        pool.shutdown(cancel_futures=True)


def pack(records: Iterable[FileRecord]) -> str:
    """Records as compressed text that fits a JSON column."""
    lines = [[r.path, r.size_bytes, r.algorithm.value, r.checksum, r.revision, r.version_id, r.scope] for r in records]
    return base64.b64encode(zlib.compress(json.dumps(lines).encode())).decode("ascii")


def unpack(text: str) -> list[FileRecord]:
    """The inverse of ``pack``."""
    lines = json.loads(zlib.decompress(base64.b64decode(text)))
    return [FileRecord(line[0], line[1], Algorithm(line[2]), *line[3:]) for line in lines]
