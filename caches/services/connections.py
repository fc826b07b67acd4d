"""Source connections: made, changed, checked and deleted by administrators; everything else opens them from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError, Q
from django.utils import timezone

from caches.models import EndpointToken, SourceConnection
from caches.services.connection_rules import connection_problems
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.token_reading import connection_secret
from caches.sources import open_registry, open_source
from caches.sources.base import Source
from caches.sources.registry import RegistryClient
from controlplane.audit.services import Actor, audit_write
from controlplane.celery import publish_on_commit
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, FieldError, HearthError, Invalid, Missing, Stale, Transient

CHECK_EVERY = timedelta(minutes=10)
_EDITABLE = (
    "endpoint",
    "region",
    "addressing",
    "ca_bundle",
    "secret_name",
    "allowed",
    "namespaces",
    "manifest",
    "hub_endpoint",
    "max_downloads",
    "bytes_per_second",
)


def connection_spec(connection: SourceConnection) -> ConnectionSpec:
    """The row as it travels to nodes: no credentials, only their name."""
    return ConnectionSpec(
        name=connection.name,
        type=SourceType(connection.type),
        endpoint=connection.endpoint,
        region=connection.region,
        addressing=connection.addressing,
        ca_bundle=connection.ca_bundle,
        secret_name=connection.secret_name,
        allowed=tuple(connection.allowed),
        namespaces=tuple(connection.namespaces),
        bytes_per_second=connection.bytes_per_second,
        manifest=connection.manifest,
        hub_endpoint=connection.hub_endpoint,
    )


@contextmanager
def connection_source(connection: SourceConnection) -> Iterator[Source]:
    """The connection's store, opened with its secret and closed afterwards."""
    if connection.type == SourceType.FILESYSTEM:
        # Again, not only when it was made: the configured roots may have shrunk since.
        _refuse(connection_problems(connection))
    source = open_source(
        connection_spec(connection),
        connection_secret(connection),
        allow_private=settings.SOURCE_PRIVATE_ADDRESSES,
    )
    try:
        yield source
    finally:
        source.close()


def connection_registry(connection: SourceConnection | None) -> RegistryClient:
    """The connection's registry, opened with its secret; None: the one that a reference names. Close it after use."""
    private = settings.SOURCE_PRIVATE_ADDRESSES
    if connection is None:
        return open_registry(None, {}, allow_private=private)
    if connection.type != SourceType.REGISTRY:
        raise Invalid(
            "connection:user:no-registry",
            f"Connection {connection.name} is of type {connection.type}: it leads to no registry.",
            next_step="Name a connection of type Registry, or none.",
            errors=[FieldError("connection", "connection:user:no-registry", "It must be of type Registry.")],
        )
    return open_registry(connection_spec(connection), connection_secret(connection), allow_private=private)


def connection_create(
    *,
    actor: Actor,
    name: str,
    type: str,
    allowed: Sequence[str],
    endpoint: str = "",
    region: str = "",
    addressing: str = "path",
    ca_bundle: str = "",
    secret_name: str = "",
    max_downloads: int | None = None,
    bytes_per_second: int | None = None,
    manifest: str = "",
    hub_endpoint: str = "",
    namespaces: Sequence[str] = (),
) -> SourceConnection:
    """A new connection. Invalid with every wrong field; Clash when the name is taken. Its store is asked later."""
    connection = SourceConnection(
        name=name,
        type=type,
        endpoint=endpoint.rstrip("/"),
        region=region,
        addressing=addressing,
        ca_bundle=ca_bundle,
        secret_name=secret_name,
        allowed=list(allowed),
        namespaces=list(namespaces),
        max_downloads=max_downloads,
        bytes_per_second=bytes_per_second,
        manifest=manifest,
        hub_endpoint=hub_endpoint.rstrip("/"),
    )
    _refuse(connection_problems(connection))
    # Asked first, so that an ordinary duplicate is no error in the log of PostgreSQL; the constraint decides races.
    if SourceConnection.objects.filter(name=name).exists():
        raise _taken(name)
    try:
        with transaction.atomic():
            connection.save(force_insert=True)
            _audit(actor, "connection.create", connection, None, _document(connection))
            publish_on_commit("caches.connection_check", str(connection.pk))
    except IntegrityError as error:
        raise _taken(name) from error
    return connection


def connection_update(
    *, actor: Actor, connection_id: UUID, changes: Mapping[str, Any], if_updated_at: datetime | None = None
) -> SourceConnection:
    """Change some of the fields that say how a store is reached, what may be read there, and how fast.

    Name and type are fixed: they scope the identity of what was registered through the connection.
    """
    if fixed := sorted(changes.keys() - set(_EDITABLE)):
        raise Invalid(
            "connection:user:fixed-field",
            f"{', '.join(fixed)} cannot be changed.",
            next_step="Make a new connection.",
            errors=[FieldError(field, "connection:user:fixed-field", "It cannot be changed.") for field in fixed],
        )
    with transaction.atomic():
        connection = _locked(connection_id, if_updated_at)
        before = _document(connection)
        for field, value in changes.items():
            setattr(connection, field, list(value) if field in ("allowed", "namespaces") else value)
        connection.endpoint = connection.endpoint.rstrip("/")
        connection.hub_endpoint = connection.hub_endpoint.rstrip("/")
        _refuse(connection_problems(connection))
        if _document(connection) == before:
            return connection
        connection.state, connection.message, connection.observed_at = "Unchecked", "", None
        connection.save()
        _audit(actor, "connection.update", connection, before, _document(connection))
        publish_on_commit("caches.connection_check", str(connection.pk))
        pools = NodePool.objects.filter(pins__version__connection=connection, pins__removed_at__isnull=True)
        pools_mark_dirty(pool_ids=pools.values_list("pk", flat=True))
    return connection


def connection_delete(*, actor: Actor, connection_id: UUID, if_updated_at: datetime | None = None) -> None:
    """Delete a connection that no version uses; Clash otherwise. Stale when it changed since ``if_updated_at``."""
    try:
        with transaction.atomic():
            connection = _locked(connection_id, if_updated_at)
            before, key = _document(connection), connection.pk
            connection.delete()
            connection.pk = key
            _audit(actor, "connection.delete", connection, before, None)
    except (ProtectedError, IntegrityError) as error:
        raise Clash(
            "connection:user:in-use",
            "Versions were registered through this connection.",
            next_step="Delete those versions first.",
        ) from error


def connection_check(*, connection_id: UUID) -> SourceConnection:
    """Ask the store for every allowed bucket or root, and record what it said: Reachable, Unreachable, AccessDenied."""
    connection = SourceConnection.objects.filter(pk=connection_id).first()
    if connection is None:
        raise _missing()
    state, message = "Reachable", ""
    try:
        if connection.type == SourceType.REGISTRY:
            with closing(connection_registry(connection)) as registry:
                registry.probe()
        else:
            with connection_source(connection) as source:
                source.probe()
    except HearthError as error:
        denied = getattr(error, "reason", "") == Reason.ACCESS_DENIED
        state, message = (
            "AccessDenied" if denied else "Unreachable",
            f"{error.detail} {_next_step(connection, error)}"[:1000],
        )
    # Not save(): an edit made meanwhile stays, and its "Unchecked" too.
    rows = SourceConnection.objects.filter(pk=connection_id, updated_at=connection.updated_at)
    rows.update(state=state, message=message, observed_at=timezone.now())
    connection.refresh_from_db()
    return connection


def _next_step(connection: SourceConnection, error: HearthError) -> str:
    """Who asked often may wait; here it may be the first time, and the address a wrong one."""
    if isinstance(error, Transient) and connection.endpoint:
        return f"It is tried again by itself; see whether its address, {connection.endpoint}, is right."
    return error.next_step


def connections_due(*, now: datetime) -> list[UUID]:
    """Connections that were never checked, or not for CHECK_EVERY."""
    due = Q(observed_at__isnull=True) | Q(observed_at__lte=now - CHECK_EVERY)
    return list(SourceConnection.objects.filter(due).order_by("pk").values_list("pk", flat=True))


def _taken(name: str) -> Clash:
    return Clash(
        "connection:user:exists",
        f"There is a source connection {name} already.",
        next_step="Change that connection, or choose another name.",
    )


def _refuse(problems: Sequence[FieldError]) -> None:
    if problems:
        raise Invalid(
            problems[0].code if len(problems) == 1 else "connection:user:invalid",
            " ".join(problem.detail for problem in problems),
            next_step="Correct the fields listed in errors and send the request again.",
            errors=problems,
        )


def _locked(connection_id: UUID, if_updated_at: datetime | None) -> SourceConnection:
    connection = SourceConnection.objects.select_for_update().filter(pk=connection_id).first()
    if connection is None:
        raise _missing()
    token = EndpointToken.objects.select_related("base").filter(connection=connection).first()
    if token is not None:
        raise Clash(
            "connection:user:of-endpoints",
            f"{connection.name} belongs to the endpoints of namespace {token.namespace} that bring a token along.",
            next_step=f"Change {token.base.name}, which it follows; it goes with the last of these endpoints.",
        )
    if if_updated_at is not None and connection.updated_at != if_updated_at:
        raise Stale(
            "connection:user:changed-meanwhile",
            "Somebody changed this connection since you read it.",
            next_step="Read it again, and repeat your change if it still makes sense.",
        )
    return connection


def _missing() -> Missing:
    return Missing("connection:user:not-found", "There is no such source connection.")


def _document(connection: SourceConnection) -> dict[str, Any]:
    fields = {name: getattr(connection, name) for name in ("name", "type", *_EDITABLE)}
    # The authority itself is long and public; that it changed is what the trail must show.
    fields["ca_bundle"] = f"{len(connection.ca_bundle)} characters" if connection.ca_bundle else ""
    return fields


def _audit(
    actor: Actor,
    action: str,
    connection: SourceConnection,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="connection",
        object_id=str(connection.pk),
        object_name=connection.name,
        before=before,
        after=after,
    )
