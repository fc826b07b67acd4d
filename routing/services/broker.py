"""The place in Redis where routers find their configuration, and where they leave what they counted.

Nothing there is the only copy of anything: the newest configuration is published again when it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis
from django.conf import settings

CONFIG_KEY, STREAM_KEY = "hearth:routing:config", "hearth:routing:figures"
# A version never follows a higher one, whoever is late.
_PUT = """
if tonumber(redis.call('HGET', KEYS[1], 'version') or '0') >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2])
return 1
"""


def client() -> redis.Redis:
    """A connection that gives up soon: whoever waits for it has other work."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=2)


def version_there(connection: redis.Redis) -> int:
    """The version that routers can read now; 0 when there is none. Raises redis.RedisError."""
    found = connection.hget(CONFIG_KEY, "version")
    return int(found) if isinstance(found, bytes) and found.isdigit() else 0


def put(connection: redis.Redis, version: int, document: Mapping[str, Any]) -> None:
    """Publish, unless a newer version is there. Raises redis.RedisError."""
    connection.eval(_PUT, 1, CONFIG_KEY, str(version), json.dumps(document))
