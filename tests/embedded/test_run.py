"""What ``make run`` decides before and around its processes; the processes themselves: test_program.py."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.embedded import ports, program
from controlplane.embedded.problems import EmbeddedError, tail
from controlplane.embedded.processes import ROOT, AlreadyRunning, Child, Spec, Supervisor, holder
from controlplane.embedded.program import Options

CHOSEN = Options(
    state=Path("/nonexistent"),
    port=8123,
    nodes=3,
    demo=True,
    commands=frozenset({"fleet", "watch_cluster"}),
    metrics_port=8125,
    fds={8123: 7, 8124: 8, 8125: 9},
)


def _silent(_: str) -> None:
    return None


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    for name in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)
    (tmp_path / "logs").mkdir()
    return replace(CHOSEN, state=tmp_path)


class Servers:
    """Addresses only."""

    database_url = "postgres://embedded"
    redis_url = "redis://embedded"
    s3_connection = Path("/connection.json")


def test_it_runs_what_the_line_asked_for(chosen: Options) -> None:
    names = [spec.name for spec in program._processes(chosen, {})]
    assert names == ["web", "worker", "beat", "watcher", "fleet"], "web first: a sign-in needs nothing else"
    plain = replace(chosen, demo=False, commands=frozenset())
    assert [spec.name for spec in program._processes(plain, {})] == ["web", "worker", "beat"]
    fleet = list(program._processes(chosen, {}))[-1]
    assert list(fleet.argv)[-2:] == ["--nodes", "3"]


def test_it_runs_a_router_that_follows_what_is_published(chosen: Options) -> None:
    env = {"REDIS_URL": "redis://:secret@embedded"}
    router = next(spec for spec in program._processes(replace(chosen, router_port=8124), env) if spec.name == "router")
    assert list(router.argv)[-10:-4] == ["--host", ports.HOST, "--port", "8124", "--fd", "8"] and router.fds == [8, 9]
    assert list(router.argv)[-4:] == ["--metrics-port", "8125", "--metrics-fd", "9"]
    assert "--follow" in router.argv
    assert router.env["REDIS_URL"] == env["REDIS_URL"] and "secret" not in " ".join(router.argv)


@pytest.mark.parametrize("given", ["DATABASE_URL", "DATABASE_URL_FILE", "REDIS_URL", "SECRET_KEY_FILE"])
def test_it_overrides_nothing_that_is_given(chosen: Options, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(given, "given")
    env = program._environment(chosen, Servers())  # type: ignore[arg-type]
    assert given.removesuffix("_FILE") not in env and f"{given.removesuffix('_FILE')}_FILE" not in env
    others = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY_FILE"} - {given, f"{given}_FILE", given.removesuffix("_FILE")}
    assert others <= set(env)


def test_it_gives_secrets_to_no_process_line(chosen: Options) -> None:
    env = program._environment(chosen, Servers())  # type: ignore[arg-type]
    key = Path(env["SECRET_KEY_FILE"]).read_text()
    for spec in program._processes(chosen, env):
        line = " ".join(spec.argv)
        assert key not in line and "postgres://" not in line and "redis://" not in line


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"nodes": 0}, "--nodes 0 leaves nothing to keep warm"),
        ({"port": 0}, "0 is no port"),
        ({"port": 99999}, "99999 is no port"),
    ],
)
def test_it_refuses_what_cannot_be_before_it_starts_anything(
    chosen: Options, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(EmbeddedError, match=told):
        program.run(replace(chosen, **changes), say=_silent, terminal=False)
    assert not (chosen.state / "postgres").exists()
    assert not (chosen.state / "supervisor.lock").exists()


def test_it_refuses_the_second_of_two_on_one_port_at_once(chosen: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing serves there yet: a program of Kubernetes builds for minutes before its web server starts."""
    first, second = replace(chosen, port=ports.free_port()), chosen.state / "second"
    announced: list[int] = []

    def starts(options: Options, *_: object) -> None:
        announced.extend((options.port, options.router_port))
        for port in announced:
            with pytest.raises(EmbeddedError) as refused:
                program.run(replace(first, state=second, port=port), say=_silent, terminal=False)
            assert str(refused.value).startswith(f"Port {port} on 127.0.0.1 is taken by ")
            assert str(refused.value).endswith(f" Stop it, or choose another port: make run PORT={port + 10}")
        specs = {spec.name: spec for spec in program._processes(options, {})}
        for name, port in zip(("web", "router"), announced, strict=True):
            fd = next(iter(specs[name].fds))
            with socket.socket(fileno=os.dup(fd)) as inherited:
                assert inherited.getsockname() == (ports.HOST, port), name
        assert f"fd://{options.fds[options.port]}" in specs["web"].argv

    monkeypatch.setattr(program, "_run", starts)
    program.run(first, say=_silent, terminal=False)
    assert len(announced) == 2 and all(ports.is_free(port) for port in announced)
    assert not second.exists()


def test_it_has_its_router_elsewhere_where_the_port_beside_the_pages_is_taken(
    chosen: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Options] = []
    monkeypatch.setattr(program, "_run", lambda options, *_: asked.append(options))
    port = next(port for port in ports.free_ports(20) if ports.reserve([port + 1]))
    with ports.take_port(port + 1, ""):
        program.run(replace(chosen, port=port), say=_silent, terminal=False)
        monkeypatch.setattr(ports, "reserve", lambda _: True)  # somebody reserves nothing, and has it
        with program._beside(port) as other:
            assert other.getsockname()[1] != port + 1
    with program._beside(65_535) as last:
        assert last.getsockname()[1] < 65_535
    [options] = asked
    assert options.router_port not in (port, port + 1)
    assert set(options.fds) == {port, options.router_port, options.metrics_port}


def test_it_says_where_the_one_that_runs_is(chosen: Options) -> None:
    with Supervisor(chosen.state):
        (chosen.state / "address").write_text("http://127.0.0.1:8123/\n")
        with pytest.raises(AlreadyRunning, match=rf"\(process {os.getpid()}\) at http://127\.0\.0\.1:8123/\. Use that"):
            program.run(chosen, say=_silent, terminal=False)
        (chosen.state / "address").unlink()
        with pytest.raises(AlreadyRunning, match=rf"process {os.getpid()}\)\. Use that"):
            program.run(chosen, say=_silent, terminal=False)


def test_it_restores_who_hears_signals(chosen: Options) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), program._signals_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("terminal", "shown"), [(True, "hush-hush"), (False, "the password is in ")])
def test_it_shows_the_password_on_a_screen_only(chosen: Options, terminal: bool, shown: str) -> None:
    (chosen.state / "admin-password").write_text("hush-hush\n")
    said: list[str] = []
    program._greet(chosen, said.append, terminal)
    text = "\n".join(said)
    assert "http://127.0.0.1:8123/\n" in text and shown in text
    assert "ready" not in text, "that is for Readiness to say"
    assert terminal or "hush-hush" not in text
    assert (chosen.state / "address").read_text() == "http://127.0.0.1:8123/"


def test_it_greets_without_a_sign_in_where_it_made_none(chosen: Options) -> None:
    said: list[str] = []
    program._greet(chosen, said.append, True)
    assert "Sign in" not in "\n".join(said)


def _instead(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr("controlplane.embedded.spawn.command", lambda *_, **__: [sys.executable, "-c", script])


def test_it_shows_the_last_words_of_a_command_that_failed(chosen: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    _instead(monkeypatch, "import os, sys; print(os.environ['GIVEN']); sys.exit('no such column')")
    with (
        pytest.raises(EmbeddedError, match=r"'manage.py migrate' failed[\s\S]*no such column"),
        program._command(chosen, {"GIVEN": "given"}, "migrate"),
    ):
        pass
    assert "given" in tail(chosen.state / "logs" / "migrate.log")


def test_it_leaves_no_command_behind_when_it_is_interrupted(chosen: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    _instead(monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), program._command(chosen, {}, "migrate") as running:
        raise KeyboardInterrupt
    assert running.returncode == -signal.SIGKILL


def test_it_answers_for_an_address_where_nobody_is() -> None:
    assert program._answers("http://127.0.0.1:9/") is False


def test_its_first_word_comes_before_anything_is_stopped(chosen: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Slow(Servers):
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            told.append("the servers are stopped")

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "EmbeddedServers", Slow)
    monkeypatch.setattr(program, "_start", pressed)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        program._run(chosen, told.append, False, 0.0)
    assert told[1:] == ["Stopping …", "the servers are stopped"]


# -- stopping the one that runs


HOLD = (
    "import pathlib, signal, sys\n"
    "from controlplane.embedded.processes import Supervisor\n"
    "if sys.argv[2] == 'deaf': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "else: signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    "with Supervisor(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    while True: signal.pause()\n"
)


@pytest.fixture(params=["polite"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A state that another process holds."""
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "state"), request.param]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield tmp_path / "state", process
        process.kill()


def test_it_stops_the_one_that_runs_and_waits_for_it(held: tuple[Path, subprocess.Popen[str]]) -> None:
    state, process = held
    assert holder(state) == process.pid
    program.stop_running(state)
    assert holder(state) is None
    assert process.wait(60) == 0


@pytest.mark.parametrize("held", ["deaf"], indirect=True)
def test_it_says_so_when_the_one_that_runs_does_not_stop(held: tuple[Path, subprocess.Popen[str]]) -> None:
    state, process = held
    with pytest.raises(
        EmbeddedError, match=rf"Process {process.pid} does not stop. End it with 'kill -9 {process.pid}'"
    ):
        program.stop_running(state, within=0.3)


@pytest.mark.parametrize(("error", "told"), [(ProcessLookupError, ""), (PermissionError, "belongs to another user")])
def test_it_bears_that_the_one_that_runs_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], told: str
) -> None:
    def refused(pid: int, number: int) -> None:
        raise error

    with Supervisor(tmp_path), monkeypatch.context() as out_of_reach:
        out_of_reach.setattr("os.kill", refused)
        if told:
            with pytest.raises(EmbeddedError, match=told):
                program.stop_running(tmp_path)
        else:
            program.stop_running(tmp_path)


def test_it_waits_until_the_kubernetes_of_the_program_has_put_the_machine_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = {tmp_path: iter([77, 77, None, None, None]), tmp_path / "kube": iter([77, 77, 77, None])}
    asked: list[Path] = []

    def scripted(state: Path) -> int | None:
        asked.append(state)
        return next(holders[state])

    monkeypatch.setattr(program, "holder", scripted)
    monkeypatch.setattr("os.kill", lambda pid, number: None)
    program.stop_running(tmp_path)
    assert asked.count(tmp_path / "kube") == 4, "not gone before its second lock is"


def test_it_has_nothing_to_stop_where_nothing_runs(tmp_path: Path) -> None:
    program.stop_running(tmp_path / "none")
    out = io.StringIO()
    call_command("run", "--stop", stdout=out)
    assert out.getvalue() == ""


def test_it_tells_problems_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise EmbeddedError("The disk is full.")

    monkeypatch.setattr("controlplane.management.commands.run.run", refuse)
    with pytest.raises(CommandError, match=r"^The disk is full\.$"):
        call_command("run", "--no-demo")


# -- a process that dies again and again


class Dead:
    """A process that ended as soon as it was looked at."""

    returncode = 1
    pid = 2**22 + 1

    def poll(self) -> int:
        return 1


def test_it_starts_a_dying_process_later_each_time_and_never_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(tmp_path)
    child = Child(Spec("web", ["x"]), Dead(), 0.0)  # type: ignore[arg-type]
    supervisor._children["web"] = child
    monkeypatch.setattr(supervisor, "_spawn", lambda spec: Dead())
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    child.started = clock[0]
    pauses = []
    for _ in range(1200):  # ten hours of it
        (said,) = supervisor.check()
        assert said.startswith("web ended (exit code 1); starting it again. Log: ")
        assert child.next_start is not None
        assert supervisor.check() == [], "it says so once"
        pauses.append(child.next_start - clock[0])
        clock[0] = child.next_start
        supervisor.check()
    assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30] and pauses[-1] == 30
    assert child.restarts == 1200

    clock[0] += 31  # it lived that long: the next death counts as the first
    supervisor.check()
    assert child.next_start == clock[0] + 0.5


def test_it_waits_for_a_process_by_its_name(tmp_path: Path) -> None:
    asked: list[str] = []

    def ready(name: str) -> Callable[[], bool]:
        def ask() -> bool:
            asked.append(name)
            return True

        return ask

    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with Supervisor(tmp_path) as supervisor:
        supervisor.begin(Spec("slow", sleeper, ready=ready("slow")), Spec("quick", sleeper, ready=ready("quick")))
        assert asked == [], "nothing is waited for yet"
        supervisor.await_ready("quick")
        assert asked == ["quick"]


def test_it_moves_a_long_log_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.embedded.processes._MOST_LOG", 10)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").write_text("x" * 11)
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(Spec("job", [sys.executable, "-c", "import time; time.sleep(600)"]))
        assert supervisor.log("job.old").read_text() == "x" * 11
        assert supervisor.log("job").read_text() == ""


def test_it_says_so_when_its_folder_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for state in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedError, match=r"cannot be written .*HEARTH_STATE_DIR"), Supervisor(state):
            pass
