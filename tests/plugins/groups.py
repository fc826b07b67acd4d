"""Tests that share a slow set-up run in one worker, and what takes longest begins first.

xdist writes the group of a test behind its id, where pytest 9.2 no longer looks: nothing was kept together, and each
worker built its own clusters. Here the id itself is written: ``…::test_name@group[parameters]``.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

# Longest first: whoever ends early takes the tests that belong to no group.
ORDER = ("kube-nodes", "kube-machines", "kube", "run-kube", "program", "faults")
# More whole clusters and programs at a time than this make each other late; further workers take single tests.
AT_ONCE = 3
_LONG = ("e2e", "faults", "thorough")
_WRITTEN = re.compile(r"[^\[]*@([\w-]+)")


def pytest_configure(config: pytest.Config) -> None:
    """Groups are dealt out in the order of the tests, not by how many tests they have."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a worker, after the tests were shuffled."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        return
    items.sort(key=_rank)
    for item in items:
        if group := _group(item):
            *above, name = item._id.names
            item._id = replace(item._id, names=(*above, f"{name}@{group}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What is reported of a test has the name by which it can be run. A worker still needs the other one."""
    written = None if os.environ.get("PYTEST_XDIST_WORKER") else _WRITTEN.match(report.nodeid)
    if written:
        report.nodeid = report.nodeid.replace(f"@{written[1]}", "", 1)


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else ""


def _rank(item: pytest.Item) -> int:
    """The place of a group; then single tests that take seconds, so that no worker meets one when all else is done."""
    group = _group(item)
    if group:
        return ORDER.index(group) if group in ORDER else len(ORDER)
    return len(ORDER) + 1 + (not any(item.get_closest_marker(name) for name in _LONG))


def _is_group(unit: str) -> bool:
    return "::" not in unit


class Groups(LoadGroupScheduling):  # type: ignore[misc]  # shipped without types
    """A group goes to one worker as a whole; every other test for itself."""

    def _split_scope(self, nodeid: str) -> str:
        written = _WRITTEN.match(nodeid)
        return written[1] if written else nodeid

    def _assign_work_unit(self, node: WorkerController) -> None:
        held = sum(any(map(_is_group, units)) for other, units in self.assigned_work.items() if other is not node)
        if held >= AT_ONCE and (single := next((unit for unit in self.workqueue if not _is_group(unit)), None)):
            self.workqueue.move_to_end(single, last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """What is over is forgotten: it would be counted again after every test."""
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(units[scope].values()):
            del units[scope]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """For ``--dist loadgroup``."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None
