"""Coverage: required, ready, unknown, and their bytes."""

from __future__ import annotations

from hypothesis import given, settings

from caches.domain.coverage import Coverage, of_artifact, of_node, of_pool, required_nodes
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
    world = view([node("a", entry("loose"))])
    assert of_pool(world) == Coverage()
    assert of_pool(world).fraction is None
    assert not of_pool(world).complete


def test_it_counts_a_node_by_what_must_be_there_and_what_a_count_put_there() -> None:
    pins = [pin("all"), pin("some", placement=count(1)), pin("other", placement=count(1))]
    world = view([node("a", entry("all"), entry("some"))], pins)
    made = of_node(world, world.nodes[0])
    assert (made.required, made.ready) == (2, 2)


def test_it_counts_the_nodes_that_a_pin_asks_for() -> None:
    nodes = [node("a"), node("b"), node("gone", state=NodeState.LOST)]
    assert required_nodes(view(nodes), pin("m")) == 2
    assert required_nodes(view(nodes), pin("m", placement=percent(50))) == 1


@settings(max_examples=60, deadline=None)
@given(pools())
def test_the_pool_is_the_sum_of_its_artifacts_and_the_parts_never_exceed_the_whole(world: PoolView) -> None:
    parts = [of_artifact(world, digest) for digest in {pin.digest for pin in world.pins}]
    assert sum(parts, Coverage()) == of_pool(world)
    for part in parts:
        assert part.ready + part.unknown <= part.required
        assert part.bytes_ready <= part.bytes_arrived <= part.bytes_required
