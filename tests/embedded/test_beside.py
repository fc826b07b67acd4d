"""Commands beside the program: the servers that run are found by their own notes, and their absence is said at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded import beside
from controlplane.embedded.beside import environment_beside
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT

_NAMES = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEARTH_STATE_DIR", str(tmp_path))
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)
    return tmp_path


@pytest.fixture
def running(state: Path) -> Iterator[Path]:
    """The notes that a running program leaves; the lock says that it runs."""
    data = state / "postgres" / "data"
    data.mkdir(parents=True)
    (state / "postgres" / "password").write_text("pg-pass\n")
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n1700000000\n21001\n\n127.0.0.1\n  1 2\nready   \n")
    (state / "valkey").mkdir()
    (state / "valkey" / "valkey.conf").write_text("bind 127.0.0.1\nport 21002\nrequirepass vk-pass\n")
    (state / "secret-key").write_text("key")
    with (state / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        yield state


def test_it_finds_the_servers_of_the_program_that_runs(running: Path) -> None:
    assert environment_beside(["user", "list"]) == {
        "DATABASE_URL": "postgres://hearth:pg-pass@127.0.0.1:21001/hearth",
        "REDIS_URL": "redis://:vk-pass@127.0.0.1:21002/0",
        "SECRET_KEY_FILE": str(running / "secret-key"),
    }


def test_it_leaves_alone_what_was_named(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "mine")
    monkeypatch.setenv("REDIS_URL_FILE", "/somewhere")
    assert sorted(environment_beside(["shell"])) == ["DATABASE_URL"]
    monkeypatch.setenv("DATABASE_URL_FILE", "/elsewhere")
    assert environment_beside(["shell"]) == {}


@pytest.mark.parametrize("command", ["user", "token"])
def test_it_finds_the_program_whose_nodes_are_of_kubernetes(
    running: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    """``make run-kube`` keeps its state in a folder of its own, which nobody has to name."""
    checkout = tmp_path_factory.mktemp("checkout")
    (checkout / ".run-kube").symlink_to(running)
    monkeypatch.setattr(beside, "ROOT", checkout)
    monkeypatch.delenv("HEARTH_STATE_DIR")
    assert environment_beside([command, "list"])["DATABASE_URL"].startswith("postgres://hearth:pg-pass@")


def test_a_server_that_is_gone_is_not_waited_for(running: Path) -> None:
    note = running / "postgres" / "data" / "postmaster.pid"
    for text in ("", "x\n" * 8, note.read_text().replace(str(os.getpid()), "999999999", 1)):
        note.write_text(text)
        with pytest.raises(EmbeddedError, match="make run"):
            environment_beside(["user", "list"])


@pytest.mark.parametrize("arguments", [["help"], [], ["user", "--help"], ["token", "-h"], ["run"], ["fleet", "list"]])
def test_what_needs_no_database_runs_without_the_program(arguments: list[str]) -> None:
    assert environment_beside(arguments) == {}


def test_without_the_program_the_command_ends_at_once_with_a_sentence() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "user", "list"],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ},
    )  # fmt: skip
    assert ended.returncode == 1 and "Start it first with 'make run'" in ended.stderr
    assert "Traceback" not in ended.stderr and ended.stderr.count("\n") == 1
