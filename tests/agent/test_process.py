"""The agent as a process of its own: killed, ended, doubled, and an object overwritten under it on a real S3 server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from caches.agent.__main__ import EXIT_BUSY, EXIT_REPLACED
from caches.domain.manifests import manifest_build
from caches.sources import open_source
from controlplane.clusters.documents import (
    Action,
    Algorithm,
    ConnectionSpec,
    EntryState,
    Limits,
    Manifest,
    Reason,
    SourceType,
)  # fmt: skip
from controlplane.embedded.seaweed import S3
from tests.agent.process import MIB, ROOT, Node
from tests.agent.world import noise

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = [pytest.mark.e2e, pytest.mark.faults]
SIZE = 24 * MIB


@pytest.fixture
def client(s3_server: S3) -> S3Client:
    return boto3.client(
        "s3", endpoint_url=s3_server.endpoint, region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key, aws_secret_access_key=s3_server.secret_key,
    )  # fmt: skip


@pytest.fixture
def bucket(client: S3Client, tmp_path: Path) -> str:
    name = f"agent-{abs(hash(tmp_path)) % 10**12}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def node(tmp_path: Path, s3_server: S3, bucket: str) -> Iterator[Node]:
    secret = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    connection = ConnectionSpec(
        "s3", SourceType.S3, endpoint=s3_server.endpoint, region=s3_server.region, secret_name="s3", allowed=(bucket,)
    )
    node = Node(tmp_path / "fleet", connection, secret)
    yield node
    node.close()


Upload = Callable[..., Manifest]


@pytest.fixture
def upload(client: S3Client, bucket: str, node: Node) -> Upload:
    def put(data: bytes, *, anchored: bool = True) -> Manifest:
        if anchored:
            client.put_object(Bucket=bucket, Key="m/weights.bin", Body=data, ChecksumAlgorithm="CRC64NVME")
        else:
            client.put_object(Bucket=bucket, Key="m/weights.bin", Body=data)
        source = open_source(node.connection, node.secrets)
        try:
            return manifest_build([source.describe(f"s3://{bucket}/m", "weights.bin")])
        finally:
            source.close()

    return put


def test_it_moves_less_than_sixty_percent_again_after_kill_9_at_half(node: Node, bucket: str, upload: Upload) -> None:
    data = noise(SIZE)
    manifest = upload(data)
    assert manifest.files[0].algorithm is Algorithm.CRC64NVME
    node.start()
    node.want(manifest, f"s3://{bucket}/m", limits=Limits(bytes_per_second=SIZE // 8, max_requests=3))
    node.until(lambda entry: entry.bytes_done >= SIZE // 2)
    node.kill()
    tree, moved = (
        node.store.tree(manifest.digest),
        node.store.base / "state" / manifest.digest.replace(":", "-") / "moved",
    )
    assert not tree.exists()
    before = int(moved.read_text())
    assert SIZE // 2 <= before < SIZE
    node.want(manifest, f"s3://{bucket}/m")
    node.start()
    entry = node.becomes(EntryState.READY)
    again = entry.bytes_moved - before
    assert 0 < again < 0.6 * SIZE
    assert (tree / "weights.bin").read_bytes() == data
    assert entry.attempts == 0 and not list((node.store.base / "partial").iterdir())


@pytest.mark.parametrize(("anchored", "segment"), [(True, MIB), (False, MIB), (False, 2 * SIZE)])
def test_it_publishes_nothing_of_an_object_that_was_overwritten(
    node: Node, bucket: str, upload: Upload, client: S3Client, anchored: bool, segment: int
) -> None:
    """Also when the one request was already open, and no checksum could tell."""
    manifest = upload(noise(SIZE), anchored=anchored)
    node.start("--segment-bytes", str(segment))
    node.want(manifest, f"s3://{bucket}/m", limits=Limits(bytes_per_second=SIZE // 8, max_requests=2))
    node.until(lambda entry: entry.bytes_done >= SIZE // 4)
    client.put_object(Bucket=bucket, Key="m/weights.bin", Body=noise(SIZE, 7), ChecksumAlgorithm="CRC64NVME")
    entry = node.becomes(EntryState.FAILED)
    assert entry.reason == Reason.SOURCE_CHANGED and entry.retry_at
    assert not node.store.tree(manifest.digest).exists() and not node.store.partial(manifest.digest).exists()


def test_it_names_a_wrong_key_and_a_vanished_bucket(node: Node, bucket: str, upload: Upload, client: S3Client) -> None:
    manifest = upload(noise(MIB))
    node.gateway.apply_secret("s3", {**node.secrets, "secret_access_key": "wrong"})
    node.start()
    node.want(manifest, f"s3://{bucket}/m")
    entry = node.becomes(EntryState.FAILED)
    assert entry.reason == Reason.ACCESS_DENIED and entry.bytes_moved == 0
    status = node.status()
    assert status and "wrong" not in repr(status)
    node.gateway.apply_secret("s3", node.secrets)
    client.delete_object(Bucket=bucket, Key="m/weights.bin")
    client.delete_bucket(Bucket=bucket)
    node.kill()
    (node.store.state(manifest.digest) / "record.json").unlink()
    node.start()
    entry = node.until(lambda entry: entry.state is EntryState.FAILED and entry.reason != Reason.ACCESS_DENIED)
    assert entry.reason in (Reason.SOURCE_CHANGED, Reason.SOURCE_UNAVAILABLE)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[tuple[Node, Manifest, str]]:
    origin = tmp_path / "origin" / "m"
    origin.mkdir(parents=True)
    (origin / "a.bin").write_bytes(noise(2 * MIB))
    connection = ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(tmp_path / "origin"),))
    node = Node(tmp_path / "fleet", connection)
    manifest = manifest_build([open_source(connection, {}).describe(origin.as_uri(), "a.bin")])
    yield node, manifest, origin.as_uri()
    node.close()


def test_it_ends_quickly_when_asked_and_leaves_the_store_to_the_next(local: tuple[Node, Manifest, str]) -> None:
    node, manifest, uri = local
    process = node.start()
    node.want(manifest, uri, limits=Limits(bytes_per_second=MIB // 32))
    node.until(lambda entry: entry.state is EntryState.DOWNLOADING and entry.bytes_moved > 0)
    second = node.start("--lock-wait", "0.2")
    assert second.wait(60) == EXIT_BUSY
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not node.store.tree(manifest.digest).exists(), "the download would have taken a minute"
    node.want(manifest, uri)
    node.start("--lock-wait", "0")
    node.becomes(EntryState.READY)
    node.want(manifest, uri, action=Action.EVICT)
    node.becomes(EntryState.ABSENT)
    assert not list((node.store.base / "weights").iterdir())


def test_it_leaves_when_the_node_is_another_one(local: tuple[Node, Manifest, str]) -> None:
    node, manifest, uri = local
    process = node.start()
    node.want(manifest, uri)
    node.becomes(EntryState.READY)
    node.fleet.replace(node.name)
    assert process.wait(60) == EXIT_REPLACED


def test_it_needs_no_django() -> None:
    code = "import sys, caches.agent.__main__; sys.exit(any(name.split('.')[0] == 'django' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
