"""Clients that leave at any point of a request, and what is left of them at rest."""

from __future__ import annotations

import asyncio
import random

from tests.dataplane.engines import Call
from tests.dataplane.world import World, every, request, until

TOGETHER = 100


async def mixed(call: Call) -> None:
    """An engine that answers in twenty pieces, sometimes at once and sometimes with pauses."""
    if b"models" in call.line:
        await call.answer()
        return
    await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for number in range(20):
        await call.send(b"%x\r\n%b\r\n" % (len(call.body), call.body))
        await asyncio.sleep(0.001 * (number % 2))
    await call.send(b"0\r\n\r\n")


async def client(here: World, draws: random.Random) -> bool:
    """One client, that leaves within its request, within the answer, or after it; whether it had its answer."""
    raw = request("POST", "/v1/completions", draws.randbytes(draws.randrange(1, 3000)))
    wire = await here.wire()
    leaves = draws.random()
    if leaves < 0.3:
        await wire.send(raw[: draws.randrange(len(raw))])
    elif leaves < 0.8:
        await wire.send(raw)
        await asyncio.sleep(draws.random() * 0.05)
    else:
        await wire.send(raw)
        assert (await wire.reply()).whole
    wire.leave()
    here.wires.remove(wire)
    return leaves >= 0.8


async def leave_at_random(here: World, clients: int) -> int:
    """That many, a hundred at a time; how many had their answer. Nothing is in flight when it returns."""
    draws, answered = random.Random(3), 0
    for _ in range(clients // TOGETHER):
        answered += sum(await every([client(here, draws) for _ in range(TOGETHER)]))
    await until(lambda: here.in_flight() == {} and not here.shared.clients, "rest")
    instances = here.shared.fleet.endpoints["chat"].variants["default"].instances.values()
    await until(
        lambda: sum(engine.open for engine in here.engines) == sum(len(one.idle) for one in instances),
        "engines have no connection but those that wait for the next request",
    )
    assert {(await here.ask("GET", "/v1/models")).status for _ in range(9)} == {200}
    return answered
