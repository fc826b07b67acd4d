"""The local fleet takes no endpoint documents: it has no containers to serve from.

What it serves with engines of its own (serving.py) is seen like any endpoint; ``manage.py fleet serve`` changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from controlplane.clusters.endpoints import CacheMirror, EndpointName, EndpointOwner, MirrorKind, WorkloadStatus
from controlplane.clusters.gateway import Kind, NotApplicable

QUIET_KINDS = frozenset({Kind.JUMPSTART_MODEL, Kind.POD})
"""Kinds of which there never is one here, so that nobody need look again and again."""


class LocalEndpoints:
    """See controlplane.clusters.endpoints.EndpointCalls."""

    def endpoint_owner(self) -> EndpointOwner:
        return EndpointOwner.NOBODY

    def apply_endpoint(self, document: Mapping[str, Any], *, dry_run: bool = False) -> None:
        _no()

    def set_endpoint_cache(self, of: EndpointName, uid: str, config: Mapping[str, Any]) -> None:
        _no()

    def delete_endpoint(self, of: EndpointName, uid: str) -> None:
        _no()

    def set_endpoint_finalizer(self, of: EndpointName, uid: str, present: bool) -> None:
        _no()

    def set_endpoint_status(self, of: EndpointName, uid: str, status: Mapping[str, Any]) -> None:
        _no()

    def apply_served(self, deployment: Mapping[str, Any], service: Mapping[str, Any]) -> None:
        _no()

    def delete_served(self, namespace: str, name: str) -> None:
        _no()

    def workload_status(self, namespace: str, name: str) -> WorkloadStatus | None:
        _no()

    def service_is_ours(self, namespace: str, name: str) -> bool | None:
        _no()

    def endpoint_secret(self, namespace: str, name: str, key: str) -> str:
        _no()

    def apply_cache_mirror(self, mirror: CacheMirror) -> None:
        _no()

    def delete_cache_mirror(self, kind: MirrorKind, namespace: str, name: str) -> None:
        _no()


def _no() -> NoReturn:
    raise NotApplicable(
        "The local fleet takes no endpoint documents; 'manage.py fleet serve' has a model served there."
    )
