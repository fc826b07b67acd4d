"""Images beside weights: counted by themselves, columns of their own, and nothing where nodes are folders."""

from __future__ import annotations

from datetime import datetime

from caches.models import Image
from caches.selectors.coverage import pools_coverage
from caches.selectors.matrix import pool_matrix
from caches.selectors.nodes import NodeCoverage, node_coverage, nodes_list
from caches.selectors.pins import pin_statuses, pins_list
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import ClusterType, NodePool
from tests import factories
from tests.factories import MIB

BOTH = ["Weights", "Image"]


def kubernetes_pool() -> NodePool:
    return factories.pool(of=factories.cluster(type=ClusterType.KUBERNETES))


def test_an_image_is_counted_beside_the_weights(now: datetime) -> None:
    pool, image = kubernetes_pool(), factories.image()
    one, other = factories.node(of=pool, name="n1"), factories.node(of=pool, name="n2")
    version = factories.version(image=image)
    factories.pin(of=version, pools=(pool,), artifacts=BOTH)
    factories.pin(of=factories.version(image=image), pools=(pool,), artifacts=["Image"])
    factories.entry(on=one, of=image.artifact, state=EntryState.READY)
    factories.entry(on=other, of=image.artifact, state=EntryState.FAILED)
    factories.entry(on=other, of=version.artifact, state=EntryState.READY)

    [covered] = pools_coverage(now=now, pool=pool)
    assert (covered.coverage.required, covered.coverage.ready, len(covered.artifacts)) == (2, 1, 1)
    [shown] = covered.images
    assert (shown.image, shown.coverage.required, shown.coverage.ready, shown.failed) == (image, 2, 1, 1)
    assert shown.state == "Degraded" and covered.image_coverage.bytes_ready == 100 * MIB

    matrix = pool_matrix(pool, now=now)
    assert [column.full_name for column in matrix.columns] == [version.full_name, image.reference]
    assert [cell.state for cell in matrix.lines[one.pk]] == ["Absent", "Ready"]
    assert matrix.cell(other.pk, image.artifact_id).wanted

    found = node_coverage(list(nodes_list(now=now)))
    assert found[one.pk] == NodeCoverage(1, 0, 100 * MIB, 0, images=NodeCoverage(1, 1, 100 * MIB, 100 * MIB))


def test_a_pin_of_an_image_alone_wants_no_weights(now: datetime) -> None:
    pool, image = kubernetes_pool(), factories.image()
    node = factories.node(of=pool)
    pin = factories.pin(of=factories.version(image=image), pools=(pool,), artifacts=["Image"])
    factories.entry(on=node, of=factories.version_of(pin).artifact, state=EntryState.READY)

    [covered] = pools_coverage(now=now, pool=pool)
    assert (covered.state, covered.artifacts, covered.image_coverage.required) == ("Empty", (), 1)
    [row] = pins_list()
    assert (pin_statuses([row], now=now)[row.pk].target, pin_statuses([row], now=now)[row.pk].ready) == (1, 0)
    factories.entry(on=node, of=image.artifact, state=EntryState.READY)
    assert pin_statuses([row], now=now)[row.pk].ready == 1
    cell = pool_matrix(pool, now=now).cell(node.pk, factories.version_of(pin).artifact_id)
    assert (cell.state, cell.wanted) == ("Ready", False), "kept, and wanted by nobody"


def test_what_a_node_still_has_of_an_image_is_a_column_under_one_name(now: datetime) -> None:
    pool, image = kubernetes_pool(), factories.image()
    Image.objects.create(
        reference="a.example/same:v1", repository="same", registry="a.example", tag="v1", state="Available",
        artifact=image.artifact,
    )  # fmt: skip
    factories.entry(on=factories.node(of=pool), of=image.artifact, state=EntryState.EVICTING)
    assert [column.full_name for column in pool_matrix(pool, now=now).columns] == ["a.example/same:v1"]


def test_where_nodes_are_folders_no_image_is_wanted(now: datetime) -> None:
    pool = factories.pool()
    node = factories.node(of=pool)
    factories.pin(of=factories.version(image=factories.image()), pools=(pool,), artifacts=BOTH)
    [covered] = pools_coverage(now=now, pool=pool)
    assert covered.images == () and pool_matrix(pool, now=now).images == ()
    assert node_coverage(list(nodes_list(now=now)))[node.pk].images is None
