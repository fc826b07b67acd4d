"""A real agent process on a one-node local fleet, for tests that kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caches.agent.store import Store
from controlplane.clusters.documents import (
    Action,
    ArtifactKind,
    ConnectionSpec,
    DesiredEntry,
    EntryState,
    EntryStatus,
    Limits,
    Manifest,
    NodeCacheSpec,
    NodeCacheStatus,
)  # fmt: skip
from controlplane.clusters.gateway import Kind, ObservedNodeCache
from controlplane.clusters.local.fleet import LocalFleet, PoolLayout
from controlplane.clusters.local.gateway import LocalGateway

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024


@dataclass
class Node:
    """``pool-a`` with the one node ``a-1``; nobody but the test starts and ends its agent."""

    folder: Path
    connection: ConnectionSpec
    secrets: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.fleet = LocalFleet(self.folder)
        self.fleet.create(nodes=1, pools=(PoolLayout("pool-a", 1024 * MIB, "nvme"),))
        self.gateway = LocalGateway(self.folder)
        (observed,) = self.fleet.nodes()
        self.name, self.uid = observed.node.name, observed.node.uid
        self.root = self.folder / "nodes" / self.name
        self.root.mkdir(parents=True, exist_ok=True)
        self.store = Store(self.root)
        if self.connection.secret_name:
            self.gateway.apply_secret(self.connection.secret_name, self.secrets)

    def start(self, *more: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Without Django's settings and with nothing of the control plane in its environment."""
        keep = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
        argv = [
            sys.executable,
            "-m",
            "caches.agent",
            "--fleet",
            str(self.folder),
            "--node",
            self.name,
            "--uid",
            self.uid,
        ]
        process = subprocess.Popen([*argv, "--uid", self.uid, *more], cwd=ROOT, env={**keep, **(environ or {})})
        if self.process is None or self.process.poll() is not None:
            self.process = process
        return process

    def kill(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)

    def want(
        self, manifest: Manifest, uri: str, *, limits: Limits | None = None, action: Action = Action.ENSURE
    ) -> None:
        line = DesiredEntry(
            digest=manifest.digest, kind=ArtifactKind.WEIGHTS, action=action, connection=self.connection.name,
            uri=uri, size_bytes=manifest.size_bytes, order=0,
        )  # fmt: skip
        self.gateway.apply_manifest(manifest)
        spec = NodeCacheSpec(
            node_name=self.name, node_uid=self.uid, pool="pool-a", desired=(line,), connections=(self.connection,),
            limits=limits or Limits(), status_interval_seconds=0.2,
        )  # fmt: skip
        self.gateway.apply_node_cache(spec)

    def status(self) -> NodeCacheStatus | None:
        for item in self.gateway.list(Kind.NODE_CACHE).items:
            if isinstance(item, ObservedNodeCache):
                return item.status
        return None

    def entry(self) -> EntryStatus | None:
        status = self.status()
        return status.entries[0] if status and status.entries else None

    def until(self, condition: Callable[[EntryStatus], Any], seconds: float = 60.0) -> EntryStatus:
        """Poll until the one entry's report makes the condition true."""
        deadline = time.monotonic() + seconds
        while True:
            entry = self.entry()
            if entry is not None and condition(entry):
                return entry
            assert time.monotonic() < deadline, f"last seen: {entry}"
            time.sleep(0.02)

    def becomes(self, state: EntryState, seconds: float = 60.0) -> EntryStatus:
        return self.until(lambda entry: entry.state is state, seconds)
