"""Engines of the local fleet: placed where weights are, kept running, and never said to be ready when they are not.

Processes here are shell scripts of a few lines; tests/engines/test_fleet_serves.py has the real ones.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import EndpointName, ObservedEndpoint
from controlplane.clusters.gateway import ClusterEvent, Kind, NotFound
from controlplane.clusters.local import engine_logs, leases
from controlplane.clusters.local.engines import Engines
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.nodes import LocalNode
from controlplane.clusters.local.serving import (
    ENDPOINT_LABEL,
    LocalEndpoint,
    endpoint_end,
    endpoint_serve,
    endpoints_all,
    engines_all,
    placed,
)
from controlplane.errors import Invalid
from tests.contracts.observing import DIGEST
from tests.waiting import until

OTHER, UID = "sha256:" + "b2" * 32, "01234567-89ab-cdef-0123-456789abcdef"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that end with their parent")
# Says where it "answers", remembers its process id, and lives until somebody ends it or a file "crash" is there.
SERVES = """
while [ $# -gt 1 ]; do [ "$1" = --address-file ] && file="$2"; shift; done
echo $$ >>"$(dirname "$file")/pids"
echo "engine $$ begins" >&2
[ -e "$0.crash" ] && echo "no such \t model" && exit 7
printf 127.0.0.1:$$ >"$file.new" && mv "$file.new" "$file"
exec sleep 600
"""
ENSURES = """
echo "$@" >>"$0.calls"
while [ $# -gt 1 ]; do [ "$1" = --report ] && report="$2"; shift; done
[ -s "$0.fails" ] && cp "$0.fails" "$report"
[ -e "$0.fails" ] && exit 1
echo '{"found": "hit"}' >"$report"
exit 0
"""


class Here:
    """A fleet of four nodes whose agents are all said to run, and its engines without a supervisor's loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = LocalFleet(folder / "fleet")
        self.fleet.create(nodes=4)
        self.gateway = LocalGateway(folder / "fleet")
        self.said: list[str] = []
        for name, text in (("serves", SERVES), ("ensures", ENSURES)):
            (folder / name).write_text(text)
        self.engines = self.made()

    def made(self) -> Engines:
        scripts = (("/bin/sh", str(self.folder / name)) for name in ("serves", "ensures"))
        engine, ensure = scripts
        return Engines(self.fleet, engine=engine, ensure=ensure, say=self.said.append, drain_seconds=0.0)

    @property
    def nodes(self) -> list[LocalNode]:
        return [row.node for row in self.fleet.nodes()]

    def tick(self) -> None:
        nodes = self.nodes
        self.engines.tick(nodes, {node.uid for node in nodes})

    def seen(self) -> list[Consumer]:
        with self.fleet.store.read() as session:
            return sorted(engines_all(session).values(), key=lambda one: one.node_name)

    def until(self, condition: Callable[[list[Consumer]], object], what: str) -> list[Consumer]:
        def holds() -> object:
            self.tick()
            return condition(self.seen())

        until(holds, what, seconds=120, every=0.02)
        return self.seen()

    def until_ready(self, count: int) -> list[Consumer]:
        return self.until(lambda seen: len(seen) == count and all(one.ready for one in seen), f"{count} are ready")

    def endpoint(self) -> ObservedEndpoint:
        (found,) = self.gateway.list(Kind.ENDPOINT).items
        assert isinstance(found, ObservedEndpoint)
        return found

    def pids(self, engine: Consumer) -> list[int]:
        return [int(pid) for pid in (self.fleet.folder / "engines" / engine.uid / "pids").read_text().split()]

    def events(self) -> list[str]:
        return [one.reason for one in self.told()]

    def told(self) -> list[ClusterEvent]:
        items = self.gateway.list(Kind.EVENT).items
        return [one for one in items if isinstance(one, ClusterEvent) and one.object_kind == "Engine"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    try:
        yield made
    finally:
        made.engines.end_all()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_endpoint_is_served_seen_and_ended(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=2, model="ember", pool="pool-a")
    first = here.until_ready(2)
    assert [one.node_name for one in first] == ["a-1", "a-2"]
    assert all(one.name.startswith("local/chat-") and one.restart_count == 0 for one in first)
    assert all(one.address == f"127.0.0.1:{here.pids(one)[-1]}" for one in first)
    assert here.gateway.consumers("a-1", first[0].node_uid) == (first[0],), "its weights are in use"
    found = here.endpoint()
    assert found.of == EndpointName("InferenceEndpointConfig", "local", "chat") and found.generation == 1
    assert found.spec == {"modelName": "ember", "replicas": 2, "nodeSelector": {"hearth.dev/pool": "pool-a"}}
    assert found.annotations == {"hearth.dev/digest": DIGEST}, "nothing is recorded unless somebody asks for it"
    assert (found.status["state"], found.status["readyReplicas"]) == ("DeploymentComplete", 2)
    assert here.events().count("Scheduled") == here.events().count("Ready") == 2
    assert [one.message for one in here.told() if one.reason == "Ensured"] == ['{"found": "hit"}'] * 2
    told = (here.folder / "ensures.calls").read_text()
    assert told.count(f"--digest {DIGEST}") == 2 and "/nodes/a-1/hearth --model" in told
    pids = [here.pids(one)[-1] for one in first]
    assert endpoint_end(here.fleet.store, "chat") and not endpoint_end(here.fleet.store, "chat")
    here.until(lambda seen: not seen, "they are gone")
    assert not any(alive(pid) for pid in pids) and list((here.fleet.folder / "engines").iterdir()) == []


def test_more_and_fewer_replicas_leave_those_that_stay_alone(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1)
    (first,) = here.until_ready(1)
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=3)
    assert here.endpoint().generation == 2
    assert first in here.until_ready(3)
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=0)
    here.until(lambda seen: not seen, "none is left")
    assert here.endpoint().status["state"] == "DeploymentComplete"


def test_an_engine_that_dies_is_the_same_one_when_it_is_back(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (before,) = here.until_ready(1)
    os.kill(here.pids(before)[-1], signal.SIGKILL)
    here.until(lambda seen: not seen[0].ready, "its end is seen")
    assert here.endpoint().status["readyReplicas"] == 0
    (after,) = here.until_ready(1)
    assert (after.uid, after.node_uid, after.restart_count) == (before.uid, before.node_uid, 1)
    assert after.address != before.address
    runs = [(one.reason, one.restart_count) for one in here.told()]
    first = [("Scheduled", 0), ("Ensuring", 0), ("Ensured", 0), ("Started", 0), ("Ready", 0)]
    again = [("Started", 1), ("Ready", 1)]
    assert runs == [*first, ("BackOff", 0), *again]
    assert any("was killed by SIGKILL" in line for line in here.said)
    logs = [here.gateway.logs(before.uid, 1000, restart_count=run).decode() for run in (0, 1, None)]
    begun = [f"engine {pid} begins\n" for pid in here.pids(before)]
    assert logs == [*begun, begun[1]], "each run has its own, and the latest is meant where none is named"
    assert here.gateway.logs(before.uid, 6, restart_count=0) == b"engine"
    endpoint_end(here.fleet.store, "chat")
    here.until(lambda seen: not seen, "it is gone")
    assert here.gateway.logs(before.uid, 1000, restart_count=0), "logs are read later"
    for uid, run in ((before.uid, 2), (OTHER[7:], 0), (f"../{before.uid}", 0), ("", None)):
        with pytest.raises(NotFound):
            here.gateway.logs(uid, 10, restart_count=run)
    assert (here.folder / "ensures.calls").read_text().count("--digest") == 1, "the weights are in use all the time"


def test_one_that_cannot_start_is_tried_again_later_each_time(here: Here) -> None:
    (here.folder / "serves.crash").touch()
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    here.until(lambda _: sum("ended with code 7" in line for line in here.said) == 2, "it ended twice")
    (engine,) = here.seen()
    assert not engine.ready and engine.address == "" and engine.restart_count == 1
    pauses = [float(line.rpartition(" in ")[2].removesuffix(" s")) for line in here.said if "ended with code 7" in line]
    assert pauses[:2] == [0.5, 1.0]
    assert any(line.endswith(" wrote: no such   model") for line in here.said)
    (here.folder / "serves.crash").unlink()
    here.until_ready(1)


def test_only_the_latest_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_logs, "MOST_FILES", 3)
    for run in range(5):
        with engine_logs.log_opened(tmp_path, UID, run) as log:
            os.write(log, b"x" * 5000 + b"\n\n")
        os.utime(tmp_path / "engine-logs" / f"{UID}.{run}.log", (run, run))
    assert sorted(path.name for path in (tmp_path / "engine-logs").iterdir()) == [
        f"{UID}.{run}.log" for run in (2, 3, 4)
    ]
    assert engine_logs.last_words(tmp_path, UID, 4) == "x" * 300 and engine_logs.last_words(tmp_path, UID, 0) == ""
    with engine_logs.log_opened(tmp_path, UID, 4):
        assert engine_logs.log_read(tmp_path, UID, 4, 10) == b"", "a run that is tried again begins anew"


def test_weights_that_are_not_there_start_nothing(here: Here) -> None:
    (here.folder / "ensures.fails").write_text('{"found": "waiting"}')
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    here.until(lambda seen: "EnsureFailed" in here.events(), "it failed")
    (here.folder / "ensures.fails").write_text("")
    here.until(lambda seen: here.events().count("EnsureFailed") >= 2, "and again, saying nothing")
    said = [one.message for one in here.told() if one.reason == "EnsureFailed"]
    assert said[0] == '{"found": "waiting"}' and "code 1" in said[-1], "what an attempt before it reported is old"
    (engine,) = here.seen()
    assert not engine.ready and not (here.fleet.folder / "engines" / engine.uid / "pids").exists()
    (here.folder / "ensures.fails").unlink()
    assert here.until_ready(1)[0].restart_count == 0


def test_a_node_without_an_agent_gets_none_and_a_stopped_node_has_none(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST, pool="pool-b")
    here.engines.tick(here.nodes, set())
    assert here.seen() == []
    (engine,) = here.until_ready(1)
    here.fleet.stop(engine.node_name)
    here.until(lambda seen: not seen[0].ready, "it is not ready")
    assert not alive(here.pids(engine)[-1])
    here.fleet.start(engine.node_name)
    assert here.until_ready(1)[0].uid == engine.uid


def test_a_node_that_is_replaced_takes_its_engine_along_and_another_comes(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=2, pool="pool-a")
    first, second = here.until_ready(2)
    pid = here.pids(first)[-1]
    here.fleet.replace(first.node_name)
    after = here.until(lambda seen: len(seen) == 2 and all(one.ready for one in seen), "another one serves")
    assert second in after and first.uid not in {one.uid for one in after}
    until(lambda: not alive(pid), "its process is gone")
    assert not (here.fleet.folder / "engines" / first.uid).exists()


def test_who_takes_over_finds_the_engines_and_starts_them_again(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (before,) = here.until_ready(1)
    here.engines.end_all()
    assert [(one.uid, one.ready) for one in here.seen()] == [(before.uid, False)]
    assert here.endpoint().status["readyReplicas"] == 0 and not alive(here.pids(before)[-1])
    (here.fleet.folder / "engines" / "left-by-a-crash").mkdir()
    here.engines = here.made()
    (after,) = here.until_ready(1)
    assert (after.uid, after.restart_count) == (before.uid, 1)
    assert not (here.fleet.folder / "engines" / "left-by-a-crash").exists()


def test_other_weights_are_served_by_other_engines(here: Here) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (before,) = here.until_ready(1)
    endpoint_serve(here.fleet.store, "chat", OTHER)
    (after,) = here.until(lambda seen: len(seen) == 1 and OTHER in seen[0].digests and seen[0].ready, "the other one")
    assert after.uid != before.uid and here.endpoint().uid


def test_nobody_vouches_for_engines_of_a_supervisor_that_is_gone(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (engine,) = here.until_ready(1)
    with here.fleet.store.write() as session:
        leases.leases_renew(session, [(engine.node_name, engine.node_uid)])
    monkeypatch.setattr(leases, "LEASE_SECONDS", -1.0)
    here.gateway.list(Kind.NODE)
    assert [one.ready for one in here.seen()] == [False]


@pytest.mark.parametrize(
    ("name", "options"),
    [("Chat", {}), ("", {}), ("a" * 64, {}), ("chat", {"pool": "../x"}), ("chat", {"replicas": 17})],
)
def test_what_cannot_be_served_is_refused(here: Here, name: str, options: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        endpoint_serve(here.fleet.store, name, DIGEST, **options)  # type: ignore[arg-type]
    with here.fleet.store.read() as session:
        assert endpoints_all(session) == []


def test_it_goes_where_the_copy_is_then_where_the_fewest_are(here: Here) -> None:
    nodes = here.nodes
    by_name = {node.name: node for node in nodes}
    endpoint = LocalEndpoint("chat", "u", DIGEST, 1, "chat", "", nodes[0].created_at)

    def chosen(replicas: int, warm: tuple[str, ...] = (), stopped: str = "") -> list[str]:
        able = [replace(node, stopped=node.name == stopped) for node in nodes]
        copies = {(by_name[name].uid, DIGEST) for name in warm}
        made, ended = placed([replace(endpoint, replicas=replicas)], [], able, copies)
        assert ended == []
        return [one.node_name for one in made]

    assert chosen(1, warm=("b-2",)) == ["b-2"]
    assert chosen(2, warm=("b-2",)) == ["b-2", "a-1"]
    assert chosen(5) == ["a-1", "a-2", "b-1", "b-2", "a-1"], "never two on a node while another has none"
    assert chosen(1, stopped="a-1") == ["a-2"]
    busy = Consumer(
        "x", "local/other-1", "a-1", by_name["a-1"].uid, frozenset({OTHER}), labels={ENDPOINT_LABEL: "other"}
    )
    made, ended = placed([endpoint], [busy], nodes, set())
    assert [one.node_name for one in made] == ["a-1"] and ended == [busy], "it made room"
    other = LocalEndpoint("other", "v", OTHER, 1, "other", "", nodes[0].created_at)
    assert [one.node_name for one in placed([endpoint, other], [busy], nodes, set())[0]] == ["a-2"]
    assert placed([endpoint], [], [], set()) == ([], [])
