"""What a person on call sees first: every trouble with its number, its place and its weight; and nothing invented."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from caches.models import DriftState, PoolLoop
from caches.selectors import overview
from caches.selectors.coverage import pools_coverage
from caches.selectors.health import fleet_health
from caches.selectors.overview import Severity, Trouble
from controlplane.audit.models import Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node, NodePool
from controlplane.operations.models import Operation, OperationState
from tests import factories
from tests.factories import MIB

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def sentences(now: datetime, targets: Any = None) -> list[str]:
    return [trouble.sentence for trouble in overview.troubles(now=now, targets=targets)]


def test_an_empty_control_plane_has_no_trouble_and_nothing_to_show(now: datetime) -> None:
    assert overview.troubles(now=now) == ()
    assert overview.unwatched_clusters(now=now) == {}
    assert not overview.has_anything()
    assert overview.flow(now=now) == overview.Flow(0, 0, 0, 0)
    assert (overview.disks_filling(now=now), overview.operations_in_flight(), overview.last_changes()) == ((), [], [])


def test_a_version_or_a_copy_is_something(now: datetime) -> None:
    factories.version(artifact=None)
    assert overview.has_anything()


@pytest.mark.parametrize(
    ("state", "count", "sentence"),
    [
        (EntryState.FAILED, 1, "1 copy failed"),
        (EntryState.FAILED, 2, "2 copies failed"),
        (EntryState.REPAIRING, 1, "1 copy damaged and being repaired"),
        (EntryState.REPAIRING, 3, "3 copies damaged and being repaired"),
    ],
)
def test_copies_are_counted_in_words(now: datetime, state: EntryState, count: int, sentence: str) -> None:
    for _ in range(count):
        factories.entry(state=state)
    assert sentences(now) == [sentence]
    [trouble] = overview.troubles(now=now)
    assert (trouble.count, trouble.page, trouble.query) == (count, "entries", f"state={state}")


def test_large_numbers_are_grouped(now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = overview._Counted(uuid4(), uuid4(), silent=0, never=0, broken=12_345)
    monkeypatch.setattr(overview, "_nodes_counted", lambda now, targets: [counted])
    assert "12,345 nodes not ready" in sentences(now)


def test_what_nobody_wants_is_no_trouble(now: datetime) -> None:
    factories.entry(state=EntryState.FAILED, desired="")
    factories.entry(state=EntryState.REPAIRING, desired="Evict")
    factories.entry(on=factories.node(lost_at=now), state=EntryState.FAILED)
    assert sentences(now) == []


def test_nodes_that_are_down_and_nodes_that_are_silent_are_different_troubles(now: datetime) -> None:
    pool = factories.pool()
    factories.node(of=pool, ready=False)
    factories.node(of=pool, reported_at=now - HOUR)
    factories.node(of=pool, ready=False, lost_at=now)
    factories.node(of=pool, schedulable=False)
    outside = factories.node(of=pool, reported_at=now - HOUR)
    Node.objects.filter(pk=outside.pk).update(pool=None)  # it has no agent, and nothing is wanted of it
    assert overview.troubles(now=now) == (
        Trouble(Severity.BAD, "1 node not ready", 1, "fleet"),
        Trouble(Severity.UNKNOWN, "1 node stopped reporting", 1, "fleet"),
    )


def test_a_node_that_never_reported_did_not_stop(now: datetime) -> None:
    pool = factories.pool()
    node = factories.node(of=pool, ready=False, reported_at=None)  # its copies are unknown whatever its cluster says
    factories.node(of=pool, reported_at=None)
    version = factories.version()
    factories.pin(of=version, pools=(pool,))
    assert sentences(now) == [
        "1 node not ready",
        "2 wanted copies on nodes that have not reported yet",
        "2 nodes have not reported yet",
    ]
    Node.objects.filter(pk=node.pk).update(ready=True, reported_at=now - HOUR)
    assert sentences(now) == [
        "2 wanted copies on nodes that are not heard",
        "1 node has not reported yet",
        "1 node stopped reporting",
    ]


def test_a_silent_watcher_is_named_before_what_nobody_knows_then(now: datetime) -> None:
    pool = factories.pool(of=factories.cluster(name="lab", observed_at=now - HOUR))
    factories.node(of=pool, reported_at=now - HOUR, observed_at=now - HOUR)
    factories.pin(of=factories.version(), pools=(pool,))
    assert sentences(now) == [
        f"the watcher last heard from lab at {now - HOUR:%H:%M:%S} UTC; 1 of its nodes is Unknown",
        "1 wanted copy on nodes that are not heard",
    ]


def loop(pool: NodePool, **fields: Any) -> PoolLoop:
    return PoolLoop.objects.create(pool=pool, **fields)


def test_a_pool_without_room_names_what_does_not_fit_once(now: datetime) -> None:
    pool = factories.pool(of=factories.cluster(name="lab"), name="gpu")
    refusals = [{"artifact": name, "reason": "InsufficientCapacity"} for name in ("zeta v1", "alpha v2", "zeta v1")]
    loop(pool, plan={"refusals": refusals})
    [trouble] = overview.troubles(now=now)
    assert trouble == Trouble(Severity.BAD, "No room in lab.gpu for alpha v2, zeta v1", 2, "pool", "lab.gpu")


@pytest.mark.parametrize("plan", [None, {}, {"refusals": []}])
def test_a_plan_without_refusals_is_no_trouble(now: datetime, plan: Any) -> None:
    loop(factories.pool(), plan=plan)
    assert sentences(now) == []


@pytest.mark.parametrize(
    ("fields", "late"),
    [
        ({"wanted_round": 2, "done_round": 1, "wanted_ago": 121}, True),
        ({"wanted_round": 2, "done_round": 1, "wanted_ago": 119}, False),
        ({"wanted_round": 2, "done_round": 2, "wanted_ago": 999}, False),
        ({"wanted_round": 2, "done_round": 1, "wanted_ago": None}, False),
        ({"wanted_round": 2, "done_round": 1, "wanted_ago": 999, "error": "boom"}, False),  # the error is said instead
    ],
)
def test_a_change_that_nobody_planned_for_is_told_after_two_minutes(
    now: datetime, fields: dict[str, Any], late: bool
) -> None:
    ago = fields.pop("wanted_ago")
    pool = factories.pool()
    loop(pool, wanted_at=None if ago is None else now - timedelta(seconds=ago), **fields)
    assert (f"{pool.full_name} was not planned since it changed" in sentences(now)) == late


def test_a_round_that_fails_says_with_what(now: datetime) -> None:
    pool = factories.pool()
    loop(pool, error="Unreachable: <b>gone</b>")
    assert sentences(now) == [f"Planning {pool.full_name} has problems: Unreachable: <b>gone</b>"]


def test_drift_is_told_of_pinned_versions_once_and_only_to_those_who_see_a_pool(now: datetime) -> None:
    one, two = factories.pool(of=factories.cluster(name="one")), factories.pool(of=factories.cluster(name="two"))
    drifted = factories.version(model="llama", version="v1", drift=DriftState.DRIFTED)
    factories.pin(of=drifted, pools=(one, two))
    factories.version(drift=DriftState.DRIFTED)  # pinned nowhere
    factories.pin(of=factories.version(drift=DriftState.DRIFTED), pools=(one,), removed_at=now)
    factories.pin(of=factories.version(drift=DriftState.UNREACHABLE), pools=(one,))
    expected = ["llama v1 changed at its source"]
    assert sentences(now) == expected
    assert sentences(now, frozenset({"one"})) == sentences(now, frozenset({"one", "two"})) == expected
    assert sentences(now, frozenset({"three"})) == []


def test_troubles_of_other_pools_are_not_told(now: datetime) -> None:
    mine, other = factories.pool(of=factories.cluster(name="mine")), factories.pool(of=factories.cluster(name="other"))
    factories.entry(on=factories.node(of=other), state=EntryState.FAILED)
    factories.node(of=other, ready=False)
    loop(other, error="boom")
    assert len(sentences(now)) == 3
    assert sentences(now, frozenset({mine.cluster.name})) == []


def test_the_worst_comes_first_whatever_was_found_first(now: datetime) -> None:
    pool = factories.pool()
    factories.node(of=pool, reported_at=now - HOUR)
    factories.entry(on=factories.node(of=pool), state=EntryState.REPAIRING)
    loop(pool, error="boom")
    severities = [trouble.severity for trouble in overview.troubles(now=now)]
    assert severities == [Severity.BAD, Severity.WARN, Severity.UNKNOWN]


def test_a_pin_that_chooses_its_nodes_is_counted_as_in_the_tables(now: datetime) -> None:
    """The tables count as unknown what may be on silent nodes: of two nodes of which one is to have it, none or one."""
    pool = factories.pool()
    heard, silent = factories.node(of=pool), factories.node(of=pool, reported_at=now - HOUR)
    version = factories.version()
    factories.pin(of=version, pools=(pool,), placement_type="Count", placement_value=1)
    factories.entry(on=silent, of=version.artifact)
    words = "1 wanted copy on nodes that stopped reporting"
    assert words in sentences(now)
    factories.pin(of=factories.version(), pools=(pool,))
    assert "2 wanted copies on nodes that stopped reporting" in sentences(now)
    factories.entry(on=heard, of=version.artifact)
    assert words in sentences(now), "of the chosen one nothing is unknown any more"


def test_what_is_neither_ready_nor_on_its_way_is_not_said_to_be_so(now: datetime) -> None:
    """A pin that nobody planned for yet, a count beyond the nodes, a suspended pin: none of them is a trouble."""
    pool = factories.pool(of=factories.cluster(type="Kubernetes"))
    nodes = [factories.node(of=pool) for _ in range(3)]
    made = [factories.version(image=factories.image()), *(factories.version() for _ in range(3))]
    factories.pin(of=made[0], pools=(pool,), artifacts=["Weights", "Image"])
    factories.pin(of=made[1], pools=(pool,), suspended=True)
    factories.pin(of=made[2], pools=(pool,), placement_type="Count", placement_value=5)
    factories.pin(of=made[3], pools=(pool,))
    factories.entry(on=nodes[0], of=made[0].artifact)
    factories.entry(on=nodes[1], of=made[0].artifact, state=EntryState.QUEUED)
    factories.entry(on=nodes[0], of=made[1].artifact)
    factories.entry(on=nodes[1], of=made[1].artifact, state=EntryState.FAILED, desired="")
    for node in nodes:
        factories.entry(on=node, of=made[2].artifact)
        factories.entry(on=node, of=made[3].artifact)
    missing = overview.copies_missing(pools_coverage(now=now))
    assert missing == overview.Missing(copies=1 + 2 + 2 + 3, suspended=2)
    assert sentences(now) == []


def test_troubles_cost_five_queries_at_any_size(now: datetime, django_assert_num_queries: Any) -> None:
    for _ in range(5):
        pool = factories.pool()
        loop(pool, error="boom")
        for _ in range(4):
            factories.entry(on=factories.node(of=pool), state=EntryState.FAILED)
        factories.pin(of=factories.version(drift=DriftState.DRIFTED), pools=(pool,))
    with django_assert_num_queries(5):
        assert len(overview.troubles(now=now)) == 11


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"observed_at": None}, "lab was never reached"),
        ({"error": "connection refused"}, "lab cannot be watched: connection refused"),
        ({"error": "forbidden", "observed_at": None}, "lab cannot be watched: forbidden"),
        ({"ago": 60}, ""),
        ({"ago": 61}, "the watcher last heard from lab at 11:58:59 UTC"),
    ],
)
def test_pages_say_why_what_they_show_is_old(db: None, fields: dict[str, Any], reason: str) -> None:
    noon = datetime.fromisoformat("2026-09-01T12:00:00+00:00")
    observed_at = noon - timedelta(seconds=fields.pop("ago", 0))
    factories.cluster(name="lab", **({"observed_at": observed_at} | fields))
    assert fleet_health(now=noon)[0].stale == reason
    assert fleet_health(now=noon, targets=frozenset({"elsewhere"}))[0].stale == ""
    assert fleet_health(now=noon, targets=frozenset({"lab.gpu"}))[0].stale == reason


@pytest.mark.parametrize(
    ("rates", "per_second", "eta"),
    [
        ([], 0.0, None),
        ([None], 0.0, None),
        ([0.0], 0.0, None),  # stalled: no time can be told
        ([4.0 * MIB], 4.0 * MIB, 25.0),
        ([4.0 * MIB, None], 4.0 * MIB, 50.0),  # what one has not measured yet still has to come
        ([4.0 * MIB, 1.0 * MIB], 5.0 * MIB, 40.0),
    ],
)
def test_the_flow_estimates_from_what_is_measured(
    now: datetime, rates: list[float | None], per_second: float, eta: float | None
) -> None:
    for rate in rates:
        factories.entry(state=EntryState.DOWNLOADING, rate_bytes_per_second=rate)
    flow = overview.flow(now=now)
    assert (flow.bytes_per_second, flow.eta_seconds) == (per_second, eta)
    assert (flow.transfers, flow.bytes_left) == (len(rates), len(rates) * 100 * MIB)


def test_the_flow_leaves_out_what_is_ready_silent_lost_or_elsewhere(now: datetime) -> None:
    seen = factories.entry(state=EntryState.QUEUED)
    factories.entry()
    factories.entry(on=factories.node(reported_at=now - HOUR), state=EntryState.DOWNLOADING, rate_bytes_per_second=9.0)
    factories.entry(on=factories.node(lost_at=now), state=EntryState.DOWNLOADING)
    factories.entry(on=factories.node(of=factories.pool(of=factories.cluster(name="far"))), state=EntryState.QUEUED)
    flow = overview.flow(now=now, targets=frozenset({seen.node.cluster.name}))
    assert (flow.transfers, flow.queued, flow.bytes_left) == (0, 1, 100 * MIB)


def test_a_transfer_beyond_its_size_leaves_nothing_and_takes_nothing_from_others(now: datetime) -> None:
    factories.entry(state=EntryState.VERIFYING, bytes_done=150 * MIB)
    factories.entry(state=EntryState.DOWNLOADING, bytes_done=40 * MIB)
    assert overview.flow(now=now).bytes_left == 60 * MIB


def disk(used: int, other: int = 0, reserved: int = 0, **fields: Any) -> Node:
    pool = factories.pool(high_watermark=0.8, low_watermark=0.5)
    return factories.node(
        of=pool, used_bytes=used * MIB, other_bytes=other * MIB, reserved_bytes=reserved * MIB, **fields
    )


@pytest.mark.parametrize(
    ("used", "other", "reserved", "shown"),
    [
        (749, 0, 0, False),
        (750, 0, 0, True),
        (400, 300, 50, True),
        (0, 0, 750, True),
        (0, 1200, 0, True),  # more than the disk: a measurement that is late
    ],
)
def test_a_disk_is_shown_from_five_percent_below_its_pools_watermark(
    now: datetime, used: int, other: int, reserved: int, shown: bool
) -> None:
    node = disk(used, other, reserved)
    assert [full.node.pk for full in overview.disks_filling(now=now)] == ([node.pk] if shown else [])


def test_the_fullest_disks_come_first_and_the_rest_is_left_out(now: datetime) -> None:
    nodes = [disk(750 + number) for number in range(10)]
    found = overview.disks_filling(now=now, limit=3)
    assert [full.node.pk for full in found] == [node.pk for node in reversed(nodes[-3:])]
    assert found[0].fraction == pytest.approx(0.759)
    assert (found[0].watermark, found[0].committed_bytes) == (0.8, 759 * MIB)


@pytest.mark.parametrize("fields", [{"capacity_bytes": None}, {"capacity_bytes": 0}, {"lost_at": "now"}])
def test_a_disk_without_size_or_node_is_not_shown(now: datetime, fields: dict[str, Any]) -> None:
    facts: dict[str, Any] = {name: now if value == "now" else value for name, value in fields.items()}
    disk(900, **facts)
    assert overview.disks_filling(now=now) == ()


def operation(state: OperationState) -> Operation:
    return Operation.objects.create(
        kind="PinWarm", state=state, subject_type="pin", subject_id="1", subject_name="x", started_by="ada"
    )


def test_only_operations_that_have_not_ended_are_in_flight_newest_first(now: datetime) -> None:
    made = [operation(state) for state in OperationState]
    active = [one.pk for one in made if one.state in ("Pending", "Running", "Canceling")]
    assert [one.pk for one in overview.operations_in_flight()] == active[::-1]
    assert [one.pk for one in overview.operations_in_flight(limit=1)] == [active[-1]]


def test_the_last_changes_are_what_people_changed(now: datetime) -> None:
    actor = Actor(name="ada", via=Via.BROWSER)

    def write(action: str, object_type: str = "pin") -> None:
        audit_write(actor=actor, action=action, object_type=object_type, object_id="1", object_name="x")

    for action in ("pin.create", "operation.succeeded", "pin.update"):
        write(action)
    write("user.sign-in", "SignIn")
    assert [event.action for event in overview.last_changes()] == ["pin.update", "pin.create"]
    assert [event.action for event in overview.last_changes(limit=1)] == ["pin.update"]
