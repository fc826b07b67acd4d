"""The supervisor against real processes: restarts, order, and nothing left behind however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded import ports, records
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT, AlreadyRunning, Spec, Supervisor, holder

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# A leader with a child in a session of its own, which no signal to the leader's group reaches.
FAMILY = [
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\n"
    "time.sleep(600)",
]
SUPERVISE = (
    "import pathlib, sys, time\n"
    "from controlplane.embedded.processes import Spec, Supervisor\n"
    "from controlplane.embedded.problems import EmbeddedError\n"
    "state = pathlib.Path(sys.argv[1])\n"
    "note = state / 'child'\n"
    "with Supervisor(state) as supervisor:\n"
    "    ready = lambda: note.exists() and bool(note.read_text())\n"
    "    supervisor.start(Spec('family', [*sys.argv[2:], str(note)], ready=ready))\n"
    "    print(supervisor.pid('family'), note.read_text(), flush=True)\n"
    "    time.sleep(600)\n"
)


def gone(*pids: int, within: float = 60.0) -> bool:
    return records.wait_until(lambda: not any(records.started_at(pid) for pid in pids), within)


@pytest.fixture
def supervising(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A supervisor in a process of its own, with the pids of its child and of that child's hidden child."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(tmp_path / "state"), *FAMILY], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process, [int(pid) for pid in process.stdout.readline().split()]
        process.kill()


def test_it_ends_everything_when_the_supervisor_is_killed(
    supervising: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    process, pids = supervising
    assert len(pids) == 2 and all(records.started_at(pid) for pid in pids)
    process.kill()
    assert gone(*pids)
    with Supervisor(tmp_path / "state"):
        assert holder(tmp_path / "state") == os.getpid()


def test_it_refuses_a_second_supervisor_and_names_the_first(
    supervising: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    process, pids = supervising
    with pytest.raises(AlreadyRunning, match=rf"process {process.pid}\)"), Supervisor(tmp_path / "state"):
        pass
    assert all(records.started_at(pid) for pid in pids)


def test_it_starts_a_process_again_after_its_death(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(Spec("sleeper", SLEEPER))
        first = supervisor.pid("sleeper")
        supervisor.kill("sleeper")
        said: list[str] = []

        def replaced() -> bool:
            said.extend(supervisor.check())
            return supervisor.pid("sleeper") != first

        assert records.wait_until(replaced, 60)
        second = supervisor.pid("sleeper")
        assert records.started_at(second)
    assert len(said) == 1 and "sleeper ended (killed by SIGKILL)" in said[0]
    assert gone(second, within=0)


def test_it_lets_nobody_have_the_port_of_a_process_that_starts_again(tmp_path: Path) -> None:
    serve = "import os, socket, sys\nlistener = socket.socket(fileno=int(sys.argv[1]))\n"
    serve += "while True:\n one, _ = listener.accept(); one.sendall(b'%d' % os.getpid()); one.close()"

    def server(port: int) -> int:
        with socket.create_connection((ports.HOST, port), timeout=60) as asking:
            return int(asking.makefile().read())

    with ports.take_port(ports.free_port(), "") as taken, Supervisor(tmp_path) as supervisor:
        port, fd = taken.getsockname()[1], taken.fileno()
        supervisor.start(Spec("web", [sys.executable, "-c", serve, str(fd)], fds=[fd]))
        first = supervisor.pid("web")
        assert server(port) == first
        supervisor.kill("web")
        with pytest.raises(EmbeddedError, match=rf"Port {port} .* is taken by .*{os.getpid()}\)"):
            ports.take_port(port, "")
        with socket.create_connection((ports.HOST, port), timeout=60) as waiting:
            assert records.wait_until(lambda: supervisor.check() == [] and supervisor.pid("web") != first, 60)
            assert int(waiting.makefile().read()) == supervisor.pid("web"), "who came in between is served"
        assert server(port) == supervisor.pid("web")
    assert ports.is_free(port)


def test_it_stops_the_last_batch_first(tmp_path: Path) -> None:
    note = tmp_path / "order"
    script = (
        "import signal, sys, time\n"
        "def end(*_):\n open(sys.argv[1], 'a').write(sys.argv[2] + ' '); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(sys.argv[1] + sys.argv[2], 'w')\n"
        "time.sleep(600)"
    )
    with Supervisor(tmp_path / "state") as supervisor:
        for name in ("database", "web"):
            ready = (tmp_path / f"order{name}").exists
            supervisor.start(Spec(name, [sys.executable, "-c", script, str(note), name], ready=ready))
    assert note.read_text().split() == ["web", "database"]


def test_it_kills_what_does_not_listen(tmp_path: Path) -> None:
    deaf = "import signal, time, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    note = tmp_path / "deaf"
    with Supervisor(tmp_path / "state") as supervisor:
        supervisor.start(Spec("deaf", [sys.executable, "-c", deaf, str(note)], ready=note.exists, stop_within=0.2))
        pid = supervisor.pid("deaf")
    assert gone(pid, within=0)


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", "pass"])
def test_it_ends_also_where_an_interrupt_came_while_it_looked_at_a_process(tmp_path: Path, code: str) -> None:
    with Supervisor(tmp_path / "state") as supervisor:
        supervisor.start(Spec("one", [sys.executable, "-c", code], ready=lambda: True))
        pid, process = supervisor.pid("one"), supervisor._children["one"].process
        # An exception in the one moment between taking the lock and giving it back.
        process._waitpid_lock.acquire()  # type: ignore[attr-defined]
        if code == "pass":
            assert gone(pid) and process.poll() is None, "the program itself would never know"
    assert gone(pid, within=0) and process.returncode == (0 if code == "pass" else -signal.SIGTERM)


def test_it_gives_up_on_a_process_that_cannot_start_and_shows_its_last_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with Supervisor(tmp_path) as supervisor, pytest.raises(EmbeddedError, match=r"exit code 1[\s\S]*no such model"):
        supervisor.start(Spec("broken", argv, ready=lambda: False))


def test_it_never_ends_a_process_that_only_has_the_recorded_pid(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER, start_new_session=True) as stranger:
        pids = tmp_path / "pids"
        records.write(pids, records.Record("old", stranger.pid, "another boot:1", "mark", signal.SIGTERM, 1.0))
        with Supervisor(tmp_path):
            assert records.started_at(stranger.pid)
            assert not records.read(pids)
        stranger.kill()


def test_it_ignores_a_damaged_record(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "pids" / "half.json").write_text('{"name": "ha')
    with Supervisor(tmp_path):
        assert records.read(tmp_path / "pids") == []
