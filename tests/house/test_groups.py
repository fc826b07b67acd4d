"""The test run itself: what shares a set-up stays together, and what takes longest begins first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from controlplane.embedded.processes import ROOT
from tests.plugins.groups import AT_ONCE, ORDER, Groups

SUITE = """
import os, pathlib, time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    note(f"alone {number}")

@pytest.fixture(scope="session")
def kube_api():
    yield
    note("together ended")

@pytest.mark.xdist_group("kube")
@pytest.mark.parametrize("number", range(6))
def test_together(number, kube_api):
    note(f"together [{number}]@x")

def note(what):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    with open(f"{worker}.told", "a") as file:
        file.write(what + "\\n")
    time.sleep(0.02)
"""


def test_it_runs_a_group_in_one_worker_before_single_tests(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = xdist_group\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-n", "2", "--dist", "loadgroup", "-p", "tests.plugins.groups",
         "-p", "tests.plugins.kube", "-p", "no:django", "-p", "no:cacheprovider", "--strict-markers",
         "-c", "pytest.ini"],
        cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED test_suite.py::test_together[0]" in done.stdout and "@kube" not in done.stdout
    told = [path.read_text().splitlines() for path in tmp_path.glob("*.told")]
    [group] = [lines for lines in told if "together" in lines[0]]
    assert sum("together" in line for line in group) == 7
    assert all("together" in line for line in group[:7]) and group[6] == "together ended", (
        "a cluster ends with its group"
    )
    assert sum(map(len, told)) == 13


def test_it_runs_no_more_groups_at_a_time_than_there_is_room_for() -> None:
    scheduler = object.__new__(Groups)
    units = {f"group-{number}": {f"test_{number}": False} for number in range(AT_ONCE + 2)} | {
        "test_a.py::test_alone": {"test_alone": False}
    }
    nodes: list[Any] = [Mock() for _ in range(AT_ONCE + 1)]
    scheduler.workqueue = OrderedDict(units)
    scheduler.assigned_work = {node: {} for node in nodes}
    scheduler.registered_collections = {node: [test for unit in units.values() for test in unit] for node in nodes}

    for node in nodes:
        scheduler._assign_work_unit(node)
    taken = [list(scheduler.assigned_work[node]) for node in nodes]
    assert taken == [*([f"group-{number}"] for number in range(AT_ONCE)), ["test_a.py::test_alone"]]

    scheduler._assign_work_unit(nodes[-1])
    assert len(scheduler.workqueue) == 1, "nothing waits for want of single tests"


def test_it_knows_the_place_of_every_group(request: pytest.FixtureRequest) -> None:
    marks = [item.get_closest_marker("xdist_group") for item in request.session.items]
    assert {mark.args[0] for mark in marks if mark} <= set(ORDER)
