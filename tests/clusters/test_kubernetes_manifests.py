"""Manifests in chunks: put together whole or not at all, newest first, never another one's."""

from __future__ import annotations

import base64
import copy
import json
import random
import re
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.clusters.documents import Algorithm, FileRecord, Manifest
from controlplane.clusters.gateway import NotFound, Unreachable
from controlplane.clusters.kubernetes import manifests
from tests.contracts.observing import DIGEST, OTHER

Chunk = dict[str, Any]


def manifest(count: int, *, revision: str = "r", digest: str = DIGEST) -> Manifest:
    rng = random.Random(count)
    return Manifest(
        digest,
        tuple(
            FileRecord(f"shard-{n:05}", n, Algorithm.SHA256, f"{rng.getrandbits(256):064x}", f"{revision}{n}")
            for n in range(count)
        ),
    )


def stored(of: Manifest, *, created: str = "2026-11-29T09:00:00Z", version: str = "5") -> list[Chunk]:
    """As an API server gives them back."""
    chunks = json.loads(json.dumps(manifests.chunks_of(of)))
    for chunk in chunks:
        chunk["metadata"] |= {"creationTimestamp": created, "resourceVersion": version}
    return list(chunks)


@pytest.mark.parametrize("count", [0, 1, 500])
def test_it_puts_a_manifest_together(count: int) -> None:
    assert manifests.assembled(DIGEST, stored(manifest(count))) == manifest(count)


def test_it_cuts_what_is_too_large_for_an_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "CHUNK_BYTES", 1000)
    chunks = stored(manifest(100))
    assert len(chunks) > 3
    assert all(len(chunk["spec"]["data"]) <= 1336 for chunk in chunks)
    random.Random(7).shuffle(chunks)
    assert manifests.assembled(DIGEST, chunks) == manifest(100)
    for missing in range(len(chunks)):
        with pytest.raises(NotFound):
            manifests.assembled(DIGEST, chunks[:missing] + chunks[missing + 1 :])


def test_it_fits_ten_thousand_files_of_any_content_below_the_limit() -> None:
    for chunk in manifests.chunks_of(manifest(10_000)):
        assert len(json.dumps(chunk)) < 900_000


def test_it_names_a_chunk_so_that_an_api_server_takes_it_and_finds_it() -> None:
    for chunk in manifests.chunks_of(manifest(1)):
        assert re.fullmatch(r"[a-z0-9.-]{1,253}", chunk["metadata"]["name"])
        label = chunk["metadata"]["labels"]["cache.hearth.dev/manifest"]
        assert re.fullmatch(r"[a-z0-9]{1,63}", label)
        assert label == manifests.label_of(DIGEST)


def test_it_publishes_the_same_under_the_same_names() -> None:
    def named(of: Manifest) -> set[str]:
        return {chunk["metadata"]["name"] for chunk in manifests.chunks_of(of)}

    assert named(manifest(3)) == named(manifest(3))
    assert not named(manifest(3)) & named(manifest(3, revision="s"))
    assert not named(manifest(3)) & named(manifest(3, digest=OTHER))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("2026-11-29T09:00:00Z", "5"), ("2026-11-29T09:00:01Z", "4")),
        (("2026-11-29T09:00:00Z", "9"), ("2026-11-29T09:00:00Z", "10")),
    ],
)
def test_it_takes_the_newest_of_two_that_are_whole(old: tuple[str, str], new: tuple[str, str]) -> None:
    before = stored(manifest(3), created=old[0], version=old[1])
    after = stored(manifest(3, revision="s"), created=new[0], version=new[1])
    for chunks in (before + after, after + before):
        assert manifests.assembled(DIGEST, chunks) == manifest(3, revision="s")


def test_it_ignores_what_is_half_published_and_what_is_not_hearths(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stored(manifest(30))
    monkeypatch.setattr(manifests, "CHUNK_BYTES", 300)
    half = stored(manifest(30, revision="s"), created="2026-12-01T00:00:00Z")[:-1]
    stranger = copy.deepcopy(whole[0])
    stranger["metadata"]["name"] = "by-hand"
    other = stored(manifest(2, digest=OTHER), created="2026-12-01T00:00:00Z")
    assert manifests.assembled(DIGEST, [*half, stranger, *other, *whole]) == manifest(30)


def _cut(chunk: Chunk) -> None:
    chunk["spec"]["data"] = chunk["spec"]["data"][: len(chunk["spec"]["data"]) // 8 * 4]


def _flip(chunk: Chunk) -> None:
    data = bytearray(base64.b64decode(chunk["spec"]["data"]))
    data[len(data) // 2] ^= 1
    chunk["spec"]["data"] = base64.b64encode(bytes(data)).decode()


def _other_text(chunk: Chunk) -> None:
    chunk["spec"]["data"] = manifests.chunks_of(manifest(2))[0]["spec"]["data"]


def _no_document(chunk: Chunk) -> None:
    chunk["spec"]["data"] = base64.b64encode(zlib.compress(b"{}")).decode()


def _no_base64(chunk: Chunk) -> None:
    chunk["spec"]["data"] = "§§"


def _no_data(chunk: Chunk) -> None:
    del chunk["spec"]["data"]


def _odd_data(chunk: Chunk) -> None:
    chunk["spec"]["data"] = None


@pytest.mark.parametrize(
    "damage", [_cut, _flip, _other_text, _no_document, _no_base64, _no_data, _odd_data], ids=lambda f: f.__name__[1:]
)
def test_it_gives_out_nothing_that_is_damaged(damage: Callable[[Chunk], None]) -> None:
    chunks = stored(manifest(5))
    damage(chunks[0])
    with pytest.raises(Unreachable, match="damaged"):
        manifests.assembled(DIGEST, chunks)


def test_it_gives_out_no_manifest_under_the_digest_of_another() -> None:
    chunks = stored(manifest(5, digest=OTHER))
    for chunk in chunks:
        chunk["spec"]["digest"] = DIGEST
    with pytest.raises(Unreachable, match="another"):
        manifests.assembled(DIGEST, chunks)


def test_it_unpacks_no_more_than_memory_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LONGEST_TEXT_BYTES", 100)
    with pytest.raises(Unreachable, match="too large"):
        manifests.assembled(DIGEST, stored(manifest(5)))


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "A" * 64, "sha256:" + "a" * 63, "../x", f"{DIGEST}\n"])
def test_it_looks_for_nothing_that_is_no_digest(digest: str) -> None:
    with pytest.raises(NotFound):
        manifests.label_of(digest)


@given(st.lists(st.text("abc.0123456789-", max_size=20)))
def test_it_finds_no_manifest_in_names_that_are_none(names: list[str]) -> None:
    for checksum, found in manifests.whole_sets(names).items():
        assert checksum and all(name in names for name in found)


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(50, 400))
def test_it_puts_together_any_cut(count: int, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "CHUNK_BYTES", chunk_bytes)
        assert manifests.assembled(DIGEST, stored(manifest(count))) == manifest(count)
