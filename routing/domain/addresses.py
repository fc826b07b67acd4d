"""Instances that nobody watches: addresses that a person gives for an endpoint. Read strictly. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from routing.domain.publishing import place_of

MOST_ADDRESSES = 500
LONGEST_MODEL, LONGEST_PATH = 200, 300
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_PORTS = {"http": 80, "https": 443}
DEFAULT_HEALTH_PATH = "/health"


@dataclass(frozen=True, slots=True)
class Address:
    """``place`` is host:port."""

    name: str
    place: str
    tls: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.place}"

    def uid(self, endpoint: UUID) -> str:
        """The same for the same place of the same endpoint, so that its keys stay there whatever it is called."""
        return str(uuid5(endpoint, self.url))


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """``health_path`` is asked by every router; "" where nothing is to be asked. ``model``: see EndpointConfig."""

    name: str
    model: str
    health_path: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class AddressProblem:
    field: str
    detail: str


class AddressesRefused(ValueError):
    """Everything that is wrong, at once."""

    def __init__(self, problems: Sequence[AddressProblem]) -> None:
        super().__init__("; ".join(f"{one.field}: {one.detail}" for one in problems))
        self.problems = tuple(problems)


def read_static(*, name: str, model: str, health_path: str, addresses: Sequence[Mapping[str, Any]]) -> StaticEndpoint:
    """``addresses`` as ``{name, url}``. Raises AddressesRefused."""
    problems: list[AddressProblem] = []
    if not _NAME.fullmatch(name):
        problems.append(AddressProblem("name", "lower-case letters, digits, - and ., at most 63"))
    if len(model) > LONGEST_MODEL or not model.isprintable():
        problems.append(AddressProblem("model", f"at most {LONGEST_MODEL} printable characters"))
    if health_path and not _is_path(health_path):
        problems.append(AddressProblem("health_path", "empty, or a path that begins with / and has no spaces"))
    if len(addresses) > MOST_ADDRESSES:
        problems.append(AddressProblem("addresses", f"at most {MOST_ADDRESSES}"))
    read = [_address(one, f"addresses.{number}", problems) for number, one in enumerate(addresses[:MOST_ADDRESSES])]
    found = [one for one in read if one is not None]
    for of, values in (("name", [one.name for one in found]), ("url", [one.place for one in found])):
        for value in sorted({value for value in values if values.count(value) > 1}):
            problems.append(
                AddressProblem("addresses", f"{value} is there more than once: each {of} is one instance's")
            )
    if problems:
        raise AddressesRefused(problems)
    return StaticEndpoint(name, model, health_path, tuple(found))


def _address(given: Mapping[str, Any], field: str, problems: list[AddressProblem]) -> Address | None:
    name, url = str(given.get("name", "")), str(given.get("url", ""))
    why = _wrong_url(url)
    if not _NAME.fullmatch(name):
        problems.append(AddressProblem(f"{field}.name", "lower-case letters, digits, - and ., at most 63"))
    if why:
        problems.append(AddressProblem(f"{field}.url", why))
        return None
    parts = urlsplit(url)
    place = place_of(f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname), _port(url))
    if not place:
        problems.append(AddressProblem(f"{field}.url", "its host is no name and no address"))
        return None
    return Address(name, place, parts.scheme == "https")


def _wrong_url(url: str) -> str:
    """Why it is none, "" for one that is. What it holds is never repeated: a password may stand there."""
    wanted = "http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return wanted
    if parts.scheme not in _PORTS or not host or not url.isascii() or not url.isprintable() or " " in url:
        return wanted
    if parts.username is not None or parts.password is not None:
        return f"{wanted}: no user and no password; clients send their own headers"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return f"{wanted}: nothing behind the port; the path is that of each request"
    if parts.port == 0:
        return "a port is from 1 to 65535"
    return _unreachable(host)


def _unreachable(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # 2852039166 and 0xa9.254.0xa9.254 are addresses to whoever connects, whatever they hide.
        return "an address is written as four numbers from 0 to 255" if _is_number(host) else ""
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        # Where clouds answer with a machine's credentials, among others: no engine lives there.
        return "no link-local, multicast or unspecified address"
    return ""


def _is_number(host: str) -> bool:
    """Whether its last part is one, as that of no name is."""
    return _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) is not None


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORTS[parts.scheme]


def _is_path(text: str) -> bool:
    return (
        text.startswith("/") and len(text) <= LONGEST_PATH and text.isascii() and text.isprintable() and " " not in text
    )
