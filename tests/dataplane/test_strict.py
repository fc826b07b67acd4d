"""What two readers could take for two different things is refused, closed, and never reaches an instance."""

from __future__ import annotations

import asyncio
import json

import pytest

from routing.dataplane.client import HEAD_SECONDS, IDLE_SECONDS
from routing.dataplane.router import Shared
from tests.dataplane.world import World, request, run, until, world

H = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = b"GET /v1/models?smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

CORPUS: dict[str, tuple[bytes, int]] = {
    "length and chunks": (H + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunks and length": (H + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "two lengths": (H + b"Content-Length: 0\r\nContent-Length: 43\r\n\r\n" + SMUGGLED, 400),
    "two equal lengths": (H + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + SMUGGLED, 400),
    "a list of lengths": (H + b"Content-Length: 0, 0\r\n\r\n" + SMUGGLED, 400),
    "a signed length": (H + b"Content-Length: +2\r\n\r\n{}", 400),
    "a negative length": (H + b"Content-Length: -1\r\n\r\n{}", 400),
    "a hexadecimal length": (H + b"Content-Length: 0x2\r\n\r\n{}", 400),
    "a length in other digits": (H + "Content-Length: \u0662\r\n\r\n{}".encode(), 400),
    "a huge length": (H + b"Content-Length: 99999999999999999999999\r\n\r\n{}", 400),
    "an empty length": (H + b"Content-Length: \r\n\r\n" + SMUGGLED, 400),
    "a space before the colon": (H + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "another encoding": (H + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked not last": (H + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "nearly chunked": (H + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked behind a tab": (H + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked twice": (
        H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        400,
    ),
    "a chunk size with a prefix": (H + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", 400),
    "a chunk size too long": (H + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n", 400),
    "a chunk longer than it says": (H + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", 400),
    "a chunk line with a bare end": (H + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", 400),
    "bare line ends": (b"GET /v1/models HTTP/1.1\nHost: a\n\n", 400),
    "a bare return": (b"GET /v1/models HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "a folded line": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400),
    "a zero byte": (b"GET /v1/models HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400),
    "a zero byte in the target": (b"GET /v1/\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no host": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "chunks of an old client": (b"POST /v1/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "another version": (b"GET /v1/models HTTP/1.2\r\nHost: a\r\n\r\n", 400),
    "version 2": (b"GET /v1/models HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "no version": (b"GET /v1/models\r\n\r\n", 505),
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "an unknown method": (b"GRAB /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a tunnel": (b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: a\r\n\r\nSSH", 400),
    "an expectation": (H + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}", 417),
    "too long a head": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "too many headers": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    "too long a target": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
}


@pytest.mark.parametrize("case", CORPUS)
def test_it_refuses_and_closes(case: str) -> None:
    raw, status = CORPUS[case]

    async def told() -> None:
        async with world() as here:
            wire = await here.wire()
            await wire.send(raw)
            reply = await wire.reply()
            assert reply.status == status and reply.headers["connection"] == "close"
            error = json.loads(reply.body)["error"]
            assert error["code"].startswith("routing:request:") and error["message"] and error["next_step"]
            assert await wire.closed()
            # Chunks that are broken only at their end may not have been known as such; smuggled requests never pass.
            assert not here.engines[0].calls

    run(told)()


def test_it_refuses_the_same_in_pieces() -> None:
    """Nothing depends on where packets end."""

    async def told() -> None:
        async with world() as here:
            for raw, status in CORPUS.values():
                if len(raw) > 1000:
                    continue
                wire = await here.wire()
                for start in range(0, len(raw), 3):
                    await wire.send(raw[start : start + 3])
                    await asyncio.sleep(0)
                assert (await wire.reply()).status == status
                wire.leave()
            assert not here.engines[0].calls

    run(told)()


@run
async def test_a_body_behind_an_offer_of_another_protocol_is_no_second_request() -> None:
    async with world() as here:
        wire = await here.wire()
        offer = ["Connection: Upgrade", "Upgrade: h2c"]
        await wire.send(request("POST", "/v1/completions", SMUGGLED, *offer))
        assert (await wire.reply()).status == 200
        assert (await wire.ask("GET", "/v1/models")).status == 200
        calls = here.engines[0].calls
        assert [call.line.split(b" ")[1] for call in calls] == [b"/v1/completions", b"/v1/models"]
        assert calls[0].body == SMUGGLED


@run
async def test_what_came_before_the_nonsense_is_answered() -> None:
    async with world() as here:
        wire = await here.wire()
        await wire.send(request("GET", "/v1/models") + b"nonsense\r\n\r\n")
        assert (await wire.reply()).status == 200
        assert (await wire.reply()).status == 400 and await wire.closed()


@run
async def test_too_large_a_body_is_refused_before_it_is_sent_and_while() -> None:
    async with world(shared=Shared(body_bytes=1000)) as here:
        wire = await here.wire()
        await wire.send(H + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
        assert (await wire.reply()).status == 413 and await wire.closed()
        wire = await here.wire()
        await wire.send(
            H + b"Transfer-Encoding: chunked\r\n\r\n" + b"1f4\r\n" + b"x" * 500 + b"\r\n" + b"1f5\r\n" + b"x" * 501
        )
        assert (await wire.reply()).status == 413 and await wire.closed()
        assert (await here.ask("POST", "/v1/completions", b"x" * 1000)).status == 200
        assert len(here.engines[0].calls) == 1


@run
async def test_a_raw_invocation_has_the_managed_feature_s_limit() -> None:
    async with world() as here:
        size = 6 * 1024 * 1024
        assert (await here.ask("POST", "/endpoints/chat/invocations", b"x" * size)).status == 200
        assert (await here.ask("POST", "/endpoints/chat/invocations", b"x" * (size + 1))).status == 413


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def later(here: World, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    here.router._sweep()


@run
async def test_a_head_that_never_ends_is_told_so() -> None:
    """One byte now and then keeps nothing open."""
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        wire = await here.wire()
        await wire.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-")
        await until(lambda: any(client._began for client in here.shared.clients), "the request began")
        await later(here, clock, HEAD_SECONDS - 1)
        await wire.send(b"y")
        await later(here, clock, 2)
        assert (await wire.reply()).status == 408 and await wire.closed()


@run
async def test_a_body_that_never_ends_is_told_so() -> None:
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        wire = await here.wire()
        await wire.send(H + b"Content-Length: 10\r\n\r\nx")
        await until(lambda: any(client._body for client in here.shared.clients), "the body began")
        await later(here, clock, 301)
        assert (await wire.reply()).status == 408 and await wire.closed()
        assert not here.engines[0].calls


@run
async def test_silence_is_closed_without_a_word() -> None:
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        never, once = await here.wire(), await here.wire()
        await once.ask("GET", "/v1/models")
        await until(lambda: len(here.shared.clients) == 2, "both are there")
        await later(here, clock, HEAD_SECONDS + 1)
        assert await never.closed() and len(here.shared.clients) == 1
        await later(here, clock, IDLE_SECONDS)
        assert await once.closed() and not here.shared.clients


@run
async def test_a_long_answer_is_not_silence() -> None:
    clock, go = Clock(), asyncio.Event()

    async def thinks(call: object) -> None:
        await go.wait()
        await call.answer()  # type: ignore[attr-defined]

    async with world(thinks, shared=Shared(now=clock)) as here:
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}"))
        await until(lambda: here.engines[0].calls, "the engine has it")
        await later(here, clock, 599)
        go.set()
        assert (await wire.reply()).status == 200
