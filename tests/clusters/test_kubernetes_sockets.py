"""Connections that a dying API server cuts while they are made: an error, and nothing that stays open."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import socketserver
import struct
import threading
import warnings
from collections.abc import Iterator

import pytest
from urllib3.connection import HTTPSConnection

from controlplane.clusters.gateway import Unreachable
from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.client import KubeClient

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


class Resetting(socketserver.TCPServer):
    """Takes connections and resets them as soon as the other side believes that it has one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.believed = threading.Semaphore(0)

    def process_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        assert self.believed.acquire(timeout=60)
        request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        request.close()


@pytest.fixture
def resetting() -> Iterator[Resetting]:
    with Resetting() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


@contextlib.contextmanager
def nothing_left_open() -> Iterator[None]:
    gc.collect()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
def test_it_leaves_nothing_open_when_the_server_dies_before_the_handshake(
    resetting: Resetting, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = HTTPSConnection._new_conn

    def connected(connection: HTTPSConnection) -> socket.socket:
        made = connect(connection)
        resetting.believed.release()
        poll = select.poll()
        poll.register(made, select.POLLIN)
        assert poll.poll(60_000), "the reset has come"
        return made

    monkeypatch.setattr(HTTPSConnection, "_new_conn", connected)
    server = f"https://127.0.0.1:{resetting.server_address[1]}"
    access = Access(server=server, authorization=lambda again: "", verify=verify)
    with nothing_left_open(), pytest.raises(Unreachable, match="reset"):
        KubeClient(lambda: access).get("/version")
