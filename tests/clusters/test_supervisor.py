"""A real ``fleet run`` with real processes: it follows the store, and nothing it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.clusters.local import leases, processes
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.processes import Agent, agent_environment
from controlplane.clusters.local.supervisor import Supervisor
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MANAGE = (sys.executable, "manage.py", "fleet")
AGENT = f"{sys.executable} -m tests.clusters.stub_agent"


class Run:
    """One ``manage.py fleet run`` of two nodes, one in each pool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = LocalFleet(folder)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        argv = [
            sys.executable,
            "manage.py",
            "fleet",
            "--dir",
            str(self.folder),
            "run",
            "--nodes",
            "2",
            "--agent",
            AGENT,
        ]
        self.process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
        )

    def end(self, number: int) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output

    def agent(self, name: str) -> tuple[int, str]:
        """Process id and node uid of the last agent that started there; (0, "") for none."""
        try:
            pid, uid = (self.folder / "nodes" / name / "pid").read_text().split()
        except FileNotFoundError:
            return 0, ""
        return int(pid), uid

    def ready(self, name: str) -> bool | None:
        return next(row.ready for row in self.fleet.nodes() if row.node.name == name)

    def serving(self, name: str) -> bool:
        uid = next((row.node.uid for row in self.fleet.nodes() if row.node.name == name), "gone")
        return self.agent(name)[1] == uid and alive(self.agent(name)[0]) and self.ready(name) is True


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return pid > 0 and state != "Z"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "fleet")
    made.start()
    try:
        until(lambda: (made.folder / "nodes").exists() and made.serving("a-1") and made.serving("b-1"))
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.communicate(timeout=120)


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_follows_what_people_do_to_the_fleet(run: Run) -> None:
    first, _ = run.agent("a-1")
    assert (run.folder / "nodes" / "a-1" / "secrets-seen").read_text() == ""

    run.fleet.stop("a-1")
    until(lambda: run.ready("a-1") is False and not alive(first))
    assert run.serving("b-1")
    run.fleet.start("a-1")
    until(lambda: run.serving("a-1"))

    disk = run.folder / "nodes" / "a-1"
    (disk / "cached").write_text("x")
    run.fleet.replace("a-1")
    until(lambda: run.serving("a-1"))
    assert not (disk / "cached").exists()

    run.fleet.add("c-1", pool="pool-a", capacity_bytes=2**20)
    until(lambda: run.serving("c-1"))
    pid, _ = run.agent("c-1")
    run.fleet.remove("c-1")
    until(lambda: not alive(pid) and not (run.folder / "nodes" / "c-1").exists())

    code, output = run.end(signal.SIGTERM)
    assert code == 0
    assert output.endswith("fleet: stopped\n")
    assert not alive(run.agent("a-1")[0])
    assert (run.ready("a-1"), run.ready("b-1")) == (None, None)


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_it_leaves_no_agent_behind_when_it_is_killed(run: Run) -> None:
    agents = [run.agent(name)[0] for name in ("a-1", "b-1")]
    (run.folder / "nodes" / "a-1" / "cached").write_text("x")
    run.end(signal.SIGKILL)

    until(lambda: not any(alive(pid) for pid in agents))
    run.start()
    until(lambda: run.serving("a-1") and run.serving("b-1"))
    assert run.agent("a-1")[0] not in agents
    assert (run.folder / "nodes" / "a-1" / "cached").exists(), "the same machine keeps its disk"
    assert run.end(signal.SIGINT)[0] == 0


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_starts_a_dying_agent_again_and_later_each_time(run: Run) -> None:
    pid, _ = run.agent("a-1")
    disk = run.folder / "nodes" / "a-1"
    (disk / "crash").touch()
    os.kill(pid, signal.SIGKILL)
    until(lambda: run.agent("a-1")[0] not in (0, pid))
    until(lambda: run.ready("a-1") is False)
    assert run.serving("b-1")

    (disk / "crash").unlink()
    until(lambda: run.serving("a-1"))
    code, output = run.end(signal.SIGTERM)
    assert "agent of a-1 was killed by SIGKILL; starting it again in 0.5 s" in output
    assert "agent of a-1 ended with code 3; starting it again in 1 s" in output
    assert code == 0


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # fleet run has one thread only
def test_it_kills_an_agent_that_will_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 0.1)
    told = tmp_path / "told"
    deaf = "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN)"
    deaf += "; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    agent = Agent(name="a-1", uid="x")
    agent.start([sys.executable, "-c", deaf, str(told)], env=dict(os.environ), cwd=tmp_path)
    assert agent.process is not None
    pid = agent.process.pid
    until(told.exists)
    until(agent.end)
    assert not alive(pid)


def test_it_keeps_the_others_going_when_one_agent_cannot_start(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(nodes=2)
    said: list[str] = []
    supervisor = Supervisor(fleet, agent=["/nonexistent/agent"], say=said.append)
    supervisor.tick()
    supervisor.tick()
    assert [line.partition(" (")[0] for line in said] == [f"agent of {name} cannot start" for name in ("a-1", "b-1")]
    assert [row.ready for row in fleet.nodes()] == [False, False]


@pytest.mark.e2e
def test_it_refuses_to_run_twice_and_lists_what_runs(run: Run) -> None:
    manage = [*MANAGE, "--dir", str(run.folder)]
    second = subprocess.run([*manage, "run"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert "is running already" in second.stderr
    listed = subprocess.run([*manage, "list", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert [(row["name"], row["ready"], row["state"]) for row in json.loads(listed.stdout)] == [
        ("a-1", True, "ready"),
        ("b-1", True, "ready"),
    ]
    assert run.serving("a-1")


def test_it_tells_agents_nothing_of_the_control_planes_own_credentials() -> None:
    ours = {"DATABASE_URL": "x", "SECRET_KEY_FILE": "x", "REDIS_URL": "x", "PATH": "/bin", "HEARTH_SOURCE_ROOTS": "/s"}
    assert agent_environment(ours) == {"PATH": "/bin", "HEARTH_SOURCE_ROOTS": "/s"}


def test_it_renews_leases_well_before_they_run_out() -> None:
    assert leases.RENEW_SECONDS * 3 <= leases.LEASE_SECONDS
