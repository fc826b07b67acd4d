"""The smallest whole program: PostgreSQL, Valkey, worker, beat, watcher and a fleet of three nodes, all real."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controlplane.clusters.local.nodes import node_folder
from controlplane.embedded.processes import ROOT, Spec
from controlplane.embedded.servers import EmbeddedServers

MIB = 1024 * 1024
RATE = 9 * MIB  # bytes a second a node may fetch: a model of 36 MiB takes four seconds
SIZE = 36 * MIB


class Program:
    """Use as a context manager. ``until`` waits, and meanwhile does what ``make run`` does: restart what died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = folder / "fleet"
        self.sources = folder / "sources"
        self.servers = EmbeddedServers(folder, durable=False, label="The faults test")
        self.pool = ""

    def __enter__(self) -> Self:
        self.sources.mkdir(parents=True)
        self.servers.__enter__()
        try:
            self._start()
        except BaseException:
            self.servers.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._driver.kill()
        self._driver.communicate()  # also closes its pipes
        self.servers.__exit__(kind, error, at)

    def _start(self) -> None:
        env = {
            "HEARTH_STATE_DIR": str(self.folder),
            "DATABASE_URL": self.servers.database_url,
            "REDIS_URL": self.servers.redis_url,
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "HEARTH_SOURCE_ROOTS": str(self.sources),
            "PYTHONUNBUFFERED": "1",
        }
        manage = [sys.executable, str(ROOT / "manage.py")]
        celery = [sys.executable, "-m", "celery", "--app", "controlplane.celery"]
        done = subprocess.run(
            [*manage, "migrate", "--verbosity", "0"], env={**os.environ, **env}, cwd=ROOT, timeout=300
        )
        assert done.returncode == 0
        worker = [*celery, "worker", "--concurrency", "2", "--queues", "control", "--without-mingle"]
        beat = [*celery, "beat", "--schedule", str(self.folder / "beat"), "--pidfile", ""]
        self.servers.supervisor.start(
            Spec("worker", [*worker, "--without-gossip"], env),
            Spec("beat", beat, env),
            Spec("watcher", [*manage, "watch_cluster"], env),
            Spec("fleet", [*manage, "fleet", "--dir", str(self.fleet), "run", "--nodes", "3"], env, stop_within=20),
        )
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.driver"],
            env={**os.environ, **env},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == {"ready": True}
        self.pool = self.tell("prepare", fleet=str(self.fleet), root=str(self.sources), rate=RATE)["pool"]
        # A pin on a pool without nodes has no targets and ends at once.
        self.until("three ready nodes", lambda: self.tell("nodes")["ready"] == 3)

    def tell(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self._driver.stdin is not None
        self._driver.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._driver.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, answer
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._driver.stdout is not None
        answer: dict[str, Any] = json.loads(self._driver.stdout.readline())
        return answer

    def look(self, version: str) -> dict[str, Any]:
        """What the rows say; empty while the database does not answer."""
        try:
            return self.tell("look", version=version)
        except AssertionError:
            return {}

    def until(self, what: str, check: Callable[[], bool], within: float = 120.0) -> None:
        """Wait for a condition, keeping the processes alive; fails with what and the last words of the logs."""
        deadline = time.monotonic() + within
        while not check():
            self.servers.supervisor.check()
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"--- {name}\n{self.servers.supervisor.log(name).read_text()[-1500:]}"
                    for name in ("worker", "watcher", "fleet")
                )
                raise AssertionError(f"{what} did not happen within {within:.0f} s\n{logs}")
            time.sleep(0.1)

    def model(self, name: str) -> str:
        """Write a model of two files, register it, and return the version once it is Available."""
        folder = self.sources / name
        folder.mkdir()
        for number, size in enumerate((SIZE - MIB, MIB)):
            (folder / f"part-{number}.bin").write_bytes(os.urandom(size))
        version: str = self.tell("register", model=name, uri=f"file://{folder}")["version"]
        self.until("registration", lambda: self.look(version).get("version") == "Available")
        return version

    def warm(self, version: str) -> None:
        """Wait until all three nodes hold the version and its operation says so; then check every byte on disk."""

        def is_warm() -> bool:
            seen = self.look(version)
            entries = seen.get("entries", {})
            done = [state for name, state in seen.get("operations", {}).items() if name.startswith("PinWarm")]
            return len(entries) == 3 and {e["state"] for e in entries.values()} == {"Ready"} and done == ["Succeeded"]

        try:
            self.until("three warm nodes", is_warm)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.look(version)}") from None
        self.check_bytes(version)

    def check_bytes(self, version: str) -> None:
        """No lie, no duplicate: what is Ready lies on that node's disk exactly once, whole and right."""
        seen = self.look(version)
        (source,) = [folder for folder in self.sources.iterdir() if folder.name in str(seen["operations"])]
        wanted = _hashes(source)
        for node, entry in seen["entries"].items():
            if entry["state"] != "Ready":
                continue
            tree = seen["digest"].replace(":", "-")
            found = list(node_folder(self.fleet, node).glob(f"**/weights/{tree}"))
            assert len(found) == 1, f"{node}: {found}"
            assert not list(node_folder(self.fleet, node).glob(f"**/partial/{tree}")), f"{node}: a partial tree is left"
            assert _hashes(found[0]) == wanted, node

    def half_way(self, version: str) -> Mapping[str, int]:
        """Wait until half of it lies on some node's disk, unfinished; the bytes written by node. The rows are no
        measure of that: agents report sparingly."""
        written: dict[str, int] = {}

        def is_half() -> bool:
            tree = (self.look(version).get("digest") or "-").replace(":", "-")
            for node in (self.fleet / "nodes").iterdir():
                files = [path for path in node.glob(f"**/partial/{tree}/**/*") if path.is_file()]
                written[node.name] = sum(_written(path) for path in files)
            return max(written.values()) >= SIZE * 0.5

        self.until("half a download", is_half)
        return written

    def agent_pid(self, node: str) -> int:
        """The process of one node's agent, found by the fleet's own folder and name in its arguments."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    argv = (folder / "cmdline").read_bytes().decode().split("\0")
                except OSError:
                    continue
                if "caches.agent" in argv and str(self.fleet) in argv and node in argv:
                    return int(folder.name)
        raise AssertionError(f"no agent of {node} runs")


def _written(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:  # published or renamed in between
        return 0


def _hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".hearth")
    }
