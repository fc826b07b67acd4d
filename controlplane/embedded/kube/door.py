"""Lets pods reach a server that listens on loopback: ``python -m controlplane.embedded.kube.door FROM TO NETWORK``.

FROM is an address of one of the cluster's bridges. None of them has a cable, but this machine would also answer there
to a neighbour that sends it packets for that address. So a connection is let in only from the cluster's own NETWORK,
which nobody outside can pretend to be in: the answers go to the bridges, and no connection comes about.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import sys

_CHUNK = 256 * 1024
_PATIENCE = 5.0  # seconds until the server must take a connection
_MOST = 512  # connections at once


class Door:
    """Carries the bytes between whoever may come in and the server behind it."""

    def __init__(self, server: tuple[str, int], network: ipaddress.IPv4Network) -> None:
        self._server, self._network = server, network
        self._open = 0

    async def serve(self, address: str, port: int) -> None:
        """Until it is cancelled."""
        listener = await asyncio.start_server(self.enter, address, port, limit=_CHUNK)
        async with listener:
            await listener.serve_forever()

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        try:
            if not self.admits(writer.get_extra_info("peername")) or self._open >= _MOST:
                return
            self._open += 1
            try:
                await self._carry(reader, writer)
            finally:
                self._open -= 1
        finally:
            await _close(writer)

    def admits(self, peer: tuple[str, int] | None) -> bool:
        """Whether this peer belongs to the cluster."""
        return peer is not None and ipaddress.IPv4Address(peer[0]) in self._network

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = await asyncio.wait_for(asyncio.open_connection(*self._server, limit=_CHUNK), _PATIENCE)
        except (OSError, TimeoutError):
            return
        try:
            await asyncio.gather(_pour(reader, behind[1]), _pour(behind[0], writer))
        except OSError:
            return  # one of them is gone; the other one hears of it by the close
        finally:
            await _close(behind[1])


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address, int(port)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Door(_place(sys.argv[2]), ipaddress.IPv4Network(sys.argv[3])).serve(*_place(sys.argv[1])))
