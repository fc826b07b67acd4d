"""What ``make run-kube`` decides before it starts anything; the whole of it: tests/e2e/test_run_kube.py."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.embedded import kube_program, program
from controlplane.embedded.kube import own_image
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT
from controlplane.embedded.program import Options

FOLDER = Path("/srv/hearth/.run-kube/kube")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which nodes can run."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(kube_program, "missing_for_nodes", lambda: "")
    monkeypatch.setattr(kube_program, "_memory_available", lambda: 8_000_000_000)
    return monkeypatch


def test_it_starts_where_everything_is_there(able: pytest.MonkeyPatch) -> None:
    kube_program.require_machine(FOLDER)


def test_it_names_the_other_way_on_another_system(able: pytest.MonkeyPatch) -> None:
    able.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(EmbeddedError, match=r"this is Darwin\. Use 'make run'"):
        kube_program.require_machine(FOLDER)


def test_it_says_what_the_machine_lacks(able: pytest.MonkeyPatch) -> None:
    able.setattr(kube_program, "missing_for_nodes", lambda: "Kubernetes nodes need runc, which this machine lacks.")
    with pytest.raises(EmbeddedError, match="need runc"):
        kube_program.require_machine(FOLDER)


@pytest.mark.parametrize("folder", ["/home/a b/kube", "/home/ä/kube", "/home/a:b/kube"])
def test_it_refuses_a_folder_that_no_agent_may_have(able: pytest.MonkeyPatch, folder: str) -> None:
    with pytest.raises(EmbeddedError, match="HEARTH_STATE_DIR=/var/tmp/hearth make run-kube"):
        kube_program.require_machine(Path(folder))


def test_it_refuses_a_machine_with_too_little_memory(able: pytest.MonkeyPatch) -> None:
    able.setattr(kube_program, "_memory_available", lambda: 1_200_000_000)
    with pytest.raises(EmbeddedError, match=r"need 4 GB of free memory and there are 1\.2 GB"):
        kube_program.require_machine(FOLDER)


def test_it_builds_the_image_again_only_when_its_content_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("Dockerfile", ".dockerignore", "manage.py"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("requirements", "controlplane", "caches", "routing", "templates", "static"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(own_image, "ROOT", tmp_path)
    before = own_image.tag()
    (tmp_path / "docs" / "read.md").write_text("is not in the image")
    (tmp_path / "caches" / "__pycache__").mkdir()
    (tmp_path / "caches" / "__pycache__" / "new.pyc").touch()
    assert own_image.tag() == before
    (tmp_path / "caches" / "new.py").touch()
    changed = own_image.tag()
    (tmp_path / "caches" / "new.py").rename(tmp_path / "caches" / "other.py")
    assert len({before, changed, own_image.tag()}) == 3


def test_it_runs_no_local_fleet_beside_real_nodes(tmp_path: Path) -> None:
    commands, fds = frozenset({"fleet", "watch_cluster"}), {8123: 7}
    chosen = Options(state=tmp_path, port=8123, nodes=3, demo=True, commands=commands, fds=fds)
    names = [spec.name for spec in program._processes(replace(chosen, kubernetes=True), {})]
    assert names == ["web", "worker", "beat", "watcher"]
