"""The local fleet's supervisor, tick by tick on a clock of its own: starts, crashes, replacements, leases."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from controlplane.clusters.gateway import Kind, ObservedNode, Throttled
from controlplane.clusters.local import disks, leases, processes
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.nodes import node_folder, node_set_ready
from controlplane.clusters.local.processes import Agent, agent_environment
from controlplane.clusters.local.supervisor import Supervisor
from controlplane.errors import Clash


class Process:
    """A process that lives until a test ends it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.returncode: int | None = None
        self.signals: list[str] = []
        self.deaf = False

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.signals.append("TERM")
        if not self.deaf:
            self.returncode = -signal.SIGTERM

    def kill(self) -> None:
        self.signals.append("KILL")
        self.returncode = -signal.SIGKILL


class World:
    """A fleet of two nodes, its supervisor, and what it started."""

    def __init__(self, folder: Path) -> None:
        self.fleet = LocalFleet(folder)
        self.fleet.create(nodes=2)
        self.said: list[str] = []
        self.started: list[Process] = []
        self.now = 1000.0
        self.supervisor = Supervisor(self.fleet, agent=["agent"], say=self.said.append)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: int | None = None) -> Process:
        self.started.append(Process(argv))
        return self.started[-1]

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.supervisor.tick()

    def running(self, name: str) -> Process:
        return next(p for p in reversed(self.started) if p.argv[p.argv.index("--node") + 1] == name)

    def count(self, name: str) -> int:
        return sum(p.argv[p.argv.index("--node") + 1] == name for p in self.started)

    def ready(self) -> dict[str, bool | None]:
        return {row.node.name: row.ready for row in self.fleet.nodes()}

    def uid(self, name: str) -> str:
        return next(row.node.uid for row in self.fleet.nodes() if row.node.name == name)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "fleet")
    monkeypatch.setattr(processes, "start_bound", made.start)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def test_it_starts_an_agent_for_each_node_once(world: World) -> None:
    for _ in range(3):
        world.tick(1)
    assert [world.count(name) for name in ("a-1", "b-1")] == [1, 1]
    assert list(world.running("a-1").argv)[-2:] == ["--uid", world.uid("a-1")]
    assert world.ready() == {"a-1": True, "b-1": True}


def test_it_waits_longer_before_each_start_of_an_agent_that_dies(world: World) -> None:
    world.tick()
    pauses = []
    for _ in range(9):
        world.running("a-1").returncode = 3
        died = world.now
        world.tick()
        assert world.ready()["a-1"] is False
        before = world.count("a-1")
        while world.count("a-1") == before:
            world.tick(0.25)
        pauses.append(world.now - died)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert world.count("b-1") == 1, "the neighbour does not suffer"
    assert "agent of a-1 ended with code 3; starting it again in 30 s" in world.said

    world.tick(processes.CALM_SECONDS + 1)
    world.running("a-1").returncode = -signal.SIGSEGV
    world.tick()
    assert world.said[-1] == "agent of a-1 was killed by SIGSEGV; starting it again in 0.5 s"


def test_it_never_overflows_however_long_an_agent_dies() -> None:
    agent = Agent("a-1", "x", failures=5000)
    assert agent.back_off() == processes.LONGEST_BACKOFF_SECONDS


def test_it_takes_no_planned_end_for_a_crash(world: World) -> None:
    world.tick()
    world.fleet.stop("a-1")
    world.tick()
    world.tick()
    assert world.running("a-1").signals == ["TERM"] and world.said == []
    assert world.ready() == {"a-1": False, "b-1": True}
    world.tick(60)
    assert world.count("a-1") == 1, "it stays down"
    world.fleet.start("a-1")
    world.tick()
    assert world.count("a-1") == 2 and world.ready()["a-1"] is True


def test_it_starts_a_replaced_node_on_an_empty_disk_and_not_before_the_old_agent_ended(world: World) -> None:
    world.tick()
    (node_folder(world.fleet.folder, "a-1") / "cached").write_text("x")
    old = world.running("a-1")
    old.deaf = True
    world.fleet.replace("a-1")
    world.tick()
    assert world.count("a-1") == 1 and world.ready()["a-1"] is False
    assert (node_folder(world.fleet.folder, "a-1") / "cached").exists(), "its agent may still write"

    world.tick(processes.PATIENCE_SECONDS + 0.1)
    assert old.signals == ["TERM", "KILL"]
    world.tick()
    assert world.count("a-1") == 2 and world.running("a-1").argv[-1] == world.uid("a-1")
    assert list(node_folder(world.fleet.folder, "a-1").iterdir()) == []


def test_it_wipes_the_disk_of_a_removed_node_once_its_agent_ended(world: World) -> None:
    world.tick()
    world.running("a-1").deaf = True
    world.fleet.remove("a-1")
    world.tick()
    assert node_folder(world.fleet.folder, "a-1").exists()
    world.running("a-1").returncode = 0
    world.tick()
    assert not node_folder(world.fleet.folder, "a-1").exists()
    assert node_folder(world.fleet.folder, "b-1").exists()


def test_it_forgets_the_crashes_of_a_machine_with_it(world: World) -> None:
    world.tick()
    for _ in range(4):
        world.running("a-1").returncode = 1
        world.tick(31)
        world.tick(31)
    world.fleet.replace("a-1")
    before = world.count("a-1")
    world.tick()
    world.tick()
    assert world.count("a-1") == before + 1, "the new machine starts at once"


def test_it_starts_nothing_for_a_node_that_was_stopped_before_it_came(world: World) -> None:
    world.fleet.stop("a-1")
    world.tick()
    assert world.count("a-1") == 0 and world.ready() == {"a-1": False, "b-1": True}


def test_it_says_a_silent_store_once_and_keeps_its_agents(world: World, tmp_path: Path) -> None:
    world.tick()
    world.fleet.folder.rename(tmp_path / "away")
    for _ in range(3):
        world.tick(1)
    assert len(world.said) == 1 and "There is no fleet in" in world.said[0]
    assert world.running("a-1").signals == []
    (tmp_path / "away").rename(world.fleet.folder)
    world.tick(10)
    assert world.ready()["a-1"] is True and len(world.said) == 1


def test_it_bears_a_disk_that_cannot_be_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = disks.disk_prepare

    def full(fleet: Path, name: str, uid: str) -> Path:
        if name == "a-1":
            raise OSError(28, "No space left on device")
        return real(fleet, name, uid)

    with monkeypatch.context() as broken:
        broken.setattr("controlplane.clusters.local.disks.disk_prepare", full)
        world.tick()
    assert world.ready() == {"a-1": False, "b-1": True}
    assert "agent of a-1 cannot start" in world.said[0] and "No space left" in world.said[0]
    world.tick(1)
    assert world.ready()["a-1"] is True


def test_it_gives_agents_no_credentials_of_the_control_plane() -> None:
    names = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "HEARTH_METRICS_TOKEN", "DJANGO_SETTINGS_MODULE")
    given = {name: "x" for base in names for name in (base, f"{base}_FILE")}
    kept = {"HOME": "/h", "HEARTH_STATE_DIR": "/s"}
    assert agent_environment(given | kept) == kept


# -- leases


def _clock(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(time, "time", lambda: now)


def _observed(world: World) -> dict[str, bool | None]:
    items = LocalGateway(world.fleet.folder).list(Kind.NODE).items
    return {item.name: item.ready for item in items if isinstance(item, ObservedNode)}


@pytest.mark.parametrize(
    ("later", "ready"),
    [(0, True), (leases.LEASE_SECONDS - 0.1, True), (leases.LEASE_SECONDS + 0.1, None), (-3, True), (-86400, None)],
)
def test_it_believes_a_node_as_long_as_somebody_vouches_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, later: float, ready: bool | None
) -> None:
    """A clock that was set back by much is no reason to believe for ever."""
    _clock(monkeypatch, 10_000_000)
    world.tick()
    _clock(monkeypatch, 10_000_000 + later)
    assert _observed(world) == {"a-1": ready, "b-1": ready}


def test_it_renews_leases_in_time_without_waking_anybody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = LocalGateway(world.fleet.folder)
    _clock(monkeypatch, 5000)
    world.tick()
    token = gateway.list(Kind.NODE).token
    for number in range(1, 30):
        _clock(monkeypatch, 5000 + number)
        world.tick(1)
    assert gateway.list(Kind.NODE).token == token
    assert _observed(world) == {"a-1": True, "b-1": True}


def test_it_comes_back_by_itself_after_it_was_called_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a laptop slept: the lease ran out, the agents never stopped."""
    _clock(monkeypatch, 5000)
    world.tick()
    _clock(monkeypatch, 5000 + 3600)
    assert _observed(world) == {"a-1": None, "b-1": None}
    world.tick(3600)
    assert _observed(world) == {"a-1": True, "b-1": True}


def test_it_lets_no_lease_of_the_old_machine_speak_for_the_new(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _clock(monkeypatch, 5000)
    world.tick()
    old = world.uid("a-1")
    world.fleet.replace("a-1")
    with world.fleet.store.write() as session:
        leases.leases_renew(session, [("a-1", old)])
        node_set_ready(session, "a-1", old, True)
    _clock(monkeypatch, 5000 + 100)
    assert _observed(world)["a-1"] is None


def test_it_says_unknown_at_its_end_and_ends_everything(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rounds = iter([False, False, True])
    world.supervisor.run(lambda: next(rounds))
    assert [process.signals for process in world.started] == [["TERM"], ["TERM"]]
    assert world.ready() == {"a-1": None, "b-1": None}


def test_it_ends_its_agents_even_when_it_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    world.tick()

    def stopping() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.supervisor.run(stopping)
    assert all(process.returncode is not None for process in world.started)


def test_it_runs_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other: list[Any] = []

    def stopping() -> bool:
        with pytest.raises(Clash) as told:
            Supervisor(world.fleet, agent=["agent"], say=other.append).run(lambda: True)
        other.append(told.value.code)
        return True

    world.supervisor.run(stopping)
    assert other == ["fleet:user:already-running"]
    Supervisor(world.fleet, agent=["agent"], say=other.append).run(lambda: True)


def test_it_says_so_when_the_store_is_busy_at_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.tick()

    def busy() -> Any:
        raise Throttled("The fleet is busy", 1.0)

    monkeypatch.setattr(world.fleet.store, "write", busy)
    world.supervisor._end_all()
    assert world.said == ["fleet: The fleet is busy"]
