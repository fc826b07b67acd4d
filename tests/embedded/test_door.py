"""The way by which pods reach a server on loopback: for the cluster's own addresses, and whole in both directions."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.embedded import ports, records
from controlplane.embedded.kube.door import Door
from controlplane.embedded.processes import ROOT

LOOPBACK = "127.0.0.0/8"


@contextmanager
def door(server: int, network: str) -> Iterator[int]:
    """A door to a port, as a process; yields its own port."""
    port = ports.free_port()
    argv = ["controlplane.embedded.kube.door", f"127.0.0.1:{port}", f"127.0.0.1:{server}", network]
    process = subprocess.Popen([sys.executable, "-m", *argv], cwd=ROOT)
    try:
        assert records.wait_until(lambda: ports.is_listening(port), 60)
        yield port
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers with everything it heard, once the other side has said all."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(_all(connection))

    thread = threading.Thread(target=serve)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)


def answer(port: int, said: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        return _all(connection)


def _all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_it_carries_everything_and_the_end_of_each_side(echo: int) -> None:
    said = os.urandom(3_000_000)
    with door(echo, LOOPBACK) as port:
        assert answer(port, said) == said
        assert answer(port, b"again") == b"again"


def test_it_lets_nobody_in_from_elsewhere(echo: int) -> None:
    with (
        door(echo, "10.200.0.0/16") as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        assert connection.recv(1) == b""


def test_it_ends_a_connection_when_the_server_is_gone_and_serves_the_next(echo: int) -> None:
    gone = ports.free_port()
    with door(gone, LOOPBACK) as port:
        assert answer(port, b"") == b""
        with (
            socket.create_server(("127.0.0.1", gone)) as back,
            socket.create_connection(("127.0.0.1", port), timeout=60),
        ):
            back.settimeout(60)
            back.accept()[0].close()


@pytest.mark.parametrize(
    ("address", "admitted"),
    [("10.200.1.7", True), ("10.200.128.1", True), ("10.201.1.7", False), ("192.0.2.9", False), ("127.0.0.1", False)],
)
def test_it_knows_the_clusters_own_addresses(address: str, admitted: bool) -> None:
    made = Door(("127.0.0.1", 1), ipaddress.IPv4Network("10.200.0.0/16"))
    assert made.admits((address, 4711)) is admitted


def test_it_admits_nobody_who_is_gone_already() -> None:
    assert Door(("127.0.0.1", 1), ipaddress.IPv4Network("10.200.0.0/16")).admits(None) is False
