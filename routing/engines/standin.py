"""``python -m routing.engines.standin --port 9000``: an engine without a model, for benches and tests of routing.

It answers as an OpenAI server does and takes the time that the engine model says; what it writes means nothing. Every
answer says that it is a stand-in, and so do its models and its metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import time
from collections.abc import Mapping
from typing import Any

import uvloop

from routing.dataplane.listening import cut, let_in_no_more
from routing.domain.engine_model import EngineShape
from routing.engines.expositions import exposition
from routing.engines.keeping_time import KeepingTime, Run
from routing.engines.prompts import Prompt, read_prompt
from routing.engines.wire import Asked, Connection, Refused, Reply

OWNER = "hearth-stand-in"
MARK: Mapping[str, str] = {"x-hearth-engine": "stand-in"}
PIECE_SECONDS = 0.005  # of the machine; tokens that come faster share an event


class StandIn:
    """Serves until ``stop``. ``context_tokens``: a prompt and its answer may have so many."""

    def __init__(self, engine: KeepingTime, *, model: str = "stand-in", context_tokens: int = 131_072) -> None:
        self.engine, self.model, self.context_tokens = engine, model, context_tokens
        self._server: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self._ids = itertools.count(1)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, also when 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self.answer, MARK, self._open), host, port, backlog=1024
        )
        found = int(self._server.sockets[0].getsockname()[1])
        return found

    async def stop(self) -> None:
        """Listen no more, and cut everybody off: returns when no connection is left."""
        if self._server is not None:
            await let_in_no_more(self._server)
        await cut(self._open)

    async def answer(self, asked: Asked, reply: Reply) -> None:
        match asked.method, asked.path:
            case "POST", "/v1/chat/completions" | "/v1/completions":
                chat = asked.path == "/v1/chat/completions"
                await self._generate(read_prompt(asked.body, chat=chat, limit_tokens=self.context_tokens), reply)
            case "GET", "/v1/models":
                model = {"id": self.model, "object": "model", "created": 0, "owned_by": OWNER}
                await reply.whole(200, {"object": "list", "data": [model | {"max_model_len": self.context_tokens}]})
            case "GET", "/health" | "/ping":
                await reply.text(200, "")
            case "GET", "/metrics":
                await reply.text(200, exposition(self.engine, self.model), "text/plain; version=0.0.4")
            case _, "/v1/chat/completions" | "/v1/completions" | "/v1/models" | "/health" | "/ping" | "/metrics":
                raise Refused(405, "Not with this method.")
            case _:
                raise Refused(404, "There is nothing here.")

    async def _generate(self, prompt: Prompt, reply: Reply) -> None:
        made = {
            "id": f"{'chatcmpl' if prompt.chat else 'cmpl'}-{next(self._ids)}",
            "object": "chat.completion" if prompt.chat else "text_completion",
            "created": int(time.time()),
            "model": prompt.model or self.model,
        }
        async with self.engine.serving(prompt) as run:
            if prompt.stream:
                await self._stream(prompt, run, made, reply)
                return
            await self.engine.clock.until(run.ends)
        text = _words(0, prompt.output_tokens)
        choice = {"message": {"role": "assistant", "content": text}} if prompt.chat else {"text": text}
        choices = [{"index": 0, "finish_reason": "length", **choice}]
        await reply.whole(200, made | {"choices": choices, "usage": _usage(prompt, run)})

    async def _stream(self, prompt: Prompt, run: Run, made: dict[str, Any], reply: Reply) -> None:
        if prompt.chat:
            made["object"] = "chat.completion.chunk"
        await reply.begin()
        clock, rate = self.engine.clock, self.engine.shape.decode_rate
        step = max(1, int(PIECE_SECONDS * clock.compress * rate))
        first = 0
        while first < prompt.output_tokens:
            last = min(first + step, prompt.output_tokens) if first else 1
            await clock.until(run.first + (last - 1) / rate)
            reason = "length" if last == prompt.output_tokens else None
            text = _words(first, last)
            choice = {"delta": {"content": text}} if prompt.chat else {"text": text}
            await reply.event(made | {"choices": [{"index": 0, "finish_reason": reason, **choice}]})
            first = last
        await clock.until(run.ends)
        if prompt.usage:
            await reply.event(made | {"choices": [], "usage": _usage(prompt, run)})
        await reply.end()


def _words(first: int, last: int) -> str:
    return "".join(f" t{number}" for number in range(first, last))


def _usage(prompt: Prompt, run: Run) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt.tokens,
        "completion_tokens": prompt.output_tokens,
        "total_tokens": prompt.tokens + prompt.output_tokens,
        "prompt_tokens_details": {"cached_tokens": run.hit_tokens},
    }


async def serve(options: argparse.Namespace) -> None:
    shape = EngineShape(options.cache_blocks, options.block_tokens, options.prefill_rate, options.decode_rate)
    engine = KeepingTime(shape, limit=options.concurrency, compress=options.compress)
    standin = StandIn(engine, model=options.model, context_tokens=options.context_tokens)
    port = await standin.start(options.host, options.port)
    print(f"stand-in engine on port {port}", flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await standin.stop()


def main() -> int:
    usual = EngineShape()
    parser = argparse.ArgumentParser(prog="standin", description="Answers and takes its time like an engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one")
    parser.add_argument("--model", default="stand-in", help="what /v1/models names")
    parser.add_argument("--cache-blocks", type=_positive_int, default=usual.cache_blocks)
    parser.add_argument("--block-tokens", type=_positive_int, default=16)
    parser.add_argument("--prefill-rate", type=_positive, default=usual.prefill_rate, help="tokens a second")
    parser.add_argument("--decode-rate", type=_positive, default=usual.decode_rate, help="for each request")
    parser.add_argument("--concurrency", type=_positive_int, default=256, help="requests at once; others wait")
    parser.add_argument("--context-tokens", type=_positive_int, default=131_072)
    parser.add_argument("--compress", type=_positive, default=1.0, help="seconds of the model in one second")
    uvloop.run(serve(parser.parse_args()))
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("write a number above 0")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("write a whole number from 1")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
