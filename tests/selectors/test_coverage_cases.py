"""Coverage in the cases that people meet: nothing, too few nodes, shared bytes, leftovers, and what is suspended."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from caches.domain.coverage import Coverage
from caches.models import ModelVersion
from caches.selectors.coverage import ArtifactCoverage, PoolCoverage, coverage_state, pools_coverage
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import NodePool
from tests import factories
from tests.factories import MIB


def covered(now: datetime, pool: NodePool) -> PoolCoverage:
    [found] = pools_coverage(now=now, pool=pool)
    return found


def one(now: datetime, pool: NodePool) -> ArtifactCoverage:
    [found] = covered(now, pool).artifacts
    return found


def copies(pool: NodePool, version: ModelVersion, *states: EntryState, **fields: Any) -> None:
    """A node for each state, with that copy on it."""
    for state in states:
        factories.entry(on=factories.node(of=pool), of=version.artifact, state=state, **fields)


def test_there_may_be_no_pool_at_all(now: datetime) -> None:
    assert pools_coverage(now=now) == ()


def test_a_pool_without_nodes_or_pins_is_empty(now: datetime) -> None:
    pool = factories.pool()
    found = covered(now, pool)
    assert (found.state, found.coverage, found.artifacts, found.nodes) == ("Empty", Coverage(), (), {})
    assert (found.capacity_bytes, found.coverage.fraction, found.coverage.complete) == (0, None, False)


def test_a_pin_on_a_pool_without_nodes_covers_nothing_of_nothing(now: datetime) -> None:
    pool = factories.pool()
    factories.pin(pools=(pool,))
    assert one(now, pool).state == "Empty"


@pytest.mark.parametrize(
    ("total", "failed", "in_flight", "word"),
    [
        (Coverage(), 3, 3, "Empty"),
        (Coverage(required=2, ready=2), 0, 0, "Warm"),
        (Coverage(required=2, ready=2), 1, 0, "Degraded"),
        (Coverage(required=2, ready=1), 1, 1, "Degraded"),
        (Coverage(required=2, ready=1), 0, 1, "Warming"),
        (Coverage(required=2, ready=1, unknown=1), 0, 0, "Unknown"),
        (Coverage(required=3, ready=1, unknown=1), 0, 1, "Warming"),
        (Coverage(required=2, ready=0), 0, 0, "Partial"),
    ],
)
def test_one_word_says_the_worst_first(total: Coverage, failed: int, in_flight: int, word: str) -> None:
    assert coverage_state(total, failed=failed, in_flight=in_flight) == word


def test_a_count_beyond_the_nodes_is_never_warm(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), placement_type="Count", placement_value=3)
    copies(pool, factories.version_of(pin), EntryState.READY)
    found = one(now, pool)
    assert (found.coverage.required, found.coverage.ready, found.state) == (3, 1, "Partial")
    assert found.coverage.bytes_required == 300 * MIB


@pytest.mark.parametrize(("nodes", "percent", "required"), [(3, 34, 2), (3, 33, 1), (3, 100, 3), (1, 1, 1), (0, 50, 0)])
def test_a_percentage_is_rounded_up(now: datetime, nodes: int, percent: int, required: int) -> None:
    pool = factories.pool()
    factories.pin(pools=(pool,), placement_type="Percent", placement_value=percent)
    for _ in range(nodes):
        factories.node(of=pool)
    assert one(now, pool).coverage.required == required


def test_what_failed_beyond_the_selector_degrades_nothing(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), node_selector={"zone": "a"})
    factories.entry(on=factories.node(of=pool, labels={"zone": "a"}), of=factories.version_of(pin).artifact)
    left = factories.node(of=pool, labels={"zone": "b"})
    factories.entry(on=left, of=factories.version_of(pin).artifact, state=EntryState.FAILED, desired="")
    assert (one(now, pool).failed, one(now, pool).state) == (0, "Warm")
    assert covered(now, pool).state == "Warm"


def test_what_a_count_does_not_want_any_more_degrades_nothing(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), placement_type="Count", placement_value=1)
    copies(pool, factories.version_of(pin), EntryState.READY)
    copies(pool, factories.version_of(pin), EntryState.FAILED, EntryState.DOWNLOADING, desired="")
    assert (one(now, pool).failed, one(now, pool).in_flight, one(now, pool).state) == (0, 0, "Warm")
    copies(pool, factories.version_of(pin), EntryState.FAILED)
    assert (one(now, pool).failed, one(now, pool).state) == (1, "Degraded")


def test_shared_bytes_that_two_pins_want_on_different_nodes_are_needed_on_both(now: datetime) -> None:
    pool, shared = factories.pool(), factories.artifact(size_bytes=10)
    for zone in ("a", "b"):
        factories.pin(of=factories.version(artifact=shared), pools=(pool,), node_selector={"zone": zone})
        factories.node(of=pool, labels={"zone": zone})
    factories.entry(on=factories.node(of=pool, labels={"zone": "a"}), of=shared)
    found = covered(now, pool)
    assert [part.coverage.required for part in found.artifacts] == [2, 1]
    assert (found.coverage.required, found.coverage.ready) == (3, 1)
    assert len(found.unique) == 1


def test_a_count_of_shared_bytes_is_served_by_the_copies_for_all_nodes(now: datetime) -> None:
    pool, shared = factories.pool(), factories.artifact(size_bytes=10)
    factories.pin(of=factories.version(model="a", artifact=shared), pools=(pool,))
    some = factories.version(model="b", artifact=shared)
    factories.pin(of=some, pools=(pool,), placement_type="Count", placement_value=2)
    for _ in range(3):
        factories.entry(on=factories.node(of=pool), of=shared)
    found = covered(now, pool)
    assert [part.coverage.required for part in found.artifacts] == [3, 2]
    assert (found.coverage.required, found.coverage.bytes_required, found.state) == (3, 30, "Warm")


def test_a_suspended_pin_reads_suspended_until_it_is_warm(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), suspended=True)
    copies(pool, factories.version_of(pin), EntryState.READY)
    assert one(now, pool).state == "Warm"
    factories.node(of=pool)
    assert one(now, pool).state == "Suspended"
    assert covered(now, pool).state == "Partial"  # the pool lacks it all the same


def test_two_clusters_with_the_same_names_are_counted_apart(now: datetime) -> None:
    one_, two = [factories.pool(of=factories.cluster(), name="gpu") for _ in range(2)]
    pin = factories.pin(pools=(one_, two))
    factories.entry(on=factories.node(of=one_, name="n1"), of=factories.version_of(pin).artifact)
    factories.node(of=two, name="n1")
    assert [part.coverage.ready for part in (covered(now, one_), covered(now, two))] == [1, 0]


def test_a_replaced_node_does_not_inherit_its_predecessors_copy(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    gone = factories.node(of=pool, name="n1", uid="old", lost_at=now)
    factories.entry(on=gone, of=factories.version_of(pin).artifact)  # not closed yet
    factories.node(of=pool, name="n1", uid="new")
    assert (one(now, pool).coverage.required, one(now, pool).coverage.ready) == (1, 0)


def test_more_bytes_than_the_artifact_has_are_not_counted(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    copies(pool, factories.version_of(pin), EntryState.DOWNLOADING, bytes_done=900 * MIB)
    assert one(now, pool).coverage.bytes_arrived == 100 * MIB


@pytest.mark.parametrize("selector", [{}, {"gpu": "yes"}])
def test_an_evicting_and_an_absent_copy_are_no_copies(now: datetime, selector: dict[str, str]) -> None:
    pool = factories.pool(selector={"gpu": "yes"})
    pin = factories.pin(pools=(pool,), node_selector=selector)
    copies(pool, factories.version_of(pin), EntryState.EVICTING, EntryState.ABSENT, bytes_done=50 * MIB)
    found = one(now, pool)
    assert found.coverage == Coverage(required=2, bytes_required=200 * MIB)
    assert (found.failed, found.in_flight, found.state) == (0, 0, "Partial")


def test_petabytes_add_up_exactly(now: datetime) -> None:
    pool, huge = factories.pool(), factories.artifact(size_bytes=2**59 + 1)
    factories.pin(of=factories.version(artifact=huge), pools=(pool,))
    for _ in range(40):
        factories.entry(on=factories.node(of=pool), of=huge)
    assert covered(now, pool).coverage.bytes_ready == 40 * (2**59 + 1)


def test_a_summary_names_the_worst_and_says_how_the_rest_is(now: datetime) -> None:
    pool = factories.pool()
    versions = [factories.version(model=f"m-{number}") for number in range(8)]
    for version in versions:
        factories.pin(of=version, pools=(pool,))
    node = factories.node(of=pool)
    for version in versions[:3]:
        factories.entry(on=node, of=version.artifact)
    factories.entry(on=node, of=versions[3].artifact, state=EntryState.FAILED)
    factories.entry(on=node, of=versions[4].artifact, state=EntryState.QUEUED)
    found = covered(now, pool)
    assert [part.state for part in found.worst] == ["Degraded", "Partial", "Partial", "Partial", "Warming", "Warm"]
    assert (found.others, found.others_warm) == (2, True)
    factories.entry(on=node, of=versions[5].artifact)
    assert covered(now, pool).others_warm


def test_a_summary_does_not_call_what_it_leaves_out_warm(now: datetime) -> None:
    pool = factories.pool()
    for number in range(7):
        factories.pin(of=factories.version(model=f"m-{number}"), pools=(pool,))
    factories.node(of=pool)
    found = covered(now, pool)
    assert (found.others, found.others_warm) == (1, False)


def test_pins_are_listed_by_name_whatever_their_age(now: datetime) -> None:
    pool = factories.pool()
    for name in ("zeta", "Alpha", "beta"):
        factories.pin(of=factories.version(model=name, version="v1"), pools=(pool,))
    factories.pin(of=factories.version(model="beta", version="v0"), pools=(pool,))
    names = [part.version.full_name if part.version else "" for part in covered(now, pool).artifacts]
    assert names == sorted(names, key=str.lower)
