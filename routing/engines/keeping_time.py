"""The stand-in's inside: the engine model run against a clock, with a limit to what runs at once and a queue before it.

What it counts is what the model decided, so a bench in virtual time and this process agree request by request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from routing.domain.engine_model import EngineModel, EngineShape
from routing.engines.prompts import Prompt

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


class Clock:
    """Seconds of the model; ``compress`` of them pass in one of the machine's."""

    def __init__(self, compress: float) -> None:
        self.compress = compress
        self._zero = asyncio.get_running_loop().time()

    def now(self) -> float:
        return (asyncio.get_running_loop().time() - self._zero) * self.compress

    async def until(self, moment: float) -> None:
        if (left := moment - self.now()) > 0:
            await asyncio.sleep(left / self.compress)


@dataclass(slots=True)
class Counted:
    """Since the start; tokens and, for ``ttft``, requests by bucket with all above the last in one more."""

    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    ttft: list[int] = field(default_factory=lambda: [0] * (len(TTFT_BUCKETS) + 1))
    ttft_sum: float = 0.0

    def first_token(self, seconds: float) -> None:
        self.ttft_sum += seconds
        self.ttft[next((at for at, limit in enumerate(TTFT_BUCKETS) if seconds <= limit), len(TTFT_BUCKETS))] += 1


@dataclass(frozen=True, slots=True)
class Run:
    """One request that is being served: its first token is due at ``first``, the last at ``ends`` (model seconds)."""

    hit_tokens: int
    first: float
    ends: float


class KeepingTime:
    """``limit`` requests run at once, the others wait in the order of their arrival."""

    def __init__(self, shape: EngineShape, *, limit: int, compress: float) -> None:
        self.shape, self.clock, self.counted = shape, Clock(compress), Counted()
        self.running = self.waiting = 0
        self._model = EngineModel(shape)
        self._slots = asyncio.Semaphore(limit)

    @property
    def usage(self) -> float:
        """The part of the blocks that hold something."""
        return self._model.kept_blocks / self.shape.cache_blocks

    @asynccontextmanager
    async def serving(self, prompt: Prompt) -> AsyncIterator[Run]:
        """Entered when the request runs. Left early, by whoever asked going away, it counts as aborted."""
        arrived = started = self.clock.now()
        if self._slots.locked():
            await self._wait()
            started = self.clock.now()
        else:
            await self._slots.acquire()  # at once
        self.running += 1
        try:
            blocks = prompt.blocks(self.shape.block_tokens)
            served = self._model.serve(started, blocks, prompt.tokens, prompt.output_tokens)
            self.counted.queries += served.tokens
            self.counted.hits += served.hit_tokens
            self.counted.prompt_tokens += served.tokens
            run = Run(served.hit_tokens, started + served.ttft_seconds, served.ends_at)
            await self.clock.until(run.first)
            self.counted.first_token(run.first - arrived)
            yield run
            self.counted.generation_tokens += prompt.output_tokens
            self.counted.finished += 1
        except BaseException:
            self.counted.aborted += 1
            raise
        finally:
            self.running -= 1
            self._slots.release()

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
