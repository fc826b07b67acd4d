"""Loopback ports: free ones for the servers nobody types, and a clear sentence for the one somebody did."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import random
import socket
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from controlplane.embedded.problems import EmbeddedError

HOST = "127.0.0.1"
# Below the range the system hands to outgoing connections: a server that restarts finds its port still free.
_CHOICES = range(20_000, 32_000)
_PROCESSES = Path("/proc")
_BACKLOG = 2048  # connections that wait while a server starts, as many as gunicorn lets wait


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nothing listens on now, and that no other program of Hearth's was given."""
    with ExitStack() as held:
        ports: list[int] = []
        for candidate in random.sample(_CHOICES, len(_CHOICES)):
            if len(ports) == count:
                break
            listener = held.enter_context(socket.socket())
            # SO_REUSEADDR ignores connections that are winding down, as every server here does.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, candidate))
            except OSError:
                continue
            if candidate not in _given and _reserved(candidate):
                _given.add(candidate)
                ports.append(candidate)
        return ports


def reserve(wanted: Sequence[int]) -> bool:
    """Whether servers could listen on these ports; until this process ends, nobody else is given them."""
    if not all(is_free(port) and _reserved(port) for port in wanted):
        return False
    _given.update(wanted)
    return True


def free_port() -> int:
    """One port that nothing listens on now."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True


def is_listening(port: int, timeout: float = 0.5, *, address: str = HOST) -> bool:
    """Whether something accepts connections on this port of loopback, or of another address of this machine; waits
    at most ``timeout`` seconds."""
    try:
        with socket.create_connection((address, port), timeout=timeout):
            return True
    except OSError:
        return False


def take_port(port: int, remedy: str) -> socket.socket:
    """Listen on ``port``, for a server that inherits the socket; EmbeddedError naming who holds it, followed by the
    ``remedy``.

    Who only looks whether a port is free promises nothing: until the server listens, and whenever it starts again,
    somebody else could take it, and answer in its place.
    """
    if not 1 <= port <= 65_535:
        raise EmbeddedError(f"{port} is no port; use one from 1024 to 65535.")
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(_BACKLOG)  # of two that are bound, only one may
        return listener
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise EmbeddedError(f"Port {port} on {HOST} cannot be used: {error.strerror}. {remedy}") from None
    if port < 1024 and os.geteuid() != 0 and not is_listening(port):
        raise EmbeddedError(f"Port {port} is reserved for root. {remedy}")
    owner = _owner(port)
    by = f"by {owner}" if owner else "by another program"
    raise EmbeddedError(f"Port {port} on {HOST} is taken {by}. {remedy}")


_given: set[int] = set()  # by this process: its own locks do not keep it from its own ports


@functools.cache
def _reservations(_process: int) -> int:
    """The file whose bytes stand for ports: the system lets go of a process's locks however it ends."""
    path = os.path.join(tempfile.gettempdir(), f"hearth-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _reserved(port: int) -> bool:
    """Between the choice of a port and the server that listens there pass seconds, in which others choose too."""
    try:
        file = _reservations(os.getpid())
    except OSError:
        return True  # no such file can be had: then the choice is as good as the look at who listens
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _owner(port: int) -> str:
    """Name and pid of the process listening on ``port``; empty where the system does not tell us."""
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    holders: list[tuple[int, str, str]] = []
    for process in _PROCESSES.glob("[0-9]*"):
        try:
            if not wanted.isdisjoint(os.readlink(link) for link in (process / "fd").iterdir()):
                name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(")")
                holders.append((int(fields.split()[19]), name, process.name))
        except OSError:  # ended meanwhile, or belongs to somebody else
            continue
    if not holders:
        return ""
    _, name, pid = min(holders)  # whoever took it was there before all that inherited it, and is the one to stop
    return f"{name} (process {pid})"


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            rows: Iterable[str] = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
