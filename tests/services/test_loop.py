"""The loop against a real local gateway: what is planned arrives in NodeCaches, labels follow what is Ready."""

from __future__ import annotations

from caches.services.loop_evictions import ready_label
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from tests.services.world import MIB, World, version_of


def test_it_projects_a_pin_to_every_node_and_labels_what_is_ready(world: World, actor: Actor) -> None:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    plan = world.reconcile()
    assert [move.node for move in plan.moves] == ["n1", "n2"]
    digest = version.artifact.digest
    assert world.desired("n1") == {digest: Action.ENSURE}
    assert world.links["n1"].manifest(digest).size_bytes == 100 * MIB
    world.obey()
    world.observe()
    world.reconcile()
    world.observe()
    assert world.node("n1").labels[ready_label(version.artifact_id)] == "true"
    assert world.entry("n1", version).state == "Ready"
