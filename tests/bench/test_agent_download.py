"""How fast the agent brings a model from S3 to disk, beside boto3's default transfer, in one interleaved run.

The agent's time is from the line in its spec to Ready: room, ranged reads, CRC64NVME of every byte, sync, publication.
boto3's is ``download_file`` with its defaults for each file, which verifies and syncs nothing; a second figure adds the
sync alone. Server and clients share this machine, so the ratio means more than the rates.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from caches.agent.tuning import Tuning
from caches.domain.manifests import manifest_build
from caches.sources import open_source
from controlplane.clusters.documents import ConnectionSpec, EntryState, Limits, Manifest, SourceType
from controlplane.embedded.seaweed import S3
from tests.agent.world import World, noise

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.bench
MIB = 1024 * 1024
FILES = {"config.json": 2 * 1024, **{f"model-{n}.safetensors": 192 * MIB for n in range(4)}}
SIZE = sum(FILES.values())
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
BUCKET = "bench-agent"


class RealWorld(World):
    """The test node, reading from the real server."""

    def open_source(self, connection: ConnectionSpec, secret: Any) -> Any:
        return open_source(connection, secret)


@pytest.fixture(scope="module")
def client(s3_server: S3) -> S3Client:
    client: S3Client = boto3.client(
        "s3", endpoint_url=s3_server.endpoint, region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key, aws_secret_access_key=s3_server.secret_key,
    )  # fmt: skip
    client.create_bucket(Bucket=BUCKET)
    for number, (path, size) in enumerate(FILES.items()):
        client.put_object(Bucket=BUCKET, Key=f"m/{path}", Body=noise(size, number), ChecksumAlgorithm="CRC64NVME")
    return client


@pytest.fixture(scope="module")
def connection(s3_server: S3) -> ConnectionSpec:
    return ConnectionSpec(
        "disk", SourceType.S3, endpoint=s3_server.endpoint, region=s3_server.region, secret_name="s3", allowed=(BUCKET,)
    )


@dataclass(frozen=True, slots=True)
class Agent:
    """One setting of the agent; ``run(folder)`` is seconds from the line to Ready."""

    connection: ConnectionSpec
    s3: S3
    manifest: Manifest
    tuning: Tuning
    requests: int

    def run(self, folder: Path) -> float:
        limits = Limits(max_requests=self.requests)
        world = RealWorld(folder, self.tuning, limits, connections=(self.connection,), status_interval_seconds=2.0)
        world.link.secrets["s3"] = {"access_key_id": self.s3.access_key, "secret_access_key": self.s3.secret_key}
        world.link.manifests[self.manifest.digest] = self.manifest
        with world:
            world.until(lambda: world.link.reports)
            began = time.perf_counter()
            world.want(self.manifest.digest, uri=f"s3://{BUCKET}/m")
            world.until(lambda: world.states(self.manifest.digest)[-1:] == [EntryState.READY], seconds=300)
            return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Boto:
    client: S3Client
    sync: bool

    def run(self, folder: Path) -> float:
        began = time.perf_counter()
        for path in FILES:
            self.client.download_file(BUCKET, f"m/{path}", str(folder / path))
            if self.sync:
                with (folder / path).open("rb") as file:
                    os.fsync(file.fileno())
        return time.perf_counter() - began


def test_agent_against_boto3(
    tmp_path: Path, client: S3Client, connection: ConnectionSpec, s3_server: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_source(connection, {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key})
    manifest = manifest_build([source.describe(f"s3://{BUCKET}/m", path) for path in FILES])
    source.close()
    tuning = Tuning()
    contenders: dict[str, Agent | Boto] = {
        "agent, 8 requests, verified and synced": Agent(connection, s3_server, manifest, tuning, 8),
        "boto3 download_file, not verified, not synced": Boto(client, sync=False),
        "boto3 download_file, not verified, synced": Boto(client, sync=True),
    }
    for size in [int(text) for text in os.environ.get("BENCH_SEGMENTS_MIB", "").split(",") if text]:
        for requests in (4, 8, 16):
            other = replace(tuning, segment_bytes=size * MIB)
            name = f"agent, {requests} requests, {size} MiB segments"
            contenders[name] = Agent(connection, s3_server, manifest, other, requests)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    processor: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        for name, contender in contenders.items():
            folder = tmp_path / "run"
            folder.mkdir()
            before = time.process_time()
            seconds = contender.run(folder)
            spent = time.process_time() - before
            shutil.rmtree(folder)
            os.sync()
            if number:  # the first round warms the server up
                rates[name].append(SIZE / MIB / seconds)
                processor[name].append(spent / (SIZE / 1024 / MIB))
    load = os.getloadavg()[0]
    lines = [f"\n{SIZE / MIB:.0f} MiB in {len(FILES)} files, {ROUNDS} interleaved rounds, load average {load:.1f}"]
    for name, found in rates.items():
        low, high, cost = min(found), max(found), statistics.median(processor[name])
        rate = statistics.median(found)
        lines.append(f"{name:<46} median {rate:5.0f} MiB/s ({low:.0f} to {high:.0f}), client CPU {cost:.2f} s/GiB")
    agent, boto, synced = (statistics.median(found) for found in list(rates.values())[:3])
    lines.append(f"agent / boto3 {agent / boto:.2f}, agent / synced boto3 {agent / synced:.2f}")
    with capsys.disabled():
        print("\n".join(lines))
    assert all(len(found) == ROUNDS for found in rates.values())
