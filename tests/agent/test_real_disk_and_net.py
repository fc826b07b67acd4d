"""A source that falls silent on a real connection, and a filesystem that is really full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from caches.domain.manifests import manifest_build
from caches.sources import open_source
from controlplane.clusters.documents import Action, Algorithm, ConnectionSpec, EntryState, Limits, Reason, SourceType
from controlplane.embedded.seaweed import S3
from tests.agent.proxy import Stalling
from tests.agent.world import FAST, KIB, World, noise

MIB = 1024 * KIB


class RealWorld(World):
    """The test node, with sources as the agent's entry point opens them."""

    def open_source(self, connection: ConnectionSpec, secret: Mapping[str, str]) -> Any:
        return open_source(connection, secret)


@pytest.mark.e2e
def test_it_asks_a_silent_source_again_from_the_last_byte(tmp_path: Path, s3_server: S3) -> None:
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    client = boto3.client(
        "s3", endpoint_url=s3_server.endpoint, region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key, aws_secret_access_key=s3_server.secret_key,
    )  # fmt: skip
    bucket, data = "agent-stall", noise(24 * MIB)
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="m/a", Body=data, ChecksumAlgorithm="CRC64NVME")
    where = urlsplit(s3_server.endpoint)
    assert where.hostname and where.port
    with Stalling(where.hostname, where.port, after=9 * MIB, stalls=1) as proxy:
        connection = ConnectionSpec(
            "disk", SourceType.S3, endpoint=proxy.endpoint, region=s3_server.region, secret_name="s3", allowed=(bucket,)
        )
        tuning = replace(FAST, segment_bytes=32 * MIB, write_bytes=256 * KIB, stall_seconds=1.0)
        world = RealWorld(tmp_path, tuning, Limits(max_requests=1), connections=(connection,))
        world.link.secrets["s3"] = keys
        source = open_source(replace(connection, endpoint=s3_server.endpoint), keys)
        manifest = manifest_build([source.describe(f"s3://{bucket}/m", "a")])
        source.close()
        world.link.manifests[manifest.digest] = manifest
        with world:
            world.want(manifest.digest, uri=f"s3://{bucket}/m")
            entry = world.becomes(manifest.digest, EntryState.READY)
    assert proxy.stalled == 1
    assert entry.bytes_moved == len(data), "what had arrived before the silence was not read again"
    assert EntryState.FAILED not in world.states(manifest.digest)
    assert world.content(manifest.digest) == {"a": data}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """8 MiB of tmpfs; needs root."""
    root = tmp_path / "node"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(root)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("not run: mounting a small filesystem needs root")
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


@pytest.mark.faults
def test_it_survives_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path) -> None:
    """The quota lies: it says there is room. What is Ready stays so, and eviction works without a free byte."""
    world = World(tmp_path, limits=Limits(max_requests=1))
    with world:
        old = world.model("old", {"a": noise(2 * MIB)}, Algorithm.STAT)
        world.becomes(old, EntryState.READY)
        new = world.register("new", {"b": noise(5 * MIB, 2)})

        def fill(*_: object) -> None:
            with (small_disk / "other").open("ab") as file:
                try:
                    file.write(bytes(8 * MIB))
                except OSError:
                    return

        world.before = fill
        world.want(new, "new")
        entry = world.becomes(new, EntryState.FAILED, reason=Reason.INSUFFICIENT_CAPACITY)
        assert "It needs" in entry.message and entry.retry_at
        world.becomes(old, EntryState.READY)
    world.before = lambda file, position: None
    world.link.reports.clear()
    with world:  # also a new agent starts on it
        world.becomes(old, EntryState.READY)
        world.want(old, action=Action.EVICT)
        world.becomes(old, EntryState.ABSENT)
        (small_disk / "other").unlink()
        world.becomes(new, EntryState.READY)
    assert world.content(new) == {"b": noise(5 * MIB, 2)}
