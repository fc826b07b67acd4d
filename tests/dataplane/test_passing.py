"""Requests and answers pass through the router byte for byte, whatever their framing."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from tests.dataplane.engines import Call, Script
from tests.dataplane.world import chat, request, run, world

EVENTS = [f"data: {number}\n\n".encode() for number in range(50)] + [b"data: [DONE]\n\n"]


@run
async def test_it_passes_a_request_on_as_it_came() -> None:
    async with world() as here:
        body = chat("h\u00e9llo \U0001f525")
        reply = await here.ask("POST", "/v1/chat/completions?a=b%20c", body, "Content-Type: application/json", "X-A: 1")
        (call,) = here.engines[0].calls
        assert (reply.status, reply.body) == (200, b"{}")
        assert call.line == b"POST /v1/chat/completions?a=b%20c HTTP/1.1" and call.body == body
        assert call.header("host") == ["router"] and call.header("x-a") == ["1"]
        assert call.header("content-length") == [str(len(body))]


@run
async def test_it_keeps_what_belongs_to_one_connection_to_itself() -> None:
    async def answer(call: Call) -> None:
        await call.answer(
            b"{}", b"200 OK", b"Connection: keep-alive, X-Mine", b"X-Mine: 1", b"Keep-Alive: 5", b"X-Yours: 2"
        )

    async with world(answer) as here:
        named = ["Connection: keep-alive, X-Secret", "X-Secret: s", "TE: trailers", "Keep-Alive: 5", "X-Kept: k"]
        reply = await here.ask("GET", "/v1/models", b"", *named)
        (call,) = here.engines[0].calls
        assert not [one for one in ("x-secret", "te", "keep-alive", "connection") if call.header(one)]
        assert call.header("x-kept") == ["k"]
        assert reply.headers["x-yours"] == "2" and not {"x-mine", "keep-alive", "connection"} & set(reply.headers)


@run
async def test_it_takes_chunks_and_sends_a_length() -> None:
    async with world() as here:
        wire = await here.wire()
        await wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b'5;x=y\r\n{"a":', b"\r\n2\r\n1}", b"\r\n0\r\nTrailer-X: 1\r\n\r\n"):
            await wire.send(part)
        assert (await wire.reply()).status == 200
        (call,) = here.engines[0].calls
        assert call.body == b'{"a":1}' and call.header("content-length") == ["7"]
        assert not call.header("transfer-encoding") and not call.header("trailer-x")


async def in_chunks(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for event in EVENTS:
        await call.send(b"%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(0)
    await call.send(b"0\r\nX-Late: trailer\r\n\r\n")


async def until_the_end(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    for event in EVENTS:
        await call.send(event)
    call.writer.close()


async def with_a_length(call: Call) -> None:
    await call.answer(b"".join(EVENTS))


async def byte_by_byte(call: Call) -> None:
    body = b"".join(EVENTS[:5])
    for byte in b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body):
        await call.send(bytes([byte]))
        await asyncio.sleep(0)


@pytest.mark.parametrize("script", [in_chunks, until_the_end, with_a_length], ids=lambda one: one.__name__)
def test_it_passes_streams_on(script: Script) -> None:
    async def told() -> None:
        async with world(script) as here:
            wire = await here.wire()
            for _ in range(2):
                reply = await wire.ask("POST", "/v1/chat/completions", chat("x"))
                assert reply.whole and reply.body == b"".join(EVENTS)
            assert here.in_flight() == {}

    run(told)()


@run
async def test_it_makes_no_difference_where_packets_end() -> None:
    async with world(byte_by_byte) as here:
        wire = await here.wire()
        for byte in request("POST", "/v1/completions", b'{"prompt": "x"}'):
            await wire.send(bytes([byte]))
        reply = await wire.reply()
        assert reply.body == b"".join(EVENTS[:5]) and here.engines[0].calls[0].body == b'{"prompt": "x"}'


@run
async def test_a_stream_arrives_while_it_is_made() -> None:
    """The first event is with the client before the engine makes the second."""
    seen = asyncio.Event()

    async def waits(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await seen.wait()
        await call.send(b"6\r\nsecond\r\n0\r\n\r\n")

    async with world(waits) as here:
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}"))
        await wire.reader.readuntil(b"first\r\n")
        assert here.in_flight() == {"pod-0": 1}, "and it counts until its end"
        seen.set()
        assert await wire.reader.readuntil(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"


@run
async def test_one_slow_reader_holds_the_engine_back_and_nobody_else() -> None:
    sent = 0
    piece = b"x" * 65536

    async def endless(call: Call) -> None:
        nonlocal sent
        if b"models" in call.line:
            await call.answer()
            return
        await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(2000):
            await call.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent += len(piece)
        await call.send(b"0\r\n\r\n")

    async with world(endless) as here:
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}"))
        await wire.reader.readuntil(b"\r\n\r\n")
        before = -1
        while before != sent:  # until the engine can send no more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 64 * 1024 * 1024, "the router does not hold what the client does not take"
        assert (await here.ask("GET", "/v1/models")).status == 200
        total = 0
        while total < 2000 * len(piece):
            total += len(await wire.reader.read(1 << 20))
        assert here.shared.counters.truncated == 0


ANSWERS: dict[str, tuple[bytes, int, dict[str, str]]] = {
    "204": (b"HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n", 204, {"x-a": "1"}),
    "304": (b"HTTP/1.1 304 Not Modified\r\netag: 1\r\n\r\n", 304, {"etag": "1"}),
    "404": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", 404, {"content-length": "2"}),
    "500": (b"HTTP/1.1 500 Oops Here\r\ncontent-length: 0\r\n\r\n", 500, {"content-length": "0"}),
    "early hints": (
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200,
        {"content-length": "0"},
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", 200, {"content-length": "2"}),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_it_passes_every_kind_of_answer_on_and_goes_on(case: str) -> None:
    raw, status, headers = ANSWERS[case]

    async def told() -> None:
        async with world(lambda call: call.send(raw)) as here:
            wire = await here.wire()
            for _ in range(3):
                reply = await wire.ask("GET", "/v1/models")
                assert reply.status == status and headers.items() <= reply.headers.items()
                assert "link" not in reply.headers
            assert len(here.engines[0].calls) == 3 and here.in_flight() == {}

    run(told)()


@run
async def test_head_has_the_length_and_no_body() -> None:
    async def answer(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")

    async with world(answer) as here:
        wire = await here.wire()
        for _ in range(2):
            reply = await wire.ask("HEAD", "/v1/models")
            assert (reply.status, reply.headers["content-length"], reply.body) == (200, "1000", b"")


@run
async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async def slow_first(call: Call) -> None:
        if call.body == b"0":
            await asyncio.sleep(0.05)
        await call.answer(call.body)

    async with world(slow_first, slow_first) as here:
        wire = await here.wire()
        count = 100
        await wire.send(b"".join(request("POST", "/v1/completions", b"%d" % number) for number in range(count)))
        assert [(await wire.reply()).body for _ in range(count)] == [b"%d" % number for number in range(count)]


@run
async def test_connections_are_used_again_on_both_sides() -> None:
    async with world() as here:
        wire = await here.wire()
        for _ in range(20):
            assert (await wire.ask("POST", "/v1/completions", b"{}")).status == 200
        assert here.engines[0].accepted == 1


@run
async def test_a_client_that_closes_gets_its_answer_first() -> None:
    async with world() as here:
        wire = await here.wire()
        reply = await wire.ask("GET", "/v1/models", b"", "Connection: close")
        assert reply.body == b"{}" and reply.headers["connection"] == "close" and await wire.closed()
        old = await here.wire()
        await old.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert (await old.reply()).body == b"{}" and await old.closed()


@run
async def test_an_old_client_gets_a_stream_without_chunks() -> None:
    async with world(in_chunks) as here:
        wire = await here.wire()
        await wire.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        reply = await wire.reply()
        assert "transfer-encoding" not in reply.headers and reply.body == b"".join(EVENTS)


@run
async def test_a_client_that_asks_before_it_sends_is_told_to() -> None:
    async with world() as here:
        wire = await here.wire()
        head, _, body = request("POST", "/v1/completions", b"{}", "Expect: 100-continue").partition(b"\r\n\r\n")
        await wire.send(head + b"\r\n\r\n")
        assert (await wire.reply()).status == 100
        await wire.send(body)
        assert (await wire.reply()).status == 200
        assert not here.engines[0].calls[0].header("expect")


@run
async def test_an_offer_of_another_protocol_is_not_taken_and_does_no_harm() -> None:
    async with world() as here:
        wire = await here.wire()
        for _ in range(2):
            offer = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"]
            assert (await wire.ask("GET", "/v1/models", b"", *offer)).status == 200
            assert (await wire.ask("POST", "/v1/completions", b"{}", *offer)).status == 200
        assert not any(call.header("upgrade") for call in here.engines[0].calls)


@run
async def test_bodies_of_all_sizes_arrive() -> None:
    async def echo(call: Call) -> None:
        await call.answer(call.body)

    async with world(echo) as here:
        draws = random.Random(11)
        wire = await here.wire()
        for size in (1, 1023, 1024, 65_535, 65_536, 1_000_000, 5_000_000):
            body = draws.randbytes(size)
            assert (await wire.ask("POST", "/v1/completions", body)).body == body


@run
async def test_what_a_client_sends_wrongly_is_for_the_engine_to_say() -> None:
    """Whatever is no JSON, or no talk, is passed on as it is: the engine's words are better than ours."""
    bodies = [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"a": 1, "a": 2}',
        b"[]",
        b"null",
        b"9" * 5000,
        b"[" * 50_000,
        b'{"messages": 7}',
    ]
    bodies += [json.dumps({"messages": [{"role": "user", "content": "\ud83d"}]}).encode()]
    async with world(
        policy={
            "RoutingStrategy": "PREFIX_AWARE",
            "PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 1},
        }
    ) as here:
        wire = await here.wire()
        for body in bodies:
            assert (await wire.ask("POST", "/v1/chat/completions", body)).status == 200
        assert [call.body for call in here.engines[0].calls] == bodies
