"""Heads that come again are compared and not read: nothing is understood otherwise for it."""

from __future__ import annotations

import asyncio
import json

import pytest

from routing.dataplane.known import LONGEST_HEAD, Match, pattern_of
from routing.dataplane.router import Shared
from routing.dataplane.routes import Request
from tests.dataplane.engines import Call
from tests.dataplane.test_strict import CORPUS, SMUGGLED, Clock, later
from tests.dataplane.world import PREFIX, World, chat, request, run, until, world

DATE = b"Mon, 30 Nov 2026 06:53:54 GMT"
HEAD = b"HTTP/1.1 200 OK\r\nDate: " + DATE + b"\r\nX-A: b\r\nContent-Length: 38\r\nConnection: keep-alive\r\n\r\n"
OTHER = b"Tue, 01 Dec 2026 00:00:00 GMT"

MATCHES: dict[str, tuple[bytes, Match | None]] = {
    "the same": (HEAD, Match(len(HEAD), 38, DATE)),
    "with what follows": (HEAD + b"x" * 9, Match(len(HEAD), 38, DATE)),
    "another length": (HEAD.replace(b"38", b"1234"), Match(len(HEAD) + 2, 1234, DATE)),
    "another date": (HEAD.replace(DATE, OTHER), Match(len(HEAD), 38, OTHER)),
    "no length": (HEAD.replace(b"38", b""), None),
    "a signed length": (HEAD.replace(b"38", b"+8"), None),
    "a negative length": (HEAD.replace(b"38", b"-8"), None),
    "a hexadecimal length": (HEAD.replace(b"38", b"0x8"), None),
    "a length in other digits": (HEAD.replace(b"38", "\u0662".encode()), None),
    "a list of lengths": (HEAD.replace(b"38", b"3, 3"), None),
    "a length with a space": (HEAD.replace(b"38", b"38 "), None),
    "a huge length": (HEAD.replace(b"38", b"9" * 11), None),
    "another header": (HEAD.replace(b"X-A: b", b"X-A: c"), None),
    "one header more": (HEAD[:-2] + b"Transfer-Encoding: chunked\r\n\r\n", None),
    "one header less": (HEAD.replace(b"X-A: b\r\n", b""), None),
    "another status": (HEAD.replace(b"200", b"500"), None),
    "another line end": (HEAD.replace(b"38\r\n", b"38\n"), None),
    "a bare return": (HEAD.replace(b"38\r\n", b"38\r\r"), None),
    "a date that is too long": (HEAD.replace(DATE, DATE + b" "), None),
    "a date that is none": (HEAD.replace(DATE, DATE.replace(b",", b"\x00")), None),
    "a header in the date": (HEAD.replace(DATE, DATE + b"\r\nX: y"), None),
    "part of it": (HEAD[:-1], None),
    "nothing": (b"", None),
}


@pytest.mark.parametrize("case", MATCHES)
def test_only_a_length_and_a_date_may_be_others(case: str) -> None:
    data, expected = MATCHES[case]
    pattern = pattern_of(HEAD, dates=True)
    assert pattern is not None
    for _ in range(2):  # as at first, and as one that was seen before
        assert pattern.match(data) == expected
    assert pattern.match(HEAD) == Match(len(HEAD), 38, DATE)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"),
        HEAD.replace(b"38", b"38 "),
        HEAD[:-2],
        b"",
        HEAD.replace(b"X-A: b", b"X-A: " + b"b" * LONGEST_HEAD),
    ],
    ids=["two lengths", "an odd length", "no end", "nothing", "too long"],
)
def test_what_is_no_plain_head_is_not_kept(head: bytes) -> None:
    assert pattern_of(head) is None


def test_a_date_may_be_another_only_where_it_is_looked_at() -> None:
    pattern = pattern_of(HEAD)
    assert pattern is not None and pattern.match(HEAD.replace(DATE, OTHER)) is None
    assert pattern.match(HEAD.replace(b"38", b"39")) == Match(len(HEAD), 39, b"")


def test_a_head_without_holes_is_known_as_a_whole() -> None:
    head = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Date: content-length: 5\r\n\r\n"
    pattern = pattern_of(head)
    assert pattern is not None and pattern.match(head + b"more") == Match(len(head), 0, b"")


async def knows(here: World) -> World:
    """A connection whose head is known on both sides."""
    wire = await here.wire()
    for number in range(3):
        assert (await wire.ask("POST", "/v1/completions", b"x" * (number + 1))).status == 200
    assert any(client._known for client in here.shared.clients)
    here.wires.append(wire)
    return here


@pytest.mark.parametrize("case", CORPUS)
def test_nonsense_behind_a_known_head_is_refused_as_ever(case: str) -> None:
    raw, status = CORPUS[case]

    async def told() -> None:
        async with world() as here:
            wire = (await knows(here)).wires[-1]
            before = len(here.engines[0].calls)
            await wire.send(raw)
            assert (await wire.reply()).status == status and await wire.closed()
            assert len(here.engines[0].calls) == before

    run(told)()


LINE = b"POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Length: "
NEARLY: dict[str, tuple[bytes, int]] = {
    "two lengths": (LINE + b"4\r\nContent-Length: 0\r\n\r\n" + SMUGGLED, 400),
    "chunks behind the length": (LINE + b"4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "a signed length": (LINE + b"+4\r\n\r\nabcd", 400),
    "no length": (LINE + b"\r\n\r\n" + SMUGGLED, 400),
    "a list": (LINE + b"4,4\r\n\r\nabcd", 400),
    "a huge length": (LINE + b"99999999999999999999\r\n\r\nabcd", 400),
    "too large a body": (LINE + b"2000\r\n\r\n", 413),
    "a bare end": (LINE + b"4\n\nabcd", 400),
}


@pytest.mark.parametrize("case", NEARLY)
def test_a_head_that_is_nearly_known_is_read(case: str) -> None:
    raw, status = NEARLY[case]

    async def told() -> None:
        async with world(shared=Shared(body_bytes=1000)) as here:
            wire = (await knows(here)).wires[-1]
            await wire.send(raw)
            assert (await wire.reply()).status == status and await wire.closed()
            assert len(here.engines[0].calls) == 3

    run(told)()


@run
async def test_bodies_behind_a_known_head_arrive_in_pieces_and_with_the_next_request() -> None:
    async def echo(call: Call) -> None:
        await call.answer(call.body)

    async with world(echo) as here:
        wire = (await knows(here)).wires[-1]
        one, two, three = (request("POST", "/v1/completions", body) for body in (b"a" * 300, b"b" * 20, b"c"))
        for start in range(0, len(one), 7):
            await wire.send(one[start : start + 7])
            await asyncio.sleep(0)
        assert (await wire.reply()).body == b"a" * 300
        head, _, body = one.partition(b"\r\n\r\n")
        await wire.send(head + b"\r\n\r\n" + body[:5])
        await until(lambda: any(client._missing for client in here.shared.clients), "it began")
        await wire.send(body[5:] + two + three[:30])
        assert (await wire.reply()).body == b"a" * 300 and (await wire.reply()).body == b"b" * 20
        await wire.send(three[30:])
        assert (await wire.reply()).body == b"c"
        await wire.send(one + two + three)
        assert [(await wire.reply()).body for _ in range(3)] == [b"a" * 300, b"b" * 20, b"c"]
        assert here.in_flight() == {}


@run
async def test_a_body_behind_a_known_head_that_never_ends_is_told_so() -> None:
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        wire = (await knows(here)).wires[-1]
        await wire.send(LINE + b"10\r\n\r\nx")
        await until(lambda: any(client._missing for client in here.shared.clients), "the body began")
        await later(here, clock, 301)
        assert (await wire.reply()).status == 408
        await wire.send(b"y" * 9)
        assert await wire.closed() and len(here.engines[0].calls) == 3


@run
async def test_empty_lines_are_no_request() -> None:
    async def names(call: Call) -> None:
        await call.answer(call.line.split(b" ")[1])

    async with world(names) as here:
        wire = await here.wire()
        for number in range(3):
            await wire.send(b"\r\n\r\n" + request("GET", f"/v1/{number}"))
            assert (await wire.reply()).body == b"/v1/%d" % number
            await wire.send(b"\r\n\r\n")
        assert (await wire.ask("GET", "/v1/last")).body == b"/v1/last" and len(here.engines[0].calls) == 4


@run
async def test_a_known_head_goes_where_the_configuration_of_now_says() -> None:
    async with world(policy=PREFIX) as here:
        wire = await here.wire()
        for _ in range(3):
            assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status == 200
        here.publish_endpoints([])
        assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status in (404, 503)
        here.publish(PREFIX)
        assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status == 200


def dated(*bodies: bytes) -> bytes:
    return b"".join(
        b"HTTP/1.1 200 OK\r\nDate: " + DATE + b"\r\nContent-Type: application/json\r\nX-A: 1\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        for body in bodies
    )


@run
async def test_answers_that_begin_alike_are_passed_on_as_they_are() -> None:
    """Other lengths and dates, other heads between, in pieces, to clients that close and to HEAD."""
    last = dated(b"12345").replace(DATE, OTHER)
    sent = [
        dated(b"1"), dated(b"22"), dated(b""), dated(b"4" * 100_000), last, last.replace(b"200 OK", b"418 No"),
        dated(b"7").replace(b"X-A: 1", b"X-A: 2"), b"HTTP/1.1 204 No Content\r\n\r\n", dated(b"8"),
    ]  # fmt: skip

    async def answers(call: Call) -> None:
        data = sent[int(call.body)]
        pieces = len(data) if 0 < len(data) < 300 and call.header("x-slowly") else 1
        for number in range(pieces):
            await call.send(data[len(data) * number // pieces : len(data) * (number + 1) // pieces])
            await asyncio.sleep(0)

    async with world(answers) as here:
        wire = await here.wire()
        for slowly in ([], ["X-Slowly: 1"], []):
            for number, raw in enumerate(sent):
                head, _, body = raw.partition(b"\r\n\r\n")
                reply = await wire.ask("POST", "/v1/completions", b"%d" % number, *slowly)
                assert reply.status == int(head[9:12]) and reply.body == body and reply.whole
                if body:
                    assert reply.headers["date"] == head.split(b"\r\n")[1][6:].decode()
                    assert reply.headers["x-a"] == ("2" if b"X-A: 2" in head else "1")
        closing = await here.wire()
        reply = await closing.ask("POST", "/v1/completions", b"1", "Connection: close")
        assert reply.body == b"22" and reply.headers["connection"] == "close" and await closing.closed()
        assert (await wire.ask("POST", "/v1/completions", b"1")).body == b"22"
        assert here.engines[0].accepted == 1 and here.in_flight() == {}


@run
async def test_head_is_not_answered_with_a_body_that_is_known() -> None:
    async def answers(call: Call) -> None:
        await call.send(dated(b"12345")[:-5] if call.line.startswith(b"HEAD") else dated(b"12345"))

    async with world(answers) as here:
        wire = await here.wire()
        for _ in range(3):
            assert (await wire.ask("GET", "/v1/models")).body == b"12345"
            reply = await wire.ask("HEAD", "/v1/models")
            assert (reply.status, reply.headers["content-length"], reply.body) == (200, "5", b"")


@run
async def test_what_an_engine_sends_behind_a_known_answer_is_nobody_s() -> None:
    async def answers(call: Call) -> None:
        await call.send(dated(b"1", b"evil") if call.body == b"now" else dated(b"1"))

    async with world(answers) as here:
        wire = await here.wire()
        for body in (b"a", b"b", b"now", b"c", b"d"):
            assert (await wire.ask("POST", "/v1/completions", body)).body == b"1"
        assert here.engines[0].accepted == 2, "and that connection is not used again"


@run
async def test_tokens_of_known_answers_are_counted() -> None:
    use = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}

    async def answers(call: Call) -> None:
        await call.send(dated(json.dumps({"usage": use}).encode()))

    async with world(answers, policy=PREFIX) as here:
        wire = await here.wire()
        for _ in range(5):
            await wire.ask("POST", "/v1/chat/completions", chat("x"))
        figures = here.shared.fleet.endpoints["chat"].variants["default"].figures
        assert (figures.told, figures.prompt_tokens, figures.cached_tokens) == (5, 500, 320)
        assert figures.answers == {"2xx": 5} and sum(one.count for one in figures.ttft.values()) == 5


BODIES = [
    b"{}",
    b' {"a": 1} ',
    b'{"a": 1}\r\n\t ',
    b'{"a": 1} x',
    b'{"a": 1}{}',
    b"{",
    b'{"a"',
    b"",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"a": NaN, "b": -Infinity}',
    b'{"a": 1, "a": 2}',
    b'{"a": "\\ud83d"}',
    b'{"a": "\xed\xa0\xbd"}',
    b'{"a": "\xff"}',
    b'{"a": "\t"}',
    b'{"a": 1e999}',
    b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": ' + b"[" * 100_000,
    '{"\u00e9": 1}'.encode(),
    b"\xef\xbb\xbf{}",
    '{"a": 1}'.encode("utf-16"),
    '{"a": 1}'.encode("utf-16-le"),
    '{"a": 1}'.encode("utf-32-be"),
    b'{"a": 1}\xc2\xa0',
    b'{"a": 1}\x00',
    b"{'a': 1}",
    b'{"a": 1,}',
    b'{"a": 01}',
]


@pytest.mark.parametrize("raw", BODIES, ids=lambda raw: repr(raw[:20]))
def test_a_body_is_read_as_json_is_read(raw: bytes) -> None:
    try:
        expected = json.loads(raw)
    except (ValueError, RecursionError):
        expected = None
    assert repr(Request(b"POST", b"/", [], raw).document()) == repr(expected if isinstance(expected, dict) else {})
