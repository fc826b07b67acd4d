"""The object store: a log of changes that tells everything once, and one writer at a time among many processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from controlplane.clusters.gateway import EventType, Gone, Throttled, Unreachable
from controlplane.clusters.local import database
from controlplane.clusters.local.store import Change, Store
from tests.waiting import until

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    database.database_create(tmp_path / "fleet")
    return Store(tmp_path / "fleet")


def _put(store: Store, name: str, spec: str, *, uid: str = "u", status: str | None = None) -> int:
    with store.write() as session:
        return session.put("Thing", name, uid, spec=spec, status=status)


def _token(store: Store) -> str:
    with store.read() as session:
        return session.token("Thing")


def _since(store: Store, token: str) -> list[tuple[EventType, str, str]]:
    with store.read() as session:
        changes: tuple[Change, ...] = session.changes("Thing", token)[0]
    return [(change.type, change.object.name, change.object.spec) for change in changes]


def test_it_tells_several_changes_of_one_object_as_the_last(store: Store) -> None:
    _put(store, "old", "0")
    token = _token(store)
    for spec in ("1", "2", "3"):
        _put(store, "old", spec)
        _put(store, "new", spec)
    assert _since(store, token) == [(EventType.MODIFIED, "old", "3"), (EventType.ADDED, "new", "3")]


def test_it_does_not_tell_of_what_came_and_went(store: Store) -> None:
    token = _token(store)
    _put(store, "brief", "1")
    with store.write() as session:
        assert session.delete("Thing", "brief") is True
        assert session.delete("Thing", "brief") is False
    assert _since(store, token) == []


def test_it_tells_the_last_state_of_what_was_deleted(store: Store) -> None:
    _put(store, "a", "1")
    token = _token(store)
    _put(store, "a", "2")
    with store.write() as session:
        session.delete("Thing", "a")
    _put(store, "a", "3", uid="other")
    assert _since(store, token) == [(EventType.DELETED, "a", "2"), (EventType.ADDED, "a", "3")]


def test_it_starts_another_object_under_the_same_name_afresh(store: Store) -> None:
    _put(store, "a", "1", status="s")
    assert _put(store, "a", "2") == 2
    assert _put(store, "a", "2", uid="other") == 1
    with store.read() as session:
        found = session.get("Thing", "a")
    assert found is not None and (found.uid, found.status) == ("other", None)


def test_it_changes_nothing_when_a_transaction_fails(store: Store) -> None:
    token = _token(store)
    with pytest.raises(RuntimeError), store.write() as session:
        session.put("Thing", "a", "u", spec="1", status=None)
        raise RuntimeError
    assert _since(store, token) == []
    assert _token(store) == token


def test_it_compacts_its_log_by_itself(tmp_path: Path) -> None:
    database.database_create(tmp_path)
    store = Store(tmp_path, keep_changes=10)
    first = _token(store)
    for number in range(25):
        _put(store, "a", str(number))
    with store.read() as session:
        assert session.connection.execute("SELECT count(*) FROM changes").fetchone()[0] <= 20
    with pytest.raises(Gone):
        _since(store, first)


def test_it_gives_no_answer_about_another_fleet(store: Store, tmp_path: Path) -> None:
    database.database_create(tmp_path / "other")
    with pytest.raises(Gone):
        _since(Store(tmp_path / "other"), _token(store))


def test_it_keeps_what_is_there_when_it_is_created_again(store: Store) -> None:
    _put(store, "a", "1")
    token = _token(store)
    database.database_create(store.folder)
    assert _token(store) == token
    assert (store.folder / database.FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_it_says_busy_when_another_writer_does_not_end(store: Store) -> None:
    with store.write(), pytest.raises(Throttled) as told:  # noqa: SIM117
        with database.database_open(store.folder, busy_seconds=0.05) as connection:
            connection.execute("BEGIN IMMEDIATE")
    assert told.value.retry_after_seconds > 0


def test_it_reads_while_another_one_writes(store: Store) -> None:
    _put(store, "a", "1")
    with store.write() as session:
        session.put("Thing", "a", "u", spec="2", status=None)
        with store.read() as reader:
            seen = reader.get("Thing", "a")
    assert seen is not None and seen.spec == "1"


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"\xff" * 4096])
def test_it_says_unreachable_when_its_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / database.FILE_NAME).write_bytes(content)
    with pytest.raises(Unreachable), Store(tmp_path).read() as session:
        session.version()


def test_it_refuses_a_file_of_another_version(store: Store) -> None:
    with sqlite3.connect(store.folder / database.FILE_NAME) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(Unreachable, match="format 99"), store.read():
        pass
    with pytest.raises(Unreachable, match="format 99"):
        database.database_create(store.folder)


def test_it_makes_no_fleet_by_looking_for_one(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="fleet run"), Store(tmp_path / "none").read():
        pass
    assert not (tmp_path / "none").exists()


def _create(folder: Path) -> None:
    database.database_create(folder)


def _increment(folder: Path, rounds: int) -> None:
    store = Store(folder)
    for _ in range(rounds):
        with store.write() as session:
            known = session.get("Thing", "counter")
            session.put("Thing", "counter", "u", spec=str(int(known.spec) + 1 if known else 1), status=None)


@pytest.mark.e2e
def test_it_loses_no_change_of_many_processes(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    creators = [spawn.Process(target=_create, args=(folder,)) for _ in range(4)]
    _finish(creators)
    store = Store(folder)
    with store.read() as session:
        token = session.token("Thing")

    writers = [spawn.Process(target=_increment, args=(folder, 50)) for _ in range(6)]
    for writer in writers:
        writer.start()
    seen = [0]
    while any(writer.is_alive() for writer in writers) or seen[-1] < 300:
        assert all(writer.exitcode in (None, 0) for writer in writers)
        with store.read() as session:
            changes, token = session.changes("Thing", token)
        seen += [int(change.object.spec) for change in changes]
        time.sleep(0.005)
    for writer in writers:
        writer.join(60)
    assert seen == sorted(set(seen)), "a watcher saw a change twice, or an older one after a newer"
    assert seen[-1] == 300


def _write_for_ever(folder: Path) -> None:
    store = Store(folder)
    for number in range(10**9):
        with store.write() as session:
            session.put("Thing", "left", "u", spec=str(number), status=None)
            session.put("Thing", "right", "u", spec=str(number), status=None)


@pytest.mark.faults
def test_it_is_whole_after_a_writer_was_killed(store: Store) -> None:
    for _ in range(3):
        writer = spawn.Process(target=_write_for_ever, args=(store.folder,))
        before = _token(store)
        writer.start()
        until(lambda before=before: _token(store) != before, "it writes", every=0.001)  # type: ignore[misc]
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        with store.read() as session:
            left, right = session.get("Thing", "left"), session.get("Thing", "right")
            check = session.connection.execute("PRAGMA integrity_check").fetchone()[0]
        assert left is not None and right is not None and left.spec == right.spec
        assert check == "ok"


def _finish(processes: list[multiprocessing.context.SpawnProcess]) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)
