"""What may be read at all: addresses, buckets and folders. Checked before anything is opened.

Link-local and metadata addresses are refused whatever anybody configured, also when a name resolves to one; private
ones only where the caller says so. The name is resolved here and again by the HTTP client: a name server that lies
differently each time is not stopped by this, which is why only administrators may make connections.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from caches.sources import problems
from controlplane.clusters.documents import ConnectionSpec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Metadata and host services of the large clouds that are not link-local.
METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def check_endpoint(endpoint: str, *, allow_private: bool) -> None:
    """Refuse an endpoint that is no plain http(s) address or leads where nothing may be read. "" is AWS itself."""
    if not endpoint:
        return
    if any(char <= " " or char in "\\\x7f" for char in endpoint):  # which parsers drop, each in its own way
        raise problems.address_refused("The address", "blanks and control characters do not belong there.")
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        raise problems.address_refused("The address", "it is not an address.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise problems.address_refused(endpoint, "it must be http:// or https:// with a host and nothing after it.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise problems.address_refused(parts.hostname, "credentials, queries and fragments do not belong there.")
    for address in resolve(parts.hostname, port or (443 if parts.scheme == "https" else 80)):
        check_address(parts.hostname, address, allow_private=allow_private)


def check_url(url: str, *, allow_private: bool) -> None:
    """Refuse what a store may not send a client to: anything but http(s) with a host and without credentials, and an
    address that is forbidden as it stands. ValueError for what is no address at all. Names are not resolved here."""
    if any(char <= " " or char in "\\\x7f" for char in url):
        raise problems.address_refused("The address", "blanks and control characters do not belong there.")
    parts = urlsplit(url)
    _ = parts.port  # ValueError when it is none
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise problems.address_refused("The address", "it must be http:// or https:// with a host.")
    with suppress(ValueError):
        check_address(parts.hostname, ipaddress.ip_address(parts.hostname), allow_private=allow_private)


def check_host(url: str, *, allow_private: bool) -> None:
    """Refuse the address of an http(s) URL that leads where nothing may be read."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    for address in resolve(host, parts.port or (443 if parts.scheme == "https" else 80)):
        check_address(host, address, allow_private=allow_private)


def resolve(host: str, port: int) -> tuple[Address, ...]:
    """Every address of a host. Transient when the name does not resolve now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise problems.unavailable(host, "the name does not resolve.") from error
    return tuple(ipaddress.ip_address(str(entry[4][0]).split("%", 1)[0]) for entry in found)


def check_address(host: str, address: Address, *, allow_private: bool) -> None:
    """Refuse one address; IPv4 addresses hidden in IPv6 ones are looked at as what they are."""
    address = unwrapped(address)
    if address.is_link_local or address in METADATA:
        raise problems.address_refused(host, "link-local and metadata addresses are never read.")
    if address.is_unspecified or address.is_multicast or (address.is_reserved and not address.is_loopback):
        raise problems.address_refused(host, "no store can have this address.")
    if not allow_private and not address.is_global:
        raise problems.address_refused(host, "private addresses are switched off here.")


def split_s3(uri: str, spec: ConnectionSpec) -> tuple[str, str]:
    """Bucket and prefix (without slashes around it) of an allowed ``s3://`` URI."""
    if not uri.startswith("s3://"):
        raise problems.bad_uri(uri, "an S3 connection reads s3:// addresses.")
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.removesuffix("/")
    if not _BUCKET.fullmatch(bucket):
        raise problems.bad_uri(uri, "this is no bucket name.")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise problems.bad_uri(uri, "empty parts, . and .. are not allowed in a prefix.")
    if any(ord(char) < 32 or char in "\\\x7f" for char in prefix):
        raise problems.bad_uri(uri, "control characters and backslashes are not allowed in a prefix.")
    if bucket not in spec.allowed:
        raise problems.not_allowed(f"Bucket {bucket}", spec.name)
    return bucket, prefix


def folder_of(uri: str, spec: ConnectionSpec) -> tuple[Path, Path]:
    """The real folder of an allowed ``file://`` URI and the real root that it lies in, symlinks resolved."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc or parts.query or parts.fragment:
        raise problems.bad_uri(uri, "a Filesystem connection reads file:/// addresses.")
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise problems.bad_uri(uri, "the folder must be absolute, without .. and NUL.")
    real = Path(os.path.realpath(path))
    for root in spec.allowed:
        real_root = Path(os.path.realpath(root))
        if real.is_relative_to(real_root):
            return real, real_root
    raise problems.not_allowed(path, spec.name)


def check_bucket(name: str) -> None:
    """Refuse what cannot be a bucket name."""
    if not _BUCKET.fullmatch(name):
        raise problems.bad_uri(f"s3://{name}", "this is no bucket name.")


def check_root(root: str, configured: Iterable[str], connection: str) -> None:
    """Refuse a root folder outside the configured ones, also when a symlink leads outside."""
    if not root.startswith("/") or "\0" in root or ".." in root.split("/"):
        raise problems.bad_uri(root, "a root must be an absolute folder without .. and NUL.")
    real = Path(os.path.realpath(root))
    if not any(real.is_relative_to(os.path.realpath(place)) for place in configured):
        raise problems.not_allowed(root, connection)


def unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 one leads to (mapped, 6to4, Teredo, NAT64), otherwise itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return inner
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
