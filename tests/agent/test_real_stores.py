"""The agent against real S3 servers: SeaweedFS for bytes, moto for versions; each changed underneath a download."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caches.domain.manifests import manifest_build
from caches.sources import open_source
from controlplane.clusters.documents import Algorithm, EntryState, Limits, Manifest, Reason
from tests.agent.world import FAST, KIB, World, noise
from tests.sources.conftest import Bucket, bucket, moto_bucket, moto_endpoint

__all__ = ["bucket", "moto_bucket", "moto_endpoint"]  # fixtures

FILES = {"config.json": b"{}", "deep/a.bin": noise(600 * KIB), "b.bin": noise(300 * KIB, 2), "empty": b""}


class S3World(World):
    """Its one connection leads to a bucket."""

    bucket: Bucket

    def open_source(self, connection: Any, secret: Any) -> Any:
        return open_source(connection, self.bucket.secret)


def world_on(tmp_path: Path, place: Bucket, **fields: Any) -> S3World:
    # A real store on a busy machine may think for a while; nobody here tests that it must not.
    tuning = replace(FAST, stall_seconds=30.0)
    world = S3World(tmp_path, tuning=tuning, connections=(replace(place.spec(), name="disk"),), **fields)
    world.bucket = place
    return world


def publish(world: S3World, place: Bucket, files: dict[str, bytes], **options: Any) -> Manifest:
    for path, data in files.items():
        place.put(f"m/{path}", data, **options)
    source = open_source(place.spec(), place.secret)
    manifest = manifest_build(source.describe(f"s3://{place.name}/m", path) for path in files)
    source.close()
    world.link.manifests[manifest.digest] = manifest
    return manifest


def ask(world: S3World, manifest: Manifest, **changes: Any) -> str:
    world.want(manifest.digest, send=False, uri=f"s3://{world.bucket.name}/m", **changes)
    world.send()
    return manifest.digest


STORES = ["bucket", "moto_bucket"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({}, Algorithm.ETAG),
        ({"ChecksumAlgorithm": "CRC64NVME"}, Algorithm.CRC64NVME),
        ({"ChecksumAlgorithm": "SHA256"}, Algorithm.SHA256),
    ],
)
def test_it_fetches_repairs_and_counts_the_bytes_of_each_kind_of_object(
    tmp_path: Path, store: str, options: dict[str, str], algorithm: Algorithm, request: pytest.FixtureRequest
) -> None:
    place: Bucket = request.getfixturevalue(store)
    world = world_on(tmp_path, place)
    manifest = publish(world, place, FILES, **options)
    assert {file.algorithm for file in manifest.files} == {algorithm}
    with world:
        digest = ask(world, manifest)
        entry = world.becomes(digest, EntryState.READY, attempts=0)
        assert entry.bytes_moved == sum(map(len, FILES.values()))
        victim = world.tree(digest) / "deep/a.bin"
        victim.chmod(0o644)
        victim.write_bytes(bytes(600 * KIB))
        ask(world, manifest, verify_round=1)
        after = world.becomes(digest, EntryState.READY, verify_round=1)
        assert after.bytes_moved - entry.bytes_moved == 600 * KIB
        assert after.scrub and "deep/a.bin" in after.scrub.damaged
    assert world.content(digest) == FILES


def test_it_reads_the_registered_version_though_a_newer_one_exists(tmp_path: Path, moto_bucket: Bucket) -> None:
    moto_bucket.client.put_bucket_versioning(Bucket=moto_bucket.name, VersioningConfiguration={"Status": "Enabled"})
    world = world_on(tmp_path, moto_bucket)
    manifest = publish(world, moto_bucket, FILES)
    assert all(file.version_id for file in manifest.files)
    moto_bucket.put("m/b.bin", b"newer")
    moto_bucket.client.delete_object(Bucket=moto_bucket.name, Key="m/deep/a.bin")
    with world:
        digest = ask(world, manifest)
        world.becomes(digest, EntryState.READY, attempts=0)
    assert world.content(digest) == FILES


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("change", ["overwritten", "deleted", "same size"])
def test_it_publishes_nothing_of_what_is_another_object_now(
    tmp_path: Path, store: str, change: str, request: pytest.FixtureRequest
) -> None:
    place: Bucket = request.getfixturevalue(store)
    world = world_on(tmp_path, place)
    manifest = publish(world, place, FILES)
    if change == "deleted":
        place.client.delete_object(Bucket=place.name, Key="m/b.bin")
    else:
        place.put("m/b.bin", b"x" * (300 * KIB if change == "same size" else 5))
    with world:
        digest = ask(world, manifest)
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_CHANGED)
        assert "b.bin" in entry.message and not world.tree(digest).exists()
        place.put("m/b.bin", FILES["b.bin"])
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES


def test_it_takes_the_same_bytes_from_another_upload_where_a_checksum_proves_them(
    tmp_path: Path, bucket: Bucket
) -> None:
    world = world_on(tmp_path, bucket, limits=Limits(max_requests=2))
    manifest = publish(world, bucket, FILES, ChecksumAlgorithm="CRC64NVME")
    stale = tuple(replace(file, revision="of-another-store", version_id="") for file in manifest.files)
    world.link.manifests[manifest.digest] = replace(manifest, files=stale)
    with world:
        digest = ask(world, manifest)
        world.becomes(digest, EntryState.READY, attempts=0)
    assert world.content(digest) == FILES
