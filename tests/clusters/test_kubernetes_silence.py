"""Watches whose other end misbehaves as no real API server does: what came is told, and nothing waits for ever.

The real one, and a proxy before it, are in tests/kube/test_adapter_faults.py.
"""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from controlplane.clusters.gateway import Unreachable
from controlplane.clusters.kubernetes import access, watches
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.watches import watched

SO_ATTACH_FILTER = 26
LINE = (
    json.dumps({"type": "MODIFIED", "object": {"metadata": {"name": "n-1", "resourceVersion": "7"}}}).encode() + b"\n"
)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def serving(*handlers: Callable[[socket.socket], object]) -> Iterator[KubeClient]:
    """A client of a server that hands its connections, once a request came, to these in turn."""
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        for handler in handlers:
            with suppress(OSError):
                connection, _ = listening.accept()
                accepted.append(connection)
                connection.recv(65536)
                handler(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    made = access.Access(server=f"http://127.0.0.1:{listening.getsockname()[1]}", authorization=lambda again: "")
    pool = made.pool()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(access.Access, "pool", lambda self: pool)
            yield KubeClient(lambda: made)
    finally:
        pool.clear()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in accepted:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in accepted:
            connection.close()


def deaf(connection: socket.socket) -> None:
    """Nothing that arrives is acknowledged from now on, as when a cable was pulled: a filter that drops everything."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(drop)))


def test_it_tells_at_once_what_came_without_chunks() -> None:
    """A proxy may take the chunks away: then only the end of the connection ends the answer."""
    heard = threading.Event()

    def one_change_then_silence(connection: socket.socket) -> None:
        connection.sendall(UNTIL_CLOSED + LINE)
        heard.wait(60)
        connection.close()

    with serving(one_change_then_silence) as client:
        told = watched(client, "/api/v1/nodes", {}, "1", 40.0)
        assert next(told).version == "7"
        assert not heard.is_set(), "while the connection was open"
        heard.set()
        assert list(told) == []


@pytest.mark.skipif(sys.platform != "linux", reason="drops packets with a socket filter of Linux")
def test_it_does_not_wait_for_an_answer_to_what_never_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection was idle in the pool when it was cut: keepalive says nothing while a request is on its way."""
    quick = [(*option, min(value, 500)) for *option, value in access.KEEPALIVE]
    monkeypatch.setattr(access, "KEEPALIVE", quick)

    def answer_and_vanish(connection: socket.socket) -> None:
        connection.sendall(WHOLE)
        deaf(connection)

    with serving(answer_and_vanish, lambda connection: connection.sendall(WHOLE)) as client:
        assert client.get("/version") == {}
        started = time.monotonic()
        with pytest.raises(Unreachable):
            list(watched(client, "/api/v1/nodes", {}, "1", 240.0))
        assert time.monotonic() - started < 120.0, "long before the watch had to end"
        assert client.get("/version") == {}, "on a new connection"


def test_it_leaves_a_watch_that_does_not_end_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "BOOKMARK_SECONDS", 0)
    monkeypatch.setattr(watches, "SLACK_SECONDS", 0.1)
    left = threading.Event()

    def babble(connection: socket.socket) -> None:
        connection.sendall(UNTIL_CLOSED)
        ends = time.monotonic() + 30.0
        while time.monotonic() < ends:
            try:
                connection.sendall(LINE)
            except OSError:
                left.set()
                return

    with serving(babble) as client:
        assert all(told.version == "7" for told in watched(client, "/api/v1/nodes", {}, "1", 0.0))
        assert left.wait(60), "the watcher went, not the server"
