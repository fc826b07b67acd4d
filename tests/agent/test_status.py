"""The status budget: changes at once, heartbeats on time, figures in steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from caches.agent.status import Reporter
from caches.agent.tuning import Tuning
from controlplane.clusters.documents import CapacityStatus, EntryState, EntryStatus, NodeCacheStatus, Orphan

NOW = datetime(2026, 11, 29, tzinfo=UTC)
BUSY = EntryStatus("sha256:x", EntryState.DOWNLOADING, bytes_total=1000, bytes_done=100, rate_bytes_per_second=10.0)


def status(*entries: EntryStatus, **changes: Any) -> NodeCacheStatus:
    return replace(NodeCacheStatus("n", "u", 1, NOW, CapacityStatus(1000, 0, 0, 0), entries), **changes)


@pytest.fixture
def reporter() -> Reporter:
    reporter = Reporter(Tuning(), interval_seconds=30.0)
    first = status(BUSY)
    assert reporter.due(first, 0.0)
    reporter.sent(reporter.economical(first, 0.0), 0.0)
    return reporter


def test_it_says_a_change_of_state_at_once(reporter: Reporter) -> None:
    for changed in (
        status(replace(BUSY, state=EntryState.FAILED)),
        status(replace(BUSY, message="Paused")),
        status(replace(BUSY, damaged=("a",))),
        status(replace(BUSY, verify_round=1)),
        status(),
        status(BUSY, observed_generation=2),
        status(BUSY, orphans=(Orphan("x", 1, False),)),
    ):
        assert reporter.due(changed, 0.1)


def test_it_waits_with_figures_for_the_interval(reporter: Reporter) -> None:
    moved = status(replace(BUSY, bytes_done=900, rate_bytes_per_second=99.0), capacity=CapacityStatus(1000, 9, 9, 9))
    assert not reporter.due(moved, 29.9)
    assert reporter.due(moved, 30.0)


def test_it_repeats_old_figures_until_five_percent_moved(reporter: Reporter) -> None:
    slow = status(replace(BUSY, bytes_done=149, bytes_moved=149))
    assert reporter.economical(slow, 30.0).entries == (BUSY,)
    fast = status(replace(BUSY, bytes_done=150))
    assert reporter.economical(fast, 30.0).entries[0].bytes_done == 150


def test_it_does_not_let_a_slow_download_look_stuck(reporter: Reporter) -> None:
    slow = status(replace(BUSY, bytes_done=110))
    for beat in range(1, 5):
        report = reporter.economical(slow, 30.0 * beat)
        assert report.entries[0].bytes_done == 100
        reporter.sent(report, 30.0 * beat)
    assert reporter.economical(slow, 150.0).entries[0].bytes_done == 110


def test_it_carries_fresh_figures_with_a_change_of_state(reporter: Reporter) -> None:
    done = status(replace(BUSY, state=EntryState.VERIFYING, bytes_done=101))
    assert reporter.economical(done, 1.0).entries[0].bytes_done == 101
