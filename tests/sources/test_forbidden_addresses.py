"""Every spelling of an address that must not be read, and the ones beside it that may."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.sources import allowed
from controlplane.errors import HearthError, Permanent, Transient

REFUSED = "source:user:address-refused"


def code(endpoint: str, *, allow_private: bool = True) -> str:
    """ "" where it may be read. No name server is asked: what is not numeric does not resolve."""
    try:
        allowed.check_endpoint(endpoint, allow_private=allow_private)
    except HearthError as error:
        assert error.detail.isprintable() and error.next_step
        return error.code
    return ""


@pytest.fixture(autouse=True)
def numeric_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def look(host: str, port: int, **options: Any) -> Any:
        return real(host, port, flags=socket.AI_NUMERICHOST, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.43518",  # three parts
        "169.16689662",  # two parts
        "2852039166",  # one number
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "0251.0376.0251.0376",
        "0xa9.254.0251.254",  # mixed
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[0:0:0:0:0:ffff:a9fe:a9fe]",
        "[::169.254.169.254]",  # the deprecated compatible form
        "[::ffff:0:169.254.169.254]",  # translated
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "[2002:a9fe:a9fe:1::5]",
        "[2001:0:a9fe:a9fe::5601:5601]",  # Teredo: the client's address is inverted
        "[fe80::1]",
        "[fe80::a9fe:a9fe%lo]",
        "[febf:ffff::1]",
        "[fd00:ec2::254]",
        "[FD00:0EC2::0254]",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "0",
        "0.0.0.0",
        "[::]",
        "224.0.0.1",
        "[ff02::1]",
        "255.255.255.255",
        "240.0.0.1",
    ],
)
@pytest.mark.parametrize("form", ["http://{}", "https://{}:443/", "HTTP://{}:80"])
def test_it_refuses_whatever_is_no_store_however_it_is_spelled(host: str, form: str) -> None:
    assert code(form.format(host), allow_private=True) == REFUSED


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("127.1", True),
        ("2130706433", True),
        ("0x7f000001", True),
        ("0177.0.0.1", True),
        ("[::1]", True),
        ("[::ffff:127.0.0.1]", True),
        ("[::ffff:10.0.0.1]", True),
        ("[64:ff9b::10.0.0.1]", True),
        ("[2002:0a00:0001::]", True),
        ("10.255.255.255", True),
        ("172.15.255.255", False),
        ("172.16.0.0", True),
        ("172.31.255.255", True),
        ("172.32.0.0", False),
        ("192.168.0.1", True),
        ("100.63.255.255", False),
        ("100.64.0.1", True),  # shared by carriers: not reachable from everywhere
        ("[fc00::1]", True),
        ("[fdff::1]", True),
        ("[2606:4700::1]", False),
        ("[64:ff9b::8.8.8.8]", False),
        ("[::ffff:8.8.8.8]", False),
        ("8.8.8.8", False),
        ("169.253.255.255", False),
        ("169.255.0.0", False),
        ("100.100.100.199", True),
    ],
)
def test_private_addresses_are_told_from_public_ones_at_each_border(host: str, private: bool) -> None:
    assert code(f"http://{host}:9000", allow_private=True) == ""
    assert code(f"http://{host}:9000", allow_private=False) == (REFUSED if private else "")


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user@8.8.8.8",
        "http://user:hunter2@8.8.8.8",
        "http://@8.8.8.8",
        "http://:@8.8.8.8",
        "http://8.8.8.8@169.254.169.254",
        "http://169.254.169.254\\@8.8.8.8",
        "http://8.8.8.8\\.169.254.169.254",
        "http://8.8.8.8#@169.254.169.254",
        "http://8.8.8.8?@169.254.169.254",
        "http://8.8.8.8/../169.254.169.254",
        "http://8.8.8.8/;x",
        "http://8.8.8.8//",
        "http://8.8.8.8:80:80",
        "http://8.8.8.8:-1",
        "http://8.8.8.8:65536",
        "http://8.8.8.8:8o",
        "http://8.8.8.8\n",
        "http://8.8\t.8.8",
        " http://8.8.8.8",
        "http://8.8.8.8 ",
        "http://8.8.8.8\x00",
        "http://8.8.8.8\x7f",
        "http:8.8.8.8",
        "http:/8.8.8.8",
        "//8.8.8.8",
        "8.8.8.8",
        "https://",
        "https://:443",
        "http://[8.8.8.8]",
        "http://[::1",
        "http://::1]",
        "gopher://8.8.8.8",
        "ftp://8.8.8.8",
        "file:///etc/passwd",
        "s3://8.8.8.8",
        "javascript:alert(1)",
        "unix:///run/docker.sock",
    ],
)
def test_it_refuses_what_two_parsers_might_read_differently(endpoint: str) -> None:
    assert code(endpoint) == REFUSED


def test_it_shows_no_credentials_of_what_it_refuses() -> None:
    for endpoint in ("http://user:hunter2@8.8.8.8", "http://user:hunter2@[::1", "http://user:hunter2@8.8.8.8:x"):
        with pytest.raises(Permanent) as caught:
            allowed.check_endpoint(endpoint, allow_private=True)
        assert "hunter2" not in f"{caught.value.detail} {caught.value.next_step}"


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254.",
        "8.8.8.8.",
        "%31%36%39.254.169.254",
        "1.2.3.4.5",
        "256.1.1.1",
        "0x1g",
        "a..b",
        "x" * 300,
        "[fe80::1%25lo]",
    ],
)
def test_what_is_no_number_must_resolve_first(host: str) -> None:
    """A trailing dot or an escape makes it a name; a client that reads it as a number never gets to see it."""
    assert code(f"http://{host}") in ("source:source:unavailable", REFUSED)


def test_one_forbidden_address_among_many_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 80)) for text in ("8.8.8.8", "1.1.1.1", "0.0.0.0")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert code("http://store.example") == REFUSED
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers[:2])
    assert code("http://store.example", allow_private=False) == ""


def test_a_name_that_cannot_be_encoded_is_a_name_that_does_not_resolve() -> None:
    with pytest.raises(Transient) as caught:
        allowed.resolve("é" * 80, 80)
    assert caught.value.detail.isprintable()


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_alike_in_every_disguise(number: int) -> None:
    plain = ip_address(number)
    disguises = [
        ip_address(f"::ffff:{plain}"),
        ip_address(f"64:ff9b::{plain}"),
        ip_address(f"2002:{number >> 16:x}:{number & 0xFFFF:x}::"),
    ]
    for allow_private in (True, False):
        verdicts = set()
        for address in (plain, *disguises):
            try:
                allowed.check_address("x", address, allow_private=allow_private)
                verdicts.add("may")
            except Permanent:
                verdicts.add("must not")
        assert len(verdicts) == 1
