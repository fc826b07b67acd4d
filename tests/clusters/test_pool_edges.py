"""Settings of pools at their edges, and a node's state over every combination of its facts."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters.documents import NodeState
from controlplane.clusters.freshness import is_fresh, node_state
from controlplane.clusters.models import NodePool
from controlplane.clusters.pool_rules import FIELDS, PoolChoice, pool_problems, pools_of
from controlplane.ids import new_id

DEFAULTS: dict[str, Any] = {name: getattr(NodePool(), name) for name in FIELDS}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _problems(**given: Any) -> list[str]:
    return [problem.field for problem in pool_problems(given, DEFAULTS | given)]


@pytest.mark.parametrize(
    ("field", "least", "most", "step"),
    [
        ("priority", -1000, 1000, 1),
        ("max_downloads_per_node", 1, 64, 1),
        ("max_downloads", 1, 10_000, 1),
        ("max_requests_per_node", 1, 1024, 1),
        ("node_bytes_per_second", 1024, 2**50, 1),
        ("evict_grace_seconds", 0, 7 * 86400, 1),
        ("settle_seconds", 0, 86400, 1),
        ("scrub_interval_seconds", 1, 366 * 86400, 0.01),
    ],
)
def test_it_takes_a_number_up_to_its_limits_and_not_beyond(field: str, least: float, most: float, step: float) -> None:
    assert _problems(**{field: least}) == _problems(**{field: most}) == []
    assert _problems(**{field: least - step}) == _problems(**{field: most + step}) == [field]


@pytest.mark.parametrize("field", sorted(name for name in FIELDS if type(DEFAULTS[name]) in (int, float)))
@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), "1", True, [], {}])
def test_it_answers_to_a_number_that_is_none(field: str, value: object) -> None:
    assert _problems(**{field: value}) == [field]


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        ("/nvme", True),
        ("/mnt/größe ✓/x", True),
        ("/" + "x" * 499, True),
        ("/" + "x" * 500, False),
        ("/.", False),
        ("/./", False),
        ("/nvme/.", False),
        ("/nvme/../etc", False),
        ("/..", False),
        ("//", False),
        ("//nvme", False),
        ("/nvme/", False),
        ("/mnt//nvme", False),
        ("", False),
        ("nvme", False),
        ("/a\0b", False),
        ("/a\tb", False),
        ("/..hidden", True),
        (None, False),
    ],
)
def test_it_takes_folders_that_are_not_the_root(path: object, fine: bool) -> None:
    assert (_problems(cache_path=path) == []) is fine


@pytest.mark.parametrize(
    ("status", "freshness", "fine"), [(2, 4, True), (2, 3.99, False), (0.2, 1, True), (3600, 7200, True)]
)
def test_it_asks_for_two_reports_within_the_limit(status: float, freshness: float, fine: bool) -> None:
    problems = _problems(status_interval_seconds=status, freshness_seconds=freshness)
    assert problems == ([] if fine else ["freshness_seconds"])


@pytest.mark.parametrize(("low", "high", "fine"), [(0.75, 0.75, True), (0.76, 0.75, False), (0.01, 1, True)])
def test_it_keeps_watermarks_in_their_order(low: float, high: float, fine: bool) -> None:
    assert _problems(low_watermark=low, high_watermark=high) == ([] if fine else ["low_watermark"])


def test_it_names_every_wrong_field_at_once() -> None:
    assert _problems(priority="x", paused=1, selector={}, more=1) == ["more", "selector", "priority", "paused"]


# -- membership

values = st.sampled_from(["", "1", "2"])
labels = st.dictionaries(st.sampled_from("xyz"), values, max_size=3)
pools = st.lists(st.builds(PoolChoice, st.uuids(), st.text("ab", max_size=2), labels, st.integers(-1, 1)), max_size=5)


@given(labels, pools)
def test_it_finds_exactly_the_pools_whose_labels_the_node_has(
    of_node: dict[str, str], choices: list[PoolChoice]
) -> None:
    expected = [pool for pool in choices if pool.selector and pool.selector.items() <= of_node.items()]
    found = pools_of(of_node, choices)
    assert sorted(pool.id for pool in found) == sorted(pool.id for pool in expected)
    assert [(-pool.priority, pool.name) for pool in found] == sorted((-p.priority, p.name) for p in expected)


def test_it_tells_a_missing_label_from_an_empty_one() -> None:
    empty = PoolChoice(new_id(), "empty", {"spot": ""}, 0)
    assert pools_of({"spot": ""}, [empty]) == (empty,)
    assert pools_of({}, [empty]) == ()


# -- state

READY = (True, False, None)
AGES = (None, -3600, 0, 60, 60.000001, 86400)  # seconds; the limit is 60


@pytest.mark.parametrize(("ready", "schedulable", "lost"), list(itertools.product(READY, (True, False), (True, False))))
def test_it_gives_every_combination_of_facts_one_state(ready: bool | None, schedulable: bool, lost: bool) -> None:
    def at(age: float | None) -> datetime | None:
        return None if age is None else NOW - timedelta(seconds=age)

    for observed, reported in itertools.product(AGES, AGES):
        state = node_state(
            ready=ready,
            schedulable=schedulable,
            observed_at=at(observed),
            reported_at=at(reported),
            lost_at=NOW if lost else None,
            freshness_seconds=60,
            now=NOW,
        )
        heard, told = (is_fresh(at(age), freshness_seconds=60, now=NOW) for age in (observed, reported))
        if state in (NodeState.READY, NodeState.CORDONED):
            assert ready and heard and told and not lost, "only what is known and fresh may look healthy"
            assert (state is NodeState.READY) is schedulable
        assert (state is NodeState.LOST) is lost
        assert (state is NodeState.NOT_READY) is (ready is False and heard and not lost)
