"""What people see of an endpoint with kubectl: its status, and the mirrors of its weights cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from caches.domain.endpoints.specs import EndpointKind
from caches.domain.endpoints.status import StatusFacts, endpoint_status, mirror_status, weights_mirror_name
from caches.models import ShownMirror
from caches.services.endpoints.mirrors import WEIGHTS_KINDS, mirror_write, mirrors_delete, placement
from caches.services.endpoints.refusals import with_next_step
from caches.services.endpoints.serving import Outcome, own_name
from controlplane.clusters.endpoints import CacheMirror
from controlplane.clusters.gateway import ClusterGateway, Refused
from controlplane.serving.models import Endpoint

log = structlog.get_logger(__name__)

_ENDS = ("imageCacheStatus",)  # what goes again when it has nothing to say


def endpoint_show(*, endpoint: Endpoint, outcome: Outcome, gateway: ClusterGateway, now: datetime) -> None:
    """Write the status and the mirrors where they changed. A status that the cluster does not take is stored here."""
    _status_write(endpoint, outcome.status, gateway)
    if outcome.spec is None:
        return
    if outcome.weights is None:
        rows = ShownMirror.objects.filter(cluster=endpoint.cluster, endpoint=endpoint)
        mirrors_delete(rows=rows.filter(kind__in=[kind.value for kind in WEIGHTS_KINDS]), gateway=gateway)
        return
    selector = outcome.targets.selector if outcome.targets else {}
    path = outcome.targets.host_path if outcome.targets else ""
    spec, said = _weights_spec(endpoint, path, selector), mirror_status(outcome.weights)
    for kind in WEIGHTS_KINDS:
        mirror = CacheMirror(kind, endpoint.namespace, weights_mirror_name(endpoint.name), spec, said)
        mirror_write(cluster=endpoint.cluster, mirror=mirror, gateway=gateway, now=now, endpoint=endpoint)


def _status_write(endpoint: Endpoint, facts: StatusFacts, gateway: ClusterGateway) -> None:
    status, unwritten = endpoint_status(facts, endpoint.said), {}
    before = {name: value for name, value in endpoint.status.items() if name not in _ENDS or name in status}
    row = Endpoint.objects.filter(pk=endpoint.pk, uid=endpoint.uid)
    if before != endpoint.status or not _is_in(status, before):
        try:
            gateway.set_endpoint_status(own_name(endpoint), endpoint.uid, {**before, **status})
            row.update(status={**before, **status})
        except Refused as error:
            why = f"The cluster does not take its status, which is therefore shown here alone. {with_next_step(error)}"
            unwritten = {**before, **endpoint_status(replace(facts, unwritten=why), endpoint.said)}
            if unwritten != endpoint.unwritten:
                log.warning("endpoint.status_refused", endpoint=endpoint.full_name, error=str(error)[:300])
    if unwritten != endpoint.unwritten:
        row.update(unwritten=unwritten)


def mirrors_remove(*, endpoint: Endpoint, gateway: ClusterGateway) -> None:
    """Take those of its weights away, whatever was remembered of them."""
    name = weights_mirror_name(endpoint.name)
    for kind in WEIGHTS_KINDS:
        gateway.delete_cache_mirror(kind, endpoint.namespace, name)
    rows = ShownMirror.objects.filter(cluster=endpoint.cluster, namespace=endpoint.namespace, name=name)
    rows.filter(kind__in=[kind.value for kind in WEIGHTS_KINDS]).delete()


def _weights_spec(endpoint: Endpoint, host_path: str, selector: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {"enabled": True, "hostPath": host_path, **placement(selector)}
    if endpoint.kind == EndpointKind.CONFIG:
        spec["modelSourceConfig"] = endpoint.document.get("modelSourceConfig")
    else:
        spec["jumpStartModel"] = endpoint.document.get("model")
    return spec


def _is_in(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    return all(stored.get(name) == value for name, value in wanted.items())
