"""The local fleet serves for real: an agent brings the weights, llama.cpp reads them from the node's own copy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caches.domain.launches.events import event_observations
from caches.domain.launches.log_lines import MOST_BYTES
from caches.domain.launches.logs import log_observations
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Observer, Phase, PhaseState
from caches.domain.manifests import manifest_build
from caches.services.demo.gguf import ModelShape, gguf_bytes
from caches.sources.filesystem import FilesystemSource
from controlplane.clusters.documents import ConnectionSpec, Consumer, Origin, SourceType
from controlplane.clusters.gateway import ClusterEvent, Kind
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.serving import endpoint_end, endpoint_serve
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 150.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    """Two nodes with real agents, and a published model that none of them has."""
    argv = [sys.executable, "manage.py", "fleet", "--dir", str(tmp_path / "fleet"), "run", "--nodes", "2"]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, env={**os.environ, "HEARTH_SOURCE_ROOTS": ""})
    made = LocalFleet(tmp_path / "fleet")
    try:
        until(
            lambda: (made.folder / "supervisor.lock").exists() and len(made.nodes()) == 2, "the fleet", seconds=PATIENCE
        )
        # A node takes engines once its agent hears; who is first would take all of them.
        sockets = [made.folder / "nodes" / row.node.name / "hearth" / "agent.sock" for row in made.nodes()]
        until(lambda: all(one.exists() for one in sockets), "both agents hear", seconds=PATIENCE)
        yield made
        process.terminate()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)


def published(fleet: LocalFleet, folder: Path) -> str:
    """A model of a few hundred kilobytes in a folder, with its manifest and origin in the cluster; the digest."""
    folder.mkdir()
    (folder / "model.gguf").write_bytes(gguf_bytes("ember", ModelShape(layers=2, width=64, heads=2, hidden=96)))
    connection = ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(folder.parent),))
    manifest = manifest_build([FilesystemSource(connection).describe(folder.as_uri(), "model.gguf")])
    LocalGateway(fleet.folder).apply_manifest(manifest, Origin(connection, folder.as_uri(), manifest.size_bytes))
    return manifest.digest


def engines(fleet: LocalFleet) -> list[Consumer]:
    items = LocalGateway(fleet.folder).list(Kind.CONSUMER).items
    return [one for one in items if isinstance(one, Consumer)]


def ready(fleet: LocalFleet, count: int) -> list[Consumer]:
    until(lambda: sum(one.ready for one in engines(fleet)) == count, f"{count} engines are ready", seconds=PATIENCE)
    return engines(fleet)


def asked(address: str, path: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", data=body, timeout=60) as answer:
        return json.load(answer)


def measured(fleet: LocalFleet, engine: Consumer) -> None:
    """Inside the engine every phase is measured, from the latest run's events and log."""
    gateway, run = LocalGateway(fleet.folder), engine.restart_count

    def log() -> bytes:
        return gateway.logs(engine.uid, MOST_BYTES, restart_count=run)

    until(lambda: b"listening on http" in log(), "the log is whole", seconds=PATIENCE)
    seen = log_observations(log())
    for event in gateway.list(Kind.EVENT).items:
        if isinstance(event, ClusterEvent) and event.object_uid == engine.uid:
            told = event_observations(event.reason, event.at, event.message, event.restart_count)
            seen += [one for of, one in told if of == run]
    timeline = assemble(seen)
    inside = (Phase.INITIALISATION, Phase.WEIGHTS_LOAD, Phase.HEALTH_CHECKS)
    seconds = [one for phase in inside if (one := timeline.seconds(phase)) is not None]
    assert len(seconds) == 3, timeline.phases
    assert timeline.ready_seconds is not None and min(seconds) >= 0 < sum(seconds) <= timeline.ready_seconds
    assert {one.observer for one in timeline.phases if one.phase in inside} == {
        Observer.RUNTIME_LOG,
        Observer.READINESS,
    }
    unknown = [one.phase for one in timeline.phases if one.state is PhaseState.UNKNOWN]
    assert Phase.IMAGE_PULL in unknown and not {*unknown} & {*inside}, "an engine has no image"


def processes(uid: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if uid.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.e2e
def test_an_endpoint_is_served_from_the_nodes_own_copies(fleet: LocalFleet, tmp_path: Path) -> None:
    digest = published(fleet, tmp_path / "models")
    endpoint_serve(fleet.store, "chat", digest, replicas=2, model="ember")
    first, second = ready(fleet, 2)
    assert {first.node_name, second.node_name} == {"a-1", "b-1"}
    for engine in (first, second):
        weights = fleet.folder / "engines" / engine.uid / "model" / "model.gguf"
        copy = fleet.folder / "nodes" / engine.node_name / "hearth" / "weights" / digest.replace(":", "-")
        assert weights.resolve() == (copy / "model.gguf").resolve()
        outcome = json.loads((fleet.folder / "engines" / engine.uid / "outcome").read_text())
        assert outcome["found"] == "miss" and outcome["source"] == "disk"
        (model,) = asked(engine.address, "/v1/models")["data"]
        assert (model["id"], model["owned_by"]) == ("ember", "llamacpp")
        measured(fleet, engine)
    body = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()
    assert asked(first.address, "/v1/completions", body)["usage"]["completion_tokens"] == 2
    written = LocalGateway(fleet.folder).logs(first.uid, MOST_BYTES)
    assert b"print_timing" not in written and b"processing task" not in written, "nothing is written of requests"

    (pid,) = processes(first.uid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: any(one.restart_count for one in engines(fleet)), "it is started again", seconds=PATIENCE)
    again = next(one for one in ready(fleet, 2) if one.uid == first.uid)
    assert again == replace(first, restart_count=1, address=again.address)
    assert asked(again.address, "/v1/models")["data"][0]["id"] == "ember"
    measured(fleet, again)

    endpoint_end(fleet.store, "chat")
    until(lambda: not engines(fleet), "they are gone", seconds=PATIENCE)
    assert processes(first.uid) == processes(second.uid) == []
