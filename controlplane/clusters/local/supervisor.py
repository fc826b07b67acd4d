"""Keeps one agent process per node of a fleet, and the engines of its endpoints, and vouches for what runs.

The store says what should be (nodes, stopped or not); this makes it so. A second supervisor of the same fleet is
refused. Runs in the main thread of a process of its own.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from controlplane.clusters import codec
from controlplane.clusters.gateway import GatewayError, Kind
from controlplane.clusters.local import disks, leases, nodes
from controlplane.clusters.local.engines import Engines
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.nodes import LocalNode
from controlplane.clusters.local.processes import Agent, agent_environment
from controlplane.errors import Clash

TICK_SECONDS = 0.2
DEFAULT_AGENT = (sys.executable, "-m", "caches.agent")
ROOT = Path(__file__).resolve().parents[3]


class Supervisor:
    """``agent`` is the command that runs an agent; ``--fleet``, ``--node`` and ``--uid`` are appended."""

    def __init__(
        self,
        fleet: LocalFleet,
        *,
        agent: Sequence[str] = DEFAULT_AGENT,
        engines: Engines | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._fleet = fleet
        self._argv = tuple(agent)
        self._say = say
        self._engines = engines or Engines(fleet, say=say)
        self._agents: dict[str, Agent] = {}
        self._told: dict[str, bool | None] = {}  # node uid → the readiness that the store has from us
        self._renewed = 0.0
        self._complaint = ""

    def run(self, stopping: Callable[[], bool]) -> None:
        """Work until ``stopping`` answers True, then end every agent. Clash when another supervisor is at work."""
        # The idle connection keeps SQLite from folding its log away after each short-lived writer.
        with self._alone(), self._fleet.store.connected():
            try:
                while not stopping():
                    self.tick()
                    time.sleep(TICK_SECONDS)
            finally:
                self._end_all()

    def tick(self) -> None:
        """One look at the store and at the processes. A store that does not answer changes nothing."""
        try:
            with self._fleet.store.read() as session:
                wanted = [codec.loads(LocalNode, stored.spec) for stored in session.all(Kind.NODE)]
            changed = self._follow({node.name: node for node in wanted})
            self._report(wanted)
            self._engines.tick(wanted, {node.uid for node in wanted if self._is_ready(node) and self._hears(node)})
            if changed:
                disks.disks_sweep(self._fleet.folder, {*self._agents, *(node.name for node in wanted)})
            self._complaint = ""
        except (GatewayError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._say(f"fleet: {error}")

    def _follow(self, wanted: dict[str, LocalNode]) -> bool:
        """Start, restart and end agents; True when one is new or gone for good."""
        changed = False
        for name, agent in list(self._agents.items()):
            node = wanted.get(name)
            if node is None or node.uid != agent.uid:
                if agent.end():
                    del self._agents[name]
                    changed = True
            elif node.stopped:
                agent.end()
        for name, node in wanted.items():
            if name not in self._agents:
                self._agents[name] = Agent(name=name, uid=node.uid)
                changed = True
            agent = self._agents[name]
            if agent.uid == node.uid and not node.stopped and agent.ending_since is None:
                self._keep_running(agent)
            elif agent.ending_since is not None:
                agent.end()
        return changed

    def _keep_running(self, agent: Agent) -> None:
        if (ended := agent.note_end()) is not None:
            self._say(ended)
        if agent.process is None and time.monotonic() >= agent.next_start:
            folder = self._fleet.folder.absolute()
            argv = (*self._argv, "--fleet", str(folder), "--node", agent.name, "--uid", agent.uid)
            try:
                disks.disk_prepare(folder, agent.name, agent.uid)
                agent.start(argv, env=agent_environment(os.environ), cwd=ROOT)
            except (OSError, subprocess.SubprocessError) as error:
                # One node's trouble: the others' agents and leases go on.
                self._say(f"agent of {agent.name} cannot start ({error}); trying again in {agent.back_off():g} s")

    def _report(self, wanted: Sequence[LocalNode]) -> None:
        """Vouch for living agents, in one transaction, when something changed or the leases want renewing."""
        ready = {node.uid: self._is_ready(node) for node in wanted}
        news = [node for node in wanted if self._told.get(node.uid, "unknown") != ready[node.uid]]
        now = time.monotonic()
        if not news and now - self._renewed < leases.RENEW_SECONDS:
            return
        with self._fleet.store.write() as session:
            # All of them, not only the news: somebody else may have called a late lease unknown meanwhile.
            for node in wanted:
                nodes.node_set_ready(session, node.name, node.uid, ready[node.uid])
            live = {stored.name: stored.uid for stored in session.all(Kind.NODE)}
            leases.leases_renew(session, [(n.name, n.uid) for n in wanted if live.get(n.name) == n.uid])
        self._told, self._renewed = dict(ready), now

    def _hears(self, node: LocalNode) -> bool:
        """Whether its agent can be asked for weights: an ensure step that comes before that finds no store."""
        return (nodes.node_folder(self._fleet.folder, node.name) / "hearth" / "agent.sock").exists()

    def _is_ready(self, node: LocalNode) -> bool:
        agent = self._agents.get(node.name)
        return agent is not None and agent.uid == node.uid and agent.ending_since is None and agent.alive

    def _end_all(self) -> None:
        """End engines and agents side by side, then say that nobody vouches for the nodes any more."""
        try:
            self._engines.end_all()
        except GatewayError as error:
            self._say(f"fleet: {error}")
        while [agent for agent in self._agents.values() if not agent.end()]:
            time.sleep(0.02)
        try:
            with self._fleet.store.write() as session:
                for agent in self._agents.values():
                    nodes.node_set_ready(session, agent.name, agent.uid, None)
                    leases.lease_end(session, agent.name)
        except GatewayError as error:
            self._say(f"fleet: {error}")  # the leases run out by themselves

    @contextmanager
    def _alone(self) -> Iterator[None]:
        path = self._fleet.folder / "supervisor.lock"
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Clash(
                    "fleet:user:already-running",
                    f"The fleet in {self._fleet.folder} is running already.",
                    next_step="Use it, stop the other one, or give another folder with --dir.",
                ) from None
            yield
