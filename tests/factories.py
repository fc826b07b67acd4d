"""Rows for tests, each valid by itself and unique. Functions, not classes: read one and know what it makes."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from caches.domain.launches.trials import servable
from caches.domain.launches.words import PHASES, Mark, Observer
from caches.domain.manifests import manifest_build, manifest_encode
from caches.models import (
    Artifact,
    CacheEntry,
    Image,
    Launch,
    Model,
    ModelVersion,
    Pin,
    Rollout,
    SourceConnection,
)
from caches.services.launches.assembly import hours_mark_dirty
from caches.services.launches.counts import hours_count
from controlplane.accounts.models import RoleGrant, User
from controlplane.clusters.documents import Action, Algorithm, ArtifactKind, EntryState, FileRecord, SourceType
from controlplane.clusters.models import Cluster, ClusterType, Node, NodePool
from controlplane.serving.models import Endpoint, Instance, Variant

MIB = 1024 * 1024
PASSWORD = "correct horse battery"

_count = itertools.count(1)


def _n() -> int:
    return next(_count)


def user(*, username: str = "", role: str = "", target: str = "", **fields: Any) -> User:
    """A user who can sign in with PASSWORD; ``role`` adds one grant on ``target``."""
    made: User = User.objects.create_user(username=username or f"user-{_n()}", password=PASSWORD, **fields)
    if role:
        RoleGrant.objects.create(user=made, role=role, target=target)
    return made


def cluster(**fields: Any) -> Cluster:
    fields.setdefault("name", f"cluster-{_n()}")
    fields.setdefault("type", ClusterType.LOCAL)
    fields.setdefault("address", "/nonexistent")
    fields.setdefault("observed_at", timezone.now())
    return Cluster.objects.create(**fields)


def pool(*, of: Cluster | None = None, **fields: Any) -> NodePool:
    """A pool that selects its nodes by the label ``hearth.dev/pool``."""
    fields.setdefault("name", f"pool-{_n()}")
    fields.setdefault("selector", {"hearth.dev/pool": fields["name"]})
    return NodePool.objects.create(cluster=of or cluster(), **fields)


def node(*, of: NodePool | None = None, **fields: Any) -> Node:
    """A fresh, ready, empty node of 1,000 MiB."""
    of = of or pool()
    now = timezone.now()
    number = _n()
    defaults: dict[str, Any] = {
        "name": f"node-{number}",
        "uid": f"uid-{number}",
        "labels": dict(of.selector),
        "ready": True,
        "joined_at": now - timedelta(hours=1),
        "observed_at": now,
        "reported_at": now,
        "capacity_bytes": 1000 * MIB,
    }
    return Node.objects.create(cluster=of.cluster, pool=of, **(defaults | fields))


def connection(**fields: Any) -> SourceConnection:
    fields.setdefault("name", f"store-{_n()}")
    fields.setdefault("type", SourceType.FILESYSTEM)
    fields.setdefault("allowed", ["/nonexistent"])
    return SourceConnection.objects.create(**fields)


def artifact(**fields: Any) -> Artifact:
    """An artifact with a made-up digest and an empty manifest; tests of bytes make real ones."""
    fields.setdefault("digest", "sha256:" + hashlib.sha256(str(_n()).encode()).hexdigest())
    fields.setdefault("kind", ArtifactKind.WEIGHTS)
    fields.setdefault("size_bytes", 100 * MIB)
    fields.setdefault("files_count", 3)
    fields.setdefault("anchored", True)
    fields.setdefault("manifest", zlib.compress(b'{"files":[]}'))
    return Artifact.objects.create(**fields)


def of_files(row: ModelVersion, *paths: str) -> ModelVersion:
    """The version with these files, of one byte each, in its manifest."""
    assert row.artifact is not None
    files = [FileRecord(path, 1, Algorithm.SHA256, "a" * 64, "etag") for path in paths]
    row.artifact.manifest = manifest_encode(manifest_build(files))
    row.artifact.servable_locally = servable(paths)
    row.artifact.save(update_fields=["manifest", "servable_locally"])
    return row


def version(*, model: str = "", **fields: Any) -> ModelVersion:
    """An Available version with its own artifact."""
    number = _n()
    row, _ = Model.objects.get_or_create(name=model or f"model-{number}")
    if "artifact" not in fields:
        fields["artifact"] = artifact()
    if "connection" not in fields:
        fields["connection"] = connection()
    fields.setdefault("version", f"v{number}")
    fields.setdefault("uri", f"file:///nonexistent/{number}")
    fields.setdefault("state", "Available" if fields["artifact"] else "Resolving")
    return ModelVersion.objects.create(model=row, **fields)


def image(**fields: Any) -> Image:
    """An Available image with its own digest, of 100 MiB unpacked; ``artifact=None`` is being resolved."""
    if "artifact" not in fields:
        fields["artifact"] = artifact(kind=ArtifactKind.IMAGE, files_count=0, manifest=b"")
    number = _n()
    fields.setdefault("reference", f"registry.example/serving-{number}:v1")
    fields.setdefault("registry", "registry.example")
    fields.setdefault("repository", f"serving-{number}")
    fields.setdefault("tag", "v1")
    if fields["artifact"] is not None:
        fields.setdefault("compressed_bytes", 40 * MIB)
        fields.setdefault("resolved_at", timezone.now())
        fields.setdefault("checked_at", timezone.now())
    fields.setdefault("state", "Available" if fields["artifact"] else "Resolving")
    return Image.objects.create(**fields)


def endpoint(*, of: Cluster | None = None, **fields: Any) -> Endpoint:
    """An InferenceEndpointConfig that the watcher saw now."""
    number = _n()
    fields.setdefault("kind", "InferenceEndpointConfig")
    fields.setdefault("namespace", "default")
    fields.setdefault("name", f"endpoint-{number}")
    fields.setdefault("uid", f"endpoint-uid-{number}")
    fields.setdefault("generation", 1)
    fields.setdefault("observed_at", timezone.now())
    return Endpoint.objects.create(cluster=of or cluster(), **fields)


def rollout(*, of: Endpoint | None = None, **fields: Any) -> Rollout:
    """A Rollout that is done, with its gate opened now."""
    now = timezone.now()
    fields.setdefault("number", _n())
    fields.setdefault("generation", 1)
    fields.setdefault("source", "s3://models/llama")
    fields.setdefault("state", "Done")
    fields.setdefault("state_since", now)
    if fields["state"] in ("Switching", "Holding", "Done"):
        fields.setdefault("opened_at", now)
    return Rollout.objects.create(endpoint=of or endpoint(), **fields)


def pin(*, of: ModelVersion | None = None, pools: tuple[NodePool, ...] = (), **fields: Any) -> Pin:
    fields.setdefault("artifacts", [ArtifactKind.WEIGHTS])
    made = Pin.objects.create(version=of or version(), **fields)
    made.pools.set(pools or (pool(),))
    return made


def version_of(pinned: Pin) -> ModelVersion:
    """What a pin of weights pins; one of an image alone has none."""
    assert pinned.version is not None
    return pinned.version


def entry(*, on: Node | None = None, of: Artifact | None = None, **fields: Any) -> CacheEntry:
    """A Ready entry, verified now; pass ``state`` for another one."""
    now = timezone.now()
    of = of or artifact()
    fields.setdefault("state", EntryState.READY)
    fields.setdefault("desired", Action.ENSURE)
    fields.setdefault("bytes_total", of.size_bytes)
    fields.setdefault("observed_at", now)
    fields.setdefault("state_since", now)
    if fields["state"] == EntryState.READY:
        fields.setdefault("bytes_done", of.size_bytes)
        fields.setdefault("ready_at", now)
        fields.setdefault("verified_at", now)
    return CacheEntry.objects.create(node=on or node(), artifact=of, **fields)


def instance(*, of: Endpoint, **fields: Any) -> Instance:
    """A ready instance of the endpoint, at an address where nothing is."""
    number = _n()
    fields.setdefault("uid", f"pod-uid-{number}")
    fields.setdefault("name", f"pod-{number}")
    fields.setdefault("ready", True)
    fields.setdefault("address", f"127.0.0.1:{10000 + number}")
    fields.setdefault("observed_at", timezone.now())
    return Instance.objects.create(endpoint=of, **fields)


def variant(*, of: Endpoint | None = None, **fields: Any) -> Variant:
    """The default variant of an endpoint."""
    return Variant.objects.create(endpoint=of or endpoint(), **fields)


def launch(*, on: Node | None = None, **fields: Any) -> Launch:
    """A launch of half an hour ago that was ready after 31 s, with one observation, and the counts of its hour."""
    number, node_row = _n(), on or node()
    began = fields.setdefault("began_at", timezone.now() - timedelta(minutes=30))
    lengths = fields.setdefault("phase_seconds", [1.0, None, 10.0, 4.0, 12.0, 2.0, None])
    fields.setdefault("phases", [
        {"phase": phase.value, "state": "Measured" if seconds is not None else "Unknown", "seconds": seconds,
         "observer": "Cluster" if seconds is not None else "", "pieces": _piece(began, seconds)}
        for phase, seconds in zip(PHASES, lengths, strict=True)
    ])  # fmt: skip
    defaults: dict[str, Any] = {
        "pod_uid": f"pod-uid-{number}", "pod_name": f"default/chat-{number}", "container": "engine", "restart_count": 0,
        "node_name": node_row.name, "pool_name": node_row.pool.name if node_row.pool is not None else "",
        "version_name": "llama v1", "state": "Ready", "event_class": "ColdPodOnWarmNode", "weights": "Miss",
        "image": "Hit", "reached": "HealthChecks", "started_at": began, "ready_at": began + timedelta(seconds=31),
        "ready_seconds": 31.0, "total_seconds": 31.0, "unknown_seconds": 2.0, "node_age_seconds": 3600.0,
    }  # fmt: skip
    made = Launch.objects.create(id=uuid4(), cluster=node_row.cluster, node=node_row, **(defaults | fields))
    seen = {"observer": Observer.READINESS, "mark": Mark.READY, "clock": "Node", "facts": {"node": node_row.name}}
    made.observations.create(id=uuid4(), at=made.ready_at, received_at=timezone.now(), **seen)
    hours_mark_dirty(cluster_id=made.cluster_id, moments=[began])
    hours_count()
    return made


def _piece(began: datetime, seconds: float | None) -> list[list[str]]:
    return [[began.isoformat(), (began + timedelta(seconds=seconds)).isoformat()]] if seconds else []
