"""The agent against a hub that sends other bytes than it states, that throttles, and whose addresses expire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from caches.sources import open_source
from caches.sources.selection import manifest_of
from controlplane.clusters.documents import ConnectionSpec, EntryState, Manifest, Reason, SourceType
from tests.agent.world import FAST, KIB, World, noise
from tests.standins.hub import Hub, blob_id, hub
from tests.standins.serving import Asked, Said, ranged

FILES = {"config.json": b'{"a": 1}', "model.safetensors": noise(300 * KIB)}


@dataclass
class Place:
    hub: Hub
    world: World
    manifest: Manifest
    uri: str

    def want(self) -> str:
        self.world.want(self.manifest.digest, uri=self.uri)
        return self.manifest.digest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with hub() as standing:
        standing.repository("org/m").commit(FILES)
        spec = ConnectionSpec("disk", SourceType.HUGGING_FACE, endpoint=standing.endpoint, allowed=("org",))
        source = open_source(spec, {})
        uri = source.resolve("hf://org/m").uri
        manifest = manifest_of(source, uri)
        source.close()
        world = World(tmp_path, tuning=replace(FAST, stall_seconds=30.0), connections=(spec,))
        world.open_source = open_source  # type: ignore[method-assign]  # the real one
        world.link.manifests[manifest.digest] = manifest
        yield Place(standing, world, manifest, uri)


@pytest.mark.parametrize("path", sorted(FILES))
def test_it_publishes_nothing_whose_bytes_are_others(place: Place, path: str) -> None:
    wrong = bytes(len(FILES[path]))

    def lie(asked: Asked) -> Said | None:
        large = "signature" in asked.query
        if path == "config.json" and asked.path.endswith(path):
            return ranged(asked, wrong, {"ETag": f'"{blob_id(FILES[path])}"'})
        return ranged(asked, wrong, {"ETag": "x"}) if large and path != "config.json" else None

    place.hub.fault = lie
    with place.world as world:
        entry = world.becomes(place.want(), EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
        assert path in entry.message and not world.tree(place.manifest.digest).exists()
        place.hub.fault = lambda asked: None
        world.becomes(place.manifest.digest, EntryState.READY)
    assert world.content(place.manifest.digest) == FILES


def test_it_goes_on_when_an_address_expires_in_the_middle(place: Place) -> None:
    turned = threading.Event()

    def turn(asked: Asked) -> Said | None:
        if (
            "signature" in asked.query
            and asked.headers.get("range", "").startswith("bytes=65536")
            and not turned.is_set()
        ):
            turned.set()
            place.hub.signature = "newer"
        return None

    place.hub.fault = turn
    with place.world as world:
        world.becomes(place.want(), EntryState.READY)
    assert turned.is_set() and world.content(place.manifest.digest) == FILES


def test_it_waits_out_a_hub_that_asks_for_patience(place: Place) -> None:
    asked_for_patience: list[str] = []

    def throttle(asked: Asked) -> Said | None:
        if "/resolve/" in asked.path and len(asked_for_patience) < 2:
            asked_for_patience.append(asked.path)
            return Said(429, b"", {"Retry-After": "0"})
        return None

    place.hub.fault = throttle
    with place.world as world:
        world.becomes(place.want(), EntryState.READY)
    assert len(asked_for_patience) == 2 and world.content(place.manifest.digest) == FILES


def test_access_that_was_taken_away_is_said_and_what_is_ready_stays(place: Place) -> None:
    with place.world as world:
        digest = place.want()
        world.becomes(digest, EntryState.READY)
        place.hub.repositories["org/m"].gated = "masked"
        victim = world.tree(digest) / "model.safetensors"
        victim.chmod(0o644)
        victim.write_bytes(bytes(300 * KIB))
        world.want(digest, verify_round=1)
        entry = world.until(lambda: (found := world.entry(digest)) and found.reason == Reason.ACCESS_DENIED and found)
        assert "gated" in entry.message
        place.hub.repositories["org/m"].gated = ""
        world.becomes(digest, EntryState.READY, verify_round=1)
    assert world.content(digest) == FILES
