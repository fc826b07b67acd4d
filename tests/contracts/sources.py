"""A place with the same files in every kind of store, for the contract that all sources keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from caches.sources import open_source
from caches.sources.base import Source
from controlplane.clusters.documents import ConnectionSpec, SourceType
from tests.agent.world import KIB, noise
from tests.sources.conftest import make_bucket
from tests.standins.hub import hub

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
    registering: Mapping[str, Any] = field(default_factory=dict)  # what registering it asks for besides

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
            spec, {}, "hf://org/model", "hf://other/model", "hf://org/none", put, remove, anchored=True, immutable=True
        )


PLACES = {"s3": s3_place, "filesystem": filesystem_place, "huggingface": hub_place}
