"""The HTTP client of hubs and registries against servers that redirect, stall, lie and lead elsewhere."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from caches.sources import allowed, http_ranges
from caches.sources.http_client import HttpClient, retry_after
from caches.sources.http_ranges import Ask
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import HearthError, Permanent, Transient
from tests.sources.test_s3_misbehaving import certificates
from tests.standins.serving import Asked, Said, Server, serving

TOKEN = "Bearer hf_very-secret"
BODY = bytes(range(256)) * 400


@contextmanager
def client(*, allow_private: bool = True, **fields: Any) -> Iterator[HttpClient]:
    made = HttpClient(ConnectionSpec("c", SourceType.HUGGING_FACE, **fields), allow_private=allow_private)
    yield made
    made.close()


def get(http: HttpClient, url: str, **options: Any) -> tuple[int, bytes]:
    with http.open("It", url, **options) as answer:
        return answer.status, answer.read("It")


def pair(location: str) -> tuple[Server, Server]:
    """One server that redirects to the other; ``{}`` in the location is the other's port."""
    second = Server(lambda asked: Said(200, b"there"))
    first = Server(
        lambda asked: (
            Said(200, b"there")
            if asked.path == "/there"
            else Said(302, b"go", {"Location": location.format(second.port)})
        )
    )
    return first, second


def test_a_token_stays_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair("http://127.0.0.1:{}/there")
    with serving(first, second), client() as http:
        assert get(http, first.url, authorization=TOKEN) == (200, b"there")
    assert first.asked[0].headers["authorization"] == TOKEN
    assert "authorization" not in second.asked[0].headers


def test_a_token_goes_along_within_its_origin() -> None:
    first, second = pair("/there")
    with serving(first, second), client() as http:
        assert get(http, first.url, authorization=TOKEN) == (200, b"there")
    assert [asked.headers.get("authorization") for asked in first.asked] == [TOKEN, TOKEN] and not second.asked


def test_a_token_is_dropped_when_encryption_ends_and_does_not_come_back(tmp_path: Path) -> None:
    authority, pem, key = certificates()
    for name, content in (("cert.pem", pem), ("key.pem", key)):
        (tmp_path / name).write_text(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    ports: dict[str, int] = {}
    secure = Server(
        lambda asked: (
            Said(200, b"back")
            if asked.path == "/back"
            else Said(307, b"", {"Location": f"http://127.0.0.1:{ports['plain']}/"})
        )
    )
    plain = Server(lambda asked: Said(307, b"", {"Location": f"https://127.0.0.1:{ports['secure']}/back"}))
    ports |= {"plain": plain.port, "secure": secure.port}
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    with serving(secure, plain), client(ca_bundle=authority) as http:
        assert get(http, f"https://127.0.0.1:{secure.port}/", authorization=TOKEN) == (200, b"back")
    assert ["authorization" in asked.headers for asked in (*secure.asked, *plain.asked)] == [True, False, False]


def test_it_does_not_trust_a_stranger(tmp_path: Path) -> None:
    _, pem, key = certificates()
    for name, content in (("cert.pem", pem), ("key.pem", key)):
        (tmp_path / name).write_text(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    secure = Server(lambda asked: Said(200, b""))
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    with serving(secure), client() as http, pytest.raises(Permanent) as caught:
        get(http, f"https://127.0.0.1:{secure.port}/")
    assert caught.value.code == "source:user:untrusted-certificate" and not secure.asked


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "http://user:word@127.0.0.1/", "http://[", "ftp://127.0.0.1/", "http://127.0.0.1:99999/"],
)
def test_it_follows_no_redirect_to_what_is_no_address(location: str) -> None:
    server = Server(lambda asked: Said(302, b"", {"Location": location}))
    with serving(server), client() as http, pytest.raises(Permanent) as caught:
        get(http, server.url)
    assert caught.value.code in ("source:user:address-refused", "source:source:rejected")
    assert "word" not in caught.value.detail


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest", "http://100.100.100.200/", "http://0.0.0.0:{}/", "http://[::ffff:169.254.1.1]/"],
)
def test_it_follows_no_redirect_to_a_forbidden_address(location: str) -> None:
    first, second = pair(location)
    with serving(first, second), client() as http, pytest.raises(Permanent) as caught:
        get(http, first.url)
    assert caught.value.code == "source:user:address-refused" and not second.asked


def test_it_sends_nothing_to_a_private_address_where_those_are_switched_off() -> None:
    server = Server(lambda asked: Said(200, b""))
    with serving(server), client(allow_private=False) as http, pytest.raises(Permanent) as caught:
        get(http, server.url)
    assert caught.value.code == "source:user:address-refused" and not server.asked


def test_it_looks_at_who_is_really_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a name resolves to another address each time: what was checked before does not count."""
    server = Server(lambda asked: Said(200, b""))
    monkeypatch.setattr(allowed, "METADATA", frozenset({ip_address("127.0.0.1")}))
    with serving(server), client() as http, pytest.raises(Permanent) as caught:
        get(http, server.url)
    assert caught.value.code == "source:user:address-refused" and not server.asked


def test_it_asks_a_proxy_and_looks_at_the_address_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Server(lambda asked: Said(200, b"through it"))
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "127.0.0.2")
    with serving(proxy), client() as http:
        assert get(http, "http://127.0.0.1:9/x") == (200, b"through it")
        with pytest.raises(Permanent):
            get(http, "http://169.254.169.254/")
        with pytest.raises(Transient):
            get(http, "http://127.0.0.2:9/x")
    assert len(proxy.asked) == 1


def test_it_gives_up_on_a_circle() -> None:
    server = Server(lambda asked: Said(302, b"", {"Location": "/again"}))
    with serving(server), client() as http, pytest.raises(Permanent) as caught:
        get(http, server.url)
    assert "again and again" in caught.value.detail and len(server.asked) == 6


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "999999999999"}, 3600.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api";r=0;t=-5'}, None),
        ({}, None),
    ],
)
def test_it_reads_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def asked_for(start: int, end: int, size: int = len(BODY)) -> Ask:
    return Ask("f", start, end, size, stall_seconds=30.0)


def fetch(said: Said, start: int = 100, end: int = 5000, size: int = len(BODY)) -> bytes:
    server = Server(lambda asked: said)
    with serving(server), client() as http:
        return b"".join(http_ranges.read(http, server.url, asked_for(start, end, size), lambda answer: None))


def part(span: str, body: bytes, **fields: Any) -> Said:
    return Said(206, body, {"Content-Range": span}, **fields)


def test_it_skips_to_its_part_where_a_mirror_ignores_ranges() -> None:
    assert fetch(Said(200, BODY)) == BODY[100:5000]


@pytest.mark.parametrize(
    ("said", "reason", "kind"),
    [
        (part("bytes 0-4899/102400", BODY[100:5000]), Reason.SOURCE_UNAVAILABLE, Transient),
        (part("bytes 100-4998/102400", BODY[100:4999]), Reason.SOURCE_UNAVAILABLE, Transient),
        (part("", BODY[100:5000]), Reason.SOURCE_UNAVAILABLE, Transient),
        (part("bytes 100-4999/*", BODY[100:5000]), Reason.SOURCE_UNAVAILABLE, Transient),
        (part("bytes 100-4999/102401", BODY[100:5000]), Reason.SOURCE_CHANGED, Permanent),
        (part("bytes 100-4999/102400", BODY[100:5001]), Reason.SOURCE_UNAVAILABLE, Transient),
        (part("bytes 100-4999/102400", BODY[100:4000]), Reason.SOURCE_UNAVAILABLE, Transient),
        (part("bytes 100-4999/102400", BODY[100:5000], cut=50), Reason.SOURCE_UNAVAILABLE, Transient),
        (Said(200, BODY[:-1]), Reason.SOURCE_CHANGED, Permanent),
        (Said(200, BODY, {"Content-Encoding": "gzip"}), Reason.SOURCE_UNAVAILABLE, Permanent),
        (Said(416, b""), Reason.SOURCE_CHANGED, Permanent),
        (Said(204, b""), Reason.SOURCE_UNAVAILABLE, Permanent),
        (Said(500, b""), Reason.SOURCE_UNAVAILABLE, Transient),
        (Said(503, b"", {"Retry-After": "3"}), Reason.SOURCE_UNAVAILABLE, Transient),
    ],
)
def test_it_takes_no_other_bytes_than_it_asked_for(said: Said, reason: Reason, kind: type[HearthError]) -> None:
    with pytest.raises(kind) as caught:
        fetch(said)
    assert isinstance(caught.value, Permanent | Transient) and caught.value.reason == reason


def test_it_does_not_read_gigabytes_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "SKIP_BYTES", 99)
    with pytest.raises(Permanent) as caught:
        fetch(Said(200, BODY))
    assert "ignores ranges" in caught.value.detail


def test_a_stall_is_told_from_an_end() -> None:
    over = threading.Event()

    def stall(asked: Asked) -> Said:
        over.wait(60)
        return Said(200, b"")

    server = Server(stall)
    with serving(server), client() as http:
        with pytest.raises(Transient) as caught:
            get(http, server.url, read_seconds=0.3)
        over.set()
    assert "no byte arrived in time" in caught.value.detail
