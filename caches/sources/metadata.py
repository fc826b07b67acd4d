"""Parameters and context length of a model, by a few ranged reads: best effort, bounded in bytes and time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from caches.sources.base import Source
from caches.sources.headers import (
    config_context_length,
    gguf_facts,
    safetensors_header_bytes,
    safetensors_parameters,
)
from controlplane.clusters.documents import FileRecord
from controlplane.errors import HearthError

FIRST_BYTES = 128 * 1024
GGUF_BYTES = 8 * 1024 * 1024
CONFIG_BYTES = 1024 * 1024
MAX_SHARDS = 64


def read_metadata(source: Source, uri: str, files: Sequence[FileRecord], *, seconds: float) -> dict[str, Any]:
    """``parameters`` and ``context_length`` where all that is needed for them was found in time; {} otherwise."""
    deadline = time.monotonic() + seconds
    facts: dict[str, Any] = {}
    by_path = {file.path: file for file in files}
    try:
        if config := by_path.get("config.json"):
            facts["context_length"] = config_context_length(source.read_head(uri, config, CONFIG_BYTES))
        shards = [file for file in files if file.path.endswith(".safetensors")]
        ggufs = [file for file in files if file.path.endswith(".gguf")]
        if shards:
            facts["parameters"] = _safetensors(source, uri, shards, deadline)
        elif len(ggufs) == 1:
            facts |= gguf_facts(source.read_head(uri, ggufs[0], GGUF_BYTES))
    except HearthError:
        pass  # the bytes themselves are fetched and checked by the nodes, which report what is wrong with them
    return {name: value for name, value in facts.items() if value is not None}


def _safetensors(source: Source, uri: str, shards: Sequence[FileRecord], deadline: float) -> int | None:
    """The sum over all shards; None when one is missing from it, because half a sum is a wrong one."""
    total = 0
    if len(shards) > MAX_SHARDS:
        return None
    for shard in shards:
        if time.monotonic() > deadline:
            return None
        head = source.read_head(uri, shard, FIRST_BYTES)
        need = safetensors_header_bytes(head)
        if need is None or need > shard.size_bytes:
            return None
        if need > len(head):
            head += b"".join(bytes(chunk) for chunk in source.read_range(uri, shard, len(head), need))
        count = safetensors_parameters(head[:need])
        if count is None:
            return None
        total += count
    return total
