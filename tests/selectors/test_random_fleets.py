"""Every face of coverage on random fleets, against rows that are counted one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pytest

from caches.domain.coverage import Coverage
from caches.selectors import overview
from caches.selectors.coverage import pools_coverage
from caches.selectors.entries import entries_list
from caches.selectors.matrix import pool_matrix
from caches.selectors.nodes import node_coverage, nodes_list
from caches.selectors.pins import pin_statuses, pins_list
from controlplane.clusters.models import Node, NodePool
from tests.selectors.fleets import ARRIVING, SEEDS, Counted, Fleet, counted, random_fleet, size_and_id, wants

pytestmark = pytest.mark.parametrize("fleet", SEEDS, indirect=True)


@pytest.fixture
def fleet(request: pytest.FixtureRequest, now: datetime) -> Fleet:
    return random_fleet(request.param, now)


def sharing(fleet: Fleet, pool: NodePool) -> list[list[Any]]:
    """The pool's pins by artifact."""
    found: dict[Any, list[Any]] = {}
    for pin in fleet.pins_of(pool):
        found.setdefault(size_and_id(pin)[1], []).append(pin)
    return list(found.values())


def plain(coverage: Coverage, failed: int, in_flight: int) -> Counted:
    return Counted(**asdict(coverage), failed=failed, in_flight=in_flight)


def test_each_pin_is_covered_as_its_rows_say(fleet: Fleet) -> None:
    for covered in pools_coverage(now=fleet.now):
        found = {one.pin_id: plain(one.coverage, one.failed, one.in_flight) for one in covered.artifacts}
        assert found == {pin.pk: counted(fleet, covered.pool, [pin]) for pin in fleet.pins_of(covered.pool)}


def test_versions_that_share_bytes_are_counted_once(fleet: Fleet) -> None:
    for covered in pools_coverage(now=fleet.now):
        expected = [counted(fleet, covered.pool, pins) for pins in sharing(fleet, covered.pool)]
        assert [plain(one.coverage, one.failed, one.in_flight) for one in covered.unique] == expected
        total = Counted(*(sum(values) for values in zip(*(asdict(one).values() for one in expected), strict=True)))
        assert plain(covered.coverage, covered.failed, covered.in_flight) == total
        assert covered.coverage.ready + covered.coverage.unknown <= covered.coverage.required


def test_pools_sum_up_their_live_nodes(fleet: Fleet) -> None:
    for covered in pools_coverage(now=fleet.now):
        live = fleet.live(covered.pool)
        assert covered.capacity_bytes == sum(node.capacity_bytes or 0 for node in live)
        assert covered.used_bytes == sum(node.used_bytes for node in live)
        assert covered.other_bytes == sum(node.other_bytes for node in live)
        assert covered.reserved_bytes == sum(node.reserved_bytes for node in live)
        assert sum(covered.nodes.values()) == covered.nodes_total == len(live)


def test_one_pool_reads_as_it_does_among_all(fleet: Fleet) -> None:
    every = {covered.pool.pk: covered for covered in pools_coverage(now=fleet.now)}
    for pool in fleet.pools:
        [alone] = pools_coverage(now=fleet.now, pool=pool)
        assert (alone.coverage, alone.artifacts, alone.nodes) == (
            every[pool.pk].coverage,
            every[pool.pk].artifacts,
            every[pool.pk].nodes,
        )


def test_nodes_are_covered_as_their_rows_say(fleet: Fleet) -> None:
    rows = list(nodes_list(now=fleet.now))
    found = node_coverage(rows)
    for node in fleet.nodes:
        mine = [pin for pool in fleet.pools if pool.pk == node.pool_id for pin in fleet.pins_of(pool)]
        needed = {
            size_and_id(pin)[1]: (size_and_id(pin)[0], fleet.copy(node, pin))
            for pin in mine
            if node.lost_at is None and wants(pin, node, fleet.copy(node, pin))
        }
        ready = [size for size, copy in needed.values() if copy and copy.state == "Ready" and fleet.heard(node)]
        one = found[node.pk]
        assert (one.required, one.bytes_required) == (len(needed), sum(size for size, _ in needed.values()))
        assert (one.ready, one.bytes_ready) == (len(ready), sum(ready))


def test_entries_are_shown_as_their_nodes_allow(fleet: Fleet) -> None:
    nodes = {node.pk: node for node in fleet.nodes}
    shown = {row.pk: row.shown_state for row in entries_list(now=fleet.now)}  # type: ignore[attr-defined]
    assert shown == {entry.pk: fleet.shown(nodes[entry.node_id], entry) for entry in fleet.entries.values()}


def test_silent_is_the_same_for_nodes_and_their_entries(fleet: Fleet) -> None:
    silent = {node.pk: node.silent for node in nodes_list(now=fleet.now)}  # type: ignore[attr-defined]
    assert silent == {node.pk: node.lost_at is None and not fleet.heard(node) for node in fleet.nodes}


def test_a_pins_status_adds_up_over_its_pools(fleet: Fleet) -> None:
    pins = list(pins_list())
    statuses = pin_statuses(pins, now=fleet.now)
    assert {pin.pk for pin in pins} == {pin.pk for pin in fleet.pins if pin.removed_at is None}
    for pin in pins:
        parts = [counted(fleet, pool, [pin]) for pool in fleet.asked[pin.pk]]
        status, warm = statuses[pin.pk], statuses[pin.pk].conditions[0]
        assert status.target == sum(part.required for part in parts)
        assert status.ready == sum(part.ready for part in parts)
        assert status.failed == sum(part.failed for part in parts)
        assert (warm.status == "True") == (status.target > 0 and all(part.ready == part.required for part in parts))


def test_the_matrix_shows_every_live_node_with_what_is_pinned_or_there(fleet: Fleet) -> None:
    for pool in fleet.pools:
        matrix, live, pins = pool_matrix(pool, now=fleet.now), fleet.live(pool), fleet.pins_of(pool)
        assert [node.pk for node in matrix.nodes] == [node.pk for node in sorted(live, key=lambda node: node.name)]
        there = {
            artifact
            for (node_id, artifact), entry in fleet.entries.items()
            if node_id in {node.pk for node in live} and entry.state not in ("Absent", "Lost")
        }
        columns = {version.artifact_id for version in matrix.versions}
        assert columns == there | {size_and_id(pin)[1] for pin in pins}
        assert len(columns) == len(matrix.versions)
        for node in live:
            for artifact in columns:
                _check_cell(fleet, pins, node, artifact, matrix.cell(node.pk, artifact))


def _check_cell(fleet: Fleet, pins: list[Any], node: Node, artifact: Any, cell: Any) -> None:
    entry = fleet.entries.get((node.pk, artifact))
    wanted = any(wants(pin, node, entry) for pin in pins if size_and_id(pin)[1] == artifact)
    there = entry if entry is not None and entry.state not in ("Absent", "Lost") else None
    if there is None:
        state = ("Absent" if fleet.heard(node) else "Unknown") if wanted else ""
    else:
        state = str(there.state) if fleet.heard(node) else "Unknown"
    assert (cell.state, cell.wanted, cell.bytes_done) == (state, wanted, there.bytes_done if there else 0)


def test_the_overview_counts_what_is_wanted_and_wrong(fleet: Fleet) -> None:
    nodes = {node.pk: node for node in fleet.nodes}
    wanted = [
        (nodes[entry.node_id], entry)
        for entry in fleet.entries.values()
        if entry.desired == "Ensure" and nodes[entry.node_id].lost_at is None and entry.state != "Lost"
    ]
    shown = Counter(fleet.shown(node, entry) for node, entry in wanted)
    found = {(trouble.page, trouble.query): trouble.count for trouble in overview.troubles(now=fleet.now)}
    for state in ("Failed", "Repairing"):
        assert found.get(("entries", f"state={state}"), 0) == shown[state]


def test_the_overview_counts_the_unknown_as_the_tables_do(fleet: Fleet) -> None:
    sentences = [trouble.sentence for trouble in overview.troubles(now=fleet.now)]
    unknown = sum(covered.coverage.unknown for covered in pools_coverage(now=fleet.now))
    words = f"{unknown} wanted {'copy' if unknown == 1 else 'copies'} on nodes that "
    assert any(sentence.startswith(words) for sentence in sentences) is (unknown > 0)
    assert unknown > 0 or not any("copies on nodes" in sentence for sentence in sentences)


def test_what_moves_is_summed_over_nodes_that_report(fleet: Fleet) -> None:
    moving = [
        entry
        for node in fleet.nodes
        for (node_id, _), entry in fleet.entries.items()
        if node_id == node.pk and node.lost_at is None and fleet.heard(node) and entry.state in ARRIVING
    ]
    flow = overview.flow(now=fleet.now)
    assert flow.queued == sum(entry.state == "Queued" for entry in moving)
    assert flow.transfers == len(moving) - flow.queued
    assert flow.bytes_per_second == sum(entry.rate_bytes_per_second or 0 for entry in moving)
    assert flow.bytes_left == sum(max(0, entry.bytes_total - entry.bytes_done) for entry in moving)
