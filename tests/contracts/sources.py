"""A place with the same files in every kind of store, for the contract that all sources keep."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from caches.sources import open_source
from caches.sources.base import Source
from controlplane.clusters.documents import ConnectionSpec, SourceType
from tests.agent.world import FAST, KIB, noise
from tests.sources.conftest import make_bucket
from tests.standins.hub import hub
from tests.standins.jumpstart import KEYS, REGION, JumpStart, jumpstart

PATIENT = replace(FAST, stall_seconds=15.0)  # real servers on a busy machine take their time
FILES: Mapping[str, bytes] = {
    "README.md": b"# read me",
    "config.json": b'{"max_position_embeddings": 64}',
    "deep/er/part-1.bin": noise(200 * KIB),
    "deep/er/part-2.bin": noise(70 * KIB, 2),
    "empty": b"",
    "sp ace/\u00fc+%41.txt": b"names are bytes that need quoting",
}


@dataclass
class SourcePlace:
    """``uri`` holds FILES below an allowed place. ``put`` and ``remove`` change what is there, ``forbidden`` and
    ``missing`` are addresses outside the allowed list and without a file; "" where there can be none."""

    spec: ConnectionSpec
    secret: Mapping[str, str]
    uri: str
    forbidden: str
    missing: str
    put: Callable[[str, bytes], None]
    remove: Callable[[str], object]
    anchored: bool = False  # every file carries a checksum of its content
    immutable: bool = False  # a resolved address goes on giving what it gave
    versioned: bool = False  # a resolved address names a version, a commit
    registering: Mapping[str, Any] = field(default_factory=dict)  # what registering it asks for besides
    accept: Callable[[Source, str], str] = lambda source, uri: uri  # accepts the terms of a resolved address

    def resolved(self, source: Source, uri: str = "") -> str:
        """The address to read by, with every term accepted."""
        return self.accept(source, source.resolve(uri or self.uri).uri)

    def open(self) -> Source:
        return open_source(self.spec, self.secret)


@contextmanager
def s3_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    server = request.getfixturevalue("s3_server")
    bucket = make_bucket(server.endpoint, {"access_key_id": server.access_key, "secret_access_key": server.secret_key})

    def put(path: str, data: bytes) -> None:
        bucket.put(f"m/{path}", data, ChecksumAlgorithm="CRC64NVME")

    for path, data in FILES.items():
        put(path, data)
    yield SourcePlace(
        bucket.spec(), bucket.secret, f"s3://{bucket.name}/m", "s3://elsewhere/m", f"s3://{bucket.name}/none", put,
        lambda path: bucket.client.delete_object(Bucket=bucket.name, Key=f"m/{path}"), anchored=True,
    )  # fmt: skip


@contextmanager
def filesystem_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    root = tmp_path / "allowed"

    def put(path: str, data: bytes) -> None:
        target = root / "m" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(data)

    for path, data in FILES.items():
        put(path, data)
    (root / "none").mkdir()
    spec = ConnectionSpec("store", SourceType.FILESYSTEM, allowed=(str(root),))
    yield SourcePlace(
        spec, {}, (root / "m").as_uri(), tmp_path.as_uri(), (root / "none").as_uri(), put,
        lambda path: (root / "m" / path).unlink(),
    )  # fmt: skip


@contextmanager
def hub_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    with hub() as standing:
        repository = standing.repository("org/model")
        repository.commit(FILES)
        held = dict(FILES)

        def put(path: str, data: bytes) -> None:
            held[path] = data
            repository.commit(held)

        def remove(path: str) -> None:
            del held[path]
            repository.commit(held)

        standing.repository("org/none").commit({})
        spec = ConnectionSpec("store", SourceType.HUGGING_FACE, endpoint=standing.endpoint, allowed=("org",))
        yield SourcePlace(
            spec,
            {},
            "hf://org/model",
            "hf://other/model",
            "hf://org/none",
            put,
            remove,
            anchored=True,
            immutable=True,
            versioned=True,
        )


@contextmanager
def _jumpstart(request: pytest.FixtureRequest) -> Iterator[tuple[JumpStart, ConnectionSpec]]:
    with jumpstart(request.getfixturevalue("moto_endpoint")) as standing:
        spec = ConnectionSpec(
            "store", SourceType.JUMP_START, endpoint=standing.endpoint, region=REGION, allowed=("acme", "acme-none"),
            hub_endpoint=standing.hub.url, manifest=standing.manifest_uri,
        )  # fmt: skip
        yield standing, spec


@contextmanager
def open_jumpstart_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    with _jumpstart(request) as (standing, spec):
        folder = f"acme/{secrets.token_hex(8)}/"

        def put(path: str, data: bytes) -> None:
            standing.put(f"{folder}{path}", data)

        for path, data in FILES.items():
            put(path, data)
        standing.offer("acme", "1.2.0", folder)
        standing.offer("acme-none", "1.0.0", f"acme/{secrets.token_hex(8)}/")
        yield SourcePlace(
            spec, KEYS, "jumpstart://acme", "jumpstart://other", "jumpstart://acme-none", put,
            lambda path: standing.remove(f"{folder}{path}"), anchored=True, versioned=True,
        )  # fmt: skip


@contextmanager
def gated_jumpstart_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    with _jumpstart(request) as (standing, spec):
        standing.gate("acme", "1.2.0", "acme/pack/", FILES)
        standing.gate("acme-none", "1.0.0", "acme/none/", {})

        def put(path: str, data: bytes) -> None:
            standing.private[f"acme/pack/{path}"] = data

        def accept(source: Source, uri: str) -> str:
            terms = source.terms(uri)
            assert terms is not None
            return terms.accepted_uri

        yield SourcePlace(
            spec, KEYS, "jumpstart://acme@1.*", "jumpstart://other", "jumpstart://acme-none", put,
            lambda path: standing.private.pop(f"acme/pack/{path}"), versioned=True, accept=accept,
            registering={"accept_eula": True},
        )  # fmt: skip


PLACES = {
    "s3": s3_place,
    "filesystem": filesystem_place,
    "huggingface": hub_place,
    "jumpstart": open_jumpstart_place,
    "jumpstart-gated": gated_jumpstart_place,
}
