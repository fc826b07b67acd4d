"""The place in Redis where routers find their configuration, and where they leave what they counted.

Nothing there is the only copy of anything: the newest configuration is published again when it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis
from django.conf import settings

MOST_VERSION = 2**48
Message = tuple[str, Mapping[str, Any]]
CONFIG_KEY, STREAM_KEY = "hearth:routing:config", "hearth:routing:figures"
# A version never follows a higher one, whoever is late. What is no version is nothing: a place that others may write to
# is repaired and never believed.
_PUT = """
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end
local there = redis.call('HGET', KEYS[1], 'version') or '0'
if not string.find(there, '^%d+$') or #there > 15 or tonumber(there) >= 2^48 then there = '0' end
if tonumber(there) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2])
return 1
"""


def client() -> redis.Redis:
    """A connection that gives up soon: whoever waits for it has other work."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=2)


def version_there(connection: redis.Redis) -> int:
    """The version that routers can read now; 0 when there is none that makes sense. Raises redis.RedisError."""
    try:
        found = connection.hget(CONFIG_KEY, "version")
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            return 0
        raise
    if not isinstance(found, bytes) or not found.isdigit() or len(found) > 15:
        return 0
    return int(found) if int(found) < MOST_VERSION else 0


def put(connection: redis.Redis, version: int, document: Mapping[str, Any]) -> None:
    """Publish, unless a newer version is there. Raises redis.RedisError."""
    connection.eval(_PUT, 1, CONFIG_KEY, str(version), json.dumps(document))


def told_after(connection: redis.Redis, last_id: str, count: int) -> list[Message]:
    """Messages of routers after ``last_id``, oldest first. One that is no JSON object is empty. Raises RedisError.

    A stream that begins anew (an empty broker) may give ids below those that were read: then all of it is new.
    """
    newest = connection.xrevrange(STREAM_KEY, count=1)
    if not isinstance(newest, list) or not newest:
        return []
    if _order(_text(newest[0][0])) < _order(last_id):
        last_id = "0-0"
    found = connection.xrange(STREAM_KEY, min=f"({last_id}", count=count)
    return [(_text(name), document_of(fields)) for name, fields in found] if isinstance(found, list) else []


def seconds_of(message_id: str) -> float:
    """When the broker took it, by its own clock."""
    return _order(message_id)[0] / 1000


def _order(message_id: str) -> tuple[int, int]:
    first, _, second = message_id.partition("-")
    return int(first), int(second or 0)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def document_of(fields: Any) -> Mapping[str, Any]:
    """What a message of a router's stream holds; empty for one that cannot be read."""
    try:
        read = json.loads(fields[b"m"])
    except (KeyError, ValueError, RecursionError, TypeError):
        return {}
    return read if isinstance(read, dict) else {}
