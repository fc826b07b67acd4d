"""What the beginning of a request hashes to: keyed digests at fixed depths, so that equal beginnings are equal keys.

A request is a stream: who it is for (endpoint, variant, model, adapter, tenant), then its texts with marks between.
Depth counts *units* of text, as PrefixLength does: characters of message text in OpenAI requests, bytes of a raw body.
A digest at depth d covers everything before d. Digests are keyed with a secret of the endpoint, so that nobody who
sees one can try texts against it; text itself never leaves this module.

Marks are bytes that UTF-8 never contains, so no text can imitate them. A text's length stands nowhere: an engine caches
beginnings, and two texts that begin alike must have keys that begin alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

CHUNK = 1024  # units from one boundary to the next
OPEN, CLOSE = b"\xfe", b"\xff"


@dataclass(frozen=True, slots=True)
class Audience:
    """Whose request it is. Equal texts of two audiences have nothing in common, on purpose: engines share no cache
    across models and adapters, and tenants must not learn from each other's hits. ``tenant`` is a derived salt."""

    endpoint: str
    variant: str
    model: str = ""
    adapter: str = ""
    tenant: str = ""


class Mark(NamedTuple):
    """Something between texts that the engine's template renders too: a role, the tools, a picture by its digest."""

    kind: str
    value: bytes = b""


class Boundary(NamedTuple):
    """``digest`` (64 bits) of everything before ``depth`` units of text."""

    depth: int
    digest: int


Part = str | bytes | Mark


def begun(secret: bytes, audience: Audience) -> blake2b:
    """A stream in which nothing but the audience stands yet; every request of it goes on from a copy."""
    state = blake2b(key=secret, digest_size=8)
    for name in (audience.endpoint, audience.variant, audience.model, audience.adapter, audience.tenant):
        state.update(_bytes(name) + CLOSE)
    return state


def boundaries(secret: bytes, audience: Audience, parts: Iterable[Part], limit: int) -> Iterator[Boundary]:
    """Digests at every CHUNK units, and at the end of the text or at ``limit``, whichever comes first.

    Lazy: nothing behind the depth that is asked for is hashed. ``secret`` is 16 to 64 bytes. Without any text there is
    no boundary, whatever marks there are. Lone surrogates, as JSON may carry them, are hashed as they are.
    """
    return boundaries_from(begun(secret, audience), parts, limit)


def boundaries_from(state: blake2b, parts: Iterable[Part], limit: int) -> Iterator[Boundary]:
    """As ``boundaries``, from what ``begun`` gave. ``state`` itself stays as it is."""
    state = state.copy()
    depth = 0
    for part in parts:
        if isinstance(part, Mark):
            _mark(state, part)
            continue
        start, size = 0, len(part)
        while start < size and depth < limit:
            take = min(size - start, CHUNK - depth % CHUNK, limit - depth)
            state.update(_bytes(part[start : start + take]))
            start, depth = start + take, depth + take
            if depth % CHUNK == 0 or depth == limit:
                yield Boundary(depth, _digest(state))
        if depth >= limit:
            return
        state.update(CLOSE)
    if depth % CHUNK:
        yield Boundary(depth, _digest(state))


def marked(state: blake2b, mark: Mark) -> blake2b:
    """``state`` and a mark behind it. ``state`` itself stays as it is."""
    state = state.copy()
    _mark(state, mark)
    return state


def first_digest(state: blake2b, text: str) -> int:
    """Of the first of ``boundaries_from(state, [text, …])``, of a text that has a CHUNK at least."""
    state = state.copy()
    state.update(text[:CHUNK].encode("utf-8", "surrogatepass"))
    return int.from_bytes(state.digest(), "big")


def _mark(state: blake2b, mark: Mark) -> None:
    state.update(b"%b%b%b%b%b" % (OPEN, mark.kind.encode(), OPEN, mark.value, CLOSE))


def override(secret: bytes, audience: Audience, value: str) -> int:
    """The digest of a key that the client names itself, apart from every digest of a text."""
    state = blake2b(key=secret, digest_size=8, person=b"hearth-key")
    for name in (audience.endpoint, audience.variant, audience.model, audience.adapter, audience.tenant, value):
        state.update(_bytes(name) + CLOSE)
    return int.from_bytes(state.digest(), "big")


def tenant_salt(secret: bytes, value: str) -> str:
    """What stands for a tenant's own id: 16 hex digits that say nothing about it."""
    return blake2b(_bytes(value), key=secret, digest_size=8, person=b"hearth-tenant").hexdigest() if value else ""


def picture(value: bytes) -> bytes:
    """What stands for a part that is no text (an image, a sound, an address of one)."""
    return blake2b(value, digest_size=16, person=b"hearth-part").digest()


def _digest(state: blake2b) -> int:
    return int.from_bytes(state.digest(), "big")


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
