"""The router process: listens, keeps its configuration up to date, and ends without cutting anybody off."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from routing.dataplane.checking import Checker
from routing.dataplane.client import Client
from routing.dataplane.config import BadConfig, read_config
from routing.dataplane.fleet import Fleet, Variant
from routing.dataplane.listening import cut, let_in_no_more
from routing.dataplane.routes import Refusal, Route
from routing.domain.deciding import Decision
from routing.domain.dialects_usage import TokenUse
from routing.domain.health import Failure
from routing.domain.sketches import MOST as MOST_COUNT
from routing.domain.tallies import Tally

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

log = logging.getLogger(__name__)

BODY_BYTES, MOST_CLIENTS = 64 * 1024 * 1024, 50_000
BACKLOG = 1024  # connections that the system keeps waiting
CLASSES = tuple(f"{first}xx" for first in range(10))  # of statuses
CONFIG_SECONDS, SWEEP_SECONDS, LAST_WORD_SECONDS = 0.5, 1.0, 0.5


@dataclass(slots=True)
class Counters:
    """What happened since the start, by names that say nothing about what was asked."""

    decisions: Tally[tuple[str, str, str, str]] = field(default_factory=Tally)  # endpoint, variant, outcome, id
    answers: Tally[tuple[str, str, int]] = field(default_factory=Tally)  # endpoint, variant, status
    failures: Tally[tuple[str, str, str, str]] = field(default_factory=Tally)  # endpoint, variant, id, failure
    refusals: Tally[str] = field(default_factory=Tally)  # code
    disconnected: int = 0
    truncated: int = 0

    def decided(self, route: Route, decision: Decision) -> None:
        variant, instance, outcome = route.variant, decision.instance, decision.outcome._value_
        self.decisions[*variant.names, outcome, instance] += 1
        figures = variant.figures
        figures.requests += 1
        figures.outcomes[outcome] += 1
        if instance:
            figures.instances[instance] += 1

    def answered(self, route: Route, status: int) -> None:
        variant = route.variant
        self.answers[*variant.names, status] += 1
        variant.figures.answers[CLASSES[status // 100]] += 1

    def failed(self, route: Route, instance_id: str, failure: Failure) -> None:
        self.failures[*route.variant.names, instance_id, failure.value] += 1
        route.variant.figures.failures[failure.value] += 1

    def refused(self, refusal: Refusal, variant: Variant | None) -> None:
        """``variant`` None where it is not known whom the request was for."""
        self.refusals[refusal.code] += 1
        if variant is not None:
            variant.figures.refusals[refusal.code] += 1

    def used(self, route: Route, use: TokenUse) -> None:
        """What an answer says of tokens; of its cache it may say nothing."""
        if use.cached_tokens is not None:
            figures = route.variant.figures
            figures.told += 1
            # Whatever one engine says: a sum that nobody reads back would take all that this router tells with it.
            figures.prompt_tokens = min(figures.prompt_tokens + use.prompt_tokens, MOST_COUNT)
            figures.cached_tokens = min(figures.cached_tokens + use.cached_tokens, MOST_COUNT)


@dataclass(slots=True, eq=False)
class Shared:
    """What all connections of one process share. ``now`` is a monotonic clock in seconds."""

    fleet: Fleet = field(default_factory=Fleet)
    counters: Counters = field(default_factory=Counters)
    clients: set[Client] = field(default_factory=set)
    upstream_tls: ssl.SSLContext | None = None
    body_bytes: int = BODY_BYTES
    most_clients: int = MOST_CLIENTS
    stopping: bool = False
    now: Callable[[], float] = time.monotonic


class Router:
    """Serves until ``stop``. ``config`` is the file that the control plane's publications are kept in."""

    def __init__(self, config: Path, *, tls: ssl.SSLContext | None = None, shared: Shared | None = None) -> None:
        self.shared = shared or Shared()
        self._config, self._tls = config, tls
        self._seen: tuple[int, int, int] | None = None
        self._server: asyncio.Server | None = None
        self._work: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int, *, taken: socket.socket | None = None) -> int:
        """Listen, on a socket that somebody has ``taken`` for this router instead where it is given; the port, also
        when 0 was asked for."""
        self.refresh()
        loop = asyncio.get_running_loop()
        if taken is not None:
            self._server = await loop.create_server(self._client, sock=taken, ssl=self._tls, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(
                self._client, host, port, ssl=self._tls, backlog=BACKLOG, reuse_port=port != 0
            )
        self._work = [
            loop.create_task(every(CONFIG_SECONDS, self.refresh)),
            loop.create_task(every(SWEEP_SECONDS, self._sweep)),
            loop.create_task(Checker(self.shared.fleet, lambda: self.shared.upstream_tls, self.shared.now).run()),
        ]
        port = int(self._server.sockets[0].getsockname()[1])
        return port

    def _client(self) -> Client:
        return Client(self.shared)

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take nothing new, let what runs end, then leave."""
        self.shared.stopping = True
        if self._server is not None:
            await let_in_no_more(self._server)
        for client in list(self.shared.clients):
            client.stop()
        deadline = self.shared.now() + grace_seconds
        while self.shared.clients and self.shared.now() < deadline:
            await asyncio.sleep(0.02)
        await self._let_go()
        await cut(self.shared.clients)
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        for endpoint in self.shared.fleet.endpoints.values():
            for variant in endpoint.variants.values():
                for instance in variant.instances.values():
                    while instance.idle:
                        instance.idle.pop().close()

    async def _let_go(self) -> None:
        """Whoever still waits for an instance is told so, and has a moment to take it."""
        variants = [one for endpoint in self.shared.fleet.endpoints.values() for one in endpoint.variants.values()]
        if not any(variant.waiting for variant in variants):
            return
        for variant in variants:
            variant.waiting.end()
        deadline = self.shared.now() + LAST_WORD_SECONDS
        while self.shared.clients and self.shared.now() < deadline:
            await asyncio.sleep(0.02)

    def refresh(self) -> None:
        """Put the file's configuration in force when it is another one. A bad one changes nothing and is said once."""
        try:
            status = self._config.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            self._seen = seen
            config = read_config(self._config.read_bytes())
        except FileNotFoundError:
            return
        except (BadConfig, OSError) as error:
            log.error("the configuration stays at version %d: %s", self.shared.fleet.config.version, error)
            return
        if config.version >= self.shared.fleet.config.version:
            self.shared.fleet.apply(config)
            log.info("configuration %d is in force", config.version)

    def take(self, document: bytes) -> bool:
        """Put a published configuration in force and keep it in the file; False for one that cannot be read."""
        try:
            config = read_config(document)
        except BadConfig as error:
            log.error("the configuration stays at version %d: %s", self.shared.fleet.config.version, error)
            return False
        if config.version > self.shared.fleet.config.version:
            self.shared.fleet.apply(config)
            log.info("configuration %d is in force", config.version)
            self._keep(document)
        return True

    def _keep(self, document: bytes) -> None:
        """For the next start; a disk that is full or read-only keeps nobody from routing."""
        made = self._config.with_name(f"{self._config.name}.{os.getpid()}")
        try:
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(document)
            made.replace(self._config)
        except OSError as error:
            log.error("the configuration could not be kept: %s", error)

    def _sweep(self) -> None:
        now = self.shared.now()
        for client in [one for one in self.shared.clients if one.is_overdue(now)]:
            client.expire(now)
        for endpoint in list(self.shared.fleet.endpoints.values()):
            for variant in endpoint.variants.values():
                variant.waiting.expire(now)
                if variant.waiting.held:
                    variant.waiting.look()  # who failed is tried again after a while


async def every(seconds: float, step: Callable[[], None]) -> None:
    """Until it is cancelled. A step that fails is said, and tried again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            step()
        except Exception:
            log.exception("a step of the router failed; it is tried again")
