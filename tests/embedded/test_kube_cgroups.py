"""Processes of a node's groups are counted while groups come and go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded.kube import cgroups


def test_a_group_that_vanishes_while_it_is_looked_for_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_trees", lambda: [tmp_path])
    for name, pid in (("node/pod-a", 11), ("node/pod-b/container", 12), ("node", 10)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cgroup.procs").write_text(f"{pid}\n")
    scandir = os.scandir

    def vanishing(path: Any) -> Any:
        if str(path).endswith("pod-a"):
            raise FileNotFoundError(path)
        return scandir(path)

    assert cgroups.processes("node") == {10, 11, 12}
    monkeypatch.setattr(os, "scandir", vanishing)
    assert cgroups.processes("node") == {10, 12}
    assert cgroups.processes("never-there") == set()
