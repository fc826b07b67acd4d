"""Coverage, troubles and previews as pages need them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.test import Client
from django.utils import timezone

from caches.domain.plans import (
    DesiredItem,
    Eviction,
    EvictReason,
    Move,
    MoveReason,
    Plan,
    Refusal,
    Wait,
    WaitReason,
)  # fmt: skip
from caches.models import PoolLoop
from caches.selectors import overview
from caches.selectors.coverage import pools_coverage
from caches.selectors.health import fleet_health
from caches.selectors.matrix import pool_matrix
from caches.selectors.nodes import pools_list
from caches.selectors.why import named, pin_fits
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import Cluster, Node
from tests import factories
from tests.factories import MIB
from tests.views.conftest import Stage
from tests.views.reading import Page

NOW = datetime(2026, 9, 1, tzinfo=UTC)


def test_it_counts_ready_arriving_failed_and_unknown_apart(stage: Stage) -> None:
    factories.entry(on=stage.nodes[3], of=stage.llama.artifact)
    [covered] = pools_coverage(now=timezone.now())
    assert covered.coverage.required == 4
    assert (covered.coverage.ready, covered.coverage.unknown) == (1, 1)
    assert (covered.in_flight, covered.failed) == (1, 1)
    assert covered.coverage.bytes_arrived == 125 * MIB
    assert covered.state == "Degraded"
    assert covered.nodes == {"Ready": 3, "Unknown": 1}


def test_it_counts_like_the_domain(stage: Stage) -> None:
    factories.entry(on=stage.nodes[3], of=stage.llama.artifact)
    factories.entry(on=factories.node(of=stage.pool), of=stage.llama.artifact, state=EntryState.QUEUED)
    factories.entry(on=factories.node(of=stage.pool, ready=False), of=stage.llama.artifact)
    factories.entry(on=factories.node(of=stage.pool, ready=None), of=stage.llama.artifact)
    factories.entry(on=factories.node(of=stage.pool), of=stage.llama.artifact, state=EntryState.EVICTING)
    [by_database] = pools_coverage(now=timezone.now())
    stage.pin.node_selector = stage.pool.selector  # every node has it: the domain is asked, and must agree
    stage.pin.save()
    [by_domain] = pools_coverage(now=timezone.now())
    assert by_database.coverage == by_domain.coverage
    assert by_database.coverage.required == 8


def test_it_counts_copies_that_two_versions_share_once(stage: Stage) -> None:
    [before] = pools_coverage(now=timezone.now())
    twin = factories.version(model="llama-twin", artifact=stage.llama.artifact)
    factories.pin(of=twin, pools=(stage.pool,))
    [after] = pools_coverage(now=timezone.now())
    assert len(after.artifacts) == 2
    assert after.coverage == before.coverage


def test_it_names_the_worst_versions_first_and_counts_the_rest(stage: Stage) -> None:
    for number in range(7):
        version = factories.version(model=f"a-{number}")
        factories.pin(of=version, pools=(stage.pool,))
        for node in stage.nodes:
            factories.entry(on=node, of=version.artifact)
    stage.nodes[3].delete()
    [covered] = pools_coverage(now=timezone.now())
    assert [one.state for one in covered.worst] == ["Degraded"] + ["Warm"] * 5
    assert (covered.others, covered.others_warm) == (2, True)


def test_it_names_each_state_of_coverage(stage: Stage) -> None:
    def state() -> str:
        return pools_coverage(now=timezone.now())[0].state

    stage.failed.delete()
    stage.nodes[3].delete()
    assert state() == "Warming"
    stage.downloading.delete()
    assert state() == "Partial"
    for node in stage.nodes[1:3]:
        factories.entry(on=node, of=stage.llama.artifact)
    assert state() == "Warm"
    stage.pin.delete()
    assert state() == "Empty"


def test_it_does_not_call_a_half_silent_pool_warm(stage: Stage) -> None:
    for entry in (stage.failed, stage.downloading):
        entry.delete()
    for node in stage.nodes[1:]:
        factories.entry(on=node, of=stage.llama.artifact)
    [covered] = pools_coverage(now=timezone.now())
    assert (covered.coverage.ready, covered.coverage.unknown, covered.state) == (3, 1, "Unknown")


def test_it_takes_a_pool_with_everything_it_needs_in_few_queries(
    stage: Stage, django_assert_max_num_queries: object
) -> None:
    for _ in range(3):
        factories.node(of=factories.pool(of=stage.pool.cluster))
    with django_assert_max_num_queries(6):  # type: ignore[operator]
        assert len(pools_coverage(now=timezone.now())) == 4


def test_it_makes_a_matrix_of_what_is_pinned_or_present(stage: Stage) -> None:
    matrix = pool_matrix(stage.pool, now=timezone.now())
    assert [version.full_name for version in matrix.versions] == ["llama v1", "qwen v1"]

    def cell(node: int, version: int) -> str:
        return matrix.cell(stage.nodes[node].id, matrix.versions[version].artifact_id).state

    assert [cell(node, 0) for node in range(4)] == ["Ready", "Downloading", "Failed", "Unknown"]
    assert [cell(node, 1) for node in range(4)] == ["Ready", "", "", ""]


def test_it_respects_a_pins_node_selector_in_the_matrix(stage: Stage) -> None:
    stage.pin.node_selector = {"zone": "b"}
    stage.pin.save()
    stage.failed.delete()
    matrix = pool_matrix(stage.pool, now=timezone.now())
    assert matrix.cell(stage.nodes[2].id, stage.llama.artifact_id).state == ""


def test_it_lists_the_worst_trouble_first(stage: Stage) -> None:
    found = overview.troubles(now=timezone.now())
    assert [trouble.severity for trouble in found] == sorted(
        (trouble.severity for trouble in found), key=list(overview.Severity).index
    )
    assert [trouble.sentence for trouble in found] == [
        "1 copy failed",
        "1 wanted copy on nodes that stopped reporting",
        "1 node stopped reporting",
    ]


def test_it_leaves_copies_that_nobody_wants_out_of_the_unknown_ones(stage: Stage) -> None:
    factories.entry(on=stage.nodes[3], of=stage.llama.artifact)
    factories.entry(on=stage.nodes[3], of=stage.qwen.artifact, desired="Ensure")  # unpinned while the node was silent
    [covered] = pools_coverage(now=timezone.now())
    counts = {trouble.sentence: trouble.count for trouble in overview.troubles(now=timezone.now())}
    assert counts["1 wanted copy on nodes that stopped reporting"] == covered.coverage.unknown == 1


def test_it_hatches_the_disk_of_a_silent_node(stage: Stage, victor: Client) -> None:
    Node.objects.update(used_bytes=100 * MIB, capacity_bytes=400 * MIB)
    bars = Page(victor.get("/fleet/lab.gpu").content).page.one("tbody", id="nodes-rows").all("svg", role="img")
    tones = [[part.attrs["class"] for part in bar.all("rect")[1:]] for bar in bars]
    assert tones == [["tone-ok"]] * 3 + [["tone-unknown"]], "what a silent node holds is hatched"


def test_it_tells_refusals_planning_errors_and_lateness(stage: Stage) -> None:
    loop = PoolLoop.objects.create(pool=stage.pool, plan={"refusals": [{"artifact": "giant v1"}] * 2})
    sentences = {trouble.sentence for trouble in overview.troubles(now=timezone.now())}
    assert "No room in lab.gpu for giant v1" in sentences
    PoolLoop.objects.filter(pk=loop.pk).update(plan=None, error="boom")
    assert "Planning lab.gpu has problems: boom" in {t.sentence for t in overview.troubles(now=timezone.now())}
    late = timezone.now() - timedelta(minutes=5)
    PoolLoop.objects.filter(pk=loop.pk).update(error="", wanted_round=5, done_round=4, wanted_at=late)
    assert "lab.gpu was not planned since it changed" in {t.sentence for t in overview.troubles(now=timezone.now())}


def test_it_tells_of_pinned_versions_that_drifted(stage: Stage) -> None:
    stage.llama.drift = stage.qwen.drift = "Drifted"
    stage.llama.save()
    stage.qwen.save()
    drifted = [trouble for trouble in overview.troubles(now=timezone.now()) if trouble.page == "version"]
    assert [trouble.sentence for trouble in drifted] == ["llama v1 changed at its source"]


def test_it_does_not_count_what_nobody_wants(stage: Stage) -> None:
    factories.entry(on=stage.nodes[0], state=EntryState.FAILED, desired="")
    assert "1 copy failed" in {trouble.sentence for trouble in overview.troubles(now=timezone.now())}


def test_it_measures_what_is_moving(stage: Stage) -> None:
    flow = overview.flow(now=timezone.now())
    assert (flow.transfers, flow.queued, flow.bytes_left) == (1, 0, 75 * MIB)
    assert flow.eta_seconds == 15
    stage.downloading.rate_bytes_per_second = None
    stage.downloading.save()
    assert overview.flow(now=timezone.now()).eta_seconds is None


def test_it_finds_disks_near_their_limit_with_what_is_promised(stage: Stage) -> None:
    node = stage.nodes[1]
    node.used_bytes, node.other_bytes, node.reserved_bytes = 500 * MIB, 100 * MIB, 210 * MIB
    node.save()
    [disk] = overview.disks_filling(now=timezone.now())
    assert (disk.node.name, disk.committed_bytes) == ("n2", 810 * MIB)


def test_it_is_stale_when_a_cluster_was_never_reached(stage: Stage) -> None:
    assert fleet_health(now=timezone.now())[0].stale == ""
    Cluster.objects.update(observed_at=None)
    assert fleet_health(now=timezone.now())[0].stale == "lab was never reached"
    assert fleet_health(now=timezone.now(), targets=frozenset({"other"}))[0].stale == ""


def move(uid: str, digest: str = "d", **changes: object) -> Move:
    values: dict[str, object] = {
        "node": f"node-{uid}", "node_uid": uid, "digest": digest, "artifact": "m v", "bytes": 10, "source": "s",
        "estimated_seconds": 4.0, "order": 1, "reason": MoveReason.PINNED, "pin_id": "p",
    }  # fmt: skip
    return Move(**(values | changes))  # type: ignore[arg-type]


PLAN = Plan(
    "gpu",
    moves=(move("a"), move("b", after_evictions=True), move("c", digest="other")),
    evictions=(
        Eviction("node-b", "b", "old", "old v1", 7, EvictReason.LRU, "not used", None, None, room_for="d"),
        Eviction("node-a", "a", "x", "x v1", 7, EvictReason.PRESSURE, "full", None, None),
    ),
    refusals=(Refusal("node-e", "e", "d", "m v", "InsufficientCapacity", "no room", 30, 20, 5, "add disk"),),
    waits=(Wait("node-w", "w", "d", "m v", WaitReason.WINDOW, "opens later", NOW, bytes=10),),
    desired={
        "k": (DesiredItem("d", Action.ENSURE, 1, "Kept", "p"),),
        "z": (DesiredItem("d", Action.ENSURE, 1, "Kept"),),
    },
    estimated_seconds=9.0,
    estimate_basis=3,
    notes=("node q: consumers unknown",),
)


def test_it_reads_a_plan_node_by_node() -> None:
    preview = named(pin_fits([PLAN], "d", ["lab.gpu"]), {"k": "node-k"})
    assert [(fit.node, fit.verdict) for fit in preview.nodes] == [
        ("node-a", "Fits"), ("node-b", "Evicts"), ("node-e", "CannotFit"), ("node-k", "Kept"), ("node-w", "Waits"),
    ]  # fmt: skip
    assert {fit.pool for fit in preview.nodes} == {"lab.gpu"}
    assert preview.bytes == 30  # what cannot fit is not going to move
    assert [eviction.artifact for eviction in preview.evictions] == ["old v1"]
    assert (preview.refused, preview.seconds, preview.basis) == (1, 9.0, 3)
    assert preview.notes == ("node q: consumers unknown",)


def test_it_estimates_no_time_where_nothing_moves_or_was_measured() -> None:
    nothing = Plan("gpu", desired={"k": (DesiredItem("d", Action.ENSURE, 1, "Kept", "p"),)}, estimated_seconds=9.0)
    assert pin_fits([nothing], "d").seconds is None
    assert pin_fits([Plan("gpu", moves=(move("a", estimated_seconds=None),))], "d").seconds is None


def test_it_lists_only_visible_pools(stage: Stage) -> None:
    factories.pool(of=stage.pool.cluster, name="other")
    seen = pools_coverage(now=timezone.now(), targets=frozenset({"lab.other"}))
    assert [one.pool.name for one in seen] == ["other"]
    assert pools_list().count() == 2
