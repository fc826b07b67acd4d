"""Whatever arrives, cut wherever: a client whose heads are known is understood as one whose heads are all read."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from routing.dataplane.client import HEADS_TRIED, Client
from routing.dataplane.router import Shared
from routing.dataplane.routes import Refusal, Request
from tests.dataplane.test_strict import CORPUS


class Transport:
    """Takes everything and says nothing."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return False


class Listening(Client):
    """Keeps what it understood, and answers at once."""

    def __init__(self, *, reads_all: bool) -> None:
        super().__init__(Shared(body_bytes=5000, now=lambda: 1.0))
        self.understood: list[Any] = []
        self._tried = HEADS_TRIED if reads_all else 0
        self.connection_made(cast(Any, Transport()))

    def _start(self, request: Request | Refusal, keeps: bool, newest: bool) -> None:
        if isinstance(request, Refusal):
            self.understood.append(request.code)
        else:
            # Framing is said anew for each side, so nobody reads the length here.
            headers = [(name, value) for name, value in request.headers if name != b"Content-Length"]
            self.understood.append((request.method, request.target, headers, request.body, keeps, newest))
        while self._waiting:
            waiting = self._waiting.popleft()
            self._start(*waiting)
        self.finished(keeps, 1.0)


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: a", *headers, b"Content-Length: %d" % len(body), b"Accept: */*"]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


SMALL = [raw for raw, _ in CORPUS.values() if len(raw) < 1000]
MESSAGES = st.one_of(
    st.binary(max_size=40).map(post),
    st.sampled_from([post(b"x" * 4999), post(b"y" * 5001), post(b"GET / HTTP/1.1\r\n\r\n"), post(b"z", b"X-A: 1")]),
    st.sampled_from([
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /v1/models HTTP/1.0\r\n\r\n", b"\r\n", b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nDate: Mon, 30 Nov 2026 06:53:54 GMT\r\n\r\n", b"\r", b"\n", b"0", b"",
        b"\r\n" + post(b"abc"),
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        post(b"abc", b"Connection: close"), post(b"abc", b"Connection: Upgrade", b"Upgrade: h2c"),
        post(b"abc", b"Expect: 100-continue"), post(b"abc").replace(b"Content-Length: 3", b"Content-Length: 03"),
    ]),
    st.sampled_from(SMALL),
)  # fmt: skip


LINES = b"\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


@example([LINES, b"\r\n\r\n", b"\r\n\r\n"], [], True)  # what came before a request is not the beginning of its head
@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 300), max_size=12), st.booleans())
def test_it_is_understood_the_same(messages: list[bytes], cuts: list[int], by_message: bool) -> None:
    pieces = list(messages) if by_message else _cut(b"".join(messages), cuts)
    known, read = Listening(reads_all=False), Listening(reads_all=True)
    for piece in pieces:
        known.data_received(piece)
        read.data_received(piece)
        assert known.understood == read.understood, pieces
    assert (known._last, known._began) == (read._last, read._began)


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


def test_the_heads_of_that_are_known() -> None:
    """Else there would be nothing to compare."""
    known = Listening(reads_all=False)
    for number in range(3):
        known.data_received(post(b"x" * number))
    assert known._known is not None and known._tried == 1 and len(known.understood) == 3
