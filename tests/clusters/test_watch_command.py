"""``manage.py watch_cluster`` as a process: it waits for its database, may be killed at any time, ends when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.clusters.local.fleet import LocalFleet
from controlplane.embedded import ports
from controlplane.embedded.servers import EmbeddedServers
from controlplane.ids import new_id
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MANAGE = (sys.executable, "manage.py")
NEW_CLUSTER = (
    "INSERT INTO clusters_cluster (id, created_at, updated_at, name, type, address, uid, paused, error)"
    " VALUES (%s, now(), now(), 'home', 'Local', %s, '', false, '')"
)


class Place:
    """A PostgreSQL of our own that may be stopped, a fleet, and a watcher process."""

    def __init__(self, folder: Path) -> None:
        self.fleet = LocalFleet(folder / "fleet")
        self.fleet.create(nodes=2)
        self._state = folder / "state"
        self._at = (ports.free_port(), "test-only")
        self._servers: EmbeddedServers | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._url = ""

    def start_database(self) -> None:
        self._servers = EmbeddedServers(
            self._state, valkey=False, durable=False, postgres_at=self._at, label="This test"
        )
        self._url = self._servers.__enter__().database_url

    def stop_database(self) -> None:
        if self._servers is not None:
            self._servers.__exit__(None, None, None)
        self._servers = None

    def manage(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*MANAGE, *arguments], cwd=ROOT, env={**os.environ, "DATABASE_URL": self._url})

    def prepare(self) -> None:
        assert self.manage("migrate", "--skip-checks", "--verbosity", "0").wait(250) == 0
        with psycopg.connect(self._url) as database:
            database.execute(NEW_CLUSTER, (new_id(), str(self.fleet.folder)))

    def watch(self) -> None:
        self._watcher = self.manage("watch_cluster")

    def end(self, number: int) -> int:
        assert self._watcher is not None
        self._watcher.send_signal(number)
        return self._watcher.wait(60)

    def running(self) -> bool:
        return self._watcher is not None and self._watcher.poll() is None

    def agrees(self) -> bool:
        """Whether the rows are like the fleet."""
        with psycopg.connect(self._url) as database:
            rows = database.execute("SELECT name, uid, schedulable FROM clusters_node WHERE lost_at IS NULL").fetchall()
        return sorted(rows) == [(row.node.name, row.node.uid, row.node.schedulable) for row in self.fleet.nodes()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.start_database()
    try:
        made.prepare()
        made.watch()
        yield made
    finally:
        if made.running():
            made.end(signal.SIGKILL)
        made.stop_database()


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_it_heals_after_every_interruption(place: Place) -> None:
    until(place.agrees, "the rows are like the fleet")

    place.stop_database()
    place.fleet.replace("a-1")
    place.fleet.cordon("b-1")
    place.start_database()
    until(place.agrees, "the rows are like the fleet")
    assert place.running(), "it waited for the database; nobody had to start it again"

    place.end(signal.SIGKILL)
    place.fleet.remove("b-1")
    place.watch()
    until(place.agrees, "the rows are like the fleet")
    assert place.end(signal.SIGTERM) == 0
