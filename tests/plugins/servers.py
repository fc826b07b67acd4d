"""Real servers for tests, started with ``-p`` before Django reads its settings.

PostgreSQL runs once for the whole session and is shared by the workers, each with its own test database. Valkey
and S3 start only when a fixture asks, one for each worker. A preset DATABASE_URL or REDIS_URL is used instead.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from controlplane.embedded import ports
from controlplane.embedded.seaweed import S3
from controlplane.embedded.servers import EmbeddedServers

# Tells a worker that the address of Valkey comes from this plugin, not from the person who runs the tests.
_OURS = "HEARTH_TESTS_OWN_VALKEY"
_valkey_at: tuple[int, str] | None = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Set the addresses: earlier than pytest-django, which loads the settings in this same hook."""
    known = early_config.known_args_namespace
    idle = known.collectonly or getattr(known, "help", False) or getattr(known, "version", 0)
    if not idle:
        _choose_valkey()
        if "DATABASE_URL" not in os.environ and "DATABASE_URL_FILE" not in os.environ:
            _start_postgres(early_config)
    return (yield)


def _start_postgres(config: pytest.Config) -> None:
    state = _state()
    servers = EmbeddedServers(state, valkey=False, durable=False, label="This test run")
    servers.__enter__()

    def stop() -> None:
        servers.__exit__(None, None, None)
        shutil.rmtree(state, ignore_errors=True)
        os.environ.pop("DATABASE_URL", None)

    # Both: pytest skips its clean-up when it fails early, and stopping twice does no harm.
    config.add_cleanup(stop)
    atexit.register(stop)
    os.environ["DATABASE_URL"] = servers.database_url


def _choose_valkey() -> None:
    """Promise an address now, start the server when the first test needs it."""
    global _valkey_at
    if ("REDIS_URL" in os.environ or "REDIS_URL_FILE" in os.environ) and _OURS not in os.environ:
        return
    _valkey_at = (ports.free_port(), secrets.token_hex(16))
    os.environ[_OURS] = "1"
    os.environ["REDIS_URL"] = f"redis://:{_valkey_at[1]}@{ports.HOST}:{_valkey_at[0]}/0"


def _state() -> Path:
    return Path(tempfile.mkdtemp(prefix="hearth-tests-"))


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[EmbeddedServers | None]:
    """This worker's Valkey, for tests that break it; None where REDIS_URL was preset."""
    if _valkey_at is None:
        yield None
        return
    state = _state()
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
