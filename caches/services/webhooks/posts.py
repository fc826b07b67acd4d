"""One POST to an address that a person typed: resolved once, checked, and connected to exactly what was checked."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3

from caches.sources import allowed

# Of a shorter path or query nothing is shown: too much of it would be.
LONG_ENOUGH, SHOWN_END = 24, 4

TIMEOUT = urllib3.Timeout(connect=5, read=5)


class PostRefused(Exception):
    """The address may not be called, or the call did not end in an answer. The text is fit for people."""


def address_problem(address: allowed.Address, *, private: bool) -> str | None:
    """Why this address may never be called; ``private`` allows those of one's own network."""
    address = allowed.unwrapped(address)
    if address in allowed.METADATA or address.is_link_local:
        return f"{address} is a link-local or metadata address"
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_loopback):
        return f"{address} is not an address of a host"
    if not private and not address.is_global:
        return f"{address} is a private address, which this installation does not allow"
    return None


def url_problem(url: str) -> str | None:
    """Why this cannot be a webhook's address, as far as the text itself tells."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "it must start with http:// or https:// and name a host"
    if parts.username or parts.password:
        return "it must not contain credentials"
    if not _ascii(parts.hostname):
        return "its host cannot be the name of a host"
    return "port 0 does not exist" if port == 0 else None


def url_shown(url: str) -> str:
    """Scheme and host alone: receivers put secrets in paths and queries. The end tells two of one host apart."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host:
        return "…"
    place = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}/"
    rest = url.partition(f"{parts.scheme}://")[2].partition("/")[2]
    return f"{place}…{rest[-SHOWN_END:]}" if len(rest) >= LONG_ENOUGH else f"{place}…"


def post(url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> int:
    """The answer's status; redirects are answers too. Raises PostRefused. Takes at most some ten seconds."""
    if problem := url_problem(url):
        raise PostRefused(f"The address of the webhook is wrong: {problem}.")
    parts = urlsplit(url)
    host = _ascii(parts.hostname or "")
    named = f"[{host}]" if ":" in host else host
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = _resolve(host, port, private=private)
    pool: urllib3.HTTPConnectionPool
    if parts.scheme == "https":
        pool = urllib3.HTTPSConnectionPool(target, port, timeout=TIMEOUT, assert_hostname=host, server_hostname=host)
    else:
        pool = urllib3.HTTPConnectionPool(target, port, timeout=TIMEOUT)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with pool:
        try:
            answer = pool.urlopen(
                "POST",
                path,
                body=body,
                headers={**headers, "Host": f"{named}:{parts.port}" if parts.port else named},
                redirect=False,
                retries=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise PostRefused(f"No answer from {host}: {type(error).__name__}.") from error
        status = answer.status
        answer.close()  # unread: what a receiver says in its body is never needed
    return status


def _ascii(host: str) -> str:
    """The host as it travels, names of other scripts in their ASCII form; "" for what can be no name."""
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def _resolve(host: str, port: int, *, private: bool) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise PostRefused(f"The host {host} has no address.") from error
    addresses = [ipaddress.ip_address(item[4][0]) for item in found]
    for address in addresses:
        if problem := address_problem(address, private=private):
            raise PostRefused(f"The webhook may not be called: {problem}.")
    return str(addresses[0])
