"""Endpoints whose instances are addresses that a person gives: made, changed and taken away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.models import Cluster
from controlplane.errors import Clash, FieldError, Invalid, Missing, Stale
from controlplane.locks import transaction_lock
from controlplane.serving.models import STATIC_KIND, STATIC_NAMESPACE, Endpoint, Instance, Variant
from routing.domain.addresses import AddressesRefused, StaticEndpoint, read_static
from routing.models import RoutedEndpoint
from routing.selectors.variants import static_document, used_by
from routing.services.publishing import publish_soon

DEFAULT = "default"


def static_read(*, name: str, model: str, health_path: str, addresses: Sequence[Mapping[str, Any]]) -> StaticEndpoint:
    """Raises errors.Invalid with everything that is wrong."""
    try:
        return read_static(name=name, model=model, health_path=health_path, addresses=addresses)
    except AddressesRefused as refused:
        errors = [FieldError(one.field, "routing:static:wrong", one.detail) for one in refused.problems]
        raise Invalid(
            "routing:static:wrong",
            " ".join(f"{one.field}: {one.detail}." for one in refused.problems)[:900],
            next_step="Correct the fields named in errors.",
            errors=errors,
        ) from None


def static_endpoint_create(*, actor: Actor, cluster: Cluster, given: StaticEndpoint) -> Endpoint:
    """Served by every router within two seconds. Raises errors.Clash for a name by which clients reach another one."""
    with transaction.atomic():
        transaction_lock("routing:static")
        _refuse_taken(cluster, given.name)
        # Whoever was reached so and is gone: clients mean this one now.
        RoutedEndpoint.objects.filter(name=given.name, endpoint__gone_at__isnull=False).delete()
        row = Endpoint.objects.create(
            cluster=cluster, kind=STATIC_KIND, namespace=STATIC_NAMESPACE, name=given.name, uid=str(uuid4()),
            observed_at=timezone.now(), **_fields(given, generation=1),
        )  # fmt: skip
        Variant.objects.create(endpoint=row, name=DEFAULT)
        _instances(row, given)
        _audit(actor, row, "create", None, static_document(row))
        publish_soon()
    return row


def _refuse_taken(cluster: Cluster, name: str) -> None:
    """Clients ask all routers by one name, whatever the cluster: a second of it would be reached by none of them. Of
    another cluster's endpoint no more is said than that: not everybody may see it."""
    rows = Endpoint.objects.filter(gone_at__isnull=True).filter(Q(name=name) | Q(routed__name=name))
    mine = rows.filter(cluster=cluster).order_by("pk").first()
    if mine is None and not rows.exists():
        return
    if mine is None:
        detail, step = f"An endpoint of another cluster is reached as {name} already.", "Choose another name."
    elif mine.kind == STATIC_KIND:
        detail = f"There is a static endpoint {mine.name} in {cluster.name} already."
        step = "Change its addresses, or choose another name."
    else:
        detail = f"{mine.full_name} of {cluster.name} is reached as {name} already."
        step = "Choose another name, or make a variant of that endpoint that the addresses serve."
    wrong = FieldError("name", "routing:static:name-taken", f"{detail} {step}")
    raise Clash(wrong.code, detail, next_step=step, errors=[wrong])


def static_endpoint_change(
    *, actor: Actor, endpoint_id: UUID, given: StaticEndpoint, if_updated_at: datetime | None = None
) -> Endpoint:
    """Replace what it says; its name stays. The same again changes nothing. Raises errors.Missing, Invalid, Stale."""
    with transaction.atomic():
        row = _locked(endpoint_id)
        if if_updated_at is not None and row.updated_at != if_updated_at:
            raise Stale(
                "request:user:stale",
                "Somebody changed the endpoint since you read it.",
                next_step="Read it again, look at what changed, and send the change with the new ETag.",
            )
        if given.name != row.name:
            wrong = FieldError("name", "routing:static:renamed", f"It stays {row.name}: clients call it so.")
            raise Invalid(wrong.code, wrong.detail, next_step="Make another one.", errors=[wrong])
        before = static_document(row)
        for name, value in _fields(given, generation=row.generation + 1).items():
            setattr(row, name, value)
        _instances(row, given)
        if static_document(row) == before:
            return row
        row.observed_at = timezone.now()
        row.save()
        _audit(actor, row, "change", before, static_document(row))
        publish_soon()
    return row


def static_endpoint_remove(*, actor: Actor, endpoint_id: UUID) -> None:
    """Routers forget it within two seconds; what is in flight ends. Raises errors.Missing; Clash while a variant of
    another endpoint is served by it."""
    with transaction.atomic():
        transaction_lock("routing:publish")
        row = _locked(endpoint_id)
        if users := used_by(row):
            raise Clash(
                "routing:static:in-use",
                f"It serves {', '.join(users)}.",
                next_step="Give that variant the weight 0 and take it away first.",
            )
        _audit(actor, row, "remove", static_document(row), None)
        row.delete()
        publish_soon()


def _locked(endpoint_id: UUID) -> Endpoint:
    rows = Endpoint.objects.select_for_update(of=("self",)).select_related("cluster")
    row = rows.filter(pk=endpoint_id, kind=STATIC_KIND).first()
    if row is None:
        raise Missing("routing:static:not-found", f"There is no static endpoint {endpoint_id}.")
    return row


def _fields(given: StaticEndpoint, *, generation: int) -> dict[str, Any]:
    count = len(given.addresses)
    return {
        "generation": generation,
        "document": {"modelName": given.model, "healthPath": given.health_path},
        "status": {"state": "DeploymentComplete" if count else "DeploymentPending", "replicas": count},
    }


def _instances(row: Endpoint, given: StaticEndpoint) -> None:
    """Ready as far as anybody knows here: routers see for themselves."""
    wanted = {one.uid(row.pk): one for one in given.addresses}
    row.instances.exclude(uid__in=list(wanted)).delete()
    for uid, one in wanted.items():
        fields = {"name": one.name, "address": one.place, "tls": one.tls, "ready": True}
        found = row.instances.filter(uid=uid, **fields)
        if not found.exists():
            Instance.objects.update_or_create(endpoint=row, uid=uid, defaults={**fields, "observed_at": timezone.now()})


def _audit(
    actor: Actor, row: Endpoint, verb: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> None:
    audit_write(
        actor=actor,
        action=f"routing.static-{verb}",
        object_type="endpoint",
        object_id=str(row.pk),
        object_name=row.full_name,
        before=before,
        after=after,
    )
