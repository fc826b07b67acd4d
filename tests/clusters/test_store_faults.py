"""The object store when things go wrong: no room, damage, a kill in the middle, tokens from elsewhere."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from controlplane.clusters.gateway import EventType, GatewayError, Gone, Throttled, Unreachable
from controlplane.clusters.local import database
from controlplane.clusters.local.store import Store

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    database.database_create(tmp_path / "fleet")
    return Store(tmp_path / "fleet")


def _put(store: Store, name: str, spec: str, *, kind: str = "Thing", uid: str = "u") -> int:
    with store.write() as session:
        return session.put(kind, name, uid, spec=spec, status=None)


def _token(store: Store, kind: str = "Thing") -> str:
    with store.read() as session:
        return session.token(kind)


def _since(store: Store, token: str) -> list[tuple[EventType, str, str]]:
    with store.read() as session:
        return [(c.type, c.object.name, c.object.spec) for c in session.changes("Thing", token)[0]]


def _spec(store: Store, name: str) -> str | None:
    with store.read() as session:
        found = session.get("Thing", name)
    return None if found is None else found.spec


# -- tokens


@pytest.mark.parametrize(
    "number",
    ["", "-1", "+1", " 1", "1 ", "1.0", "²", "٣", "0x1", "9" * 5000, "1e3", "None", "1.2"],
)
def test_it_says_gone_to_a_number_that_is_none(store: Store, number: str) -> None:
    kind, of_store, _ = _token(store).split(".")
    with pytest.raises(Gone):
        _since(store, f"{kind}.{of_store}.{number}")


def test_it_says_gone_to_a_token_from_its_own_future(store: Store) -> None:
    """As after the file was put back from an older copy."""
    _put(store, "a", "1")
    kind, of_store, number = _token(store).split(".")
    assert _since(store, f"{kind}.{of_store}.{number}") == []
    with pytest.raises(Gone):
        _since(store, f"{kind}.{of_store}.{int(number) + 1}")


def test_it_keeps_the_last_token_that_compaction_leaves(store: Store) -> None:
    tokens = [_token(store)]
    for spec in "123":
        _put(store, "a", spec)
        tokens.append(_token(store))
    with store.write() as session:
        session.compact(session.version() - 1)
        session.compact(1)  # an earlier version brings nothing back
    for old in tokens[:2]:
        with pytest.raises(Gone):
            _since(store, old)
    assert _since(store, tokens[2]) == [(EventType.MODIFIED, "a", "3")]
    assert _since(store, tokens[3]) == []


def test_it_never_gives_a_version_twice_even_when_its_log_is_empty(store: Store) -> None:
    _put(store, "a", "1")
    with store.write() as session:
        session.compact(session.version())
        before = session.version()
    _put(store, "a", "2")
    with store.read() as session:
        assert session.version() == before + 1


def test_it_tells_kinds_apart_that_share_names_and_beginnings(store: Store) -> None:
    thing, longer = _token(store), _token(store, "ThingLike")
    _put(store, "a", "1", kind="ThingLike")
    assert _since(store, thing) == []
    with pytest.raises(Gone):
        _since(store, longer)
    with store.write() as session:
        assert session.delete("Thing", "a") is False
        assert [stored.kind for stored in session.all("ThingLike")] == ["ThingLike"]


def test_it_tells_two_fleets_apart_though_they_did_the_same(store: Store, tmp_path: Path) -> None:
    database.database_create(tmp_path / "twin")
    twin = Store(tmp_path / "twin")
    for at in (store, twin):
        _put(at, "a", "1")
    assert _token(store) != _token(twin)
    with pytest.raises(Gone):
        _since(twin, _token(store))
    _put(twin, "a", "2")
    assert _spec(store, "a") == "1"


@pytest.mark.parametrize("text", ["", "'; DROP TABLE objects; --", "☃ größe", "a\0b", "%_", "x" * 200_000])
def test_it_keeps_any_text_as_it_is(store: Store, text: str) -> None:
    token = _token(store)
    _put(store, text, text, uid=text or "u")
    assert _spec(store, text) == text
    assert _since(store, token) == [(EventType.ADDED, text, text)]


# -- transactions


def test_it_shows_one_moment_however_long_the_look_takes(store: Store) -> None:
    _put(store, "a", "1")
    with store.read() as session:
        before = session.version()
        _put(store, "a", "2")
        _put(store, "b", "2")
        found = session.get("Thing", "a")
        assert found is not None and found.spec == "1"
        assert [stored.name for stored in session.all("Thing")] == ["a"]
        assert session.version() == before
    assert _spec(store, "b") == "2"


def test_it_lets_go_of_its_lock_when_a_writer_fails(store: Store) -> None:
    for error in (RuntimeError, KeyboardInterrupt, sqlite3.IntegrityError):
        with contextlib.suppress(RuntimeError, KeyboardInterrupt, Unreachable), store.write() as session:
            session.put("Thing", "a", "u", spec="1", status=None)
            raise error
    assert _spec(store, "a") is None
    _put(store, "a", "2")


def test_it_leaves_a_gateways_own_errors_as_they_are(store: Store) -> None:
    with pytest.raises(Throttled) as told, store.write():
        raise Throttled("slowly", retry_after_seconds=7)
    assert told.value.retry_after_seconds == 7


def test_it_says_unreachable_to_what_the_file_system_refuses(store: Store) -> None:
    """A full disk, a read-only one, a folder where a file should be: gateways raise GatewayErrors only."""
    for error in (
        OSError(28, "No space left on device"),
        OSError(30, "Read-only file system"),
        IsADirectoryError(21, "x"),
    ):
        with pytest.raises(Unreachable, match="cannot be read") as told, store.read():
            raise error
        assert told.value.__cause__ is error


def test_it_serves_threads_side_by_side(store: Store) -> None:
    def work(number: int) -> None:
        for _ in range(10):
            with store.write() as session:
                known = session.get("Thing", "counter")
                session.put("Thing", "counter", "u", spec=str(int(known.spec) + 1 if known else 1), status=None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert _spec(store, "counter") == "40"


# -- the file


@pytest.mark.parametrize("where", [100, 4096, 8192])
def test_it_never_invents_an_answer_from_a_damaged_file(store: Store, where: int) -> None:
    for number in range(50):
        _put(store, f"n{number}", "x" * 500)
    with contextlib.closing(sqlite3.connect(store.folder / database.FILE_NAME)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (store.folder / database.FILE_NAME).open("r+b") as file:
        file.seek(where)
        file.write(b"\xff" * 4096)
    try:
        with store.read() as session:
            found = session.all("Thing")
            session.changes("Thing", session.token("Thing"))
    except GatewayError:
        return
    assert {stored.spec for stored in found} <= {"x" * 500}


def test_it_says_what_to_do_about_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / database.FILE_NAME).touch()
    with pytest.raises(Unreachable, match="format 0"), Store(tmp_path).read():
        pass
    database.database_create(tmp_path)  # a creation that was killed at once is finished
    _put(Store(tmp_path), "a", "1")


def test_it_finishes_a_creation_that_was_killed_half_way(store: Store) -> None:
    with contextlib.closing(sqlite3.connect(store.folder / database.FILE_NAME)) as connection:
        connection.execute("DROP TABLE manifests")
        connection.execute("DELETE FROM meta")
        connection.execute("PRAGMA user_version=0")
        connection.commit()
    with pytest.raises(Unreachable), store.read():
        pass
    database.database_create(store.folder)
    with store.read() as session:
        assert session.meta("store") and session.meta("compacted") == "0"
        assert session.connection.execute("SELECT count(*) FROM manifests").fetchone() == (0,)


def _fill_up(folder: Path) -> None:
    """Exits 0 when the store said Unreachable at the limit of a file's size, as on a full disk."""
    size = sum(path.stat().st_size for path in folder.glob("*sqlite3*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, resource.RLIM_INFINITY))
    store = Store(folder)
    for number in range(200):
        try:
            with store.write() as session:
                session.put("Thing", "left", "u", spec=f"{number}", status=None)
                session.put("Thing", f"ballast-{number}", "u", spec="x" * 50_000, status=None)
                session.put("Thing", "right", "u", spec=f"{number}", status=None)
        except Unreachable:
            os._exit(0)
    os._exit(1)


@pytest.mark.faults
def test_it_says_so_when_the_disk_is_full_and_goes_on_when_there_is_room(store: Store) -> None:
    _put(store, "left", "0")
    _put(store, "right", "0")
    full = spawn.Process(target=_fill_up, args=(store.folder,))
    full.start()
    full.join(60)
    assert full.exitcode == 0
    assert _spec(store, "left") == _spec(store, "right"), "all of a transaction or nothing"
    _put(store, "left", "after")
    assert _spec(store, "left") == "after"


def _die_inside(folder: Path) -> None:
    with Store(folder).write() as session:
        session.put("Thing", "a", "u", spec="never", status=None)
        session.compact(session.version())
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.faults
def test_it_forgets_the_transaction_of_a_killed_writer_at_once(store: Store) -> None:
    _put(store, "a", "1")
    token = _token(store)
    writer = spawn.Process(target=_die_inside, args=(store.folder,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    assert _spec(store, "a") == "1"
    _put(store, "a", "2")
    assert _since(store, token) == [(EventType.MODIFIED, "a", "2")], "not even the log was cut"
