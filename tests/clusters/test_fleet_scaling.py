"""More and fewer engines, where they go, and crashes on command; processes here are those of test_engines.py."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.scaling import endpoint_scale, engine_kill, kill_wanted
from controlplane.clusters.local.serving import endpoint_serve, endpoints_all
from controlplane.clusters.local.supervisor import Supervisor
from controlplane.errors import Invalid
from tests.clusters.test_engines import Here, here  # noqa: F401  # a fixture
from tests.contracts.observing import DIGEST

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes that end with their parent"),
    pytest.mark.django_db,
]


def fleet(folder: Path, *arguments: str) -> str:
    out = io.StringIO()
    call_command("fleet", "--dir", str(folder), *arguments, stdout=out)
    return out.getvalue()


def replicas(of: Here) -> list[tuple[str, int]]:
    with of.fleet.store.read() as session:
        return [(one.name, one.replicas) for one in endpoints_all(session)]


def test_scaling_changes_the_number_and_nothing_else(here: Here) -> None:  # noqa: F811
    served = endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1, model="ember", pool="pool-b")
    told = fleet(here.fleet.folder, "scale", "chat", "2")
    assert told == f"chat is served by 2 engines ({served.uid})\n"
    assert {one.node_name for one in here.until_ready(2)} == {"b-1", "b-2"}
    endpoint_scale(here.fleet, "chat", 0)
    here.until(lambda seen: not seen, "they are gone")
    assert replicas(here) == [("chat", 0)]
    with here.fleet.store.read() as session:
        (known,) = endpoints_all(session)
    assert (known.digest, known.model, known.pool) == (DIGEST, "ember", "pool-b")


def test_new_engines_go_to_the_node_that_is_named_whoever_else_has_a_copy(here: Here) -> None:  # noqa: F811
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1)
    (first,) = here.until_ready(1)
    copy = here.fleet.folder / "nodes" / "a-2" / "hearth" / "weights" / DIGEST.replace(":", "-")
    copy.mkdir(parents=True)
    fleet(here.fleet.folder, "scale", "chat", "3", "--node", "b-2")
    seen = here.until_ready(3)
    assert sorted(one.node_name for one in seen if one.uid != first.uid) == ["b-2", "b-2"]
    placed = [one for one in here.told() if one.reason == "Scheduled"]
    assert len(placed) == 3 and {one.object_uid for one in placed} == {one.uid for one in seen}


def test_a_crash_on_command_is_a_restart(here: Here) -> None:  # noqa: F811
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1)
    (first,) = here.until_ready(1)
    told = fleet(here.fleet.folder, "kill", "chat")
    assert told == f"{first.name.rpartition('/')[2]} on {first.node_name} is killed, and starts again\n"
    (again,) = here.until(lambda seen: seen[0].restart_count == 1 and seen[0].ready, "it is started again")
    assert again.uid == first.uid and len(here.pids(again)) == 2
    assert any("was killed by SIGKILL" in one.message for one in here.told() if one.reason == "BackOff")
    assert not kill_wanted(here.fleet, first.uid), "once"
    engine_kill(here.fleet, first.uid)
    here.until(lambda seen: seen[0].restart_count == 2 and seen[0].ready, "again")


def test_nothing_is_said_of_an_engine_after_it_was_lost_with_its_node(
    here: Here,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1)
    (first,) = here.until_ready(1)

    def say(line: str) -> None:
        if "was killed by SIGKILL" in line:  # the very moment between seeing its end and telling of it
            here.fleet.remove(first.node_name)
        here.said.append(line)

    monkeypatch.setattr(here.engines, "_say", say)
    engine_kill(here.fleet, first.name.rpartition("/")[2])
    here.until(lambda seen: any("was killed by SIGKILL" in line for line in here.said), "its end is seen")
    assert [one.reason for one in here.told() if one.object_uid == first.uid][-1] == "NodeLost"


def test_an_order_to_kill_outlives_whoever_was_to_follow_it(here: Here) -> None:  # noqa: F811
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1)
    (first,) = here.until_ready(1)
    engine_kill(here.fleet, first.name.rpartition("/")[2])
    here.engines.end_all()
    here.engines = here.made()
    here.until_ready(1)
    assert not kill_wanted(here.fleet, first.uid)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("scale", "nope", "2"), r"No endpoint nope\. See them with: manage\.py fleet engines"),
        (("scale", "chat", "17"), "17 engines are no number for this"),
        (("scale", "chat", "2", "--node", "z-9"), r"No node z-9\. See them with: manage\.py fleet list"),
        (("scale", "chat", "2", "--node", "b-1"), "b-1 takes no engine of chat: it is cordoned or stopped, or of"),
        (("scale", "chat", "2", "--node", "a-1"), "a-1 takes no engine of chat"),
        (("kill", "nope"), r"is named nope\. See them with: manage\.py fleet engines"),
        (("kill", "chat"), "No engine and no endpoint with engines is named chat."),
    ],
)
def test_it_says_what_to_do_and_changes_nothing(
    here: Here,  # noqa: F811
    arguments: tuple[str, ...],
    told: str,
) -> None:
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=0, pool="pool-a")
    here.fleet.cordon("a-1")
    with pytest.raises(CommandError, match=told):
        fleet(here.fleet.folder, *arguments)
    assert replicas(here) == [("chat", 0)] and here.seen() == []


def test_what_is_not_ready_cannot_crash(here: Here) -> None:  # noqa: F811
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=1)
    here.until(bool, "it is placed")
    with pytest.raises(Invalid, match="nothing that could crash"):
        engine_kill(here.fleet, "chat")
    with pytest.raises(NotFound):
        engine_kill(here.fleet, "")


def test_a_node_takes_engines_once_its_agent_hears(tmp_path: Path) -> None:
    """An ensure step that asks before that finds no store, and its launch would be one whose fetch failed."""
    fleet_here = LocalFleet(tmp_path / "fleet")
    fleet_here.create(nodes=2)
    seen: list[set[str]] = []
    engines = SimpleNamespace(tick=lambda nodes, ready: seen.append(set(ready)), end_all=lambda: None)
    supervisor = Supervisor(fleet_here, agent=("/bin/sh", "-c", "exec sleep 600"), engines=engines)  # type: ignore[arg-type]
    (first, _) = [row.node for row in fleet_here.nodes()]
    folder = fleet_here.folder / "nodes" / first.name / "hearth"
    try:
        supervisor.tick()
        supervisor.tick()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agent.sock").touch()
        supervisor.tick()
    finally:
        supervisor._end_all()
    assert (seen[1], seen[-1]) == (set(), {first.uid})
