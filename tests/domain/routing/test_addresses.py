"""Addresses that a person gives: read strictly, and every mistake named at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from routing.domain.addresses import MOST_ADDRESSES, AddressesRefused, read_static

ENDPOINT = UUID("00000000-0000-0000-0000-000000000001")


def read(*urls: str, **fields: Any) -> Any:
    addresses = [{"name": f"engine-{number}", "url": url} for number, url in enumerate(urls)]
    return read_static(**{"name": "chat", "model": "llama", "health_path": "/health", "addresses": addresses} | fields)


@pytest.mark.parametrize(
    ("url", "place", "tls"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7:8000", False),
        ("https://engine.example:8443/", "engine.example:8443", True),
        ("http://engine", "engine:80", False),
        ("https://engine", "engine:443", True),
        ("http://[2001:db8::1]:8000", "[2001:db8::1]:8000", False),
        ("https://[2001:db8::1]", "[2001:db8::1]:443", True),
        ("HTTP://Engine-1:8000", "engine-1:8000", False),
    ],
)
def test_an_url_is_a_place_with_or_without_tls(url: str, place: str, tls: bool) -> None:
    [found] = read(url).addresses
    assert (found.place, found.tls) == (place, tls)


@pytest.mark.parametrize(
    "url",
    [
        "", "engine:8000", "ftp://engine", "http://", "http://:8000", "http://engine:99999", "http://engine:0",
        "http://engine:x", "http://engine/v1", "http://engine?x=1", "http://engine#x", "http://user:secret@engine",
        "http://user@engine", "http://engi ne", "http://engine\r\nX: 1", "http://[::1", "http://ö:80",
        "http://169.254.169.254", "http://[fe80::1]:80", "http://0.0.0.0:80", "http://224.0.0.1",
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(AddressesRefused) as refused:
        read("http://fine:1", url)
    [problem] = refused.value.problems
    assert problem.field == "addresses.1.url" and "secret" not in str(refused.value)


def test_everything_is_said_at_once() -> None:
    twice = [{"name": "a", "url": "http://x:1"}, {"name": "a", "url": "https://x:1"}, {"name": "B", "url": "x"}, {}]
    with pytest.raises(AddressesRefused) as refused:
        read(name="Chat!", model="x" * 300, health_path="health", addresses=twice)
    assert sorted({one.field for one in refused.value.problems}) == [
        "addresses", "addresses.2.name", "addresses.2.url", "addresses.3.name", "addresses.3.url", "health_path",
        "model", "name",
    ]  # fmt: skip
    assert sum(one.field == "addresses" for one in refused.value.problems) == 2, "a name twice, and a place twice"


@pytest.mark.parametrize("path", ["health", "/a b", "/a\r\nX: 1", "/é", "/" + "x" * 300])
def test_a_path_becomes_a_line_of_a_request_and_nothing_else(path: str) -> None:
    with pytest.raises(AddressesRefused, match="health_path"):
        read(health_path=path)


def test_there_may_be_none_and_not_too_many() -> None:
    assert read(health_path="", model="").addresses == ()
    with pytest.raises(AddressesRefused, match="at most"):
        read(*(f"http://engine:{number}" for number in range(1, MOST_ADDRESSES + 2)))


def test_an_instance_is_known_by_its_place_whatever_it_is_called() -> None:
    one, other = read("http://x:1").addresses[0], read("http://x:1/", name="other").addresses[0]
    assert one.uid(ENDPOINT) == other.uid(ENDPOINT) != read("https://x:1").addresses[0].uid(ENDPOINT)
    assert one.uid(ENDPOINT) != one.uid(UUID(int=2)), "of another endpoint it is another instance"
