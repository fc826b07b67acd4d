"""The ensure step on a warm node, a cold one, a full one, one without a store and one whose agent is dead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from caches.agent import asking
from caches.agent.ensure_step.__main__ import main
from caches.agent.ensure_step.options import PodSource
from caches.agent.store import name_of
from caches.domain.text import size_text
from controlplane.clusters import codec
from controlplane.clusters.documents import Algorithm, EntryState, Origin
from tests.agent.world import World, noise

FILES = {"config.json": b"{}", "weights/a.safetensors": noise(300_000), "weights/deep/b.bin": noise(1000, 2)}
SIZE = sum(map(len, FILES.values()))
pytestmark = pytest.mark.usefixtures("quiet_environment")


@pytest.fixture
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEARTH_SOURCE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A node whose agent runs and knows the model's origin."""
    with World(tmp_path) as world:
        world.until(lambda: (world.store.base / asking.SOCKET).exists(), "the desk is open")
        yield world


@pytest.fixture
def dead(tmp_path: Path) -> World:
    """A node with a store whose agent is dead."""
    world = World(tmp_path)
    world.store.prepare()
    return world


def publish(world: World) -> str:
    digest = world.register("llama", FILES)
    world.link.origins[digest] = Origin(world.connections[0], world.uri("llama"), SIZE)
    return digest


def registered_as_stated(world: World) -> str:
    """Registered with what the store itself states, as the catalogue does: a pod can make this digest again."""
    digest = world.register("llama", FILES, Algorithm.STAT)
    world.link.origins[digest] = Origin(world.connections[0], world.uri("llama"), SIZE)
    return digest


class Pod:
    """One pod's folders and what its step said."""

    def __init__(self, world: World, tmp_path: Path, name: str = "pod") -> None:
        self.world, self.folder = world, tmp_path / name
        self.model = self.folder / "model"
        self.model.mkdir(parents=True)
        self.report = self.folder / "termination-log"

    def arguments(self, digest: str, store: Path | None = None, **options: object) -> list[str]:
        # The served container mounts the tree under another name; here both see the same disk.
        mount = self.world.store.base / "weights" / name_of(digest)
        # How full the machine's own disk is says nothing here.
        given = {"digest": digest, "store": store or self.world.store.base, "model": self.model, "mount": mount,
                 "report": self.report, "high_watermark": 1.0, **options}  # fmt: skip
        return [text for key, value in given.items() for text in (f"--{key.replace('_', '-')}", str(value))]

    def run(self, digest: str, store: Path | None = None, **options: object) -> int:
        return main(self.arguments(digest, store, **options))

    @property
    def outcome(self) -> Mapping[str, Any]:
        told: Mapping[str, Any] = json.loads(self.report.read_text())
        return told

    def served(self) -> dict[str, bytes]:
        """What the served container reads below its model path."""
        found = {}
        for folder, _, names in os.walk(self.model):
            if ".hearth" in folder:
                continue
            for name in names:
                path = Path(folder, name)
                found[path.relative_to(self.model).as_posix()] = path.read_bytes()
        return found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(world: World) -> None:
        own = PodSource(world.connections[0], world.uri("llama"))
        monkeypatch.setenv("HEARTH_SOURCE", codec.dumps(own))

    return give


def test_a_warm_node(world: World, tmp_path: Path) -> None:
    digest = world.model("llama", FILES)
    world.becomes(digest, EntryState.READY)
    world.until(lambda: world.runner.asks.is_warm(digest))
    pod = Pod(world, tmp_path)
    assert pod.run(digest) == 0
    assert pod.served() == FILES
    assert (pod.outcome["found"], pod.outcome["bytes"], pod.outcome["source"]) == ("hit", 0, "")


@pytest.mark.parametrize("size", [None, 10], ids=["gone", "short"])
def test_a_warm_copy_that_lost_a_file_is_no_hit(world: World, tmp_path: Path, size: int | None) -> None:
    """However long ago the agent looked: a pod relies on it now."""
    digest = publish(world)
    assert Pod(world, tmp_path).run(digest) == 0
    world.until(lambda: world.runner.asks.is_warm(digest))
    lost = world.tree(digest) / "weights" / "a.safetensors"
    lost.parent.chmod(0o755)
    lost.chmod(0o644)
    lost.unlink() if size is None else os.truncate(lost, size)
    assert not world.runner.asks.is_warm(digest)
    pod = Pod(world, tmp_path, "second")
    assert pod.run(digest) == 0
    assert pod.served() == FILES
    assert pod.outcome["found"] == "partial" and pod.outcome["bytes"] == len(FILES["weights/a.safetensors"])


def test_the_served_container_gets_links_and_no_copy(world: World, tmp_path: Path) -> None:
    digest = publish(world)
    pod = Pod(world, tmp_path)
    pod.run(digest)
    links = [path for path in pod.model.rglob("*") if not path.is_dir() or path.is_symlink()]
    assert links and all(path.is_symlink() for path in links)
    mount = str(world.store.base / "weights" / name_of(digest))
    assert os.readlink(pod.model / "weights/deep/b.bin") == f"{mount}/weights/deep/b.bin"


def test_a_cold_node_is_left_warm(world: World, tmp_path: Path) -> None:
    digest = publish(world)
    first, second = Pod(world, tmp_path), Pod(world, tmp_path, "second")
    assert first.run(digest) == 0
    assert first.served() == FILES
    assert (first.outcome["found"], first.outcome["bytes"], first.outcome["source"]) == ("miss", SIZE, "disk")
    assert first.outcome["seconds"] > 0
    assert second.run(digest) == 0
    assert second.outcome["found"] == "hit"


def test_a_full_node_starts_all_the_same(world: World, tmp_path: Path, source: Any) -> None:
    world.link.quota = (100_000, 0)
    digest = registered_as_stated(world)
    source(world)
    pod = Pod(world, tmp_path)
    assert pod.run(digest) == 0
    assert pod.served() == FILES
    assert (pod.outcome["found"], pod.outcome["bytes"]) == ("local", SIZE)
    assert pod.outcome["message"].startswith(f"the node's store has no room: it needs {size_text(SIZE)}; "), "and why"
    assert not world.store.tree(digest).exists()


def test_a_full_node_and_a_source_that_fails_are_both_said(world: World, tmp_path: Path, source: Any) -> None:
    world.link.quota = (100_000, 0)
    digest = registered_as_stated(world)
    source(world)
    shutil.rmtree(world.origin / "llama")
    pod = Pod(world, tmp_path)
    assert pod.run(digest) == 1
    said = pod.outcome["message"]
    assert "llama" in said and "It has to fetch by itself because the node's store has no room: it needs" in said


def test_the_pods_own_copy_is_reached_from_wherever_it_is_mounted(world: World, tmp_path: Path, source: Any) -> None:
    world.link.quota = (100_000, 0)
    digest = registered_as_stated(world)
    source(world)
    pod = Pod(world, tmp_path)
    pod.run(digest)
    elsewhere = tmp_path / "as-the-served-container-sees-it"
    pod.model.rename(elsewhere)
    pod.model = elsewhere
    assert pod.served() == FILES


def test_a_node_without_a_store(tmp_path: Path, source: Any) -> None:
    world = World(tmp_path)
    digest = registered_as_stated(world)
    source(world)
    pod = Pod(world, tmp_path)
    empty = tmp_path / "made-by-the-mount"
    empty.mkdir()
    assert pod.run(digest, empty) == 0
    assert pod.served() == FILES
    assert (pod.outcome["found"], pod.outcome["message"]) == ("local", "this node has no store")
    assert list(empty.iterdir()) == []  # no store is founded where nobody looks after it


def test_a_store_that_is_not_mounted_at_all(tmp_path: Path, source: Any) -> None:
    world = World(tmp_path)
    digest = registered_as_stated(world)
    source(world)
    pod = Pod(world, tmp_path)
    assert pod.run(digest, tmp_path / "nowhere") == 0
    assert pod.served() == FILES


def test_a_dead_agents_warm_copy_is_used(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("llama", FILES)
        world.becomes(digest, EntryState.READY)
    pod = Pod(world, tmp_path)
    assert pod.run(digest) == 0
    assert pod.served() == FILES
    assert pod.outcome["found"] == "hit"


def test_a_dead_agents_store_is_filled_and_its_successor_finds_it(dead: World, tmp_path: Path, source: Any) -> None:
    digest = registered_as_stated(dead)
    source(dead)
    pod = Pod(dead, tmp_path)
    assert pod.run(digest) == 0
    assert pod.served() == FILES
    assert (pod.outcome["found"], pod.outcome["bytes"]) == ("miss", SIZE)
    dead.want(digest, "llama")
    with dead as world:
        world.becomes(digest, EntryState.READY)
        assert world.requests == []  # nothing was read again


def test_a_dead_agents_damaged_copy_is_not_served(tmp_path: Path, source: Any) -> None:
    with World(tmp_path) as world:
        digest = registered_as_stated(world)
        world.want(digest, "llama")
        world.becomes(digest, EntryState.READY)
    damaged = world.tree(digest) / "weights" / "a.safetensors"
    damaged.parent.chmod(0o755)
    damaged.chmod(0o644)
    damaged.write_bytes(b"short")
    source(world)
    pod = Pod(world, tmp_path)
    assert pod.run(digest) == 0
    assert pod.served() == FILES
    assert pod.outcome["found"] in ("partial", "local")


def test_a_locked_store_is_left_to_who_holds_it(dead: World, tmp_path: Path, source: Any) -> None:
    """An agent that hangs holds the lock and answers nothing."""
    digest = registered_as_stated(dead)
    source(dead)
    pod = Pod(dead, tmp_path)
    with dead.store.lock(1.0):
        assert pod.run(digest) == 0
    assert pod.outcome["found"] == "local" and pod.served() == FILES
    assert not dead.store.tree(digest).exists()


def test_a_store_above_its_watermark_is_not_filled_behind_the_agents_back(
    dead: World, tmp_path: Path, source: Any
) -> None:
    digest = registered_as_stated(dead)
    source(dead)
    pod = Pod(dead, tmp_path)
    assert pod.run(digest, high_watermark=0.0) == 0
    assert pod.outcome["found"] == "local"


def test_the_empty_folder_of_an_earlier_mount_was_no_hit(dead: World, tmp_path: Path, source: Any) -> None:
    digest = registered_as_stated(dead)
    source(dead)
    dead.store.tree(digest).mkdir()  # a kubelet makes what a container wants to mount
    pod = Pod(dead, tmp_path)
    assert pod.run(digest) == 0
    assert pod.outcome["found"] == "miss" and pod.served() == FILES


def test_a_pod_with_nothing_to_fall_back_on_says_so(dead: World, tmp_path: Path) -> None:
    digest = publish(dead)
    pod = Pod(dead, tmp_path)
    assert pod.run(digest) == 1
    assert pod.outcome["found"] == "waiting", "nobody tried to fetch it"
    assert "HEARTH_SOURCE" in pod.outcome["message"]
    assert pod.served() == {}


def test_a_pod_that_asks_before_the_artifact_is_known_waits_and_one_whose_node_is_full_fails(
    world: World, tmp_path: Path
) -> None:
    pod = Pod(world, tmp_path)
    assert pod.run(f"sha256:{'0' * 64}") == 1
    assert pod.outcome["found"] == "waiting" and "nobody published" in pod.outcome["message"]
    world.link.quota = (100_000, 0)
    assert pod.run(registered_as_stated(world)) == 1
    assert pod.outcome["found"] == "failed" and "has no room" in pod.outcome["message"]


def test_a_source_that_holds_other_bytes_starts_no_pod(dead: World, tmp_path: Path, source: Any) -> None:
    digest = registered_as_stated(dead)
    source(dead)
    (dead.origin / "llama" / "config.json").write_bytes(b'{"other": 1}')
    pod = Pod(dead, tmp_path)
    assert pod.run(digest) == 1
    assert pod.outcome["found"] == "failed" and digest in pod.outcome["message"]
    assert pod.served() == {}


def test_a_second_attempt_cleans_up_after_the_first(world: World, tmp_path: Path) -> None:
    digest = publish(world)
    pod = Pod(world, tmp_path)
    (pod.model / "weights").mkdir()
    (pod.model / "weights" / "a.safetensors").write_bytes(b"half")
    (pod.model / "old.bin").symlink_to("/nowhere")
    assert pod.run(digest) == 0
    assert pod.served() == FILES


def test_a_restarted_step_finds_its_own_copy(dead: World, tmp_path: Path, source: Any) -> None:
    digest = registered_as_stated(dead)
    source(dead)
    pod = Pod(dead, tmp_path)
    assert pod.run(digest, tmp_path / "nowhere") == 0
    assert pod.run(digest, tmp_path / "nowhere") == 0
    assert pod.served() == FILES and pod.outcome["bytes"] == 0


@pytest.mark.parametrize("digest", ["", "sha256:zz", "../../etc", "sha256-" + "0" * 64])
def test_a_digest_that_is_none_is_a_mistake_in_the_manifest(world: World, tmp_path: Path, digest: str) -> None:
    pod = Pod(world, tmp_path)
    arguments = pod.arguments("sha256:" + "0" * 64)
    arguments[1] = digest
    assert main(arguments) == 2


def test_a_source_that_cannot_be_read_is_a_mistake_in_the_manifest(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_SOURCE", "{")
    assert Pod(world, tmp_path).run("sha256:" + "0" * 64) == 2


def test_it_runs_as_a_program_of_its_own_and_says_what_it_does(world: World, tmp_path: Path) -> None:
    digest = publish(world)
    pod = Pod(world, tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "caches.agent.ensure_step", *pod.arguments(digest)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert f"{digest}: miss, {SIZE} bytes" in ran.stdout
    assert pod.served() == FILES


def test_credentials_are_in_no_word_of_it(
    dead: World, tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = registered_as_stated(dead)
    source(dead)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAVERYSECRET")
    shutil.rmtree(dead.origin / "llama")
    pod = Pod(dead, tmp_path)
    assert pod.run(digest) == 1
    said = pod.report.read_text() + "".join(capsys.readouterr())
    assert "very-secret-value" not in said and "AKIAVERYSECRET" not in said
