"""A node's state is derived from facts and their age, in one place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.clusters.documents import NodeState
from controlplane.clusters.freshness import is_fresh, node_state

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD = NOW - timedelta(seconds=61)
FINE: dict[str, Any] = {
    "ready": True,
    "schedulable": True,
    "observed_at": NOW,
    "reported_at": NOW,
    "lost_at": None,
    "freshness_seconds": 60,
    "now": NOW,
}


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, NodeState.READY),
        ({"schedulable": False}, NodeState.CORDONED),
        ({"ready": False}, NodeState.NOT_READY),
        ({"ready": False, "schedulable": False}, NodeState.NOT_READY),
        ({"ready": False, "reported_at": OLD}, NodeState.NOT_READY),
        ({"ready": False, "reported_at": None}, NodeState.NOT_READY),
        ({"ready": None}, NodeState.UNKNOWN),
        ({"observed_at": OLD}, NodeState.UNKNOWN),
        ({"observed_at": None}, NodeState.UNKNOWN),
        ({"observed_at": OLD, "ready": False}, NodeState.UNKNOWN),
        ({"reported_at": OLD}, NodeState.UNKNOWN),
        ({"reported_at": None}, NodeState.UNKNOWN),
        ({"reported_at": OLD, "schedulable": False}, NodeState.UNKNOWN),
        ({"lost_at": NOW}, NodeState.LOST),
        ({"lost_at": OLD, "ready": None, "observed_at": None}, NodeState.LOST),
    ],
)
def test_it_derives_the_state_from_the_facts(facts: dict[str, Any], state: NodeState) -> None:
    assert node_state(**(FINE | facts)) is state


def test_it_takes_the_limit_itself_as_fresh() -> None:
    assert is_fresh(NOW - timedelta(seconds=60), freshness_seconds=60, now=NOW)
    assert not is_fresh(NOW - timedelta(seconds=60, microseconds=1), freshness_seconds=60, now=NOW)
    assert is_fresh(NOW + timedelta(hours=1), freshness_seconds=60, now=NOW)
    assert not is_fresh(None, freshness_seconds=60, now=NOW)
