"""Hub tokens of endpoints: found by the Secret that a document names, given to agents, and gone with the last user.

A token opens what it opens for the endpoints of its own namespace: each has a source connection of its own, through
which versions are registered. Agents get a copy where they read all credentials; pods read their namespace's Secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from caches.domain.endpoints.specs import GROUP, EndpointSpec, read_endpoint
from caches.models import ModelVersion, Pin, SourceConnection
from caches.models.tokens import EndpointToken
from caches.services.catalogue import version_delete
from caches.services.endpoints.retries import entries_retry_denied
from caches.services.token_reading import Unreadable, token_read
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.models import Cluster
from controlplane.errors import HearthError
from controlplane.serving.models import Endpoint

AGAIN_AFTER = timedelta(minutes=1)  # so long a rotated token takes to get to agents
MISSING_AGAIN = timedelta(seconds=10)
WRITE_AGAIN = timedelta(minutes=10)  # in case somebody removed what agents read
_COPIED = ("endpoint", "region", "addressing", "ca_bundle", "allowed", "max_downloads", "bytes_per_second")


def token_known(*, cluster: Cluster, spec: EndpointSpec, base: SourceConnection) -> EndpointToken | None:
    """The one that the document names, as far as it was ever looked at."""
    secret, key = spec.source.token_secret
    rows = EndpointToken.objects.select_related("connection", "cluster", "base")
    return rows.filter(cluster=cluster, namespace=spec.namespace, secret=secret, key=key, base=base).first()


def token_follow(
    *, cluster: Cluster, spec: EndpointSpec, base: SourceConnection, gateway: ClusterGateway, now: datetime
) -> EndpointToken:
    """The token that the document names, with agents told what it is now. ``problem`` says why it cannot be read.

    Repeating it is harmless; GatewayError when the cluster does not answer.
    """
    token = token_known(cluster=cluster, spec=spec, base=base) or _make(cluster, spec, base)
    return _follow(token, gateway, now)


def _follow(token: EndpointToken, gateway: ClusterGateway, now: datetime) -> EndpointToken:
    _follow_base(token)
    if token.read_at is not None and now - token.read_at < (MISSING_AGAIN if token.problem else AGAIN_AFTER):
        return token
    problem, missing, name, other = "", False, token.connection.secret_name, False
    changes: dict[str, object] = {}
    try:
        content = token_read(token, gateway)
    except Unreadable as error:
        problem, missing = str(error)[:1000], error.missing
        if token.content_mac or token.read_at is None:
            gateway.delete_secret(name)
        changes = {"content_mac": "", "written_at": None}
    else:
        mac = salted_hmac("caches.endpoint-token", content, algorithm="sha256").hexdigest()
        late = token.written_at is None or now - token.written_at >= WRITE_AGAIN
        other = mac != token.content_mac
        if other or late:
            gateway.apply_secret(name, {"token": content})
            changes = {"content_mac": mac, "written_at": now}
    with transaction.atomic():
        # Together: who is killed before says the token once more, and then asks for the attempts again.
        EndpointToken.objects.filter(pk=token.pk).update(problem=problem, missing=missing, read_at=now, **changes)
        if other:
            entries_retry_denied(connection=token.connection)
    token.refresh_from_db(fields=["problem", "missing", "read_at", "content_mac", "written_at"])
    return token


def tokens_release(*, cluster: Cluster, gateway: ClusterGateway) -> None:
    """Follow those that are in use, and take away those that no endpoint names and no pin needs any more: first what
    agents read, then what was registered with them, as far as nothing is still being removed. GatewayError leaves the
    rest to the next round."""
    tokens = list(EndpointToken.objects.select_related("connection", "base").filter(cluster=cluster))
    named = _named(cluster) if tokens else set()
    for token in tokens:
        versions = ModelVersion.objects.filter(connection=token.connection)
        if _uses(token) & named or _pinned(versions):
            # Also where a document names another connection by now: nodes may still read through this one.
            _follow(token, gateway, timezone.now())
            continue
        gateway.delete_secret(token.connection.secret_name)
        EndpointToken.objects.filter(pk=token.pk).update(content_mac="", written_at=None, read_at=None)
        for version_id in list(versions.values_list("pk", flat=True)):
            with suppress(HearthError):  # its pin is still being removed: the next round tries again
                version_delete(actor=SYSTEM, version_id=version_id)
        if not versions.exists():
            _remove(token)


def _make(cluster: Cluster, spec: EndpointSpec, base: SourceConnection) -> EndpointToken:
    secret, key = spec.source.token_secret
    said = json.dumps([str(cluster.pk), spec.namespace, secret, key, base.name])
    mark = hashlib.sha256(said.encode()).hexdigest()[:12]
    name = "-".join((base.name[:24].strip("-"), spec.namespace[:24].strip("-"), mark))
    fields = {field: getattr(base, field) for field in _COPIED}
    with transaction.atomic():
        connection, made = SourceConnection.objects.get_or_create(
            name=name,
            defaults={**fields, "type": base.type, "secret_name": f"hub-token-{mark}", "namespaces": [spec.namespace]},
        )
        token, _ = EndpointToken.objects.get_or_create(
            cluster=cluster, namespace=spec.namespace, secret=secret, key=key, base=base,
            defaults={"connection": connection},
        )  # fmt: skip
        if made:
            _audit("connection.create", connection, after=token)
    found = token_known(cluster=cluster, spec=spec, base=base)
    assert found is not None
    return found


def _follow_base(token: EndpointToken) -> None:
    """An administrator's changes of the connection count for its copies too."""
    changes = {f: getattr(token.base, f) for f in _COPIED if getattr(token.base, f) != getattr(token.connection, f)}
    if changes:
        SourceConnection.objects.filter(pk=token.connection_id).update(**changes, updated_at=timezone.now())
        token.connection.refresh_from_db()


def _uses(token: EndpointToken) -> set[tuple[str, str, str, str]]:
    """What a document names that is served with it."""
    return {(token.namespace, token.secret, token.key, connection) for connection in ("", token.base.name)}


def _named(cluster: Cluster) -> set[tuple[str, str, str, str]]:
    """What documents of endpoints that are there name: namespace, Secret, key, and the connection ("" for none)."""
    rows = Endpoint.objects.filter(cluster=cluster, gone_at__isnull=True, deleting_at__isnull=True)
    found = set()
    for endpoint in rows:
        # One whose annotations are refused still serves what it served.
        spec = _spec(endpoint, endpoint.annotations) or _spec(endpoint, {})
        if spec is not None and spec.source.token_secret[0]:
            found.add((endpoint.namespace, *spec.source.token_secret, spec.options.connection))
    return found


def _spec(endpoint: Endpoint, annotations: Mapping[str, str]) -> EndpointSpec | None:
    metadata = {"name": endpoint.name, "namespace": endpoint.namespace, "annotations": annotations}
    document = {"apiVersion": f"{GROUP}/v1", "kind": endpoint.kind, "metadata": metadata, "spec": endpoint.document}
    return read_endpoint(document).spec


def _pinned(versions: QuerySet[ModelVersion]) -> bool:
    return Pin.objects.filter(version__in=versions, removed_at__isnull=True).exists()


def _remove(token: EndpointToken) -> None:
    with transaction.atomic():
        connection, key = token.connection, token.connection.pk
        token.delete()
        connection.delete()
        connection.pk = key
        _audit("connection.delete", connection, before=token)


def _audit(
    action: str,
    connection: SourceConnection,
    *,
    before: EndpointToken | None = None,
    after: EndpointToken | None = None,
) -> None:
    def told(token: EndpointToken | None) -> dict[str, str] | None:
        if token is None:
            return None
        return {"namespace": token.namespace, "secret": token.secret, "key": token.key, "copy_of": token.base.name}

    audit_write(
        actor=SYSTEM,
        action=action,
        object_type="connection",
        object_id=str(_id(connection)),
        object_name=connection.name,
        before=told(before),
        after=told(after),
        message="It reads with the token that endpoints of this namespace name.",
    )


def _id(connection: SourceConnection) -> UUID:
    key: UUID = connection.pk
    return key
