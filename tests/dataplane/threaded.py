"""An engine in a thread with a loop of its own, for tests that are no coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.dataplane.engines import Call, Engine, Script


@contextmanager
def threaded_engine(body: bytes = b"{}", script: Script | None = None) -> Iterator[int]:
    """Its port. It answers everything with the body, unless a script says otherwise."""

    async def answers(call: Call) -> None:
        await call.answer(body, b"200 OK", b"content-type: application/json")

    ready, ports, stop = threading.Event(), list[int](), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        engine = await Engine(script or answers).start()
        ports.append(engine.port)
        ended = asyncio.Event()
        stop.append((asyncio.get_running_loop(), ended))
        ready.set()
        await ended.wait()
        await engine.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield ports[0]
    finally:
        [(loop, ended)] = stop
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
