"""Which images pins want on a pool, and what the planner needs to know of them.

A pin that names Image among its artifacts wants the image of its own or of its version, as long as that image is
neither refused nor withdrawn. Images ride beside the weights: the same placement, priority and window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from caches.domain.images import parse_reference
from caches.domain.pool_view import ArtifactFacts, EntryView, NodeView
from caches.models import Image, ImageState, Pin
from caches.selectors.entry_rows import EntryRow
from caches.selectors.pin_artifacts import image_named
from controlplane.clusters.documents import ArtifactKind, EntryState
from controlplane.clusters.models import ClusterType, Node, NodePool


def image_of(pin: Pin) -> Image | None:
    """The image that the pin wants now, with its artifact; None where it wants none or may not have it."""
    image = image_named(pin)
    if image is None or image.state != ImageState.AVAILABLE or image.withdrawn_at is not None:
        return None
    return image


def image_pins(pool: NodePool, without: Collection[UUID] = ()) -> Sequence[tuple[Pin, Image]]:
    """The live pins of the pool that want an image there, in one query; none where nodes run no containers."""
    if not holds_images(pool):
        return ()
    rows = (
        Pin.objects.filter(pools=pool, removed_at__isnull=True, artifacts__contains=[ArtifactKind.IMAGE])
        .exclude(pk__in=list(without))
        .select_related("image__artifact", "version__image__artifact")
        .defer("image__artifact__manifest", "version__image__artifact__manifest")
        .order_by("id")
    )
    return [(pin, image) for pin in rows if (image := image_of(pin)) is not None]


def holds_images(pool: NodePool) -> bool:
    """Whether the pool's nodes can hold images at all: those of the local fleet are folders."""
    return pool.cluster.type != ClusterType.LOCAL


def image_rows(digests: Collection[str]) -> Mapping[str, Image]:
    """The image that stands for each digest: one that a live pin wants before others, then the oldest."""
    if not digests:
        return {}
    meant = Q(image=OuterRef("pk")) | Q(image=None, version__image=OuterRef("pk"))
    live = Pin.objects.filter(meant, artifacts__contains=[ArtifactKind.IMAGE], removed_at__isnull=True)
    rows = Image.objects.filter(artifact__digest__in=list(digests), artifact__kind=ArtifactKind.IMAGE)
    rows = rows.annotate(pinned=Exists(live)).select_related("artifact", "connection").defer("artifact__manifest")
    found: dict[str, Image] = {}
    for row in rows.order_by("-pinned", "pk"):
        assert row.artifact is not None  # filtered by it
        found.setdefault(row.artifact.digest, row)
    return found


def image_facts(image: Image) -> ArtifactFacts:
    """What the planner is told: the room that it takes of the store's disk, and what a pull moves."""
    assert image.artifact is not None  # Available images have one, by constraint
    return ArtifactFacts(
        digest=image.artifact.digest,
        name=image.reference,
        kind=ArtifactKind.IMAGE,
        size_bytes=room_of(image.artifact.size_bytes),
        connection=image.connection.name if image.connection is not None else "",
        uri="",
        moved_bytes=image.compressed_bytes or 0,
    )


def room_of(unpacked_bytes: int) -> int:
    """What an image takes of the disk that the store is on."""
    return unpacked_bytes if settings.IMAGES_SHARE_DISK else 0


def held_reference(image: Image) -> str:
    """By its digest, as nodes are told."""
    assert image.artifact is not None
    return parse_reference(image.reference).by_digest(image.artifact.digest)


def with_images(view: NodeView, node: Node, rows: Collection[EntryRow]) -> NodeView:
    """The node with its images counted by the room that they take. Those that it holds since before its agent looked
    are among the other bytes that the agent told, and must not count twice."""
    images = {row.digest: row for row in rows if row.kind == ArtifactKind.IMAGE}
    if not images:
        return view
    entries = tuple(_sized(entry) if entry.digest in images else entry for entry in view.entries)
    told = sum(
        room_of(row.size_bytes)
        for row in images.values()
        if row.state == EntryState.READY and row.ready_at and node.reported_at and row.ready_at <= node.reported_at
    )
    return dataclasses.replace(view, entries=entries, other_bytes=max(0, view.other_bytes - told))


def _sized(entry: EntryView) -> EntryView:
    room = room_of(entry.size_bytes)
    return dataclasses.replace(entry, size_bytes=room, bytes_on_disk=room if entry.state is EntryState.READY else 0)
