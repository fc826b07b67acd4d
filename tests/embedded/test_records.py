"""Whose processes they are: records that prove it, marks that children inherit, and nothing ended by mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.embedded import records, spawn
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.records import MARK, Record

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process in a group of its own; whatever a test leaves is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(mark: str = "", argv: list[str] = SLEEPER) -> subprocess.Popen[bytes]:
        env = {**os.environ, **({MARK: mark} if mark else {})}
        running.append(subprocess.Popen(argv, env=env, start_new_session=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def _record(process: subprocess.Popen[bytes], **changes: object) -> Record:
    made = Record("one", process.pid, records.started_at(process.pid), "mark", signal.SIGTERM, 5.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_it_knows_a_process_by_more_than_its_number(start: Start) -> None:
    record = _record(start())
    assert records.is_alive(record)
    assert not records.is_alive(replace(record, started=record.started + "0"))
    assert not records.is_alive(replace(record, started="")), "no proof is no process of ours"
    assert not records.is_alive(replace(record, pid=2**22 + 1))


def test_it_takes_a_zombie_for_gone(start: Start) -> None:
    process = start(argv=[sys.executable, "-c", ""])
    assert records.wait_until(lambda: not records.started_at(process.pid), 60)
    assert Path(f"/proc/{process.pid}").exists(), "nobody has waited for it yet"


def test_it_reads_what_it_wrote_and_skips_what_is_damaged(tmp_path: Path) -> None:
    record = Record("web", 7, "boot:1", "mark", signal.SIGINT, 2.5)
    records.write(tmp_path / "pids", record)
    for name, text in (("half", '{"name": "x"'), ("list", "[1]"), ("more", '{"name": "x", "new": 1}'), ("empty", "")):
        (tmp_path / "pids" / f"{name}.json").write_text(text)
    assert records.read(tmp_path / "pids") == [record]
    records.remove(tmp_path / "pids", "web")
    records.remove(tmp_path / "pids", "web")
    assert records.read(tmp_path / "pids") == []
    assert records.read(tmp_path / "none") == []


def test_it_never_leaves_half_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Record("web", 7, "boot:1", "mark", signal.SIGINT, 2.5)
    records.write(tmp_path, first)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            records.write(tmp_path, replace(first, pid=8))
    assert records.read(tmp_path) == [first]


def test_it_ends_what_is_recorded_and_no_stranger(tmp_path: Path, start: Start) -> None:
    ours, stranger = start(), start()
    records.write(tmp_path, _record(ours))
    records.write(tmp_path, _record(stranger, name="two", started="another boot:1", mark="other"))
    assert records.end_all(tmp_path) == ["one"]
    assert ours.wait(60) == -signal.SIGTERM
    assert stranger.poll() is None
    assert records.read(tmp_path) == []


def test_it_kills_what_does_not_end_within_its_grace(tmp_path: Path, start: Start) -> None:
    told = tmp_path / "told"
    deaf = "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN)"
    process = start(argv=[sys.executable, "-c", f"{deaf}; pathlib.Path({str(told)!r}).touch(); time.sleep(600)"])
    assert records.wait_until(told.exists, 60)
    records.write(tmp_path / "pids", _record(process, grace=0.1))
    assert records.end_all(tmp_path / "pids") == ["one"]
    assert process.wait(60) == -signal.SIGKILL


def test_it_finds_by_its_mark_what_left_its_parents_group(tmp_path: Path, start: Start) -> None:
    dead = start("mark")
    record = _record(dead)
    dead.kill()
    dead.wait()
    hidden, nested, other = start("mark"), start("outer:mark"), start("markedly")
    records.write(tmp_path, record)
    assert records.end_all(tmp_path) == [], "the recorded one had ended by itself"
    assert {hidden.wait(60), nested.wait(60)} == {-signal.SIGKILL}
    assert other.poll() is None


def test_it_kills_nothing_for_an_empty_mark(tmp_path: Path, start: Start) -> None:
    bystander = start(":")
    records.end_all(tmp_path, marks={""})
    assert bystander.poll() is None


def test_it_waits_no_longer_than_it_should() -> None:
    began = time.monotonic()
    assert records.wait_until(lambda: False, 0.1) is False
    assert records.wait_until(lambda: True, -1) is True
    assert time.monotonic() - began < 60


def test_it_signals_a_group_that_is_gone_without_complaint() -> None:
    records.signal_group(2**22 + 1, signal.SIGTERM)


# -- starting


@pytest.mark.skipif(sys.platform != "linux", reason="needs setpriv")
def test_it_binds_a_process_to_its_parents_death() -> None:
    assert spawn.command(["x", "-y"], dies_by=signal.SIGINT)[1:] == ["--pdeathsig=INT", "--", "x", "-y"]
    assert spawn.command(["x"]) == ["x"]


@pytest.mark.parametrize("bypass", [True, False])
def test_it_becomes_somebody_else_with_no_more_than_it_needs(bypass: bool) -> None:
    who = spawn.Identity("nobody", 65534, 65533, bypass)
    argv = spawn.command(["x"], identity=who)
    assert {"--reuid=65534", "--regid=65533", "--clear-groups"} <= set(argv)
    assert any("dac_override" in part for part in argv) is bypass


def test_it_says_what_is_missing_where_there_is_no_setpriv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert spawn.command(["x"], dies_by=signal.SIGTERM) == ["x"], "the guardian ends it instead"
    with pytest.raises(EmbeddedError, match="Run make as another user"):
        spawn.command(["x"], identity=spawn.Identity("nobody", 1, 1, False))


def test_it_refuses_root_without_anybody_to_become(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", nobody)
    with pytest.raises(EmbeddedError, match="neither a user postgres nor nobody"):
        spawn.unprivileged(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert spawn.unprivileged(tmp_path) is None


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_it_bypasses_closed_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(spawn, "_open_to_everybody", lambda path: path.stat().st_mode & 0o001 != 0)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner").chmod(mode)
    who = spawn.unprivileged(tmp_path / "inner")
    assert who is not None and who.uid != 0
    assert who.bypass is (mode == 0o700)


def test_it_repeats_the_words_of_a_program_that_fails(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; print('x' * 9000); sys.exit('no locale ✓')"]
    with pytest.raises(EmbeddedError, match=r"^Creating failed: no locale ✓$"):
        spawn.run(argv, cwd=tmp_path, what="Creating")
    with pytest.raises(EmbeddedError, match="Creating took longer than 0 s"):
        spawn.run(SLEEPER, cwd=tmp_path, what="Creating", within=0.2)
