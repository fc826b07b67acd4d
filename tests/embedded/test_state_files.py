"""What the embedded servers keep in the state folder: private, whole after a kill, and explained when damaged."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded import files, ports, program, records
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.problems import EmbeddedError, tail
from controlplane.embedded.seaweed import Seaweed
from controlplane.embedded.servers import EmbeddedServers
from controlplane.embedded.valkey import Valkey


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder that another user can walk through, with a space and letters beyond ASCII in its name."""
    folder = Path(tempfile.mkdtemp(prefix="hearth größe ✓ "))
    folder.chmod(0o755)
    (folder / "state").mkdir()
    yield folder / "state"
    shutil.rmtree(folder)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_replaces_a_private_file_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            files.write_private(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["key"], "nothing half written stays behind"

    files.write_private(path, "new")
    assert (path.read_text(), _mode(path)) == ("new", 0o600)


@pytest.mark.parametrize("left", [None, "", "\n"])
def test_it_makes_a_signing_key_where_a_kill_left_none(tmp_path: Path, left: str | None) -> None:
    if left is not None:
        (tmp_path / "secret-key").write_text(left)
    path = program._secret_key(tmp_path)
    key = path.read_text()
    assert len(key) >= 50 and _mode(path) == 0o600
    assert program._secret_key(tmp_path).read_text() == key, "a new one would sign everybody out"


@pytest.mark.parametrize(
    "left",
    [
        "",
        "{",
        "[]",
        "null",
        '{"identities": []}',
        '{"identities": [{"credentials": [{"accessKey": "", "secretKey": ""}]}]}',
    ],
)
def test_it_makes_the_keys_of_s3_anew_where_a_kill_left_half_of_them(tmp_path: Path, left: str) -> None:
    (tmp_path / "s3").mkdir()
    (tmp_path / "s3" / "identities.json").write_text(left)
    first = Seaweed(tmp_path)
    first.prepare()
    assert first.s3.access_key and len(first.s3.secret_key) == 40
    assert _mode(tmp_path / "s3" / "identities.json") == 0o600
    again = Seaweed(tmp_path)
    again.prepare()
    assert again.s3.secret_key == first.s3.secret_key


@pytest.mark.parametrize(
    "left", ["", "[]", "7", '{"s3.port": "x"}', '{"s3.port": 70000}', '{"s3.port": 80, "more": 1}']
)
def test_it_chooses_ports_where_the_known_ones_make_no_sense(tmp_path: Path, left: str) -> None:
    (tmp_path / "s3").mkdir()
    (tmp_path / "s3" / "ports.json").write_text(left)
    server = Seaweed(tmp_path)
    server.prepare()
    chosen = json.loads((tmp_path / "s3" / "ports.json").read_text())
    assert len(set(chosen.values())) == len(chosen) == 10
    assert all(20_000 <= port < 32_000 for port in chosen.values())


def test_it_moves_s3_elsewhere_when_one_of_its_ports_was_taken_meanwhile(tmp_path: Path) -> None:
    first = Seaweed(tmp_path)
    first.prepare()
    known = json.loads((tmp_path / "s3" / "ports.json").read_text())
    with socket.socket() as thief:
        thief.bind((ports.HOST, known["filer.port"]))
        thief.listen()
        again = Seaweed(tmp_path)
        again.prepare()
        moved = json.loads((tmp_path / "s3" / "ports.json").read_text())
    assert known["filer.port"] not in moved.values()
    assert again.s3.secret_key == first.s3.secret_key, "another address, the same keys"


def test_it_hands_out_the_connection_of_s3_to_its_owner_alone(tmp_path: Path) -> None:
    server = Seaweed(tmp_path)
    server.prepare()
    path = server.write_connection()
    given = json.loads(path.read_text())
    assert (given["endpoint"], given["secret_key"]) == (server.s3.endpoint, server.s3.secret_key)
    assert _mode(path) == 0o600


def test_it_puts_sockets_elsewhere_when_the_state_lies_deep(tmp_path: Path) -> None:
    """A socket's path may hold 107 bytes, and letters beyond ASCII take more than one."""
    deep = tmp_path / ("ä" * (80 - len(str(tmp_path))))
    deep.mkdir()
    server = Seaweed(deep)
    server.prepare()
    sockets = [part.partition("=")[2] for part in server.spec().argv if "localSocket" in part]
    assert len(sockets) == 2 and len(str(deep / "s3" / "filer.sock")) < 100
    assert all(len(os.fsencode(path)) <= 107 for path in sockets)


def test_it_renews_the_password_of_valkey_with_its_configuration(tmp_path: Path) -> None:
    Valkey(tmp_path, port=1).prepare()
    path = tmp_path / "valkey" / "valkey.conf"
    first = path.read_text()
    path.chmod(0o644)
    Valkey(tmp_path, port=2).prepare()
    assert "port 2" in path.read_text() and first != path.read_text()
    assert _mode(path) == 0o600
    assert not any("requirepass" in part for part in Valkey(tmp_path).spec().argv)


# -- PostgreSQL


@pytest.mark.parametrize("missing", ["data/PG_VERSION", "password"])
def test_it_says_what_is_missing_of_a_damaged_database(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "postgres"
    (folder / "data").mkdir(parents=True)
    for name in {"data/PG_VERSION", "password"} - {missing}:
        (folder / name).write_text("18")
    with pytest.raises(EmbeddedError) as told:
        Postgres(tmp_path).prepare()
    assert str(folder / missing) in str(told.value) and f"remove {folder} to start" in str(told.value)


@pytest.mark.parametrize("note", ["", "x\n", "0\n", "-1\n", "999999999\n", "self\n/elsewhere\n"])
def test_it_forgets_a_server_that_is_no_more(tmp_path: Path, note: str) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "postmaster.pid").write_text(note.replace("self", str(os.getpid())))
    Postgres(tmp_path)._forget_dead_server()
    assert not (data / "postmaster.pid").exists()


def test_it_leaves_a_server_alone_that_runs_on_the_same_data(tmp_path: Path) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    argv = [sys.executable, "-c", "import time; time.sleep(600)", str(data)]
    with subprocess.Popen(argv) as other:
        (data / "postmaster.pid").write_text(f"{other.pid}\n")
        line = Path(f"/proc/{other.pid}/cmdline")
        assert records.wait_until(lambda: bool(line.read_bytes()), 60)
        try:
            with pytest.raises(EmbeddedError, match=rf"process {other.pid}\) uses .*kill -INT {other.pid}"):
                Postgres(tmp_path)._forget_dead_server()
        finally:
            other.kill()
    assert (data / "postmaster.pid").exists()


ALONE: dict[str, Any] = {"valkey": False, "durable": False}


def test_it_starts_in_a_folder_of_any_name_and_again_over_a_half_made_database(state: Path) -> None:
    """The name has spaces and umlauts; what a kill in the middle of creation leaves is thrown away."""
    unfinished = state / "postgres" / "data.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18")
    (state / "postgres" / "password").write_text("from before the kill")
    with EmbeddedServers(state, **ALONE) as servers:
        assert "from before the kill" not in servers.database_url
        assert _mode(state / "postgres" / "password") == 0o600
        assert not unfinished.exists()
    if os.geteuid() != 0:
        return
    # Somebody else's folder, as after a copy by another user: PostgreSQL's own words reach the person.
    os.chown(state / "postgres" / "data", 12345, 12345)
    with pytest.raises(EmbeddedError, match="postgres did not start"), EmbeddedServers(state, **ALONE):
        pass
    assert list((state / "pids").iterdir()) == []


def test_it_starts_nothing_where_there_is_no_room(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 0))
    with (
        pytest.raises(EmbeddedError, match=r"0\.0 GB free and Hearth needs 0\.5 GB.*HEARTH_STATE_DIR"),
        EmbeddedServers(state),
    ):
        pass
    assert not (state / "postgres").exists()
    with EmbeddedServers(state, postgres=False, valkey=False, s3=False).supervisor:
        pass  # the folder is free again


def test_it_needs_a_database_that_was_asked_for(tmp_path: Path) -> None:
    servers = EmbeddedServers(tmp_path, postgres=False, valkey=False)
    for name in ("database_url", "redis_url", "s3", "s3_connection"):
        with pytest.raises(AssertionError, match="were started without"):
            getattr(servers, name)
    servers.await_s3()


def test_it_reads_the_last_lines_of_any_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert tail(log) == ""
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(40)))
    assert tail(log, 2) == "line 38\nline 39"
    assert tail(log, 99).startswith("\N{REPLACEMENT CHARACTER}")
