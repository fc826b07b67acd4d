"""PostgreSQL, Valkey and S3 survive what happens to them on a laptop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from controlplane.embedded import records
from controlplane.embedded.processes import ROOT
from controlplane.embedded.seaweed import Seaweed
from controlplane.embedded.servers import EmbeddedServers

HOLD = (
    "import pathlib, sys, time\n"
    "from controlplane.embedded.servers import EmbeddedServers\n"
    "with EmbeddedServers(pathlib.Path(sys.argv[1]), valkey=False) as servers:\n"
    "    print(servers.database_url, servers.supervisor.pid('postgres'), flush=True)\n"
    "    time.sleep(600)\n"
)


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder that another user can walk through, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-servers-"))
    folder.chmod(0o755)
    yield folder / "state"
    shutil.rmtree(folder)


def test_it_recovers_the_database_after_the_program_was_killed(state: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as held:
        assert held.stdout is not None
        url, pid = held.stdout.readline().split()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
            os.kill(int(pid), signal.SIGKILL)
            held.kill()
    # What a power cut leaves: a pid file whose pid is somebody else's by now.
    (state / "postgres" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    with EmbeddedServers(state, valkey=False) as servers, psycopg.connect(servers.database_url) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (42,)


def test_it_brings_a_killed_database_back_at_the_same_address(state: Path) -> None:
    with EmbeddedServers(state, valkey=False, durable=False) as servers:
        servers.supervisor.kill("postgres")
        servers.supervisor.restart("postgres")
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_it_starts_the_database_below_a_folder_that_only_its_owner_may_enter(state: Path) -> None:
    closed = state / "closed"
    closed.mkdir(parents=True)
    closed.chmod(0o700)
    with (
        EmbeddedServers(closed / "state", valkey=False, durable=False) as servers,
        psycopg.connect(servers.database_url) as connection,
    ):
        assert connection.execute("SELECT current_setting('is_superuser')").fetchone() == ("on",)


def test_it_asks_for_the_password_and_listens_on_loopback_only(state: Path) -> None:
    with EmbeddedServers(state, durable=False) as servers:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(servers.database_url.replace("postgres://hearth:", "postgres://hearth:wrong"))
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        address = servers.redis_url.rpartition("@")[2]
        with redis.Redis.from_url(f"redis://{address}") as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_it_keeps_no_secret_among_arguments_or_in_readable_files(state: Path) -> None:
    with EmbeddedServers(state, s3=True, durable=False) as servers:
        known = [
            servers.s3.secret_key,
            servers.database_url.split(":")[2].split("@")[0],
            servers.redis_url.split(":")[2].split("@")[0],
        ]
        for name in ("postgres", "valkey", "s3"):
            arguments = Path(f"/proc/{servers.supervisor.pid(name)}/cmdline").read_bytes().decode()
            assert not any(secret in arguments for secret in known)
        servers.s3_connection.stat()
    for path in state.rglob("*"):
        if path.is_file() and not path.is_relative_to(state / "postgres" / "data"):
            text = path.read_bytes().decode(errors="replace")
            if any(secret in text for secret in known):
                assert path.stat().st_mode & 0o077 == 0, f"{path} shows a secret to others"


def test_it_keeps_the_address_and_keys_of_s3(state: Path) -> None:
    with EmbeddedServers(state, postgres=False, valkey=False, s3=True) as servers:
        first = servers.s3
    again = Seaweed(state)
    again.prepare()
    assert again.s3 == first


def test_it_leaves_no_process_after_leaving_the_block(state: Path) -> None:
    with EmbeddedServers(state, s3=True, durable=False) as servers:
        pids = [servers.supervisor.pid(name) for name in ("postgres", "valkey", "s3")]
        assert all(records.started_at(pid) for pid in pids)
    assert not any(records.started_at(pid) for pid in pids)
    assert list((state / "pids").iterdir()) == []
