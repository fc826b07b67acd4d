"""A server that does everything wrong a store, a proxy or an attacker could do."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from caches.sources import open_source
from caches.sources.base import Source
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord, Reason, SourceType
from controlplane.errors import HearthError, Permanent, Transient

SIZE = 300_000
FILE = FileRecord("f", SIZE, Algorithm.ETAG, "etag", "etag")
URI = "s3://bucket/p"
END = "<IsTruncated>false</IsTruncated></ListBucketResult>"


class Misbehaving(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = ""
        self.paths: list[str] = []
        self.over = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up here on purpose."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Misbehaving

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        mode = self.server.mode
        self.server.paths.append(self.path.partition("?")[0])
        if self.path.startswith("/inside"):
            self.answer(206, b"x" * SIZE)
        elif mode == "listed":
            listed = f"<ListBucketResult><Contents><Key>p/f</Key><Size>1</Size><ETag>e</ETag></Contents>{END}"
            there = self.command == "GET" and "list-type=2" in self.path
            self.answer(200 if there else 404, listed.encode() if there else b"")
        elif mode == "redirect":
            self.answer(302, b"", Location=f"http://{self.server.address}/inside")
        elif mode.isdigit() or mode == "SlowDown":
            body = f"<Error><Code>{'SlowDown' if mode == 'SlowDown' else 'Other'}</Code></Error>".encode()
            self.answer(503 if mode == "SlowDown" else int(mode), body)
        else:
            self.stream(mode)

    do_HEAD = do_GET

    def stream(self, mode: str) -> None:
        etag, size = ('"other"' if mode == "etag" else '"etag"'), SIZE + (1 if mode == "size" else 0)
        part = f"bytes 7-{SIZE - 1}/{SIZE}" if mode == "part" else f"bytes 0-{SIZE - 1}/{size}"
        body = b"x" * SIZE
        if mode in ("short", "stall"):
            body = body[:1000]
        self.answer(206, body, length=SIZE, ETag=etag, **{"Content-Range": part})
        if mode == "stall":
            self.server.over.wait(60)
        self.close_connection = mode in ("short", "stall")

    def answer(self, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        defaults = {
            "ETag": '"etag"',
            "Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT",
            "Content-Range": f"bytes 0-{SIZE - 1}/{SIZE}",
            "Content-Length": str(len(body) if length is None else length),
        }
        for name, value in (defaults | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


def opened(endpoint: str, **fields: Any) -> Source:
    spec = ConnectionSpec("store", SourceType.S3, endpoint=endpoint, allowed=("bucket",), **fields)
    return open_source(spec, {"access_key_id": "key", "secret_access_key": "hunter2"})


def failure(source: Source, stall_seconds: float = 30.0) -> HearthError:
    with pytest.raises(HearthError) as caught:
        list(source.read_range(URI, FILE, 0, SIZE, stall_seconds=stall_seconds))
    assert "hunter2" not in caught.value.detail + caught.value.next_step
    return caught.value


@pytest.mark.parametrize("mode", ["etag", "size"])
def test_it_notices_a_store_that_ignores_if_match(mode: str, server: Misbehaving) -> None:
    server.mode = mode
    assert getattr(failure(opened(f"http://{server.address}")), "reason", "") == Reason.SOURCE_CHANGED


@pytest.mark.parametrize("mode", ["short", "stall", "part", "500", "502"])
def test_it_may_be_tried_again_when_the_stream_breaks(mode: str, server: Misbehaving) -> None:
    server.mode = mode
    error = failure(opened(f"http://{server.address}"), stall_seconds=1.0 if mode == "stall" else 30.0)
    assert isinstance(error, Transient) and error.reason == Reason.SOURCE_UNAVAILABLE
    assert server.paths == ["/bucket/p/f"]  # nothing is repeated behind the caller's back


@pytest.mark.parametrize("mode", ["SlowDown", "429"])
def test_it_says_when_to_come_back_after_throttling(mode: str, server: Misbehaving) -> None:
    server.mode = mode
    source = opened(f"http://{server.address}")
    errors = [failure(source)]
    with pytest.raises(Transient) as caught:
        source.check(URI)
    for error in (*errors, caught.value):
        assert isinstance(error, Transient) and error.code == "source:source:throttled"
        assert error.retry_at is not None
        assert timedelta(0) < error.retry_at - datetime.now(UTC) < timedelta(minutes=1)
    assert len(server.paths) <= 4  # one read, three attempts of the control call


def test_it_takes_nothing_from_a_redirect(server: Misbehaving) -> None:
    server.mode = "redirect"
    source = opened(f"http://{server.address}")
    with pytest.raises(Permanent) as caught:
        source.check(URI)
    assert caught.value.code == "source:source:rejected"
    assert server.paths == ["/bucket"]


def test_it_rejects_what_will_not_get_better(server: Misbehaving) -> None:
    server.mode = "400"
    error = failure(opened(f"http://{server.address}"))
    assert isinstance(error, Permanent) and "400" in error.detail


def test_it_finds_nothing_where_every_answer_is_404_and_says_what_to_check(server: Misbehaving) -> None:
    """Nothing was registered yet, so nothing can have changed."""
    server.mode = "404"
    with pytest.raises(Permanent) as caught:
        opened(f"http://{server.address}").check(URI)
    assert (caught.value.code, caught.value.reason) == ("source:user:no-such-bucket", Reason.SOURCE_UNAVAILABLE)
    assert caught.value.status != 409 and "endpoint" in caught.value.next_step


def test_it_does_not_call_a_file_changed_that_was_listed_and_is_not_there(server: Misbehaving) -> None:
    server.mode = "listed"
    with pytest.raises(Permanent) as caught:
        opened(f"http://{server.address}").check(URI)
    assert caught.value.code == "source:user:not-found" and "f: " in caught.value.detail and caught.value.next_step


def test_it_says_the_status_once_when_there_is_no_other_code(server: Misbehaving) -> None:
    server.mode = "400"
    with pytest.raises(Permanent) as caught:
        opened(f"http://{server.address}").describe(URI, "f")
    assert caught.value.detail == "f: the store answers 400."


def test_it_trusts_a_private_authority_only_when_told(server: Misbehaving, tmp_path: Path) -> None:
    authority, pem, key = certificates()
    for name, content in (("cert.pem", pem), ("key.pem", key)):
        (tmp_path / name).write_text(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    stranger = opened(f"https://{server.address}")
    assert failure(stranger).code == "source:user:untrusted-certificate"
    with pytest.raises(Permanent) as caught:
        stranger.describe(URI, "f")
    assert caught.value.code == "source:user:untrusted-certificate"
    friend = opened(f"https://{server.address}", ca_bundle=authority)
    assert sum(len(chunk) for chunk in friend.read_range(URI, FILE, 0, SIZE)) == SIZE
    assert friend.describe(URI, "f").revision == "etag"
    friend.close()


def certificates() -> tuple[str, str, str]:
    """An authority, a certificate of it for 127.0.0.1, and that one's key."""
    signer, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    authority = issue("authority", signer, signer).add_extension(x509.BasicConstraints(True, None), critical=True)
    # One of several authorities of this name is told by its key.
    authority = authority.add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
    leaf = issue("store", server, signer).add_extension(address, critical=False)
    pems = [
        made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
        for made in (authority, leaf)
    ]
    key = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pems[0], pems[1], key.decode()


def issue(name: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")]),
        subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=1),
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(identifier, critical=False)
