"""Where an object lives: its REST address and the page that a person would open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from django.db.models import Model as Row
from rest_framework.request import Request

from caches.models import CacheEntry, Image, Launch, Model, ModelVersion, Pin, Rollout, SourceConnection, Webhook
from controlplane.accounts.models import Token
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint

ROOT = "/api/v1/"

# Row → (path below ROOT, page). Names are slugs or checked when they are made; versions may hold anything printable.
_PATHS: Mapping[type[Row], Callable[[Any], tuple[str, str]]] = {
    SourceConnection: lambda row: (f"source-connections/{row.name}", f"/connections/{row.name}"),
    Cluster: lambda row: (f"clusters/{row.name}", "/fleet"),
    NodePool: lambda row: (f"node-pools/{row.full_name}", f"/fleet/{row.full_name}"),
    Node: lambda row: (f"nodes/{row.id}", f"/nodes/{row.id}"),
    Model: lambda row: (f"models/{row.name}", f"/models/{row.name}"),
    ModelVersion: lambda row: (_version(row), "/" + _version(row)),
    Image: lambda row: (f"images/{row.id}", f"/images/{row.id}"),
    Endpoint: lambda row: (f"endpoints/{row.id}", f"/endpoints/{row.id}"),
    Rollout: lambda row: (f"rollouts/{row.id}", f"/endpoints/{row.endpoint_id}"),
    Launch: lambda row: (f"launches/{row.id}", f"/launches/{row.id}"),
    Pin: lambda row: (f"pins/{row.id}", f"/pins/{row.id}"),
    CacheEntry: lambda row: (f"cache-entries/{row.id}", f"/entries/{row.id}"),
    Operation: lambda row: (f"operations/{row.id}", f"/operations/{row.id}"),
    AuditEvent: lambda row: (f"audit-events/{row.id}", f"/audit?id={row.id}"),
    Token: lambda row: (f"tokens/{row.id}", "/tokens"),
    Webhook: lambda row: (f"webhooks/{row.name}", "/audit?object_type=Webhook"),
}


def links_of(request: Request, row: Row) -> dict[str, str]:
    """``{"self": …, "ui": …}`` as absolute addresses."""
    path, page = _PATHS[type(row)](row)
    return {"self": request.build_absolute_uri(ROOT + path), "ui": request.build_absolute_uri(page)}


def location_of(request: Request, row: Row) -> str:
    """The value of a Location header."""
    return links_of(request, row)["self"]


def _version(row: ModelVersion) -> str:
    return f"models/{row.model.name}/versions/{quote(row.version, safe='')}"
