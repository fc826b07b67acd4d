"""What a router says on a port of its own: numbers for Prometheus, and how it is for who keeps it going.

A small server for three paths. It answers each connection once and closes it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from routing.dataplane.listening import let_in_no_more

if TYPE_CHECKING:
    from routing.dataplane.router import Shared

HEAD_BYTES, HEAD_SECONDS = 8192, 5.0
Labels = Mapping[str, object]


def exposition(shared: Shared, *, following: bool | None = None) -> str:
    """The text format, version 0.0.4. ``following``: whether Redis answers; None where none is followed."""
    lines = []
    for name, kind, about, samples in _metrics(shared, following):
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labelled(labels)} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


Samples = list[tuple[Labels, float]]


def _metrics(shared: Shared, following: bool | None) -> Iterator[tuple[str, str, str, Samples]]:
    counters, config = shared.counters, shared.fleet.config
    of = ("endpoint", "variant")
    yield (
        "hearth_routing_decisions_total", "counter", "Requests by how their instance was found, and which it was.",
        [(dict(zip((*of, "outcome", "instance"), key, strict=True)), count)
         for key, count in sorted(counters.decisions.items())],
    )  # fmt: skip
    yield (
        "hearth_routing_answers_total", "counter", "Answers of instances by status.",
        [(dict(zip((*of, "status"), key, strict=True)), count) for key, count in sorted(counters.answers.items())],
    )  # fmt: skip
    yield (
        "hearth_routing_failures_total", "counter", "Failures of instances that count against their health.",
        [(dict(zip((*of, "instance", "failure"), key, strict=True)), count)
         for key, count in sorted(counters.failures.items())],
    )  # fmt: skip
    yield (
        "hearth_routing_refusals_total", "counter", "Answers of the router itself.",
        [({"code": code}, count) for code, count in sorted(counters.refusals.items())],
    )  # fmt: skip
    yield "hearth_routing_disconnected_total", "counter", "Clients that left early.", [({}, counters.disconnected)]
    yield "hearth_routing_truncated_total", "counter", "Answers that instances broke off.", [({}, counters.truncated)]
    yield "hearth_routing_config_version", "gauge", "The configuration in force.", [({}, config.version)]
    yield "hearth_routing_clients", "gauge", "Open connections of clients.", [({}, len(shared.clients))]
    if following is not None:
        yield "hearth_routing_following", "gauge", "1 while Redis answers.", [({}, float(following))]
        known = min(shared.fleet.known, config.routers)
        yield "hearth_routing_routers", "gauge", "Router processes that share the traffic.", [({}, config.routers)]
        about = "Of these, processes whose requests under way are known here, this one among them."
        yield "hearth_routing_routers_known", "gauge", about, [({}, known)]
    yield from _of_variants(shared)


def _of_variants(shared: Shared) -> Iterator[tuple[str, str, str, Samples]]:
    in_flight: Samples = []
    hot: Samples = []
    waiting: Samples = []
    for endpoint in shared.fleet.endpoints.values():
        for name, variant in endpoint.variants.items():
            labels = {"endpoint": endpoint.config.name, "variant": name}
            hot.append((labels, len(variant.config.hot)))
            waiting.append((labels, len(variant.waiting)))
            here = variant.part().in_flight
            for uid in variant.instances:
                in_flight.append(({**labels, "instance": uid}, here.get(uid, 0)))
    yield "hearth_routing_in_flight", "gauge", "Requests under way by instance, at this process.", in_flight
    yield "hearth_routing_waiting", "gauge", "Requests that wait for an instance, at this process.", waiting
    yield "hearth_routing_hot_set_size", "gauge", "Beginnings that are passed over as everybody's.", hot


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def _always() -> bool:
    return True


class Page:
    """Serves until ``stop``: under ``/metrics`` what ``text`` says, asked anew each time; ``/healthz``, which answers
    as long as anything does; ``/readyz``, 503 while ``ready`` says that requests would find nothing here."""

    def __init__(self, text: Callable[[], Awaitable[str]], ready: Callable[[], Awaitable[bool]] = _always) -> None:
        self._text, self._ready = text, ready
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, *, taken: socket.socket | None = None) -> int:
        """Listen; the port, also when 0 was asked for. ``taken`` listens there already."""
        if taken is not None:
            self._server = await asyncio.start_server(self._answer, sock=taken, limit=HEAD_BYTES)
        else:
            self._server = await asyncio.start_server(self._answer, host, port, limit=HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def start_at(self, path: Path) -> None:
        """Listen at a socket of the file system, for the parent process alone."""
        self._server = await asyncio.start_unix_server(self._answer, path, limit=HEAD_BYTES)

    async def stop(self) -> None:
        if self._server is not None:
            await let_in_no_more(self._server)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = head.partition(b" ")
            path = rest.split(b" ")[0].partition(b"?")[0] if method in (b"GET", b"HEAD") else b""
            status, text = await self._found(path)
            body = text.encode()
            lines = [
                b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()),
                b"content-type: text/plain; version=0.0.4; charset=utf-8",
                b"content-length: %d" % len(body),
                b"connection: close",
            ]
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if method == b"HEAD" else body))
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _found(self, path: bytes) -> tuple[int, str]:
        match path:
            case b"/metrics":
                return 200, await self._text()
            case b"/healthz":
                return 200, "ok\n"
            case b"/readyz" if await self._ready():
                return 200, "ready\n"
            case b"/readyz":
                return 503, "No configuration yet: nothing was published, or Redis is not reached.\n"
            case _:
                return 404, "Only GET /metrics, /healthz and /readyz.\n"


class Exposing(Page):
    """The page of one process. ``following`` says whether Redis answers; None where none is followed."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(self._exposition, self._is_configured)
        self.following: Callable[[], bool] | None = None
        self._shared = shared

    async def _exposition(self) -> str:
        return exposition(self._shared, following=self.following() if self.following else None)

    async def _is_configured(self) -> bool:
        """Also one that says of no endpoint: then that is so."""
        return self._shared.fleet.config.version > 0
