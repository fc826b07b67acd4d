"""What one client can make the router hold: answers that it does not take, requests sent ahead, lines without end."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Callable
from functools import partial

import pytest

from routing.dataplane import exchange
from routing.dataplane.__main__ import take_open_files
from routing.dataplane.client import AHEAD_BYTES, UNREAD_SECONDS, Client
from routing.dataplane.router import Shared
from routing.dataplane.routes import Request
from tests.dataplane.engines import Call, Engine
from tests.dataplane.test_strict import Clock, H, later
from tests.dataplane.world import Wire, World, request, run, until, world

PIECE = b"x" * 65536


async def endless(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        await call.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))


async def some(call: Call) -> None:
    await call.answer(PIECE[:60_000])


async def narrow(here: World) -> Wire:
    """A client whose system takes next to nothing until somebody reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", here.port))
    here.wires.append(Wire(*await asyncio.open_connection(sock=sock, limit=1024)))
    return here.wires[-1]


def only(here: World) -> Client:
    [client] = here.shared.clients
    return client


def sends_little(here: World) -> asyncio.Transport:
    """The router's end of it, of which the system takes next to nothing either."""
    transport = only(here)._transport
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return transport


def cut(here: World, clock: Clock) -> Callable[[], bool]:
    """Whether it is, after that time once more: until just now its system may have taken something."""

    def passes() -> bool:
        clock.now += UNREAD_SECONDS + 1
        here.router._sweep()
        return not here.shared.clients

    return passes


@run
async def test_a_client_that_takes_nothing_of_its_answer_is_cut_and_its_instance_is_free() -> None:
    clock = Clock()
    async with world(endless, shared=Shared(now=clock)) as here:
        wire = await narrow(here)
        await wire.send(request("POST", "/v1/completions", b"{}"))
        await until(lambda: here.shared.clients and only(here).congested, "it takes nothing any more")
        await later(here, clock, UNREAD_SECONDS - 1)
        assert here.in_flight() == {"pod-0": 1}, "it may be slow"
        await until(cut(here, clock), "it is cut")
        assert here.in_flight() == {}
        await until(lambda: not here.engines[0].open, "its instance was told")


@run
async def test_a_client_that_takes_some_now_and_then_is_slow_and_no_more() -> None:
    clock = Clock()
    async with world(endless, shared=Shared(now=clock)) as here:
        wire = await narrow(here)
        await wire.send(request("POST", "/v1/completions", b"{}"))
        for _ in range(3):
            await until(lambda: here.shared.clients and only(here).congested, "it takes nothing any more")
            before = only(here).read_by
            clock.now += UNREAD_SECONDS - 1
            while only(here).congested and only(here).read_by == before:
                await wire.reader.read(65536)
                await asyncio.sleep(0)
            here.router._sweep()
        assert here.in_flight() == {"pod-0": 1}


@run
async def test_an_answer_that_nobody_takes_is_not_kept_for_ever_behind_the_last_request() -> None:
    clock = Clock()
    async with world(some, shared=Shared(now=clock)) as here:
        wire = await narrow(here)
        await until(lambda: here.shared.clients, "it is connected")
        transport = sends_little(here)
        await wire.send(request("POST", "/v1/completions", b"{}", "Connection: close"))
        await until(lambda: only(here)._last, "all of it was written")
        assert transport.get_write_buffer_size() > 0 and not only(here).congested
        assert here.in_flight() == {}, "the instance has done its work"
        only(here).pause_writing()  # as the loop says it of a longer answer, of which it took most
        only(here).resume_writing()
        await until(cut(here, clock), "it is cut")


def waits(client: Client, engine: Engine) -> bool:
    return client.congested or (bool(engine.calls) and client._exchange is None)


@run
async def test_a_client_that_reads_slowly_and_steadily_is_never_cut() -> None:
    """Neither while more is to come, nor once all of it was written, whether it may ask again or not."""
    for script, ends in ((endless, "Keep: alive"), (some, "Keep: alive"), (some, "Connection: close")):
        clock = Clock()
        async with world(script, shared=Shared(now=clock)) as here:
            wire, got = await narrow(here), b""
            await until(lambda: here.shared.clients, "it is connected")
            transport = sends_little(here)
            await wire.send(request("POST", "/v1/completions", b"{}", ends))
            await until(partial(waits, only(here), here.engines[0]), "it has only to read")
            for _ in range(3):
                size = transport.get_write_buffer_size()
                while size and transport.get_write_buffer_size() >= size:
                    got += (piece := await wire.reader.read(512))
                    assert piece, "it was cut"
                await later(here, clock, UNREAD_SECONDS - 1)
            if script is some:
                head = got.index(b"\r\n\r\n") + 4
                got += await wire.reader.readexactly(head + 60_000 - len(got))
                assert got.endswith(PIECE[:60_000])
            else:
                assert here.in_flight() == {"pod-0": 1}


@run
async def test_a_long_body_that_comes_with_the_end_of_its_head_is_no_head() -> None:
    async def echoes(call: Call) -> None:
        await call.answer(b"%d" % len(call.body))

    asked = request("POST", "/v1/completions", b"y" * (1 << 17), "X-Long: " + "x" * 40_000)
    end = asked.index(b"\r\n\r\n")
    async with world(echoes) as here:
        for cut in (10, end - 20_000, end, end + 1, end + 2, end + 3, end + 4):
            wire = await here.wire()
            await until(lambda: here.shared.clients, "it is connected")
            only(here).data_received(asked[:cut])
            only(here).data_received(asked[cut:])
            reply = await wire.reply()
            assert (reply.status, reply.body) == (200, b"131072"), cut
            wire.leave()
            await until(lambda: not here.shared.clients, "it left")
        wire = await here.wire()
        await until(lambda: here.shared.clients, "it is connected")
        for part in (asked[:10], asked[10:end], b"\r\nX-More: " + b"x" * 40_000 + b"\r\n\r\n" + b"y" * (1 << 17)):
            only(here).data_received(part)
        assert (await wire.reply()).status == 431


@run
async def test_what_is_sent_ahead_is_bounded_in_bytes_too() -> None:
    go, body, count = asyncio.Event(), b"y" * (1 << 20), 24

    async def waits(call: Call) -> None:
        await go.wait()
        await call.answer(b"%d" % len(call.body))

    async with world(waits) as here:
        wire = await here.wire()
        sending = asyncio.ensure_future(wire.send(b"".join([request("POST", "/v1/completions", body)] * count)))
        await until(lambda: here.shared.clients and only(here)._paused, "it is not read any further")
        held = sum(len(one.body) for one, _, _ in only(here)._waiting if isinstance(one, Request))
        assert AHEAD_BYTES < held <= AHEAD_BYTES + 2 * len(body)
        go.set()
        assert [(await wire.reply()).body for _ in range(count)] == [b"%d" % len(body)] * count
        await sending


CHUNKED = H + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "the extension of a chunk": CHUNKED + b"2;x=",
    "a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nX-Late: ",
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\nX-Late: 1\r\nX-Later: ",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_lines_behind_the_head_have_an_end_as_well(case: str) -> None:
    async def told() -> None:
        async with world() as here:
            wire = await here.wire()
            await wire.send(ENDLESS[case])
            await until(lambda: here.shared.clients and only(here)._began, "the request began")
            sent = 0
            while here.shared.clients and not only(here)._last:
                await wire.send(b"z" * 8192)
                sent += 8192
                assert sent < 1 << 20, "and nothing of it is held"
                await asyncio.sleep(0)
            assert (await wire.reply()).status == 431 and not here.engines[0].calls

    run(told)()


@run
async def test_large_chunks_are_no_line_without_end() -> None:
    async def echo(call: Call) -> None:
        await call.answer(b"%d" % len(call.body))

    async with world(echo) as here:
        wire, size = await here.wire(), 5_000_000
        for chunks in ([b"x" * size], [b"x" * 3] * 40_000, [b"x" * size, b"y"]):
            framed = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks)
            await wire.send(CHUNKED + framed + b"0\r\n\r\n")
            assert (await wire.reply()).body == b"%d" % sum(map(len, chunks))


@pytest.mark.parametrize(
    ("begins", "goes_on", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y", None),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", None),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=", b"y", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", b"y", False),
    ],
    ids=["a header", "headers", "interim answers", "the extension of a chunk", "a trailer"],
)
def test_lines_of_an_instance_have_an_end_too(begins: bytes, goes_on: bytes, whole: bool | None) -> None:
    """What is behind an address may be anything."""
    sent = 0

    async def speaks(call: Call) -> None:
        nonlocal sent
        await call.send(begins)
        while True:
            await call.send(goes_on * (8192 // len(goes_on)))
            sent += 8192

    async def told() -> None:
        async with world(speaks) as here:
            wire = await here.wire()
            reply = await wire.ask("POST", "/v1/completions", b"{}")
            assert (reply.status, reply.whole) == ((502, True) if whole is None else (200, whole))
            assert here.in_flight() == {} and sent < 16 << 20

    run(told)()


def test_a_router_that_has_no_open_files_left_blames_no_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crowded(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(exchange, "connected", crowded)

    @run
    async def told() -> None:
        async with world() as here:
            wire = await here.wire()
            for _ in range(5):
                reply = await wire.ask("POST", "/v1/completions", b"{}")
                assert (reply.status, reply.headers["retry-after"]) == (503, "1") and b"crowded" in reply.body
            assert here.in_flight() == {} and not here.shared.counters.failures
            monkeypatch.undo()
            assert (await wire.ask("POST", "/v1/completions", b"{}")).status == 200

    told()


def test_it_takes_as_many_open_files_as_it_may() -> None:
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = 1000 if hard == resource.RLIM_INFINITY else min(1000, hard - 1)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
        take_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


ABSOLUTE = [
    (b"http://router/v1/models?a=http://b", b"/v1/models?a=http://b"),
    (b"HTTP://router:80/endpoints/chat/invocations", b"/invocations"),
    (b"https://router/endpoints/chat/v1/models", b"/v1/models"),
    (b"http://router", b""),
    (b"http://router?x", b""),
    (b"ftp://router/v1/models", b""),
    (b"//router/v1/models", b""),
    (b"*", b""),
]


@pytest.mark.parametrize(("target", "passed"), ABSOLUTE)
def test_a_target_may_be_absolute(target: bytes, passed: bytes) -> None:
    """A server takes it, RFC 9112 says, and whoever serves gets what it knows."""

    async def told() -> None:
        async with world() as here:
            wire = await here.wire()
            for _ in range(2):  # read, and as a head that is known
                await wire.send(b"GET %b HTTP/1.1\r\nHost: router\r\n\r\n" % target)
                assert (await wire.reply()).status == (200 if passed else 404)
            assert [call.line for call in here.engines[0].calls] == [b"GET %b HTTP/1.1" % passed] * (2 if passed else 0)

    run(told)()


@run
async def test_headers_that_some_would_read_as_others_go_no_further() -> None:
    async with world() as here:
        odd = ("Connection: host, X-Mine", "X-Mine: 1", "Content_Length: 7", "Transfer_Encoding: chunked", "X_A: 1")
        assert (await here.ask("GET", "/v1/models", b"", *odd)).status == 200
        [call] = here.engines[0].calls
        assert call.header("host") == ["router"] and not call.header("x-mine") and call.header("x_a") == ["1"]
        assert not call.header("content_length") and not call.header("transfer_encoding"), "some servers know no _"
        wire = await here.wire()
        await wire.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Amzn-SageMaker-Prefix-Aware-Id: \xe9\r\n\r\n")
        assert (await wire.reply()).status == 400
