"""Real servers for tests, started with ``-p`` before Django reads its settings.

PostgreSQL runs once for the whole session and is shared by the workers, each with its own test database. Valkey
and S3 start only when a fixture asks, one for each worker. A preset DATABASE_URL or REDIS_URL is used instead.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.embedded import ports
from controlplane.embedded.seaweed import S3
from controlplane.embedded.servers import EmbeddedServers

# Tells a worker that the session is prepared, and which addresses are ours to choose.
_OURS = "HEARTH_TESTS_SESSION"
# Servers written in Go collect garbage a quarter as often, as long as they stay small: of memory there is enough.
_SPARING = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
_valkey_at: tuple[int, str] | None = None
_held = socket.socket()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Set the addresses: earlier than pytest-django, which loads the settings in this same hook."""
    if _OURS not in os.environ:
        _prepare_session(early_config)
    _divide_ports()
    _choose_valkey()
    early_config.add_cleanup(_held.close)
    return (yield)


def _prepare_session(config: pytest.Config) -> None:
    """Once, in the process that was started by hand; the workers inherit what it puts into the environment."""
    os.environ[_OURS] = " ".join(name for name in ("DATABASE_URL", "REDIS_URL") if not _given(name))
    # Never the state of a program that runs beside the tests.
    state = _state()
    (state / "static").mkdir()
    os.environ["HEARTH_STATE_DIR"] = str(state)
    known = config.known_args_namespace
    if getattr(known, "markexpr", "") != "bench":  # what is measured runs as it does for everybody
        os.environ.update({name: value for name, value in _SPARING.items() if name not in os.environ})
    idle = known.collectonly or getattr(known, "help", False) or getattr(known, "version", 0)
    stack = ExitStack()
    stack.callback(shutil.rmtree, state, ignore_errors=True)
    if not idle and not _given("DATABASE_URL"):
        servers = EmbeddedServers(state / "servers", valkey=False, durable=False, label="This test run")
        os.environ["DATABASE_URL"] = stack.enter_context(servers).database_url
    # Both: pytest skips its clean-up when it fails early, and closing twice does no harm.
    config.add_cleanup(stack.close)
    atexit.register(stack.close)


def _divide_ports() -> None:
    """Workers start servers at the same moments: what one has chosen and not opened yet, no other may choose."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")
    ports._CHOICES = ports._CHOICES[int(worker) % 8 :: 8]


def _choose_valkey() -> None:
    """Promise an address now, start the server when the first test needs it. Each worker has its own.

    Until then the port is held: minutes may pass, in which another server could choose the same one.
    """
    global _valkey_at
    if not is_ours("REDIS_URL"):
        return
    _valkey_at = (ports.free_port(), secrets.token_hex(16))
    _held.bind((ports.HOST, _valkey_at[0]))
    os.environ["REDIS_URL"] = f"redis://:{_valkey_at[1]}@{ports.HOST}:{_valkey_at[0]}/0"


def is_ours(name: str) -> bool:
    """Whether this setting names a server that was started for these tests."""
    return name in os.environ[_OURS].split()


def _given(name: str) -> bool:
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


def _state() -> Path:
    state = Path(tempfile.mkdtemp(prefix="hearth-tests-"))
    state.chmod(0o711)  # the database's user walks through it
    return state


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[EmbeddedServers | None]:
    """This worker's Valkey, for tests that break it; None where REDIS_URL was preset."""
    if _valkey_at is None:
        yield None
        return
    state = _state()
    _held.close()
    with EmbeddedServers(state, postgres=False, valkey_at=_valkey_at, label="This test run") as servers:
        yield servers
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session")
def valkey_url(valkey_server: EmbeddedServers | None) -> str:
    """A running Valkey at the address the settings already hold."""
    return os.environ["REDIS_URL"] if valkey_server is None else valkey_server.redis_url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    """A running S3 server of this worker. Buckets live until the end: give each test its own name."""
    state = _state()
    with EmbeddedServers(state, postgres=False, valkey=False, s3=True, label="This test run") as servers:
        yield servers.s3
    shutil.rmtree(state, ignore_errors=True)
