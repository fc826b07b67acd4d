"""Following what the control plane publishes in Redis. A router that cannot reach it goes on with what it has.

Asked, not told: one small question a few times a second costs nothing, and knows no lost message.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

log = logging.getLogger(__name__)

CONFIG_KEY = "hearth:routing:config"
ASK_SECONDS, TROUBLE_SECONDS, ANSWER_SECONDS = 0.3, 1.0, 3.0


def broker_url() -> str:
    """REDIS_URL, or what stands in the file that REDIS_URL_FILE names: passwords are no arguments. "" without either.

    Raises OSError when the file cannot be read."""
    named = os.environ.get("REDIS_URL_FILE", "")
    return Path(named).read_text().strip() if named else os.environ.get("REDIS_URL", "").strip()


def _heed_cancelling() -> None:
    """What waits with a limit (the client's writing does) forgets, once in a while, that it was cancelled meanwhile."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Rounds:
    """One connection to Redis over which the same is done every ``pause`` seconds. ``connected``: whether the last
    round was."""

    says = ""  # of what was reached; "" where somebody else says so

    def __init__(self, url: str) -> None:
        self.connected = False
        self._url = url
        self._refused = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            _heed_cancelling()
            try:
                await self._keep()
            except Exception as error:  # whatever it is: a router that stopped following would never be told again
                if not isinstance(error, (RedisError, OSError, TimeoutError, ValueError)):
                    log.exception("following failed; it is tried again")
                elif self.says and (self.connected or self._refused == 0):
                    log.warning("Redis is not reached (%s): routing goes on as it is", type(error).__name__)
                self.connected, self._refused = False, self._refused + 1
            await asyncio.sleep(TROUBLE_SECONDS)

    async def _keep(self) -> None:
        connection = redis.Redis.from_url(
            self._url, socket_connect_timeout=2.0, socket_timeout=ANSWER_SECONDS, single_connection_client=True
        )
        try:
            self._begin()
            while True:
                await self._round(connection)
                _heed_cancelling()
                await asyncio.sleep(self._pause())
        finally:
            await connection.aclose()

    def _reached(self) -> None:
        if not self.connected:
            self.connected, self._refused = True, 0
            if self.says:
                log.info("%s", self.says)

    def _begin(self) -> None:
        """A connection is new."""

    def _pause(self) -> float:
        return ASK_SECONDS

    async def _round(self, connection: Any) -> None:
        raise NotImplementedError


class Follower(Rounds):
    """``work`` is what else is done over the connection, every round; it may raise RedisError."""

    says = "following Redis"

    def __init__(
        self,
        url: str,
        version: Callable[[], int],
        take: Callable[[bytes], bool],
        work: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(url)
        self._version, self._take, self._work = version, take, work
        # The version that could not be read, or was not what stands beside it: once is enough. Only this one: a broker
        # that was emptied begins below it.
        self._bad = b""
        self._unheard = False

    async def _round(self, connection: Any) -> None:
        await self._ask(connection)
        self._reached()
        await self._work_over(connection)

    async def _work_over(self, connection: Any) -> None:
        """What Redis has no room for, or another key's place is taken: that is no reason to stop following."""
        if self._work is None:
            return
        try:
            await self._work(connection)
        except ResponseError as error:
            if not self._unheard:
                log.warning("Redis does not take what is told (%s): it is kept", type(error).__name__)
            self._unheard = True
        else:
            self._unheard = False

    async def _ask(self, connection: Any) -> None:
        found = await connection.hget(CONFIG_KEY, "version")
        if not isinstance(found, bytes) or not found.isdigit() or found == self._bad or len(found) > 15:
            return
        if int(found) <= self._version():
            return
        document = await connection.hget(CONFIG_KEY, "document")
        if isinstance(document, bytes) and not (self._take(document) and self._version() >= int(found)):
            self._bad = found
