"""Images as pins want them: which row stands for a digest, which pools are concerned, and what disks are told."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.domain.pool_view import EntryView, NodeView
from caches.models import Artifact, Image, Pin
from caches.selectors.entry_rows import EntryRow
from caches.selectors.image_demand import image_pins, image_rows, room_of, with_images
from caches.selectors.images import image_pools, withdraw_preview
from caches.selectors.pin_artifacts import gate_artifact, gate_name, image_named, pin_artifacts, pins_of
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.models import ClusterType, Node, NodePool
from tests import factories
from tests.factories import MIB

pytestmark = pytest.mark.django_db
WEIGHTS, IMAGE, BOTH = ["Weights"], ["Image"], ["Weights", "Image"]


def pool(type_: ClusterType = ClusterType.KUBERNETES) -> NodePool:
    return factories.pool(of=factories.cluster(type=type_))


def digest_of(image: Image) -> str:
    assert image.artifact is not None
    return image.artifact.digest


def same_digest(image: Image, name: str, **fields: Any) -> Image:
    """Another name of the same digest."""
    return factories.image(reference=f"{name}.example/x:v1", artifact=image.artifact, **fields)


def test_the_pools_of_an_image_are_those_that_want_or_have_its_digest(now: datetime) -> None:
    image = factories.image()
    by_version, by_pin, held, removed, other = (pool() for _ in range(5))
    factories.pin(of=factories.version(image=image), pools=(by_version,), artifacts=BOTH)
    factories.pin(of=factories.version(), image=same_digest(image, "b"), pools=(by_pin, by_version), artifacts=IMAGE)
    assert image.artifact is not None
    held.image_holds.create(artifact=image.artifact, reference="x")
    factories.pin(of=factories.version(image=image), pools=(removed,), artifacts=BOTH, removed_at=now)
    factories.pin(of=factories.version(image=factories.image()), pools=(removed, other), artifacts=BOTH)
    assert set(image_pools(image)) == {by_version, by_pin, held}, "each once, and no pool for a pin that is gone"


def test_an_image_without_a_digest_concerns_no_pool(now: datetime) -> None:
    """Where nothing is resolved nothing can be let go of, although most pins name no image either."""
    bare, pinned = pool(), pool()
    factories.pin(pools=(pinned,))
    factories.node(of=bare)
    for state in ("Resolving", "Refused"):
        image = factories.image(artifact=None, state=state)
        assert list(image_pools(image)) == [] and list(withdraw_preview(image)) == []


def test_a_withdrawal_is_planned_as_if_nobody_wanted_the_digest(now: datetime) -> None:
    on, image = pool(), factories.image()
    node, version = factories.node(of=on), factories.version(image=image)
    factories.pin(of=version, pools=(on,), artifacts=BOTH)
    factories.pin(of=factories.version(), image=same_digest(image, "b"), pools=(on,), artifacts=IMAGE)
    factories.entry(on=node, of=image.artifact, state=EntryState.READY)
    [plan] = withdraw_preview(image)
    assert version.artifact is not None
    kept = {line.digest: line.action.value for line in plan.desired[node.uid]}
    assert kept.get(digest_of(image)) != "Ensure" and version.artifact.digest in {move.digest for move in plan.moves}


def test_the_row_that_a_pin_wants_stands_for_its_digest(now: datetime) -> None:
    """Holders take their name and their credentials from it."""
    first = factories.image()
    wanted = same_digest(first, "wanted", connection=factories.connection())
    assert image_rows([digest_of(first)]) == {digest_of(first): first}, "the oldest where nobody wants any"
    factories.pin(of=factories.version(), image=wanted, pools=(pool(),), artifacts=IMAGE)
    assert image_rows([digest_of(first)]) == {digest_of(first): wanted}
    assert image_rows([]) == {}
    assert image_rows(["sha256:" + "0" * 64]) == {}


@pytest.mark.parametrize("how", ["weights alone", "another image of its own", "removed"])
def test_a_row_that_no_pin_warms_stands_behind_the_one_that_is_warmed(how: str, now: datetime) -> None:
    named = factories.image()
    wanted = same_digest(named, "wanted")
    fields: dict[str, Any] = {"artifacts": WEIGHTS if how == "weights alone" else BOTH}
    if how == "another image of its own":
        fields["image"] = factories.image()
    if how == "removed":
        fields["removed_at"] = now
    factories.pin(of=factories.version(image=named), pools=(pool(),), **fields)
    factories.pin(of=factories.version(image=wanted), pools=(pool(),), artifacts=BOTH)
    assert image_rows([digest_of(named)])[digest_of(named)] == wanted


@pytest.mark.parametrize(
    ("own", "versions", "artifacts", "wants"),
    [
        (None, {}, BOTH, "version"),
        (None, {}, IMAGE, "version"),
        (None, {}, WEIGHTS, ""),
        ({}, {}, IMAGE, "own"),
        ({}, None, BOTH, "own"),
        ({}, {}, WEIGHTS, ""),
        (None, None, BOTH, ""),
        (None, {"artifact": None}, BOTH, ""),
        (None, {"artifact": None, "state": "Refused"}, BOTH, ""),
        ({"withdrawn": True}, {}, BOTH, ""),  # its version's is another one, which nobody asked for
        (None, {"withdrawn": True}, BOTH, ""),
        (None, {"revoked": True}, BOTH, "version"),  # what is warm already stays
    ],
)
def test_a_pool_is_to_have_what_its_pins_may_have(
    own: Any, versions: Any, artifacts: Any, wants: str, now: datetime
) -> None:
    def made(fields: dict[str, Any] | None) -> Image | None:
        if fields is None:
            return None
        marks = {f"{word}_at": now for word in ("withdrawn", "revoked") if fields.get(word)}
        return factories.image(**{key: fields[key] for key in ("artifact", "state") if key in fields}, **marks)

    images = {"own": made(own), "version": made(versions)}
    on = pool()
    factories.pin(of=factories.version(image=images["version"]), image=images["own"], pools=(on,), artifacts=artifacts)
    assert [image for _, image in image_pins(on)] == [images[word] for word in [wants] if word]


def test_folders_are_to_have_no_image_and_a_pin_may_be_left_out(now: datetime) -> None:
    local, on = pool(ClusterType.LOCAL), pool()
    made = factories.pin(of=factories.version(image=factories.image()), pools=(local, on), artifacts=BOTH)
    assert image_pins(local) == () and len(image_pins(on)) == 1
    assert list(image_pins(on, without=[made.pk])) == []
    Pin.objects.update(removed_at=now)
    assert list(image_pins(on)) == []


def test_a_pin_is_judged_by_its_weights_or_else_by_its_image() -> None:
    image, version = factories.image(), factories.version(image=factories.image())
    both = factories.pin(of=version, image=image, artifacts=BOTH, removed_at=timezone.now())
    alone = factories.pin(of=version, artifacts=IMAGE)
    unresolved = factories.pin(of=factories.version(image=factories.image(artifact=None)), artifacts=IMAGE)
    nameless = factories.pin(of=factories.version(), artifacts=IMAGE)
    assert (gate_artifact(both), gate_name(both)) == (version.artifact, version.full_name)
    assert pin_artifacts(both) == [version.artifact, image.artifact] and image_named(both) == image
    assert version.image is not None
    assert (gate_artifact(alone), gate_name(alone)) == (version.image.artifact, version.image.reference)
    assert (gate_artifact(unresolved), pin_artifacts(unresolved)) == (None, [])
    assert image_named(unresolved) is not None and gate_name(unresolved).endswith(":v1")
    assert (gate_artifact(nameless), pin_artifacts(nameless)) == (None, [])
    assert gate_name(nameless) == factories.version_of(nameless).full_name, "it is called by something all the same"


def test_an_artifacts_pins_are_those_that_want_it_as_what_it_is(now: datetime) -> None:
    image = factories.image()
    version = factories.version(image=image)
    weights = factories.pin(of=version, artifacts=WEIGHTS)
    by_version = factories.pin(of=factories.version(image=image), artifacts=IMAGE)
    own = factories.pin(of=factories.version(), image=same_digest(image, "b"), artifacts=BOTH)
    factories.pin(of=factories.version(image=image), image=factories.image(), artifacts=BOTH)
    factories.pin(of=factories.version(artifact=version.artifact), artifacts=IMAGE)
    factories.pin(of=factories.version(image=image), artifacts=BOTH, removed_at=now)

    def found(artifact: Artifact | None) -> set[Pin]:
        assert artifact is not None
        return set(pins_of(artifact.pk))

    assert found(version.artifact) == {weights}
    assert found(image.artifact) == {by_version, own}


def row(digest: str, size: int, state: EntryState, **fields: Any) -> EntryRow:
    blank: dict[str, Any] = dict.fromkeys(EntryRow._fields)
    return EntryRow(**{**blank, "digest": digest, "size_bytes": size, "state": state, "kind": "Image", **fields})


def seen(node: Node, *rows: EntryRow, other: int) -> NodeView:
    entries = tuple(
        EntryView(one.digest, EntryState(one.state), one.size_bytes, one.size_bytes, desired=None) for one in rows
    )
    view = NodeView(
        "n", "u", NodeState.READY, {}, node.joined_at, 1000 * MIB, other, orphan_bytes=0, entries=entries, in_use=None
    )
    return with_images(view, node, rows)


def test_images_take_room_of_a_disk_that_they_share_and_of_no_other(settings: LazySettings) -> None:
    node = factories.node()
    assert node.reported_at is not None
    before, after = node.reported_at - timedelta(seconds=1), node.reported_at + timedelta(seconds=1)
    rows = (
        row("sha256:old", 30 * MIB, EntryState.READY, ready_at=before),
        row("sha256:new", 20 * MIB, EntryState.READY, ready_at=after),
        row("sha256:way", 10 * MIB, EntryState.DOWNLOADING),
        row("sha256:weights", 5 * MIB, EntryState.READY, kind="Weights", ready_at=before),
    )
    settings.IMAGES_SHARE_DISK = True
    view = seen(node, *rows, other=100 * MIB)
    assert view.other_bytes == 70 * MIB, "only what was there when the agent looked is among what it told"
    assert [entry.size_bytes // MIB for entry in view.entries] == [30, 20, 10, 5]
    assert [entry.bytes_on_disk // MIB for entry in view.entries] == [30, 20, 0, 5]
    assert seen(node, *rows, other=1 * MIB).other_bytes == 0, "never less than nothing"
    node.reported_at = None
    assert seen(node, *rows, other=100 * MIB).other_bytes == 100 * MIB

    settings.IMAGES_SHARE_DISK = False
    view = seen(factories.node(), *rows, other=100 * MIB)
    assert view.other_bytes == 100 * MIB and room_of(30 * MIB) == 0
    assert [(entry.size_bytes // MIB, entry.bytes_on_disk // MIB) for entry in view.entries][:3] == [(0, 0)] * 3
    assert view.entries[3].size_bytes == 5 * MIB, "weights are on it all the same"
