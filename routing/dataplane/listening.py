"""Ending a listener so that every connection it let in is known, and can be served or cut."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

TURNS = 5  # of the loop, from a connection that is let in to the protocol that serves it


class Cuttable(Protocol):
    """A connection that leaves its set of open ones when it is lost."""

    def abort(self) -> None: ...


async def let_in_no_more(server: asyncio.Server) -> None:
    """Close the listener; returns when whoever it had let in has reached its protocol.

    asyncio's own loop makes a connection some turns after it took it from the system, and a server that is closed in
    between forgets the socket: its client would wait for an end that never comes. uvloop makes it at once.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(TURNS):
            await asyncio.sleep(0)
    server.close()


async def cut(open_ones: Collection[Cuttable]) -> None:
    """Abort every connection, and return when none is left."""
    while open_ones:
        for one in list(open_ones):
            one.abort()
        await asyncio.sleep(0)
