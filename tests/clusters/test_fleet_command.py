"""``manage.py fleet``: one line that says what happened, or one that says what to do."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.clusters.documents import Consumer
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.serving import engine_put
from tests.contracts.observing import DIGEST

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LocalFleet(tmp_path / "fleet").create(nodes=2)
    return tmp_path / "fleet"


def _fleet(folder: Path, *arguments: str) -> str:
    out = io.StringIO()
    call_command("fleet", "--dir", str(folder), *arguments, stdout=out)
    return out.getvalue()


def test_it_says_what_it_did(folder: Path) -> None:
    assert _fleet(folder, "add", "c-1", "--pool", "pool-b", "--capacity", "64MiB").startswith(
        "c-1 added to pool-b with 64 MiB"
    )
    assert _fleet(folder, "fill", "c-1", "1.5MiB") == "1.5 MiB of c-1 taken\n"
    assert _fleet(folder, "unfill", "c-1") == "c-1 freed\n"
    assert _fleet(folder, "stop", "c-1") == "c-1 stopped: unreachable until 'fleet start c-1'\n"
    assert _fleet(folder, "start", "c-1") == "c-1 started\n"
    assert _fleet(folder, "cordon", "c-1") == "c-1 cordoned\n"
    assert _fleet(folder, "uncordon", "c-1") == "c-1 uncordoned\n"
    assert _fleet(folder, "use", "c-1", DIGEST).endswith(" uses it\n")
    assert _fleet(folder, "unuse", "c-1", DIGEST) == "c-1 uses it no more\n"
    assert _fleet(folder, "unuse", "c-1", DIGEST) == "c-1 did not use it\n"
    assert "with an empty disk" in _fleet(folder, "replace", "c-1")
    assert _fleet(folder, "remove", "c-1") == "c-1 removed with its disk\n"


def test_it_warns_of_a_pool_that_no_other_node_is_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = _fleet(folder, "add", "c-1", "--pool", "nope")
    warned = capsys.readouterr().err
    assert said.startswith("c-1 added to nope") and said.count("\n") == 1
    assert "no other node is in nope (there are pool-a, pool-b)" in warned
    assert "until a pool selects hearth.dev/pool=nope" in warned
    _fleet(folder, "add", "c-2", "--pool", "nope")
    _fleet(folder, "add", "c-3")
    assert capsys.readouterr().err == ""  # the second of a new pool, and a pool that every fleet has


def test_it_lists_for_people_and_for_programs(folder: Path) -> None:
    _fleet(folder, "cordon", "a-1")
    _fleet(folder, "stop", "b-1")
    _fleet(folder, "fill", "b-1", "100MiB")
    header, first, second = _fleet(folder, "list").splitlines()
    assert header.split()[:5] == ["NAME", "POOL", "STATE", "CAPACITY", "OTHER"]
    assert first.split()[:6] == ["a-1", "pool-a", "unknown,", "cordoned", "1", "GiB"]
    assert second.split()[:7] == ["b-1", "pool-b", "stopped", "512", "MiB", "100", "MiB"]

    row = json.loads(_fleet(folder, "list", "--json"))[1]
    assert (row["name"], row["stopped"], row["otherBytes"]) == ("b-1", True, 100 * 2**20)
    for name in ("a-1", "b-1"):
        _fleet(folder, "remove", name)
    assert _fleet(folder, "list") == "No nodes. Add one with: manage.py fleet add NAME\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("cordon", "nope"), "No node nope. See them with: manage.py fleet list"),
        (("add", "a-1"), "There is a node a-1 already. Choose another name"),
        (("add", "A_1"), "Use lower case letters, digits and dashes"),
        (("fill", "a-1", str(2**60)), "Give a number of bytes"),
        (("fill", "a-1", "9999GiB"), r"9.8 TiB do not fit on a-1: its disk has 1 GiB, of which 1 GiB .* Give at most"),
    ],
)
def test_it_says_what_to_do_about_a_mistake(folder: Path, arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        _fleet(folder, *arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("fill", "a-1", "lots"), "'lots' is no size; write for example 512MiB"),
        (("use", "a-1", "sha256:12"), "64 hexadecimal digits"),
        (("run", "--nodes", "-3"), "a number of nodes from 0 to 1000"),
        (("scale", "chat", "-1"), "a number of engines from 0 to 16"),
        (("serve", "chat", "sha256:" + "a" * 64, "--replicas", "many"), "a number of engines from 0 to 16"),
        (("run", "--pool", "x"), "is no size"),
        (("explode",), "invalid choice"),
    ],
)
def test_it_refuses_what_it_cannot_read(
    folder: Path, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, CommandError)) as failed:
        _fleet(folder, *arguments)
    assert told in capsys.readouterr().err + str(failed.value)


def test_it_says_how_to_start_a_fleet_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="Start one with: manage"):
        _fleet(tmp_path / "none", "list")


def test_it_serves_and_shows_engines(folder: Path) -> None:
    assert _fleet(folder, "engines") == "No engines. Have some with: manage.py fleet serve NAME DIGEST\n"
    assert _fleet(folder, "serve", "chat", DIGEST, "--replicas", "2").startswith("chat is served by 2 engines (")
    fleet = LocalFleet(folder)
    (one, _) = fleet.nodes()
    with fleet.store.write() as session:
        engine_put(
            session,
            Consumer(
                "u-1", "local/chat-1", one.node.name, one.node.uid, frozenset({DIGEST}), ready=True, restart_count=3,
                labels={"hearth.dev/endpoint": "chat"}, address="127.0.0.1:1",
            ),
        )  # fmt: skip
    header, line = _fleet(folder, "engines").splitlines()
    assert header.split() == ["NAME", "ENDPOINT", "NODE", "STATE", "RESTARTS", "ADDRESS", "UID"]
    assert line.split() == ["chat-1", "chat", "a-1", "ready", "3", "127.0.0.1:1", "u-1"]
    assert _fleet(folder, "unserve", "chat") == "chat is served no more\n"
    assert _fleet(folder, "unserve", "chat") == "chat was not served\n"
    with pytest.raises(CommandError, match="17 engines are no number for this"):
        _fleet(folder, "serve", "chat", DIGEST, "--replicas", "17")
