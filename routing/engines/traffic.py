"""``python -m routing.engines.traffic --to http://127.0.0.1:8080 --model NAME``: chats with shared beginnings.

What the demo shows of routing comes from it: several groups of chats, each with a beginning of its own that is longer
than any slot of an engine remembers of another, streamed as clients do. It waits for whoever does not answer yet; with
``--metrics`` it asks nothing before the router knows an instance, as that would be refused, or wait and be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from routing.domain.dialects_usage import TAIL_BYTES, use_of_stream

GROUPS, SHARED_CHARACTERS, OUTPUT_TOKENS = 8, 1400, 24
WAIT_SECONDS, ANSWER_SECONDS = 2.0, 60.0
METRICS_BYTES = 1 << 20
TELL_EVERY = 100  # requests
_WORDS = ("harbour", "lantern", "meadow", "quarry", "sparrow", "thicket", "velvet", "willow", "anchor", "cinder")


@dataclass(slots=True)
class Tally:
    """What came of the requests so far."""

    answers: Counter[int] = field(default_factory=Counter)
    unreachable: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __str__(self) -> str:
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        answers = ", ".join(f"{count} of {status}" for status, count in sorted(self.answers.items()))
        return f"{answers or 'nothing'}; {self.unreachable} unanswered; {share:.0%} of prompt tokens from a cache"


def beginnings(groups: int = GROUPS, characters: int = SHARED_CHARACTERS) -> list[str]:
    """One for each group, the same at every start; no two begin alike."""
    made = []
    for number in range(groups):
        draws, text = random.Random(number), f"{chr(65 + number % 26)}{number}: "
        while len(text) < characters:
            text += draws.choice(_WORDS) + " "
        made.append(text[:characters])
    return made


def body(model: str, beginning: str, question: str) -> bytes:
    messages = [{"role": "system", "content": beginning}, {"role": "user", "content": question}]
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": OUTPUT_TOKENS}
    return json.dumps({"model": model, "messages": messages, **options}).encode()


async def ask(host: str, port: int, path: str, data: bytes) -> tuple[int, bytes]:
    """Status and the end of the answer. Raises OSError (a TimeoutError too) or ValueError where there is none."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return await sent(host, port, f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data, TAIL_BYTES)


async def sent(host: str, port: int, request: bytes, most: int) -> tuple[int, bytes]:
    """Status and the last ``most`` bytes of the answer. Raises as ``ask`` does."""
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(request)
            status = int((await reader.readline()).split()[1])
            tail = b""
            while part := await reader.read(65536):
                tail = (tail + part)[-most:]
            return status, tail
        except IndexError:
            raise ValueError("no answer") from None
        finally:
            writer.transport.abort()  # nothing of it is wanted any more


async def await_instance(metrics: str, endpoint: str) -> None:
    """Until the router that says ``metrics`` of itself knows an instance of the endpoint. Nobody there counts this as a
    request."""
    place = urlsplit(metrics)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    head = f"GET {place.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    instance = f'hearth_routing_in_flight{{endpoint="{endpoint}",'.encode()
    while True:
        with suppress(OSError, ValueError):
            if instance in (await sent(host, port, head, METRICS_BYTES))[1]:
                return
        await asyncio.sleep(WAIT_SECONDS)


async def traffic(
    to: str, model: str, every_seconds: float, *, say: Callable[[str], None], seed: int | None = None
) -> None:
    """Until it is cancelled: one request at a time, ``every_seconds`` apart on average."""
    place = urlsplit(to)
    host, port, path = place.hostname or "127.0.0.1", place.port or 80, f"{place.path.rstrip('/')}/v1/chat/completions"
    draws, known, tally = random.Random(seed), beginnings(), Tally()
    while True:
        question = f"Question {draws.randrange(10**6)} about the {draws.choice(_WORDS)}?"
        try:
            status, tail = await ask(host, port, path, body(model, draws.choice(known), question))
        except (OSError, ValueError):
            tally.unreachable += 1
            await asyncio.sleep(WAIT_SECONDS)
            continue
        tally.answers[status] += 1
        if (use := use_of_stream(tail)) is not None:
            tally.prompt_tokens += use.prompt_tokens
            tally.cached_tokens += use.cached_tokens or 0
        if sum(tally.answers.values()) % TELL_EVERY == 1:
            say(f"traffic: {tally}")
        await asyncio.sleep(draws.uniform(0.5, 1.5) * every_seconds if status == 200 else WAIT_SECONDS)


async def _traffic(options: argparse.Namespace) -> None:
    if options.metrics:
        await await_instance(options.metrics, options.model)
    await traffic(options.to, options.model, options.every, say=lambda line: print(line, flush=True))


async def serve(options: argparse.Namespace) -> None:
    running = asyncio.ensure_future(_traffic(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    await asyncio.gather(running, return_exceptions=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="traffic", description="A little traffic with shared beginnings")
    parser.add_argument("--to", required=True, help="a router or an engine, e.g. http://127.0.0.1:8080")
    parser.add_argument("--model", required=True, help="the endpoint's name, or what it calls its model")
    parser.add_argument("--metrics", help="a router's /metrics: begin once it knows an instance of the endpoint")
    parser.add_argument("--every", type=float, default=1.2, help="seconds between requests, on average")
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
