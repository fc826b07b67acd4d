"""What ``manage.py fleet`` prints: a table for people, JSON for programs, one sentence for every mistake."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.clusters.gateway import GatewayError, Throttled
from controlplane.clusters.local import database, leases, nodes
from controlplane.clusters.local.fleet import LocalFleet, PoolLayout
from controlplane.management.commands import fleet as command
from tests.contracts.observing import DIGEST, OTHER

pytestmark = pytest.mark.django_db

NODE_VERBS = ("remove", "replace", "cordon", "uncordon", "stop", "start", "unfill")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LocalFleet(tmp_path / "fleet").create(nodes=2)
    return tmp_path / "fleet"


def _fleet(folder: Path, *arguments: str) -> str:
    out = io.StringIO()
    call_command("fleet", "--dir", str(folder), *arguments, stdout=out)
    return out.getvalue()


def _vouch(folder: Path, name: str, ready: bool | None) -> None:
    with LocalFleet(folder).store.write() as session:
        uid = nodes.node_get(session, name).uid
        nodes.node_set_ready(session, name, uid, ready)
        leases.leases_renew(session, [(name, uid)])


@pytest.mark.parametrize(
    ("ready", "acts", "state"),
    [
        (True, (), "ready"),
        (True, ("cordon",), "ready, cordoned"),
        (False, (), "not ready"),
        (False, ("cordon",), "not ready, cordoned"),
        (None, ("cordon", "uncordon"), "unknown"),
        (True, ("stop",), "stopped"),
        (False, ("stop", "cordon"), "stopped"),
        (True, ("stop", "start"), "ready"),
        (True, ("replace",), "unknown"),
    ],
)
def test_it_says_the_state_of_a_node_in_words(
    folder: Path, ready: bool | None, acts: tuple[str, ...], state: str
) -> None:
    _vouch(folder, "a-1", ready)
    for act in acts:
        _fleet(folder, act, "a-1")
    assert json.loads(_fleet(folder, "list", "--json"))[0]["state"] == state
    assert f"  {state}  " in _fleet(folder, "list").splitlines()[1]


def test_it_lines_its_columns_up_whatever_is_in_them(folder: Path) -> None:
    _fleet(folder, "add", "a-node-with-a-very-long-name", "--pool", "pool-of-length", "--capacity", "1MiB")
    for digest in (DIGEST, OTHER):
        _fleet(folder, "use", "a-1", digest)
    lines = _fleet(folder, "list").splitlines()
    starts = [lines[0].index(title) for title in ("POOL", "STATE", "CAPACITY", "OTHER", "IN USE", "UID")]
    for line in lines[1:]:
        assert all(line[start - 1] == " " and line[start] != " " for start in starts), line
        assert line == line.rstrip()
    assert lines[1][starts[4]] == "2"


def test_it_lists_a_node_without_a_pool(folder: Path) -> None:
    fleet = LocalFleet(folder)
    with fleet.store.write() as session:
        nodes.node_change(session, "a-1", labels={})
    assert _fleet(folder, "list").splitlines()[1].split()[1] == "-"


def test_it_gives_programs_everything_it_knows(folder: Path) -> None:
    _fleet(folder, "use", "a-1", DIGEST)
    _fleet(folder, "fill", "a-1", "5MiB")
    row = json.loads(_fleet(folder, "list", "--json"))[0]
    assert {"name", "uid", "labels", "capacityBytes", "createdAt", "schedulable", "stopped", "ready"} <= row.keys()
    assert row["otherBytes"] == 5 * 2**20 and row["consumers"][0]["digests"] == [DIGEST]
    for name in ("a-1", "b-1"):
        _fleet(folder, "remove", name)
    assert json.loads(_fleet(folder, "list", "--json")) == []


@pytest.mark.parametrize("verb", NODE_VERBS)
def test_it_names_the_node_that_is_not_there(folder: Path, verb: str) -> None:
    with pytest.raises(CommandError, match=r"No node nope\. See them with: manage\.py fleet list"):
        _fleet(folder, verb, "nope")


@pytest.mark.parametrize("verb", [*NODE_VERBS, "fill", "use", "unuse", "add", "list"])
def test_it_makes_no_fleet_by_asking_for_one(tmp_path: Path, verb: str) -> None:
    more = {"fill": ["1MiB"], "use": [DIGEST], "unuse": [DIGEST]}.get(verb, [])
    name = [] if verb == "list" else ["a-1"]
    with pytest.raises(CommandError, match=r"Start one with: manage\.py fleet run"):
        _fleet(tmp_path / "none", verb, *name, *more)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("verb", [*NODE_VERBS, "fill", "use", "unuse"])
def test_it_asks_for_the_node(folder: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, CommandError)) as failed:
        _fleet(folder, verb)
    assert "required: name" in capsys.readouterr().err + str(failed.value)


def test_it_asks_for_a_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, CommandError)) as failed:
        _fleet(folder)
    assert "VERB" in capsys.readouterr().err + str(failed.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "c-1", "--capacity", "1KiB"), "Give a number of bytes from 1048576"),
        (("add", "c-1", "--pool", "Pool A"), "cannot be a pool's name"),
        (("add", "../c"), "cannot be a node's name"),
        (("add", "x" * 64), "at most 63"),
        (("fill", "b-1", "513MiB"), "Give at most 536870912 bytes"),
    ],
)
def test_it_ends_a_mistake_with_what_to_do(folder: Path, arguments: tuple[str, ...], told: str) -> None:
    before = _fleet(folder, "list")
    with pytest.raises(CommandError, match=told):
        _fleet(folder, *arguments)
    assert _fleet(folder, "list") == before


@pytest.mark.parametrize("nodes", ["", "1.5", "1001", "-1", "many", "²"])
def test_it_takes_only_a_number_of_nodes(folder: Path, nodes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, CommandError)) as failed:
        _fleet(folder, "run", f"--nodes={nodes}")
    assert "a number of nodes from 0 to 1000" in capsys.readouterr().err + str(failed.value)


@pytest.mark.parametrize("digest", ["", "a1", "sha256:" + "A1" * 32, DIGEST[:-2], "md5:" + "a1" * 32, DIGEST + "0"])
def test_it_takes_only_digests(folder: Path, digest: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, CommandError)) as failed:
        _fleet(folder, "use", "a-1", digest)
    assert "64 hexadecimal digits" in capsys.readouterr().err + str(failed.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Throttled("The fleet in /x is busy", 1.0), "The fleet in /x is busy"),
        (OSError(28, "No space left on device"), r"cannot be used \(No space left on device\)\. Give another folder"),
        (OSError(30, "Read-only file system"), r"cannot be used \(Read-only file system\)"),
        (GatewayError("odd"), "odd"),
    ],
)
def test_it_tells_trouble_without_a_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fail(self: LocalFleet, name: str) -> None:
        raise error

    monkeypatch.setattr(LocalFleet, "cordon", fail)
    with pytest.raises(CommandError, match=told):
        _fleet(folder, "cordon", "a-1")


def test_it_says_so_when_its_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="Give another folder with --dir"):
        _fleet(tmp_path / "file", "run", "--nodes", "1")


def test_it_says_so_when_the_store_is_damaged(folder: Path) -> None:
    for path in folder.glob(f"{database.FILE_NAME}-*"):
        path.unlink()
    (folder / database.FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(CommandError, match="cannot be read"):
        _fleet(folder, "list")


# -- run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """``run`` with a supervisor that only notes how it was made, and stops at the first signal."""
    made: list[dict[str, Any]] = []

    class Noting:
        def __init__(self, fleet: LocalFleet, *, agent: Any, engines: Any, say: Callable[[str], None]) -> None:
            made.append({"agent": tuple(agent), "nodes": [row.node.name for row in fleet.nodes()]})

        def run(self, stopping: Callable[[], bool]) -> None:
            assert not stopping()
            signal.raise_signal(signal.SIGTERM)
            assert stopping()

    monkeypatch.setattr(command, "Supervisor", Noting)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


def test_it_makes_the_pools_it_is_told(tmp_path: Path, ran: list[dict[str, Any]]) -> None:
    said = _fleet(
        tmp_path / "f", "run", "--nodes", "3", "--pool", "fast=2MiB", "--pool", "slow=1MiB", "--agent", "a 'b c'"
    )
    assert said == f"fleet: 3 nodes made in {tmp_path / 'f'}\nfleet: stopped\n"
    assert ran == [{"agent": ("a", "b c"), "nodes": ["fast-1", "fast-2", "slow-1"]}]
    again = _fleet(tmp_path / "f", "run", "--nodes", "9")
    assert "3 nodes found" in again and "counts at the first start only" in again
    assert "counts at the first" not in _fleet(tmp_path / "f", "run", "--nodes", "3")


@pytest.mark.parametrize("pools", [["a=1MiB", "a=2MiB"], ["pool-a=1MiB", "a=1MiB"], ["A=1MiB"], ["=1MiB"]])
def test_it_refuses_pools_that_cannot_be(tmp_path: Path, ran: list[dict[str, Any]], pools: list[str]) -> None:
    with pytest.raises(CommandError, match="Give for example: --pool pool-a=1GiB --pool pool-b=512MiB"):
        _fleet(tmp_path / "f", "run", *(part for pool in pools for part in ("--pool", pool)))
    assert ran == [] and not (tmp_path / "f").exists()


def test_it_layouts_pools_as_the_line_says() -> None:
    assert command._layout("fast=1.5GiB") == PoolLayout("fast", 3 * 2**29, "nvme")
