"""Switching caches of an endpoint that the vendor's operator reconciles: the one thing that Hearth changes of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from caches.domain.endpoints.reading import is_plain_folder
from caches.domain.endpoints.specs import GROUP, read_endpoint
from caches.models import Pin
from caches.services.endpoints.versions import version_known
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.endpoints import FINALIZER, EndpointName, EndpointOwner
from controlplane.clusters.gateway import ClusterGateway
from controlplane.errors import Clash, FieldError, Invalid, Missing
from controlplane.operations.models import Operation, OperationKind
from controlplane.operations.services import operation_start
from controlplane.serving.models import Endpoint

LONGEST_PATH = 255


def endpoint_cache_set(
    *, actor: Actor, endpoint_id: UUID, weights: bool | None = None, image: bool | None = None, host_path: str = ""
) -> Operation:
    """Have its ``modelCacheConfig`` set; None and "" leave what there is. The Operation says how it went.

    Invalid for nothing to do; Clash for an endpoint that goes or is gone, for one that Hearth holds, and, to switch
    something on, for one whose model nobody has pinned.
    """
    if weights is None and image is None and not host_path:
        raise _wrong("weights", "nothing-to-do", "Say what is to be switched.")
    if host_path and (len(host_path) > LONGEST_PATH or not is_plain_folder(host_path)):
        raise _wrong("host_path", "path-not-allowed", "A host path is an absolute path without . and .. below /.")
    endpoint = Endpoint.objects.select_related("cluster").filter(pk=endpoint_id).first()
    if endpoint is None:
        raise Missing("endpoint:user:not-found", f"There is no endpoint {endpoint_id}.")
    if endpoint.gone_at is not None or endpoint.deleting_at is not None:
        raise Clash("endpoint:user:gone", f"{endpoint.full_name} is gone or being deleted.")
    if FINALIZER in endpoint.finalizers:
        raise _own_kinds()  # what reconciles it holds it: the cluster need not be asked
    if (weights or image) and not _is_pinned(endpoint):
        raise Clash(
            "endpoint:user:not-pinned",
            f"No pin wants the model of {endpoint.full_name}.",
            next_step="Register the place that its document names, pin that version, and try again.",
        )
    config = _config(endpoint, weights, image, host_path)
    with transaction.atomic():
        operation = operation_start(
            actor=actor,
            kind=OperationKind.ENDPOINT_APPLY,
            subject_type="cluster",
            subject_id=str(endpoint.cluster_id),
            subject_name=f"{endpoint.cluster.name} {endpoint.full_name}",
            params={
                "cluster_id": str(endpoint.cluster_id),
                "cache": config,
                "of": {"kind": endpoint.kind, "namespace": endpoint.namespace, "name": endpoint.name},
                "uid": endpoint.uid,
            },
        )
        audit_write(
            actor=actor,
            action="endpoint.cache",
            object_type="endpoint",
            object_id=str(endpoint.pk),
            object_name=endpoint.full_name,
            before={"cache": endpoint.document.get("modelCacheConfig")},
            after={"cache": config},
            operation_id=operation.pk,
        )
    return operation


def cache_apply(gateway: ClusterGateway, params: dict[str, Any]) -> None:
    """The operation's work. Clash where Hearth itself reconciles the endpoint; GatewayError as the cluster says it."""
    if gateway.endpoint_owner() is not EndpointOwner.OTHER:
        raise _own_kinds()
    gateway.set_endpoint_cache(EndpointName(**params["of"]), params["uid"], params["cache"])


def _own_kinds() -> Clash:
    return Clash(
        "endpoint:user:own-kinds",
        "No other operator reconciles the endpoints of this cluster.",
        next_step="Change the endpoint's document instead.",
    )


def _is_pinned(endpoint: Endpoint) -> bool:
    metadata = {"name": endpoint.name, "namespace": endpoint.namespace, "annotations": endpoint.annotations}
    document = {"apiVersion": f"{GROUP}/v1", "kind": endpoint.kind, "metadata": metadata, "spec": endpoint.document}
    spec = read_endpoint(document).spec
    version = version_known(cluster=endpoint.cluster, spec=spec) if spec is not None else None
    return version is not None and Pin.objects.filter(version=version, removed_at__isnull=True).exists()


def _config(endpoint: Endpoint, weights: bool | None, image: bool | None, host_path: str) -> dict[str, Any]:
    """All that is to be so afterwards: what an apply of this manager leaves out it would take away."""
    there = endpoint.document.get("modelCacheConfig")
    before: dict[str, Any] = there if isinstance(there, dict) else {}
    made: dict[str, Any] = {}
    for name, wanted in (("weightsCache", weights), ("imageCache", image)):
        found = before.get(name)
        part = {key: found[key] for key in ("enabled", "hostPath") if key in found} if isinstance(found, dict) else {}
        if wanted is not None:
            part["enabled"] = wanted
        if part:
            made[name] = part
    if host_path:
        made.setdefault("weightsCache", {})["hostPath"] = host_path
    return made


def _wrong(field: str, what: str, detail: str) -> Invalid:
    code = f"endpoint:user:{what}"
    return Invalid(code, detail, next_step="Correct it.", errors=[FieldError(field, code, detail)])
