"""The pod's side of asking: see caches.agent.asking."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from caches.agent import asking
from caches.agent.asking import Answer, Progress


def ask_agent(
    store: Path, digest: str, who: str, *, tell: Callable[[Progress], object], silence_seconds: float
) -> Answer | None:
    """The agent's last word; None where no agent answers, or one falls silent for ``silence_seconds``."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.settimeout(silence_seconds)
            _connect(agent, store)
            agent.sendall(asking.question(digest, who))
            for line in _lines(agent):
                message = asking.read_line(line)
                if isinstance(message, Answer):
                    return message
                tell(message)
    except (OSError, ValueError):
        return None
    return None


def _connect(agent: socket.socket, store: Path) -> None:
    """Through the folder's descriptor: a path may be longer than a socket's address can be."""
    folder = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
    try:
        through = Path(f"/proc/self/fd/{folder}")
        agent.connect(str((through if through.exists() else store) / asking.SOCKET))
    finally:
        os.close(folder)


def _lines(agent: socket.socket) -> Iterator[bytes]:
    data = b""
    while piece := agent.recv(65536):
        *whole, data = (data + piece).split(b"\n")
        yield from whole
        if len(data) > asking.MAX_LINE:
            raise ValueError("the line has no end")
