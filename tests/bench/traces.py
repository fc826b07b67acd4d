"""Requests for benches of routing: from a published trace given by its path, or made here.

A line of a trace is JSON with ``timestamp`` (ms), ``input_length``, ``output_length`` (tokens) and ``hash_ids``, one
for each block of 512 tokens; equal ids after equal ids are equal beginnings. Each id becomes the same words every time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from routing.domain.keys import Audience, boundaries
from routing.domain.replaying import Recorded

BLOCK_TOKENS, BLOCK_CHARACTERS = 512, 2048
SECRET, AUDIENCE = b"a secret of a bench", Audience("chat", "default", "llama")
_WORDS = [
    f"{one}{other}" for one in ("ka", "lo", "mi", "ne", "ru", "so", "ti", "va") for other in ("ben", "dor", "fil")
]


@lru_cache(maxsize=65536)
def words(block: int) -> str:
    """The text of a block: 2,048 characters, the same for the same id."""
    draws = random.Random(block)
    text = ""
    while len(text) < BLOCK_CHARACTERS:
        text += draws.choice(_WORDS) + " "
    return text[:BLOCK_CHARACTERS]


def text_of(hash_ids: Iterable[int], limit: int) -> str:
    text = ""
    for block in hash_ids:
        if len(text) >= limit:
            break
        text += words(block)
    return text[:limit]


def recorded(lines: Iterable[str], *, speed: float = 1.0, prefix_length: int = 8192) -> Iterator[Recorded]:
    """``speed`` 2 sends the same requests in half the time."""
    for line in lines:
        one = json.loads(line)
        ids = one["hash_ids"]
        found = tuple(boundaries(SECRET, AUDIENCE, [text_of(ids, prefix_length)], prefix_length))
        # A block's content includes what stands before it, as in engines.
        chained = tuple(accumulate(ids, lambda before, now: hash((before, now))))
        yield Recorded(one["timestamp"] / 1000 / speed, found, chained, one["input_length"], one["output_length"])


def from_file(path: Path, **options: float) -> list[Recorded]:
    with path.open() as lines:
        return list(recorded(lines, **options))  # type: ignore[arg-type]
