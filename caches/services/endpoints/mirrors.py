"""Mirrors of caches for kubectl: written where they changed, and taken away with what they show.

What was written last is a row, not a memory of one process: several workers take turns at a cluster. Every few minutes
it is written all the same, in case somebody changed or removed it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from caches.domain.demand import alternatives
from caches.domain.endpoints.specs import INSTANCE_TYPE_LABEL
from caches.domain.endpoints.status import CacheFacts, image_facts, image_mirror_name, mirror_status
from caches.domain.gating import GateType, cold_words, gate
from caches.domain.states import any_moving
from caches.models import Pin, ShownMirror
from caches.selectors.endpoint_targets import gate_targets
from controlplane.clusters.endpoints import IMAGE_CACHES_NAMESPACE, CacheMirror, MirrorKind
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.models import Cluster
from controlplane.serving.models import Endpoint

WEIGHTS_KINDS = (MirrorKind.WEIGHTS, MirrorKind.DATA)
IMAGE_KINDS = (MirrorKind.IMAGE, MirrorKind.INFERENCE_IMAGE)
WRITE_AGAIN = timedelta(minutes=10)


def mirror_write(
    *, cluster: Cluster, mirror: CacheMirror, gateway: ClusterGateway, now: datetime, endpoint: Endpoint | None = None
) -> None:
    """Write one, unless exactly that was written lately."""
    text = json.dumps([mirror.spec, mirror.status], sort_keys=True, default=str)
    mark = hashlib.sha256(text.encode()).hexdigest()
    # Before it is sent: what was sent must never be forgotten.
    row, _ = ShownMirror.objects.get_or_create(
        cluster=cluster,
        kind=mirror.kind.value,
        namespace=mirror.namespace,
        name=mirror.name,
        defaults={"endpoint": endpoint},
    )
    if row.written_hash == mark and row.written_at is not None and now - row.written_at < WRITE_AGAIN:
        return
    gateway.apply_cache_mirror(mirror)
    ShownMirror.objects.filter(pk=row.pk).update(written_hash=mark, written_at=now, endpoint=endpoint)


def mirrors_delete(*, rows: Iterable[ShownMirror], gateway: ClusterGateway) -> None:
    """Take them away; no error for one that is gone."""
    for row in rows:
        gateway.delete_cache_mirror(MirrorKind(row.kind), row.namespace, row.name)
        row.delete()


def image_mirrors_write(*, cluster: Cluster, gateway: ClusterGateway, now: datetime) -> None:
    """Those of the images that the cluster's endpoints have pinned: one for each image and set of nodes, with all
    endpoints that it is kept for. Those of images that none has pinned any more go."""
    shown: set[str] = set()
    for pins in _shared(cluster):
        name = _name(pins[0], shown)
        shown.add(name)
        cache, spec = _facts(pins, now), _spec(pins)
        image = pins[0].image
        assert image is not None and image.artifact is not None  # filtered by it; pinned ones are Available
        status = mirror_status(cache, digest=image.artifact.digest)
        for kind in IMAGE_KINDS:
            mirror = CacheMirror(kind, IMAGE_CACHES_NAMESPACE, name, spec, status)
            mirror_write(cluster=cluster, mirror=mirror, gateway=gateway, now=now)
    left = ShownMirror.objects.filter(cluster=cluster, kind__in=[kind.value for kind in IMAGE_KINDS])
    mirrors_delete(rows=left.exclude(name__in=shown), gateway=gateway)


def placement(selector: Mapping[str, str]) -> dict[str, Any]:
    """A pin's selector in the words of the mirrors: labels with one value each, and an affinity for the others."""
    plain = {name: value for name, value in selector.items() if len(alternatives(value)) == 1}
    lists = [
        {"key": name, "operator": "In", "values": alternatives(value)}
        for name, value in sorted(selector.items())
        if name not in plain
    ]
    made: dict[str, Any] = {"nodeSelector": plain}
    if lists:
        terms = {"nodeSelectorTerms": [{"matchExpressions": lists}]}
        made["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return made


def _shared(cluster: Cluster) -> list[list[Pin]]:
    """The endpoints' pins of images, those of the same image for the same nodes together, in a stable order."""
    rows = Pin.objects.filter(endpoint__cluster=cluster, image__isnull=False, removed_at__isnull=True)
    rows = rows.select_related("endpoint", "image__artifact").defer("image__artifact__manifest")
    found: dict[str, list[Pin]] = {}
    for pin in rows.prefetch_related("pools").order_by("endpoint__namespace", "endpoint__name", "pk"):
        assert pin.image is not None and pin.image.artifact is not None
        key = json.dumps([pin.image.artifact.digest, pin.node_selector], sort_keys=True)
        found.setdefault(key, []).append(pin)
    return [pins for _, pins in sorted(found.items())]


def _name(pin: Pin, taken: set[str]) -> str:
    assert pin.image is not None and pin.image.artifact is not None
    mark = json.dumps([pin.image.artifact.digest, pin.node_selector], sort_keys=True)
    suffix = hashlib.sha256(mark.encode()).hexdigest()
    instance = pin.node_selector.get(INSTANCE_TYPE_LABEL, "")
    short = image_mirror_name(pin.image.repository, instance, suffix[:4])
    return short if short not in taken else image_mirror_name(pin.image.repository, instance, suffix[:16])


def _facts(pins: list[Pin], now: datetime) -> CacheFacts:
    by_pools = {tuple(sorted(pool.pk for pool in pin.pools.all())): pin for pin in pins}
    nodes = {target.node: target for pin in by_pools.values() for target in gate_targets(pin, now=now)}
    found = list(nodes.values())
    whole = gate(GateType.ALL, 100, found, started_at=now, now=now)
    return image_facts(whole, moving=any_moving(target.state for target in found), cold=cold_words(found))


def _spec(pins: list[Pin]) -> dict[str, Any]:
    assert pins[0].image is not None
    parents = {pin.endpoint.uid: pin.endpoint for pin in pins if pin.endpoint is not None}
    return {
        "image": pins[0].image.reference,
        **placement(pins[0].node_selector),
        "parentReferences": [
            {"kind": one.kind, "name": one.name, "namespace": one.namespace, "uid": uid} for uid, one in parents.items()
        ],
    }
