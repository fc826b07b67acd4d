"""Whatever is killed, whenever: the fleet converges by itself, nothing is Ready that is not there and right."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.faults.program import SIZE, Program

pytestmark = [pytest.mark.faults, pytest.mark.e2e, pytest.mark.xdist_group("faults"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("faults")) as running:
        yield running


def started(program: Program, name: str) -> str:
    """A pinned version whose download is about half done on some node."""
    version = program.model(name)
    program.tell("pin", version=version, pool=program.pool)
    program.half_way(version)
    return version


def test_losing_all_of_valkey_costs_nothing_but_time(program: Program) -> None:
    version = program.model("valkey")
    program.tell("pin", version=version, pool=program.pool)
    redis.Redis.from_url(program.servers.redis_url).flushall()
    program.half_way(version)
    program.servers.supervisor.kill("valkey")
    program.warm(version)


def test_a_pin_made_while_valkey_is_away_is_warmed_later(program: Program) -> None:
    version = program.model("offline")
    program.servers.supervisor.kill("valkey")
    program.tell("pin", version=version, pool=program.pool)  # does not fail
    program.warm(version)


def test_killing_worker_beat_and_watcher_half_way_converges(program: Program) -> None:
    version = started(program, "workers")
    for name in ("worker", "beat", "watcher"):
        program.servers.supervisor.kill(name)
    program.warm(version)
    assert program.look(version)["failures"] == 0


def test_restarting_postgresql_half_way_converges(program: Program) -> None:
    version = started(program, "database")
    program.servers.supervisor.restart("postgres")
    program.warm(version)


def test_a_killed_agent_goes_on_where_it_was(program: Program) -> None:
    version = program.model("agent")
    program.tell("pin", version=version, pool=program.pool)
    done = program.half_way(version)
    node = max(done, key=lambda name: done[name])
    os.kill(program.agent_pid(node), signal.SIGKILL)
    program.warm(version)
    moved = program.look(version)["entries"][node]["bytes_moved"]
    assert moved < SIZE * 1.6, f"{moved / SIZE:.0%} of the bytes were moved"


def test_a_killed_fleet_comes_back_without_a_lie(program: Program, tmp_path: Path) -> None:
    version = started(program, "fleet")
    program.servers.supervisor.kill("fleet")
    program.check_bytes(version)
    program.warm(version)
