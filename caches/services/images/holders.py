"""Holders: what a plan wants of images, told to the cluster. One holder for each image and pool, shared by all pins.

A holder names its nodes one by one, so the plan's own pacing decides how many pull at once; it goes with the last node
that wants it. What the cluster was told is remembered, so that a round without news sends nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.conf import settings

from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView
from caches.models import Image, ImageHold
from caches.selectors.image_demand import held_reference, holds_images, image_rows
from caches.services.images.secrets import pull_secret_name, pull_secrets_apply, pull_secrets_release
from controlplane.clusters.codec import dumps
from controlplane.clusters.documents import POOL_LABEL, Action, ArtifactKind
from controlplane.clusters.gateway import ClusterGateway, Conflict, ImageHolder, NotApplicable, Refused
from controlplane.clusters.models import Node, NodePool

AGAIN_AFTER = timedelta(minutes=5)  # in case somebody removed or changed it


def image_holders_apply(
    *, pool: NodePool, nodes: Sequence[Node], view: PoolView, plan: Plan, gateway: ClusterGateway, now: datetime
) -> list[str]:
    """Have each image on the nodes on which the plan wants it; returns what could not be done, as sentences.
    GatewayError where the cluster does not answer: everything is repeated in the next round."""
    if not holds_images(pool):
        return []
    wanted = _wanted(nodes, view, plan)
    known = {hold.artifact.digest: hold for hold in _holds(pool)}
    if not wanted and not known:
        return pull_secrets_release(cluster=pool.cluster, gateway=gateway)
    images = image_rows(wanted.keys() | known.keys())
    # Before the holders that name them.
    needed = [images[digest] for digest in sorted(wanted.keys() & images.keys())]
    problems = pull_secrets_apply(cluster=pool.cluster, images=needed, gateway=gateway)
    for digest in sorted(known.keys() - wanted.keys()):
        problems += _let_go(pool, known[digest], gateway)
    for digest in sorted(wanted.keys() & images.keys()):
        problems += _hold(pool, images[digest], wanted[digest], known.get(digest), gateway, now)
    return problems + pull_secrets_release(cluster=pool.cluster, gateway=gateway)


def _wanted(nodes: Sequence[Node], view: PoolView, plan: Plan) -> Mapping[str, list[str]]:
    """Names of the nodes by digest. Lines for what may start and what is there; what waits for its turn has none."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for line in plan.desired[node.uid]:
            if line.action is Action.ENSURE and view.artifacts[line.digest].kind is ArtifactKind.IMAGE:
                found.setdefault(line.digest, []).append(node.name)
    return found


def _hold(
    pool: NodePool, image: Image, nodes: Sequence[str], known: ImageHold | None, gateway: ClusterGateway, now: datetime
) -> list[str]:
    holder = ImageHolder(
        pool=pool.name,
        reference=held_reference(image),
        nodes=tuple(sorted(nodes)),
        node_selector={POOL_LABEL: pool.name},
        pull_secrets=_pull_secrets(image),
        helper_image=settings.AGENT_IMAGE,
    )
    spec_hash = hashlib.sha256(dumps(holder).encode()).hexdigest()
    if known is not None and known.reference != holder.reference:
        # The same digest by another name now: the holder's own name does not tell them apart.
        ImageHold.objects.filter(pk=known.pk).update(reference=holder.reference, spec_hash="")
    elif (
        known is not None and known.spec_hash == spec_hash and known.applied_at and known.applied_at > now - AGAIN_AFTER
    ):
        return []
    hold = known
    if hold is None:
        # Before it is sent: what was sent must never be forgotten.
        hold, _ = ImageHold.objects.get_or_create(
            pool=pool, artifact=image.artifact, defaults={"reference": holder.reference}
        )
    try:
        gateway.apply_image_holder(holder)
    except (Conflict, Refused, NotApplicable) as error:
        return [f"{image.reference} cannot be held on {pool.full_name}: {error}"]
    ImageHold.objects.filter(pk=hold.pk).update(spec_hash=spec_hash, applied_at=now)
    return []


def _pull_secrets(image: Image) -> tuple[str, ...]:
    """The one that its registration names, and that of its connection."""
    connection = image.connection
    copied = pull_secret_name(connection) if connection is not None and connection.secret_name else ""
    return tuple(name for name in (image.pull_secret, copied) if name)


def _let_go(pool: NodePool, hold: ImageHold, gateway: ClusterGateway) -> list[str]:
    try:
        gateway.delete_image_holder(pool.name, hold.reference)
    except (Conflict, Refused, NotApplicable) as error:
        return [f"The holder of {hold.reference} on {pool.full_name} cannot be removed: {error}"]
    ImageHold.objects.filter(pk=hold.pk).delete()
    return []


def _holds(pool: NodePool) -> Sequence[ImageHold]:
    return list(ImageHold.objects.filter(pool=pool).select_related("artifact").defer("artifact__manifest"))
