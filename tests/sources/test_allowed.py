"""Nothing outside what was allowed is ever opened."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from caches.sources import allowed, open_source
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import Permanent, Transient

S3 = ConnectionSpec("lab", SourceType.S3, allowed=("models",))


def resolves_to(*addresses: str) -> Any:
    def answer(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return answer


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "100.100.100.200", "168.63.129.16",
     "192.0.0.192", "::ffff:169.254.169.254", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe", "0.0.0.0", "::", "224.0.0.1",
     "240.0.0.1"],
)  # fmt: skip
@pytest.mark.parametrize("allow_private", [True, False])
def test_metadata_and_link_local_addresses_are_refused_also_behind_a_name(
    address: str, allow_private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to("198.51.100.1", address))
    with pytest.raises(Permanent) as caught:
        allowed.check_endpoint("https://innocent.example", allow_private=True)
    assert (caught.value.code, caught.value.reason) == ("source:user:address-refused", Reason.INVALID_REQUEST)


@pytest.mark.parametrize("host", ["169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "[fe80::1]"])
def test_they_are_refused_however_they_are_written(host: str) -> None:
    with pytest.raises(Permanent) as caught:
        open_source(ConnectionSpec("lab", SourceType.S3, endpoint=f"http://{host}", allowed=("models",)), {})
    assert caught.value.code == "source:user:address-refused"


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "::1", "fd12::1"])
def test_private_addresses_are_as_configured(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to(address))
    allowed.check_endpoint("http://store.internal:9000/", allow_private=True)
    with pytest.raises(Permanent):
        allowed.check_endpoint("http://store.internal:9000", allow_private=False)


def test_public_addresses_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to("52.216.1.1", "2600:1f60::1"))
    allowed.check_endpoint("https://s3.example", allow_private=False)
    allowed.check_endpoint("", allow_private=False)


def test_a_name_that_does_not_resolve_may_do_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Transient):
        allowed.check_endpoint("https://s3.example", allow_private=True)


@pytest.mark.parametrize(
    "endpoint",
    ["ftp://127.0.0.1", "127.0.0.1:9000", "http://", "http://user:hunter2@127.0.0.1", "http://127.0.0.1/path",
     "http://127.0.0.1?x=1", "http://127.0.0.1#x", "http://127.0.0.1:99999", "file:///etc", "http://[::1"],
)  # fmt: skip
def test_odd_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(Permanent) as caught:
        allowed.check_endpoint(endpoint, allow_private=True)
    assert "hunter2" not in caught.value.detail


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("s3://other/x", "not-allowed"),
        ("s3://Models/x", "bad-uri"),
        ("s3:///x", "bad-uri"),
        ("s3://models/a//b", "bad-uri"),
        ("s3://models/a/../b", "bad-uri"),
        ("s3://models/a\nb", "bad-uri"),
        ("s3://models/a\\b", "bad-uri"),
        ("https://models/x", "bad-uri"),
    ],
)
def test_prefixes_outside_are_refused(uri: str, code: str) -> None:
    with pytest.raises(Permanent) as caught:
        allowed.split_s3(uri, S3)
    assert caught.value.code == f"source:user:{code}"
    assert caught.value.detail.isprintable()


def test_prefixes_inside_are_split() -> None:
    assert allowed.split_s3("s3://models/a/b", S3) == allowed.split_s3("s3://models/a/b/", S3) == ("models", "a/b")
    assert allowed.split_s3("s3://models", S3) == allowed.split_s3("s3://models/", S3) == ("models", "")


def test_roots_must_lie_inside_the_configured_ones_also_through_links(tmp_path: Path) -> None:
    inside = tmp_path / "sources"
    (inside / "m").mkdir(parents=True)
    (inside / "out").symlink_to("/etc")
    (tmp_path / "sources-too").mkdir()
    allowed.check_root(str(inside), [str(inside)], "disk")
    allowed.check_root(str(inside / "m"), ["/nowhere", str(inside)], "disk")
    for root in (str(tmp_path), str(inside / "out"), str(tmp_path / "sources-too"), "relative", f"{inside}/../x", "/"):
        with pytest.raises(Permanent):
            allowed.check_root(root, [str(inside)], "disk")
    with pytest.raises(Permanent):
        allowed.check_root(str(inside), [], "disk")
