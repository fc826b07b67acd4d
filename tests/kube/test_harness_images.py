"""Images built from a Dockerfile without any image registry, and run on the nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.embedded.kube import images
from controlplane.embedded.kube.cluster import KubeCluster, missing_for_nodes
from controlplane.embedded.problems import EmbeddedError
from tests.kube import pods
from tests.kube.real import InstalledKube

# A cold build, where nobody ran 'make test' before, fetches every package.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RECIPE = """ARG BASE=none
FROM ${BASE} AS build
RUN --mount=type=cache,target=/root/.cache echo made > /made
FROM ${BASE}
COPY --from=build /made /made
COPY . /context
RUN python -c "import ssl, sqlite3, ctypes, venv; print('whole')" > /python
"""


def recipe(folder: Path, *lines: str) -> Path:
    (folder / "Dockerfile").write_text(RECIPE + "".join(f"{line}\n" for line in lines))
    (folder / "data").write_text("of the context")
    (folder / ".dockerignore").write_text("ignored\n")
    (folder / "ignored").write_text("never sent")
    return folder / "Dockerfile"


def test_it_builds_what_a_dockerfile_says(kube_cluster: KubeCluster, tmp_path: Path) -> None:
    name = kube_cluster.build_image(tmp_path, recipe(tmp_path), "harness/whole:1")
    pods.run(kube_cluster, "image-whole", "node-a", "cat /made /python; ls /context", image=name)
    assert name.startswith(f"{kube_cluster.registry}/harness/whole@sha256:")
    assert pods.logs(kube_cluster, "image-whole").split() == ["made", "whole", "Dockerfile", "data"]


def test_it_names_the_same_content_by_the_same_digest(kube_cluster: KubeCluster, tmp_path: Path) -> None:
    first = kube_cluster.build_image(tmp_path, recipe(tmp_path), "harness/same:1")
    again = kube_cluster.build_image(tmp_path, recipe(tmp_path), "harness/same:2")
    (tmp_path / "data").write_text("something else")
    other = kube_cluster.build_image(tmp_path, tmp_path / "Dockerfile", "harness/same:3")
    assert first == again
    assert first != other


def test_it_says_what_a_build_failed_of(kube_cluster: KubeCluster, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="no-such-command"):
        kube_cluster.build_image(tmp_path, recipe(tmp_path, "RUN no-such-command"), "harness/broken:1")


def test_it_forgets_steps_of_earlier_builds_and_keeps_what_the_next_one_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := missing_for_nodes():
        pytest.skip(missing)
    monkeypatch.setattr(images, "_MANY", 1)
    builder = images.Builder()
    builder.folder = tmp_path / "images"
    scratch = "FROM scratch AS first\nCOPY fixed /\nFROM scratch\nCOPY --from=first /fixed /again\nCOPY data /\n"
    (tmp_path / "Dockerfile").write_text(scratch)
    (tmp_path / "fixed").touch()
    made: list[list[str]] = []
    for number in "123":
        (tmp_path / "data").write_text(number)
        builder.build(tmp_path, tmp_path / "Dockerfile", "harness/old:1")
        said = (builder.folder / "steps" / "harness-old").read_text().split()
        made.append(list(dict.fromkeys(step[:11] for step in said)))
    there = {row["id"][:11] for row in json.loads(builder._run("images", "--all", "--json"))}
    # The last build found the first stage, which no image of a name was made of.
    assert len(made[0]) == 3 and made[0][:2] == made[2][:2]
    assert {*made[2], made[1][-1]} == there, "and what the first build alone stood on went before the last"


def test_it_runs_the_agent_from_the_projects_own_image(installed_kube: InstalledKube) -> None:
    cluster, script = installed_kube.cluster, "id -u; exec python -m caches.agent --help"
    pods.run(cluster, "image-agent", "node-b", script, image=installed_kube.image)
    said = pods.logs(cluster, "image-agent")
    assert said.startswith("10001\n")
    assert "usage:" in said
