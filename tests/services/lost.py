"""A database that is lost while the cluster goes on."""

from __future__ import annotations

from typing import Any

from caches.models import (
    Artifact,
    CacheEntry,
    ConsumerSeen,
    Model,
    ModelVersion,
    NodeProjection,
    Pin,
    PoolLoop,
    PublishedManifest,
    SourceConnection,
    UnknownCopy,
)
from controlplane.clusters.models import Node
from controlplane.operations.models import Operation

EVERYTHING: tuple[Any, ...] = (
    Operation, Pin, NodeProjection, PoolLoop, ConsumerSeen, CacheEntry, UnknownCopy, PublishedManifest, ModelVersion,
    Model, Artifact, SourceConnection, Node,
)  # fmt: skip


def lose_everything() -> None:
    """All but the clusters and their pools, which a person makes again."""
    for model in EVERYTHING:
        model.objects.all().delete()
