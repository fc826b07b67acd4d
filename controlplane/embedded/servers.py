"""PostgreSQL, Valkey and S3 together, for the program and for tests."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane.embedded.postgres import Postgres
from controlplane.embedded.problems import require_space
from controlplane.embedded.processes import Supervisor
from controlplane.embedded.seaweed import S3, Seaweed
from controlplane.embedded.valkey import Valkey

_NEEDED = 500_000_000  # bytes: an empty database, its write-ahead log, logs, room to breathe


class EmbeddedServers:
    """``with EmbeddedServers(state, s3=True) as servers:`` and they run; leaving the block stops them.

    Name ports and passwords only to promise an address before the server exists. ``durable=False`` gives up
    surviving a crash of the machine for speed. ``s3_later`` does not wait for S3, the slowest: ``await_s3`` does.
    """

    def __init__(
        self,
        state: Path,
        *,
        postgres: bool = True,
        valkey: bool = True,
        s3: bool = False,
        s3_later: bool = False,
        durable: bool = True,
        postgres_at: tuple[int, str] | None = None,
        valkey_at: tuple[int, str] | None = None,
        label: str = "Hearth",
    ) -> None:
        self.supervisor = Supervisor(state, label=label)
        pg_port, pg_password = postgres_at or (None, "")
        vk_port, vk_password = valkey_at or (None, "")
        self._postgres = Postgres(state, port=pg_port, password=pg_password, durable=durable) if postgres else None
        self._valkey = Valkey(state, port=vk_port, password=vk_password) if valkey else None
        self._seaweed = Seaweed(state) if s3 else None
        self._s3_later = s3_later

    def __enter__(self) -> Self:
        self.supervisor.__enter__()
        try:
            require_space(self.supervisor.state, _NEEDED)
            servers = [server for server in (self._postgres, self._valkey, self._seaweed) if server is not None]
            for server in servers:
                server.prepare()
            self.supervisor.begin(*(server.spec() for server in servers))
            self.supervisor.await_ready(
                *(server.name for server in servers if not (self._s3_later and server is self._seaweed))
            )
            if self._postgres is not None:
                self._postgres.create_database()
        except BaseException:
            self.supervisor.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.supervisor.stop()
        if self._seaweed is not None:
            self._seaweed.sweep()

    def await_s3(self) -> None:
        """Wait until S3 is ready; nothing to do where it was not asked for."""
        if self._seaweed is not None:
            self.supervisor.await_ready(self._seaweed.name)

    @property
    def database_url(self) -> str:
        """DATABASE_URL; only where ``postgres`` was asked for."""
        assert self._postgres is not None, "these servers were started without PostgreSQL"
        return self._postgres.url

    @property
    def redis_url(self) -> str:
        """REDIS_URL; only where ``valkey`` was asked for."""
        assert self._valkey is not None, "these servers were started without Valkey"
        return self._valkey.url

    @property
    def s3(self) -> S3:
        """Endpoint and keys; only where ``s3`` was asked for."""
        assert self._seaweed is not None, "these servers were started without S3"
        return self._seaweed.s3

    @property
    def s3_connection(self) -> Path:
        """A JSON file of mode 0600 with endpoint, access_key, secret_key and region."""
        assert self._seaweed is not None, "these servers were started without S3"
        return self._seaweed.write_connection()
