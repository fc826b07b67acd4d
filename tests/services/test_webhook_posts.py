"""Where a webhook may be sent, and what goes over the wire. The sockets and the receivers are real."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from caches.services.webhooks import posts as webhook_posts
from caches.services.webhooks.posts import PostRefused, address_problem, post, url_problem
from caches.sources import allowed
from tests.sources.test_s3_misbehaving import certificates


class Wire:
    """Accepts connections and answers each with the next text; ``seen`` is what was sent, word for word."""

    def __init__(self, *answers: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[bytes] = []
        self.tls = tls
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.answers = list(answers)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        for answer in self.answers:
            try:
                peer, _ = self.socket.accept()
                peer = self.tls.wrap_socket(peer, server_side=True) if self.tls else peer
            except OSError:
                continue
            with peer:
                self._answer(peer, answer)

    def _answer(self, peer: socket.socket, answer: bytes) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while not data.endswith(b"}"):
                if not (more := peer.recv(65536)):
                    return  # it hung up
                data += more
            self.seen.append(data)
            peer.sendall(answer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts
        self.socket.close()
        self.thread.join(60)


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(*answers: bytes, **given: Any) -> Wire:
        made.append(Wire(*answers, **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def send(url: str, **given: Any) -> int:
    return post(url, b"{}", {"Hearth-Event": "entry.failed"}, private=given.get("private", True))


NOWHERE = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255"]
METADATA = ["169.254.169.254", "169.254.0.1", "fe80::1", *sorted(map(str, allowed.METADATA))]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("text", METADATA + NOWHERE)
def test_some_addresses_are_never_called(text: str, private: bool) -> None:
    assert address_problem(ipaddress.ip_address(text), private=private)


@pytest.mark.parametrize("text", ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"])
@pytest.mark.parametrize("way", ["::ffff:{0}", "64:ff9b::{0}", "2002:{1:x}:{2:x}::", "2001:0:1:2:3:4:{3:x}:{4:x}"])
def test_metadata_is_found_inside_of_other_addresses(text: str, way: str) -> None:
    number = int(ipaddress.IPv4Address(text))
    halves = number >> 16, number & 0xFFFF
    hidden = way.format(text, *halves, *(half ^ 0xFFFF for half in halves))
    assert address_problem(ipaddress.ip_address(hidden), private=True), hidden


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "::1", "fd12::1", "100.64.0.1", "::ffff:10.0.0.1"]
)
def test_addresses_of_ones_own_network_are_as_configured(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert address_problem(address, private=True) is None
    assert "private address" in (address_problem(address, private=False) or "")


@pytest.mark.parametrize("text", ["8.8.8.8", "52.216.1.1", "2600:1f60::1"])
def test_public_addresses_may_be_called(text: str) -> None:
    assert address_problem(ipaddress.ip_address(text), private=False) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "must start with"),
        ("hooks.example.org/x", "must start with"),
        ("ftp://example.org/", "must start with"),
        ("file:///etc/passwd", "must start with"),
        ("http:///path", "must start with"),
        ("https://user:pass@example.org/", "credentials"),
        ("https://user@example.org/", "credentials"),
        ("https://example.org:0/", "port 0"),
        ("https://example.org:99999/", "not a URL"),
        ("https://example.org:x/", "not a URL"),
        ("https://[::1/", "not a URL"),
        ("https://a..b/", "name of a host"),
        (f"https://{'x' * 64}.example/", "name of a host"),
    ],
)
def test_what_cannot_be_an_address(url: str, problem: str) -> None:
    assert problem in (url_problem(url) or "")
    with pytest.raises(PostRefused, match="address of the webhook is wrong"):
        send(url)


@pytest.mark.parametrize("url", ["http://[::1]:9/x", "https://hooks.example.org/a?b=c#d", "https://straße.example/"])
def test_what_can_be_an_address(url: str) -> None:
    assert url_problem(url) is None


@pytest.mark.parametrize("second", ["169.254.169.254", "100.100.100.200", "64:ff9b::a9fe:a9fe"])
def test_one_forbidden_address_of_a_name_is_enough(monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 80)) for text in ("127.0.0.1", second)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    with pytest.raises(PostRefused, match="link-local or metadata"):
        send("http://innocent.example/")


def test_it_connects_to_the_address_that_was_checked_and_no_other(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = wire(b"HTTP/1.1 204 No Content\r\n\r\n")
    asked: list[str] = []
    real = socket.getaddrinfo

    def lying(host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        """A name server that gives a good answer once, and then leads elsewhere."""
        asked.append(host)
        if host == "127.0.0.1":
            return real(host, port, *args, **kwargs)
        text = "127.0.0.1" if asked.count(host) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, port))]

    monkeypatch.setattr(socket, "getaddrinfo", lying)
    assert send(f"http://hooks.example.org:{there.port}/x") == 204
    assert asked.count("hooks.example.org") == 1
    assert f"Host: hooks.example.org:{there.port}\r\n".encode() in there.seen[0]


def test_hosts_of_other_scripts_travel_in_their_ascii_form(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = wire(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", there.port))]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: real(host, *a, **k) if host == "127.0.0.1" else found
    )
    assert send(f"http://例え.example:{there.port}/päth?q=ü") == 200
    head = there.seen[0].split(b"\r\n\r\n")[0].decode("ascii")
    assert f"Host: xn--r8jz45g.example:{there.port}" in head and head.startswith("POST /p%C3%A4th?q=%C3%BC HTTP/1.1")


def test_the_body_and_headers_are_sent_once_as_they_were_given(wire: Callable[..., Wire]) -> None:
    there = wire(b"HTTP/1.1 500 Oh no\r\nContent-Length: 0\r\n\r\n", b"never")
    assert send(f"http://127.0.0.1:{there.port}") == 500
    head, body = there.seen[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST / HTTP/1.1") and body == b"{}" and b"Hearth-Event: entry.failed" in head
    assert len(there.seen) == 1


@pytest.mark.parametrize(
    "answer",
    [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000],
    ids=["nothing", "garbage", "no-status", "endless-header"],
)
def test_an_answer_that_is_none_is_said_without_its_words(wire: Callable[..., Wire], answer: bytes) -> None:
    there = wire(answer)
    with pytest.raises(PostRefused) as refused:
        send(f"http://127.0.0.1:{there.port}/")
    assert str(refused.value).startswith("No answer from 127.0.0.1: ") and "garbage" not in str(refused.value)


def test_a_receiver_that_says_nothing_is_not_waited_for(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_posts, "TIMEOUT", urllib3.Timeout(connect=0.05, read=0.05))
    silent = socket.create_server(("127.0.0.1", 0))
    try:
        with pytest.raises(PostRefused, match="No answer"):
            send(f"http://127.0.0.1:{silent.getsockname()[1]}/")
    finally:
        silent.close()


def test_a_huge_answer_is_not_read(wire: Callable[..., Wire]) -> None:
    there = wire(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\nx")
    assert send(f"http://127.0.0.1:{there.port}/") == 200


def test_tls_is_checked_against_the_name_although_it_connects_to_an_address(
    wire: Callable[..., Wire], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, certificate, key = certificates()
    for name, text in (("ca", authority), ("pair", certificate + key)):
        (tmp_path / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "pair")
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    there = wire(answer, answer, answer, tls=tls)
    with pytest.raises(PostRefused, match="SSLError"):
        send(f"https://127.0.0.1:{there.port}/")  # nobody knows its authority
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
    assert send(f"https://127.0.0.1:{there.port}/") == 200
    with pytest.raises(PostRefused, match="SSLError"):
        send(f"https://localhost:{there.port}/")  # the certificate is for the address, not for this name
    assert len(there.seen) == 1
