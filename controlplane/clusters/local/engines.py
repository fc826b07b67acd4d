"""Engine processes of the local fleet: where an endpoint wants one, its weights are ensured on the node, then it runs.

What a pod would do, step by step: an ensure step that waits for the node's agent, then the engine on the files that
it left, started again with growing pauses when it ends. One that is no longer wanted says so first, so that routers
hear of it, and is told to end after that: it then has time for what it answers. Imports no Django.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import Kind
from controlplane.clusters.local.engine_logs import last_words, log_opened
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.link import event_put
from controlplane.clusters.local.nodes import LocalNode, node_folder
from controlplane.clusters.local.processes import Agent, agent_environment
from controlplane.clusters.local.scaling import kill_wanted
from controlplane.clusters.local.serving import (
    ENDPOINT_LABEL,
    LocalEndpoint,
    endpoint_tell,
    endpoints_all,
    engine_key,
    engine_put,
    engines_all,
    event_of,
    placed,
    scheduled,
)

DEFAULT_ENGINE = (sys.executable, "-m", "routing.engines.llamacpp")
DEFAULT_ENSURE = (sys.executable, "-m", "caches.agent.ensure_step")
ROOT = Path(__file__).resolve().parents[3]
# As pods of endpoints have it (caches.domain.endpoints.workload).
DRAIN_SECONDS = 10.0  # that an engine still serves when it is no longer wanted: until everybody has heard of it
END_SECONDS = 30.0  # that it then has for what it answers


@dataclass(slots=True)
class _Engine:
    """One engine's process, or the ensure step before it. ``served``: the engine itself was started before.
    ``leaving_since``: when it was seen to be no longer wanted."""

    process: Agent
    folder: Path
    ensured: bool = False
    served: bool = False
    leaving_since: float | None = None

    @property
    def address(self) -> str:
        """Where it answers; "" while it does not."""
        if not self.ensured or not self.process.alive:
            return ""
        try:
            return (self.folder / "address").read_text()
        except FileNotFoundError:
            return ""

    @property
    def outcome(self) -> str:
        """What the ensure step reported, as it wrote it; "" when it wrote nothing."""
        try:
            return (self.folder / "outcome").read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""


class Engines:
    """``engine`` and ``ensure`` are the commands; what they are to serve is appended. ``drain_seconds`` and
    ``end_seconds``: see DRAIN_SECONDS and END_SECONDS."""

    def __init__(
        self,
        fleet: LocalFleet,
        *,
        engine: Sequence[str] = DEFAULT_ENGINE,
        ensure: Sequence[str] = DEFAULT_ENSURE,
        say: Callable[[str], None] = print,
        drain_seconds: float = DRAIN_SECONDS,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self._fleet = fleet
        self.drain_seconds, self.end_seconds = drain_seconds, end_seconds
        self._engine, self._ensure = tuple(engine), tuple(ensure)
        self._say = say
        self._running: dict[str, _Engine] = {}  # by uid
        self._told: dict[str, int] = {}  # how many are ready, by the uid of their endpoint
        self._swept = False

    def tick(self, nodes: Sequence[LocalNode], ready: Collection[str]) -> None:
        """One look. ``ready``: uids of nodes whose agent runs."""
        with self._fleet.store.read() as session:
            endpoints, engines = endpoints_all(session), engines_all(session)
        if not endpoints and not engines and not self._running:
            return
        able = [node for node in nodes if node.uid in ready]
        staying = [one for one in engines.values() if not one.leaving]
        made, ended = placed(endpoints, staying, able, self._warm(endpoints, able))
        if made or ended:
            self._place(made, ended)
            return  # the next look has them
        self._end_missing(engines.values())
        by_uid = {node.uid: node for node in nodes}
        wanted = {endpoint.name: endpoint for endpoint in endpoints}
        self._see_off([one for one in engines.values() if one.leaving], by_uid, wanted)
        seen = [self._step(one, by_uid, wanted[one.labels[ENDPOINT_LABEL]], ready) for one in staying]
        self._tell(staying, seen, endpoints)

    def end_all(self) -> None:
        """End the processes side by side; the engines stay, not ready."""
        while [one for one in self._running.values() if not one.process.end()]:
            time.sleep(0.02)
        self._running.clear()
        self._told.clear()
        with self._fleet.store.read() as session:
            if not endpoints_all(session) and not engines_all(session):
                return
        with self._fleet.store.write() as session:
            for consumer in engines_all(session).values():
                engine_put(session, replace(consumer, ready=False))
            for endpoint in endpoints_all(session):
                endpoint_tell(session, endpoint.name, 0)

    # one engine

    def _step(
        self, engine: Consumer, nodes: Mapping[str, LocalNode], endpoint: LocalEndpoint, ready: Collection[str]
    ) -> Consumer:
        """Bring its process on; the engine as it is now."""
        running = self._running.setdefault(engine.uid, self._fresh(engine))
        node, process = nodes.get(engine.node_uid), running.process
        if kill_wanted(self._fleet, engine.uid):
            process.kill()
        if node is None or node.stopped or process.ending_since is not None:
            process.end()
            return replace(engine, ready=False)
        if not running.ensured and process.process is not None and process.process.poll() == 0:
            running.ensured, process.process, process.failures = True, None, 0
            self._event(engine, "Ensured", running.outcome, engine.restart_count + running.served)
        if (ended := process.note_end()) is not None:
            self._say(ended)
            if running.ensured:
                if said := last_words(self._fleet.folder, engine.uid, engine.restart_count):
                    self._say(f"the last that engine {process.name} wrote: {said}")
                self._event(engine, "BackOff", ended, engine.restart_count)
            else:
                self._event(engine, "EnsureFailed", running.outcome or ended, engine.restart_count + running.served)
        restarts = engine.restart_count
        due = process.process is None and time.monotonic() >= process.next_start
        if (
            due
            and (running.ensured or node.uid in ready)
            and self._start(running, engine, endpoint)
            and running.ensured
        ):
            restarts, running.served = restarts + running.served, True
        address = running.address
        return replace(engine, ready=bool(address), address=address or engine.address, restart_count=restarts)

    def _fresh(self, engine: Consumer) -> _Engine:
        folder = self._fleet.folder.absolute() / "engines" / engine.uid
        name = engine.name.rpartition("/")[2]
        # One that served before, under an earlier supervisor too, is started again and not for the first time.
        return _Engine(Agent(name, engine.uid, what="engine"), folder, served=bool(engine.address))

    def _start(self, running: _Engine, engine: Consumer, endpoint: LocalEndpoint) -> bool:
        folder, name = running.folder, engine.name.rpartition("/")[2]
        argv = self._serve_argv(folder, endpoint) if running.ensured else self._ensure_argv(folder, engine, endpoint)
        try:
            (folder / "model").mkdir(parents=True, exist_ok=True)
            (folder / "address").unlink(missing_ok=True)
            if not running.ensured:
                (folder / "outcome").unlink(missing_ok=True)  # of an attempt before it
            env = {**agent_environment(os.environ), "POD_NAME": name}
            if running.ensured:
                with log_opened(self._fleet.folder, engine.uid, engine.restart_count + running.served) as log:
                    running.process.start(argv, env=env, cwd=ROOT, output=log)
            else:
                running.process.start(argv, env=env, cwd=ROOT)
        except (OSError, subprocess.SubprocessError) as error:
            self._say(f"engine {name} cannot start ({error}); trying again in {running.process.back_off():g} s")
            return False
        reason, what = ("Started", "serves") if running.ensured else ("Ensuring", "asks for")
        message = f"{name} {what} {endpoint.digest[:19]} on {engine.node_name}."
        self._event(engine, reason, message, engine.restart_count + running.served)
        return True

    def _ensure_argv(self, folder: Path, engine: Consumer, endpoint: LocalEndpoint) -> list[str]:
        store = node_folder(self._fleet.folder.absolute(), engine.node_name) / "hearth"
        tree = store / "weights" / endpoint.digest.replace(":", "-")
        told = {"digest": endpoint.digest, "store": store, "model": folder / "model", "mount": tree}
        return [*self._ensure, *_options({**told, "report": folder / "outcome"})]

    def _serve_argv(self, folder: Path, endpoint: LocalEndpoint) -> list[str]:
        told = {"weights": folder / "model", "name": endpoint.model, "address-file": folder / "address"}
        return [*self._engine, *_options(told)]

    # all of them

    def _warm(self, endpoints: Sequence[LocalEndpoint], nodes: Sequence[LocalNode]) -> set[tuple[str, str]]:
        """Copies that look whole; the ensure step is who looks closely."""
        weights = {node.uid: node_folder(self._fleet.folder, node.name) / "hearth" / "weights" for node in nodes}
        digests = {endpoint.digest for endpoint in endpoints}
        return {
            (uid, digest) for uid, folder in weights.items() for digest in digests
            if (folder / digest.replace(":", "-")).is_dir()
        }  # fmt: skip

    def _place(self, made: Sequence[Consumer], ended: Sequence[Consumer]) -> None:
        """Write new engines down, and of those that are to end that they get nothing new."""
        with self._fleet.store.write() as session:
            for engine in (*made, *(replace(one, ready=False, leaving=True) for one in ended)):
                engine_put(session, engine)
            for engine in made:
                event_put(session, scheduled(engine))

    def _see_off(
        self, leaving: Sequence[Consumer], nodes: Mapping[str, LocalNode], wanted: Mapping[str, LocalEndpoint]
    ) -> None:
        """End those that are no longer wanted. They go once their process is gone: until then they use weights."""
        gone = [one for one in leaving if self._left(one, nodes, wanted.get(one.labels[ENDPOINT_LABEL]))]
        for engine in gone:
            self._forget(engine.uid)
        if gone:
            with self._fleet.store.write() as session:
                for engine in gone:
                    session.delete(Kind.CONSUMER, engine_key(engine))

    def _left(self, engine: Consumer, nodes: Mapping[str, LocalNode], endpoint: LocalEndpoint | None) -> bool:
        """Whether its process is gone; it is ended when its time has come."""
        if (running := self._running.get(engine.uid)) is None:
            return True
        now, node = time.monotonic(), nodes.get(engine.node_uid)
        if running.leaving_since is None:
            running.leaving_since = now
        if node is None or node.stopped:
            return running.process.end()
        # Nobody is routed to an endpoint that is no more, nor to what does not answer yet.
        known = endpoint is not None and not endpoint.at_once and bool(running.address)
        if known and now - running.leaving_since < self.drain_seconds:
            return False
        return running.process.end(self.end_seconds)

    def _end_missing(self, engines: Collection[Consumer]) -> None:
        """Processes of engines that are no more, and folders that a crash left."""
        present = {engine.uid for engine in engines}
        for uid in [uid for uid in self._running if uid not in present]:
            if self._running[uid].process.end():
                self._forget(uid)
        if not self._swept:
            self._swept = True
            root = self._fleet.folder / "engines"
            for path in root.iterdir() if root.is_dir() else ():
                if path.name not in present:
                    shutil.rmtree(path, ignore_errors=True)

    def _forget(self, uid: str) -> None:
        self._running.pop(uid, None)
        shutil.rmtree(self._fleet.folder / "engines" / uid, ignore_errors=True)

    def _tell(self, before: Sequence[Consumer], now: Sequence[Consumer], endpoints: Sequence[LocalEndpoint]) -> None:
        """Write what is other than it was, in one transaction, or nothing."""
        news = [engine for old, engine in zip(before, now, strict=True) if engine != old]
        names = [one.labels[ENDPOINT_LABEL] for one in now if one.ready]
        ready = {endpoint.uid: names.count(endpoint.name) for endpoint in endpoints}
        if not news and ready == self._told:
            return
        with self._fleet.store.write() as session:
            there = {consumer.uid for consumer in engines_all(session).values()}
            for engine in news:
                if engine.uid in there:  # its node may have been removed this very moment
                    engine_put(session, engine)
                    if engine.ready:
                        message = f"{engine.name} answers on {engine.address}."
                        event_put(session, event_of(engine, "Ready", message, engine.restart_count))
            for endpoint in endpoints:
                endpoint_tell(session, endpoint.name, ready[endpoint.uid])
        self._told = ready

    def _event(self, engine: Consumer, reason: str, message: str, run: int) -> None:
        with self._fleet.store.write() as session:
            # Its node may have been removed this very moment: it was lost with it, and that is the last said of it.
            if any(one.uid == engine.uid for one in engines_all(session).values()):
                event_put(session, event_of(engine, reason, message, run))


def _options(told: Mapping[str, object]) -> list[str]:
    return [text for name, value in told.items() for text in (f"--{name}", str(value))]
