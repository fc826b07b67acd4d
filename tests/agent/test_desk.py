"""Pods that ask the node's agent: warm in an instant, cold through the same store, and never stuck."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from caches.agent import asking
from caches.agent.asking import Answer, End, Found, Progress
from caches.agent.ensure_step.ask import ask_agent
from controlplane.clusters.documents import Action, EntryState, FileRecord, Limits, Origin
from tests.agent.world import World, noise

FILES = {"config.json": b"{}", "weights/a.safetensors": noise(300_000)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as world:
        world.until(lambda: (world.store.base / asking.SOCKET).exists(), "the desk is open")
        yield world


def publish(world: World, name: str = "llama", files: dict[str, bytes] = FILES) -> str:
    """Known to the cluster, wanted by no plan."""
    digest = world.register(name, files)
    size = world.link.manifests[digest].size_bytes
    world.link.origins[digest] = Origin(world.connections[0], world.uri(name), size)
    return digest


def ask(world: World, digest: str, heard: list[Progress] | None = None, seconds: float = 60.0) -> Answer:
    heard = [] if heard is None else heard
    answer = ask_agent(world.store.base, digest, "default/pod", tell=heard.append, silence_seconds=seconds)
    assert answer is not None
    return answer


@contextmanager
def asking_pod(world: World, digest: str) -> Iterator[list[Answer | None]]:
    """A pod that asks meanwhile; its answer is there after the block."""
    answers: list[Answer | None] = []
    pod = threading.Thread(target=lambda: answers.append(ask(world, digest)))
    pod.start()
    yield answers
    pod.join(60)
    assert not pod.is_alive()


class Gate:
    """Holds the reads of a source at a position until it is opened."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.reached, self.open = at, threading.Event(), threading.Event()

    def __call__(self, file: FileRecord, position: int) -> None:
        if position >= self.at and file.size_bytes > 1000:
            self.reached.set()
            assert self.open.wait(60)


def test_a_warm_node_says_so_at_once(world: World) -> None:
    digest = world.model("llama", FILES)
    world.becomes(digest, EntryState.READY)
    world.until(lambda: world.runner.asks.is_warm(digest))
    heard: list[Progress] = []
    answer = ask(world, digest, heard)
    assert (answer.end, answer.found, answer.bytes, answer.source) == (End.READY, Found.HIT, 0, "")
    assert heard == []


def test_a_warm_answer_counts_as_a_use(world: World) -> None:
    digest = world.model("llama", FILES)
    world.becomes(digest, EntryState.READY)
    world.until(lambda: world.runner.asks.is_warm(digest))
    assert world.store.last_used_at(digest) is None
    ask(world, digest)
    assert world.store.last_used_at(digest) is not None
    world.until(lambda: (entry := world.entry(digest)) and entry.last_used_at, "the use is reported")


def test_a_cold_node_fetches_into_its_store_and_stays_warm(world: World) -> None:
    digest = publish(world)
    heard: list[Progress] = []
    answer = ask(world, digest, heard)
    size = sum(map(len, FILES.values()))
    assert (answer.end, answer.found, answer.bytes, answer.source) == (End.READY, Found.MISS, size, "disk")
    assert world.content(digest) == FILES
    assert heard and heard[0].state == "Asked"
    world.becomes(digest, EntryState.READY)
    assert ask(world, digest).found is Found.HIT


def test_it_works_before_any_plan_has_reached_the_node(world: World) -> None:
    assert world.link.current is None
    assert ask(world, publish(world)).end is End.READY


def test_what_a_pod_asked_for_survives_a_plan_that_does_not_name_it(world: World) -> None:
    digest = publish(world)
    ask(world, digest)
    other = world.model("other", {"a.bin": noise(1000)})
    world.becomes(other, EntryState.READY)
    entry = world.entry(digest)
    assert entry is not None and entry.state is EntryState.READY


def test_half_of_it_was_there(world: World) -> None:
    gate = Gate(at=128 * 1024)
    world.before = gate
    digest = world.model("llama", FILES)
    world.link.origins[digest] = Origin(world.connections[0], world.uri("llama"), 300_002)
    assert gate.reached.wait(60)
    world.until(lambda: (entry := world.entry(digest)) and entry.bytes_done, "some bytes are there")
    with asking_pod(world, digest) as answers:
        world.until(lambda: any(ask.taken for ask in world.runner.asks._waiting), "the pod waits")
        gate.open.set()
    [answer] = answers
    assert answer is not None and (answer.end, answer.found) == (End.READY, Found.PARTIAL)
    assert 0 < answer.bytes < 300_002


def test_a_pod_comes_before_every_plan(tmp_path: Path) -> None:
    """One download at a time is allowed, and one runs: a waiting pod is not held up by it."""
    with World(tmp_path, limits=Limits(max_downloads=1)) as world:
        gate = Gate()
        world.before = lambda file, position: gate(file, position) if file.path == "slow.bin" else None
        world.model("slow", {"slow.bin": noise(200_000)})
        assert gate.reached.wait(60)
        assert ask(world, publish(world)).end is End.READY
        gate.open.set()


def test_two_pods_share_one_download(world: World) -> None:
    gate = Gate()
    world.before = gate
    digest = publish(world)
    with asking_pod(world, digest) as first, asking_pod(world, digest) as second:
        assert gate.reached.wait(60)
        world.until(lambda: len(world.runner.asks._waiting) == 2)
        gate.open.set()
    found = [answer.found for answer in (*first, *second) if answer is not None]
    assert len(found) == 2 and Found.LOCAL not in found
    read = [path for path, _, _ in world.requests]
    assert len(read) == len(set(world.requests))  # no range was asked for twice


def test_a_pod_that_went_away_leaves_the_node_warm(world: World) -> None:
    gate = Gate()
    world.before = gate
    digest = publish(world)
    with socket.socket(socket.AF_UNIX) as pod:
        pod.connect(str(world.store.base / asking.SOCKET))
        pod.sendall(asking.question(digest, "default/pod"))
        assert gate.reached.wait(60)
    gate.open.set()
    world.becomes(digest, EntryState.READY)


def test_a_store_without_room_says_so_and_remembers_nothing(world: World) -> None:
    world.link.quota = (200_000, 0)
    digest = publish(world)
    answer = ask(world, digest)
    assert answer.end is End.NO_ROOM and "It needs 293 KiB; 195.3 KiB are free" in answer.message
    world.until(lambda: world.entry(digest) is None, "nothing is tried again for a pod that helped itself")
    assert not world.store.tree(digest).exists()


def test_an_empty_folder_that_a_mount_made_is_no_damaged_tree(world: World) -> None:
    digest = publish(world)
    world.store.tree(digest).mkdir()
    answer = ask(world, digest)
    assert (answer.end, answer.found) == (End.READY, Found.MISS)
    assert EntryState.REPAIRING not in world.states(digest)
    assert world.content(digest) == FILES


def test_what_nobody_published_is_unknown(world: World) -> None:
    answer = ask(world, "sha256:" + "0" * 64)
    assert answer.end is End.UNKNOWN and "Nobody published" in answer.message


def test_what_is_there_is_given_although_the_cluster_does_not_answer(world: World) -> None:
    digest = publish(world)
    ask(world, digest)
    world.link.reachable = False
    assert ask(world, digest).end is End.READY


def test_a_cold_pod_is_told_when_the_cluster_does_not_answer(world: World) -> None:
    digest = publish(world)
    world.link.reachable = False
    answer = ask(world, digest)
    assert answer.end is End.UNKNOWN and "cluster did not say" in answer.message, "somebody did publish it"


def test_a_source_that_fails_ends_the_wait(world: World) -> None:
    digest = publish(world)
    (world.origin / "llama" / "config.json").unlink()
    answer = ask(world, digest)
    assert answer.end is End.FAILED and "config.json" in answer.message


def test_what_is_being_evicted_is_not_promised(world: World) -> None:
    digest = world.model("llama", FILES)
    world.becomes(digest, EntryState.READY)
    world.link.origins[digest] = Origin(world.connections[0], world.uri("llama"), 300_002)
    world.want(digest, action=Action.EVICT)
    world.becomes(digest, EntryState.ABSENT)
    assert ask(world, digest).end is End.LEAVING


def test_a_paused_node_sends_the_pod_on(tmp_path: Path) -> None:
    with World(tmp_path, limits=Limits(paused=True)) as world:
        world.send()
        world.until(lambda: world.link.reports and world.link.reports[-1].observed_generation == 1)
        assert ask(world, publish(world)).end is End.PAUSED


def test_a_damaged_tree_is_no_hit(world: World) -> None:
    digest = world.model("llama", FILES)
    world.link.origins[digest] = Origin(world.connections[0], world.uri("llama"), 300_002)
    world.becomes(digest, EntryState.READY)
    world.until(lambda: world.runner.asks.is_warm(digest))
    gate = Gate()
    world.before = gate
    world.store.unmark(digest)
    with asking_pod(world, digest) as answers:
        gate.open.set()
    [answer] = answers
    assert answer is not None and answer.end is End.READY
    assert world.content(digest) == FILES


def test_an_agent_that_ends_tells_its_pods(tmp_path: Path) -> None:
    gate = Gate()
    with World(tmp_path, before=gate) as world:
        world.until(lambda: (world.store.base / asking.SOCKET).exists())
        digest = publish(world)
        with asking_pod(world, digest) as answers:
            assert gate.reached.wait(60)
            world.runner.stop()
    gate.open.set()
    assert [answer.end for answer in answers if answer] == [End.STOPPING]
    assert not (world.store.base / asking.SOCKET).exists()


def test_a_dead_agents_socket_is_taken_over(tmp_path: Path) -> None:
    first = World(tmp_path)
    first.store.prepare()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(first.store.base / asking.SOCKET))
    assert ask_agent(first.store.base, "sha256:" + "0" * 64, "pod", tell=print, silence_seconds=1.0) is None
    with first as world:
        world.until(lambda: world.link.reports)
        assert ask(world, publish(world)).end is End.READY


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"digest": 7}\n',
        b"\xff\xfe\n",
        b'{"digest": "sha256:../../etc"}\n',
        b"[" * 4000 + b"\n",
    ],
)
def test_nonsense_gets_an_answer_and_harms_nobody(world: World, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as pod:
        pod.settimeout(60)
        pod.connect(str(world.store.base / asking.SOCKET))
        pod.sendall(line + b"\n")
        assert json.loads(pod.recv(8192))["end"] == "Unknown"
    assert ask(world, publish(world)).end is End.READY


def test_a_silent_pod_takes_no_place_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as pod:
        pod.settimeout(60)
        pod.connect(str(world.store.base / asking.SOCKET))
        assert pod.recv(10) == b""


def test_a_silent_agent_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / asking.SOCKET))
        agent.listen()
        start = time.monotonic()
        assert ask_agent(tmp_path, "sha256:" + "0" * 64, "pod", tell=print, silence_seconds=0.2) is None
        assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "message", [Progress("Downloading", 1, 2, 3.5, None, "x"), Answer(End.READY, Found.HIT, 5, 0.1)]
)
def test_messages_come_back_as_they_were_sent(message: Progress | Answer) -> None:
    assert asking.read_line(asking.line_of(message)) == message


@pytest.mark.parametrize(
    "data", [b'{"end": "Maybe", "found": "hit"}', b'{"end": "Ready"}', b'{"state": "x", "y": 1}', b"7"]
)
def test_an_answer_from_somebody_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        asking.read_line(data)


def test_the_socket_may_be_used_by_any_user_of_the_node(world: World) -> None:
    assert (world.store.base / asking.SOCKET).stat().st_mode & 0o777 == 0o666
