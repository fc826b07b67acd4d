"""Coverage: required, ready, unknown, and their bytes."""

from __future__ import annotations

from hypothesis import given, settings

from caches.domain.coverage import Coverage, of_artifact
from caches.domain.pool_view import PoolView
from controlplane.clusters.documents import EntryState, NodeState
from tests.domain.fleet import pools
from tests.domain.world import GIB, count, entry, node, percent, pin, view


def test_it_counts_ready_and_unknown_apart() -> None:
    nodes = [
        node("ready", entry("m")),
        node("coming", entry("m", EntryState.DOWNLOADING, on_disk=4)),
        node("unheard", entry("m"), state=NodeState.UNKNOWN),
        node("gone", entry("m"), state=NodeState.LOST),
        node("broken", entry("m", EntryState.REPAIRING, on_disk=9)),
    ]
    made = of_artifact(view(nodes, [pin("m")]), "m")
    assert made == Coverage(4, 1, 1, 40 * GIB, 10 * GIB, 10 * GIB, 23 * GIB)
    assert made.fraction == 0.25
    assert not made.complete


def test_it_is_complete_when_a_count_is_met_whichever_nodes_hold_it() -> None:
    nodes = [node("a", entry("m")), node("b"), node("c", entry("m"))]
    assert of_artifact(view(nodes, [pin("m", placement=count(2))]), "m").complete
    assert of_artifact(view(nodes, [pin("m", placement=percent(34))]), "m").complete
    assert not of_artifact(view(nodes, [pin("m")]), "m").complete


def test_it_is_not_complete_when_a_count_has_too_few_nodes_to_be_on() -> None:
    made = of_artifact(view([node("a", entry("m"))], [pin("m", placement=count(3))]), "m")
    assert (made.required, made.ready, made.bytes_required) == (3, 1, 30 * GIB)


def test_it_requires_a_copy_once_whatever_many_pins_want_it() -> None:
    nodes = [node("a", entry("m"), labels={"k": "v"}), node("b")]
    pins = [pin("m", id="1", placement=count(1)), pin("m", id="2", node_selector={"k": "v"})]
    assert of_artifact(view(nodes, pins), "m").required == 1


def test_it_says_nothing_where_nothing_is_required() -> None:
    made = of_artifact(view([node("a", entry("loose"))]), "loose")
    assert made == Coverage()
    assert made.fraction is None
    assert not made.complete


@settings(max_examples=60, deadline=None)
@given(pools())
def test_the_parts_never_exceed_the_whole(world: PoolView) -> None:
    for digest in {wanted.digest for wanted in world.pins}:
        part = of_artifact(world, digest)
        assert part.ready + part.unknown <= part.required
        assert part.bytes_ready <= part.bytes_arrived <= part.bytes_required
