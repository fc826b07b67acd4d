"""An engine in virtual time: a block prefix cache with LRU, serial prefill, parallel decode.

A model, not a measurement: what it gives compares strategies on the same requests, and is no engine's own figure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineShape:
    """``cache_blocks`` of ``block_tokens`` tokens are kept; rates in tokens per second. ``tail``, from 0 to 1: where
    every whole block of a prompt is kept, so much is kept of what follows, too."""

    cache_blocks: int = 2400
    block_tokens: int = 512
    prefill_rate: float = 15_000.0
    decode_rate: float = 40.0  # for each request
    tail: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """``hit_tokens`` of ``tokens`` came from the cache. ``ttft_seconds`` counts from the arrival, ``ends_at`` in the
    clock of the arrivals."""

    tokens: int
    hit_tokens: int
    ttft_seconds: float
    ends_at: float


class EngineModel:
    """Requests are given in the order of their arrival."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._free_at = 0.0

    @property
    def kept_blocks(self) -> int:
        return len(self._cache)

    def serve(self, now: float, blocks: Sequence[int], tokens: int, output_tokens: int) -> Served:
        """``blocks``: one id for each full block from the beginning; equal ids mean equal beginnings up to there."""
        shape = self.shape
        hits = 0
        for block in blocks:
            if block not in self._cache:
                break
            hits += 1
        # From the end to the beginning, so that a beginning outlives what follows it.
        for block in reversed(blocks):
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > shape.cache_blocks:
            self._cache.popitem(last=False)
        whole = min(hits * shape.block_tokens, tokens)
        if hits and hits == len(blocks):
            whole += int(shape.tail * (tokens - whole))
        # An engine computes at least the last token anew, however much it holds.
        hit_tokens = max(0, min(whole, tokens - 1))
        started = max(now, self._free_at)
        self._free_at = started + (tokens - hit_tokens) / shape.prefill_rate
        ends_at = self._free_at + output_tokens / shape.decode_rate
        return Served(tokens, hit_tokens, self._free_at - now, ends_at)
