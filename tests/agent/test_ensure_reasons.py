"""What a pod says that has to fetch by itself: why, and who could give it what it lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent.asking import Answer, End
from caches.agent.ensure_step.options import PodSource
from caches.agent.ensure_step.reasons import not_given
from controlplane.clusters import codec
from tests.agent.test_ensure_step import Pod, quiet_environment
from tests.agent.world import World
from tests.sources.conftest import Bucket, bucket

__all__ = ["bucket", "quiet_environment"]  # fixtures
pytestmark = pytest.mark.usefixtures("quiet_environment")


def test_a_pod_without_credentials_says_who_gives_it_some(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hearth's own are for nodes alone: a pod is its namespace's, and so is what it reads with."""
    spec, uri = replace(bucket.spec(), secret_name=""), f"s3://{bucket.name}/m"
    bucket.put("m/config.json", b"{}")
    monkeypatch.setenv("HEARTH_SOURCE", codec.dumps(PodSource(spec, uri)))
    pod = Pod(World(tmp_path), tmp_path)
    assert pod.run(f"sha256:{'0' * 64}", tmp_path / "nowhere") == 1
    assert pod.outcome["message"] == (
        f"{uri} wants credentials and this pod has none: name a Secret of its namespace, with access-key-id and "
        "secret-access-key, by the annotation hearth.dev/source-secret. It has to fetch by itself because this node "
        "has no store."
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "knows-it")
    assert pod.run(f"sha256:{'0' * 64}", tmp_path / "nowhere") == 1
    assert "The store refuses these credentials. It has" in pod.outcome["message"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(End.NO_ROOM, message="It needs 3 GiB."), "the node's store has no room: it needs 3 GiB"),
        (Answer(End.PAUSED, message="Transfers are paused."), "the node's agent cannot give it: transfers are paused"),
        (Answer(End.FAILED, message="S3 is away."), "the node's agent cannot give it: S3 is away"),
        (Answer(End.STOPPING), "the node's agent cannot give it"),
    ],
)
def test_why_an_agent_gives_nothing_is_a_part_of_a_sentence(answer: Answer, words: str) -> None:
    assert not_given(answer) == words
