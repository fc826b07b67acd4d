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


@pytest.mark.parametrize(
    "host",
    [
        "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::ffff:0.0.0.0]", "[::]", "[ff02::1]", "[fe80::1%25eth0]",
        "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "169.16689662", "0xa9.254.0xa9.254",
        "169.254.169.254.", "0", "0x0", "127.1", "256.1.1.1", "1.2.3.4.5", "engine.0x7f",
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_spelling_of_an_address_hides_where_it_leads(scheme: str, host: str) -> None:
    with pytest.raises(AddressesRefused) as refused:
        read(f"{scheme}://{host}:80")
    assert [one.field for one in refused.value.problems] == ["addresses.0.url"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:10.0.0.7]", "10-0-0-7.pods.local", "0xengine", "7b.example", "engine_1"]
)
def test_what_only_looks_like_one_is_a_name_or_an_address_as_any_other(host: str) -> None:
    assert read(f"http://{host}:8000").addresses[0].place == f"{host}:8000"


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "ä", "a b", "a" * 64, "a\n", "a/b", "..", "a."])
def test_a_name_is_one_that_stands_in_addresses(name: str) -> None:
    with pytest.raises(AddressesRefused) as refused:
        read("http://x:1", name=name)
    assert [one.field for one in refused.value.problems] == ["name"]
    with pytest.raises(AddressesRefused) as refused:
        read(addresses=[{"name": name, "url": "http://x:1"}])
    assert [one.field for one in refused.value.problems] == ["addresses.0.name"]


@pytest.mark.parametrize("model", ["x" * 201, "a\nb", "a\x00", "\u202ellama", "\ud800"])
def test_a_model_is_a_text_that_can_be_shown(model: str) -> None:
    with pytest.raises(AddressesRefused, match="model"):
        read("http://x:1", model=model)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://engine", "http://engine:80", True),
        ("http://engine:80", "https://engine:80", True),  # one place speaks TLS or does not
        ("http://ENGINE:80", "http://engine:80/", True),
        ("http://[2001:DB8::1]:80", "http://[2001:db8::1]:80", True),
        ("http://engine", "https://engine", False),
        ("http://engine:80", "http://engine:81", False),
    ],
)
def test_a_place_is_there_once_however_it_is_written(one: str, other: str, same: bool) -> None:
    if not same:
        assert len(read(one, other).addresses) == 2
        return
    with pytest.raises(AddressesRefused, match="more than once"):
        read(one, other)


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
