"""A pod on a node without an agent fetches from a hub by itself, with its own token and no other store's keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from caches.agent.ensure_step.__main__ import main
from caches.agent.ensure_step.options import PodSource, read_options
from caches.sources import open_source
from caches.sources.selection import manifest_of
from controlplane.clusters import codec
from controlplane.clusters.documents import ConnectionSpec, SourceType
from tests.agent.test_ensure_step import Pod, quiet_environment
from tests.agent.world import World, noise
from tests.standins.hub import hub

__all__ = ["quiet_environment"]  # a fixture
FILES = {"config.json": b"{}", "model.safetensors": noise(50_000)}
pytestmark = pytest.mark.usefixtures("quiet_environment")


def test_it_fetches_a_private_repository_with_the_pod_s_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.store.prepare()
    with hub() as standing:
        standing.tokens.add("hf_of-the-pod")
        standing.repository("org/m", private=True).commit(FILES)
        spec = ConnectionSpec("hub", SourceType.HUGGING_FACE, endpoint=standing.endpoint, allowed=("org",))
        source = open_source(spec, {"token": "hf_of-the-pod"})
        uri = source.resolve("hf://org/m").uri
        digest = manifest_of(source, uri).digest
        source.close()
        monkeypatch.setenv("HEARTH_SOURCE", codec.dumps(PodSource(spec, uri)))
        pod = Pod(world, tmp_path)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-something-else")
        assert main(pod.arguments(digest)) == 1  # without a token the repository is not shown
        monkeypatch.setenv("HF_TOKEN", "hf_of-the-pod")
        assert main(pod.arguments(digest)) == 0
    assert pod.served() == FILES
    assert "hf_of-the-pod" not in pod.report.read_text()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (SourceType.S3, {"access_key_id", "secret_access_key"}),
        (SourceType.JUMP_START, {"access_key_id", "secret_access_key"}),
        (SourceType.HUGGING_FACE, {"token"}),
        (SourceType.FILESYSTEM, set()),
    ],
)
def test_each_store_gets_its_own_credentials_alone(kind: SourceType, names: set[str]) -> None:
    environment = {
        "HEARTH_SOURCE": codec.dumps(PodSource(ConnectionSpec("c", kind), "x")),
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HF_TOKEN": "c",
    }  # fmt: skip
    arguments = ["--digest", "d", "--store", "/s", "--model", "/m", "--mount", "/w"]
    assert set(read_options(arguments, environment).secret) == names
