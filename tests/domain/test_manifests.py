"""The digest that is an artifact's identity, its encoding, and the paths that may be written on a node."""

from __future__ import annotations

import dataclasses
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.manifests import (
    case_collisions,
    manifest_build,
    manifest_decode,
    manifest_digest,
    manifest_encode,
    path_problem,
)
from controlplane.clusters.documents import Algorithm, FileRecord

A = FileRecord("a", 1, Algorithm.SHA256, "aa", "rev-1", "ver-1")
B = FileRecord("b/c", 2, Algorithm.ETAG, "bb", "rev-2", scope="store:bucket")

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="/\\"), min_size=1)
paths = st.lists(names, min_size=1, max_size=3).map("/".join).filter(lambda path: path_problem(path) is None)
records = st.builds(
    FileRecord,
    path=paths,
    size_bytes=st.integers(0, 2**50),
    algorithm=st.sampled_from(Algorithm),
    checksum=st.text(max_size=10),
    revision=st.text(max_size=10),
    version_id=st.text(max_size=5),
    scope=st.text(max_size=5),
)
manifests = st.lists(records, max_size=6).filter(lambda files: not case_collisions(file.path for file in files))


def test_the_digest_is_frozen() -> None:
    # Stored artifacts and node stores are named by it: another value here orphans every one of them.
    assert manifest_digest([A, B]) == "sha256:4387e8669f39053619341a38aee70a3760c04f2d53d404e1696ef164b0a451f7"


@given(manifests)
def test_it_survives_encoding_whatever_it_holds(files: list[FileRecord]) -> None:
    manifest = manifest_build(files)
    assert manifest_decode(manifest_encode(manifest)) == manifest
    assert manifest.size_bytes == sum(file.size_bytes for file in files)
    assert manifest.digest == manifest_digest(reversed(files)) == manifest_build(manifest.files[::-1]).digest


@pytest.mark.parametrize(
    "change", [{"path": "z"}, {"size_bytes": 3}, {"checksum": "cc"}, {"algorithm": Algorithm.CRC64NVME}]
)
def test_it_names_other_content_otherwise(change: dict[str, object]) -> None:
    assert manifest_digest([dataclasses.replace(A, **change), B]) != manifest_digest([A, B])  # type: ignore[arg-type]
    assert manifest_digest([A]) != manifest_digest([A, B])


def test_where_and_how_it_is_read_is_no_part_of_the_identity_of_content() -> None:
    elsewhere = dataclasses.replace(A, revision="other", version_id="other", scope="other")
    assert manifest_digest([elsewhere]) == manifest_digest([A])


@pytest.mark.parametrize("algorithm", [Algorithm.ETAG, Algorithm.STAT])
def test_a_mere_revision_means_something_only_in_its_store(algorithm: Algorithm) -> None:
    here = dataclasses.replace(B, algorithm=algorithm)
    assert manifest_digest([dataclasses.replace(here, scope="other:bucket")]) != manifest_digest([here])


def test_fields_cannot_flow_into_each_other() -> None:
    left = FileRecord("a", 1, Algorithm.SHA256, '","x', "r")
    right = FileRecord('a","x', 1, Algorithm.SHA256, "", "r")
    assert manifest_digest([left]) != manifest_digest([right])


def damaged() -> list[bytes]:
    good = manifest_encode(manifest_build([A, B]))
    document = json.loads(zlib.decompress(good))
    wrong = []
    for path, value in ((0, "../x"), (1, -1), (1, True), (1, "1"), (2, "MD5"), (3, None), (3, "forged")):
        files = [list(line) for line in document["files"]]
        files[0][path] = value
        wrong.append(zlib.compress(json.dumps({**document, "files": files}).encode()))
    twice = {**document, "files": document["files"] * 2}
    return [
        b"",
        b"x",
        good[:-5],
        zlib.compress(b"[]"),
        zlib.compress(b'{"digest": "x"}'),
        zlib.compress(b'{"digest": "x", "files": [[1]]}'),
        zlib.compress(json.dumps(twice).encode()),
        *wrong,
    ]


@pytest.mark.parametrize("data", damaged())
def test_it_refuses_a_damaged_or_forged_manifest(data: bytes) -> None:
    with pytest.raises(ValueError):
        manifest_decode(data)


@pytest.mark.parametrize(
    "path",
    ["", "/a", "/", "..", "../a", "a/../b", "a/..", ".", "a/./b", "a//b", "a/", "a\\b", "a\0b", "a\nb", "a\x7fb",
     "a\x85b", "a\ud800b", ".hearth-marker.json", "x/.hearth", ".HEARTH-x",
     "n" * 256, "é" * 128, "/".join(["d" * 100] * 11)],
)  # fmt: skip
def test_unsafe_paths_are_named(path: str) -> None:
    assert path_problem(path)
    with pytest.raises(ValueError):
        manifest_build([dataclasses.replace(A, path=path)])


@pytest.mark.parametrize(
    "path", ["a", "a/b.c", ".hidden", "..a", "a..", "x.hearth", "é", "n" * 255, "a b", "…", "~", "-rf"]
)
def test_ordinary_paths_pass(path: str) -> None:
    assert path_problem(path) is None


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["a", "b", "a/b"], [("a", "a/b")]),
        (["Config.json", "config.json", "x"], [("Config.json", "config.json")]),
        (["x", "x"], [("x", "x")]),
        (["e\u0301", "\u00e9"], [("e\u0301", "\u00e9")]),
        (["STRASSE", "straße"], [("STRASSE", "straße")]),
        (["D/a", "d/b"], []),
        (["D", "d/b/c"], [("D", "d/b/c")]),
        (["a", "ab", "a.b"], []),
    ],
)
def test_names_that_cannot_live_side_by_side(names: list[str], groups: list[tuple[str, ...]]) -> None:
    assert case_collisions(names) == tuple(groups)
    assert case_collisions(reversed(names)) == tuple(groups)
    if groups:
        with pytest.raises(ValueError):
            manifest_build([dataclasses.replace(A, path=name) for name in names])


def test_ten_thousand_files_fit_where_they_must() -> None:
    files = [
        FileRecord(f"shards/model-{n:05}.safetensors", 2**30 + n, Algorithm.SHA256, f"{n * 7919:064x}", f"{n:032x}")
        for n in range(10_000)
    ]
    encoded = manifest_encode(manifest_build(files))
    assert len(encoded) < 900_000
    assert len(manifest_decode(encoded).files) == 10_000
