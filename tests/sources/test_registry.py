"""What the real registry says of images: tags, digests, indexes, sizes."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caches.sources import open_registry
from caches.sources.registry import RegistryClient
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.embedded import ports
from controlplane.embedded.kube.registry import Registry
from controlplane.embedded.processes import Supervisor
from controlplane.errors import Permanent
from tests.agent.world import noise
from tests.standins.registry import INDEX, MANIFEST, digest_of

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    state = Path(tempfile.mkdtemp(prefix="hearth-registry-"))
    made = Registry(state / "registry", ports.free_port())
    with Supervisor(state, label="This test run") as supervisor:
        supervisor.start(made.spec())
        yield made
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    made = open_registry(None, {})
    yield made
    made.close()


def tar(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def put(registry: Registry, repository: str, name: str, content: dict[str, Any], kind: str) -> str:
    body = json.dumps(content).encode()
    registry._call("PUT", f"/v2/{repository}/manifests/{name}", body, kind)
    return digest_of(body)


def manifest(registry: Registry, repository: str, architecture: str, *layers: bytes) -> dict[str, Any]:
    config = json.dumps({"os": "linux", "architecture": architecture}).encode()
    return {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": registry._blob(repository, config, "application/vnd.docker.container.image.v1+json"),
        "layers": [
            registry._blob(
                repository, gzip.compress(layer, mtime=0), "application/vnd.docker.image.rootfs.diff.tar.gzip"
            )
            for layer in layers
        ],
    }


def test_it_resolves_a_tag_to_what_was_pushed(registry: Registry, client: RegistryClient) -> None:
    layer = tar("weights.py", b"x = 1\n" * 50_000)
    pushed = registry.push("team/one", "v1", layer, ["/bin/true"])
    found = client.resolve(f"{registry.host}/team/one:v1")
    assert f"{registry.host}/team/one@{found.digest}" == pushed
    assert (found.media_type, len(found.platforms)) == (MANIFEST, 1) and found.platforms[0].startswith("linux/")
    assert found.platform_digests[found.platforms[0]] == found.digest
    assert found.unpacked_bytes == len(layer)  # to the byte: the end of the stream says so
    assert len(gzip.compress(layer, 1, mtime=0)) < found.compressed_bytes < len(layer)
    assert client.resolve(pushed) == client.resolve(pushed) and client.resolve(pushed).digest == found.digest
    assert client.current_digest(f"{registry.host}/team/one:v1") == found.digest


def test_it_sees_that_a_tag_moved_and_still_has_the_old_digest(registry: Registry, client: RegistryClient) -> None:
    reference = f"{registry.host}/moving"
    registry.push("moving", "latest", tar("a", b"a"), ["/a"])
    before = client.resolve(reference)
    registry.push("moving", "latest", tar("b", b"b"), ["/b"])
    assert client.current_digest(reference) != before.digest
    assert client.resolve(reference).digest == client.current_digest(f"{reference}:latest")
    assert client.current_digest(f"{reference}@{before.digest}") == before.digest


def test_it_takes_the_platform_that_needs_most_of_an_index(registry: Registry, client: RegistryClient) -> None:
    small = manifest(registry, "many", "amd64", tar("a", b"a" * 1000))
    shared = tar("shared", noise(30_000))
    large = manifest(registry, "many", "arm64", shared, tar("b", noise(50_000, 2)), shared)
    digests = {name: put(registry, "many", name, body, DOCKER_MANIFEST)
               for name, body in (("amd64", small), ("arm64", large))}  # fmt: skip
    entries = [
        {"mediaType": DOCKER_MANIFEST, "digest": digest, "size": 500, "platform": {"os": "linux", "architecture": name}}
        for name, digest in digests.items()
    ]
    for tag, kind in (("v1", DOCKER_LIST), ("v2", INDEX)):
        index = {"schemaVersion": 2, "mediaType": kind, "manifests": entries}
        digest = put(registry, "many", tag, index, kind)
        found = client.resolve(f"{registry.host}/many:{tag}")
        assert (found.digest, found.media_type) == (digest, kind)
        assert found.platform_digests == {"linux/amd64": digests["amd64"], "linux/arm64": digests["arm64"]}
        sizes = {layer["digest"]: layer["size"] for layer in (*large["layers"], large["config"])}
        assert found.compressed_bytes == sum(sizes.values())
        assert found.unpacked_bytes == len(shared) + len(tar("b", noise(50_000, 2)))  # what is there twice counts once


@pytest.mark.parametrize("reference", ["none:v1", "team/one:none", f"team/one@sha256:{'0' * 64}"])
def test_it_says_when_there_is_no_such_image(registry: Registry, client: RegistryClient, reference: str) -> None:
    registry.push("team/one", "v1", tar("a", b"a"), ["/a"])
    for ask in (client.resolve, client.current_digest):
        with pytest.raises(Permanent) as caught:
            ask(f"{registry.host}/{reference}")
        assert (caught.value.code, caught.value.reason) == ("source:user:no-such-image", Reason.SOURCE_UNAVAILABLE)


def test_a_connection_reads_its_own_registry_and_what_it_allows(registry: Registry) -> None:
    registry.push("team/one", "v1", tar("a", b"a"), ["/a"])
    spec = ConnectionSpec("r", SourceType.REGISTRY, endpoint=f"http://{registry.host}", allowed=("team", "solo"))
    client = open_registry(spec, {})
    client.probe()
    assert client.resolve("team/one:v1").digest == client.resolve(f"{registry.host}/team/one:v1").digest
    for reference in (f"{registry.host}/other:v1", "teams/one", "127.0.0.1:1/team/one:v1"):
        with pytest.raises(Permanent) as caught:
            client.resolve(reference)
        assert caught.value.code == "source:user:not-allowed"
    client.close()
