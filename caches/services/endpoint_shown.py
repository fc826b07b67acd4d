"""What people see of an endpoint with kubectl: its status, and the mirrors of its weights cache.

What was written last is remembered by the process alone: after a restart, and every few minutes, it is written again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from caches.domain.endpoint_specs import EndpointKind
from caches.domain.endpoint_status import CacheFacts, endpoint_status, mirror_status, weights_mirror_name
from caches.services.endpoint_serving import Outcome, own_name
from controlplane.clusters.endpoints import CacheMirror, MirrorKind
from controlplane.clusters.gateway import ClusterGateway
from controlplane.serving.models import Endpoint

WEIGHTS_KINDS = (MirrorKind.WEIGHTS, MirrorKind.DATA)
WRITE_AGAIN_SECONDS = 600.0
_written: dict[tuple[str, str], tuple[str, float]] = {}


def endpoint_show(*, endpoint: Endpoint, outcome: Outcome, gateway: ClusterGateway, now: datetime) -> None:
    """Write the status and the mirrors where they changed."""
    status = endpoint_status(outcome.status, endpoint.status)
    if not _is_in(status, endpoint.status):
        gateway.set_endpoint_status(own_name(endpoint), endpoint.uid, {**endpoint.status, **status})
        Endpoint.objects.filter(pk=endpoint.pk, uid=endpoint.uid).update(status={**endpoint.status, **status})
    if outcome.spec is None:
        return
    if outcome.weights is None:
        mirrors_remove(endpoint=endpoint, gateway=gateway)
        return
    selector = outcome.targets.selector if outcome.targets else {}
    path = outcome.targets.host_path if outcome.targets else ""
    spec = _weights_spec(endpoint, path, selector)
    for kind in WEIGHTS_KINDS:
        _show(endpoint, kind, spec, outcome.weights, gateway)


def mirrors_remove(*, endpoint: Endpoint, gateway: ClusterGateway, for_good: bool = False) -> None:
    """Take the mirrors away; no error when there is none. ``for_good``: whatever this process remembers, as another
    one may have written them since."""
    for kind in WEIGHTS_KINDS:
        key = (str(endpoint.pk), kind.value)
        if _is_known(key, "") and not for_good:
            continue
        gateway.delete_cache_mirror(kind, endpoint.namespace, weights_mirror_name(endpoint.name))
        _written[key] = ("", time.monotonic())


def _show(
    endpoint: Endpoint, kind: MirrorKind, spec: Mapping[str, Any], cache: CacheFacts, gateway: ClusterGateway
) -> None:
    mirror = CacheMirror(kind, endpoint.namespace, weights_mirror_name(endpoint.name), spec, mirror_status(cache))
    text = json.dumps([mirror.name, mirror.spec, mirror.status], sort_keys=True, default=str)
    key = (str(endpoint.pk), kind.value)
    if not _is_known(key, text):
        gateway.apply_cache_mirror(mirror)
        _written[key] = (text, time.monotonic())


def _is_known(key: tuple[str, str], text: str) -> bool:
    known = _written.get(key)
    return known is not None and known[0] == text and time.monotonic() - known[1] < WRITE_AGAIN_SECONDS


def _weights_spec(endpoint: Endpoint, host_path: str, selector: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {"enabled": True, "hostPath": host_path, "nodeSelector": dict(selector)}
    if endpoint.kind == EndpointKind.CONFIG:
        spec["modelSourceConfig"] = endpoint.document.get("modelSourceConfig")
    else:
        spec["jumpStartModel"] = endpoint.document.get("model")
    return spec


def _is_in(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    return all(stored.get(name) == value for name, value in wanted.items())
