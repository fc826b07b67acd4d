"""Text that is planted in requests, and a search for it in whatever form it could have been kept."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from django.db import connection

DIGESTS = ("md5", "sha1", "sha256", "blake2b")


@dataclass
class Plants:
    """Words that exist nowhere else, by where each was put. Half of each is no ASCII."""

    words: dict[str, str] = field(default_factory=dict)

    def word(self, place: str) -> str:
        """Always the same for a place."""
        return self.words.setdefault(
            place, f"zq{len(self.words)}{hashlib.sha256(place.encode()).hexdigest()[:12]}Größe"
        )

    def ascii(self, place: str) -> str:
        """For headers and addresses, which hold no other."""
        return self.words.setdefault(place, f"zq{len(self.words)}{hashlib.sha256(place.encode()).hexdigest()[:16]}")

    def found(self, stores: Mapping[str, bytes], whole: Iterable[bytes] = ()) -> list[str]:
        """``place in store as form`` of everything that is there. ``whole``: texts of which no unkeyed digest may be
        kept either, as whoever guesses a text could tell by it that it was sent."""
        needles = [(place, form, needle) for place, word in self.words.items() for form, needle in forms(word)]
        for number, text in enumerate((*(word.encode() for word in self.words.values()), *whole)):
            needles += [(f"text {number}", name, digest) for name, digest in digests(text)]
        return [
            f"{place} in {store} as {form}"
            for store, data in stores.items()
            for lowered in [data.lower()]
            for place, form, needle in needles
            if needle in data or needle.lower() in lowered
        ]


def forms(word: str) -> Iterator[tuple[str, bytes]]:
    plain = word.encode()
    yield "plain", plain
    yield "latin-1", word.encode("latin-1")
    yield "json", json.dumps(word).strip('"').encode()
    yield "json twice", json.dumps(json.dumps(word)).replace('\\"', "").strip('"').encode()
    yield "repr", repr(plain)[2:-1].encode()
    yield "percent", urllib.parse.quote(word).encode()
    yield "hex", plain.hex().encode()
    for name in ("utf-16-le", "utf-16-be", "utf-32-le"):
        yield name, word.encode(name)
    for shift in range(3):
        # Wherever it stood in what was encoded: without the ends, which depend on what stands beside it.
        encoded = base64.b64encode(b"\0" * shift + plain)
        yield f"base64 at {shift}", encoded[4 if shift else 0 : len(encoded) // 4 * 4 - 4]


def digests(text: bytes) -> Iterator[tuple[str, bytes]]:
    for name in DIGESTS:
        found = hashlib.new(name, text)
        # A part is enough to tell one text from all others.
        yield f"{name} in hex", found.hexdigest()[:16].encode()
        yield name, found.digest()[:8]


def tables() -> bytes:
    """Every row of every table, as PostgreSQL writes it."""
    parts = []
    with connection.cursor() as cursor:
        cursor.execute("SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            with cursor.copy(f"COPY {table} TO STDOUT") as copy:
                parts += [bytes(part) for part in copy]
    return b"".join(parts)


def keys(broker: redis.Redis) -> bytes:
    """Every key of the broker with all that it holds."""
    read: dict[Any, Any] = {
        b"string": broker.get,
        b"hash": broker.hgetall,
        b"list": lambda key: broker.lrange(key, 0, -1),
        b"set": broker.smembers,
        b"zset": lambda key: broker.zrange(key, 0, -1, withscores=True),
        b"stream": broker.xrange,
    }
    return b"".join(key + _flat(read[broker.type(key)](key)) for key in broker.scan_iter())


def _flat(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value + b"\n"
    if isinstance(value, Mapping):
        return b"".join(_flat(name) + _flat(inner) for name, inner in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return b"".join(map(_flat, value))
    return str(value).encode() + b"\n"


def files(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, also one that a process left when it died."""
    return {
        os.path.relpath(os.path.join(place, name), folder): Path(place, name).read_bytes()
        for place, _, names in os.walk(folder)
        for name in names
    }
