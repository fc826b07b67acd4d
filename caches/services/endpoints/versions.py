"""From the place that an endpoint's document names to a registered version: read through what, and by what name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from caches.domain.endpoints.resolved import resolved_source
from caches.domain.endpoints.specs import EndpointSource, EndpointSpec
from caches.models import ModelVersion, SourceConnection, VersionState
from caches.services.catalogue import version_register
from caches.services.endpoints.jumpstart import author_of, jumpstart_address, jumpstart_problem
from caches.services.endpoints.tokens import token_known
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import SourceType
from controlplane.clusters.models import Cluster
from controlplane.errors import HearthError

REFUSED_AGAIN = timedelta(minutes=5)  # a version whose registration was refused
_TYPES = {
    EndpointSource.S3: SourceType.S3,
    EndpointSource.FSX: SourceType.FILESYSTEM,
    EndpointSource.HUB: SourceType.HUGGING_FACE,
    EndpointSource.JUMPSTART: SourceType.JUMP_START,
}


@dataclass(frozen=True, slots=True)
class Registered:
    """``version`` None: it goes on, or ``refused`` says what somebody must do. ``wanted``: there is one at all."""

    version: ModelVersion | None = None
    refused: str = ""
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """A connection, and an address as that connection reads it; ``with_token`` of an endpoint's namespace."""

    connection: SourceConnection
    uri: str
    with_token: bool = False


def version_of(*, cluster: Cluster, spec: EndpointSpec, with_token: bool = True) -> Registered:
    """The version that holds what the document names, registering it the first time. Repeating it is harmless.

    Where the document names a token, that is followed first (endpoint_tokens.token_follow). Without ``with_token`` (for
    whoever may not read it) what only the token opens is not registered, and nothing is said of it.
    """
    if not spec.source.is_cacheable:
        return Registered(wanted=False)
    place = _place(cluster, spec)
    if isinstance(place, str):
        return Registered(refused=place)
    name = version_name(spec, place.connection.name)
    found = _known(place, name)
    if found is None and not with_token and place.with_token:
        return Registered()
    if found is None or _is_asked_again(found, with_token or not place.with_token):
        try:
            found, _ = version_register(
                actor=author_of(spec) if spec.accept_eula else SYSTEM,
                model=name[0],
                version=name[1],
                connection=place.connection,
                uri=place.uri,
                accept_eula=spec.accept_eula,
            )
        except HearthError as error:
            return Registered(refused=f"{error.detail} {error.next_step}".strip())
    if found.state == VersionState.AVAILABLE:
        problem = jumpstart_problem(found)
        return Registered(refused=problem) if problem else Registered(found)
    if found.state == VersionState.REFUSED:
        return Registered(refused=f"{found.message} {found.next_step}".strip())
    return Registered()


def _is_asked_again(found: ModelVersion, may_ask: bool) -> bool:
    """Whether one that was refused a while ago may be another thing by now: somebody was told to correct it."""
    return may_ask and found.state == VersionState.REFUSED and timezone.now() - found.updated_at >= REFUSED_AGAIN


def version_known(*, cluster: Cluster, spec: EndpointSpec) -> ModelVersion | None:
    """The version where it is registered and Available; registers nothing."""
    place = _place(cluster, spec) if spec.source.is_cacheable else ""
    if isinstance(place, str):
        return None
    found = _known(place, version_name(spec, place.connection.name))
    return found if found is not None and found.state == VersionState.AVAILABLE else None


def place_to_ask(*, cluster: Cluster, spec: EndpointSpec) -> Place | None:
    """Where a version that nobody registered yet would be read; None where none is, or only a token opens it."""
    place = _place(cluster, spec) if spec.source.is_cacheable else ""
    if isinstance(place, str) or place.with_token:
        return None
    return place if _known(place, version_name(spec, place.connection.name)) is None else None


def _known(place: Place, name: tuple[str, str]) -> ModelVersion | None:
    """One of the very place, or of the name that the place has."""
    rows = ModelVersion.objects.filter(connection=place.connection, uri=place.uri)
    rows = rows.filter(allow_patterns=[], ignore_patterns=[]).exclude(state=VersionState.REFUSED)
    found = rows.select_related("model", "artifact", "connection").defer("artifact__manifest").order_by("id").first()
    return found if found is not None else _named(name)


def version_name(spec: EndpointSpec, connection: str) -> tuple[str, str]:
    """Model and version by which the catalogue knows it: the document's, and a mark of the place, for documents of
    other namespaces may say the same words about other bytes."""
    # The artifact of a JumpStart model may be another one on another instance type.
    place = f"{connection} {spec.source.text}"
    if spec.source.type is EndpointSource.JUMPSTART:
        place = " ".join((place, *spec.instance_types))
    mark = hashlib.sha256(place.encode()).hexdigest()[:8]
    stated = re.sub(r"[^A-Za-z0-9._+-]", "-", spec.model_version).lstrip("._+-")[:100]
    return spec.model_name, f"{stated}-{mark}" if stated else mark


def _named(name: tuple[str, str]) -> ModelVersion | None:
    rows = ModelVersion.objects.filter(model__name=name[0], version=name[1])
    return rows.select_related("model", "artifact", "connection").defer("artifact__manifest").first()


def _place(cluster: Cluster, spec: EndpointSpec) -> Place | str:
    """Where it is read through, or the sentence that says what is missing."""
    place = base_place(spec)
    if isinstance(place, str) or not spec.source.token_secret[0]:
        return place
    token = token_known(cluster=cluster, spec=spec, base=place.connection)
    if token is None:
        return "The Secret of its token is read once the document is applied."
    if not token.problem:
        return Place(token.connection, place.uri, with_token=True)
    return place if token.missing and spec.source.token_optional else token.problem


def base_place(spec: EndpointSpec) -> Place | str:
    """Where administrators have it read, or the sentence that says what is missing."""
    source = spec.source
    wanted = _TYPES[source.type]
    # Those with a token of somebody's are for nobody who does not name that very token.
    rows = SourceConnection.objects.filter(type=wanted, token=None).order_by("name")
    if spec.options.connection:
        rows = rows.filter(name=spec.options.connection)
    closed = ""
    for connection in rows:
        if (uri := _uri(spec, connection)) is None:
            continue
        if not connection.namespaces or spec.namespace in connection.namespaces:
            return Place(connection, uri)
        closed = connection.name
    if closed:
        return (
            f"Source connection {closed} is not for endpoints of namespace {spec.namespace}. "
            f"Add the namespace to it, or a connection of its own for {resolved_source(source.text, None)}."
        )
    named = f" named {spec.options.connection}" if spec.options.connection else ""
    shown = resolved_source(source.text, None)
    return f"No source connection{named} of type {wanted} allows {shown}. Add one, or allow it in one there is."


def _uri(spec: EndpointSpec, connection: SourceConnection) -> str | None:
    """What the document names as this connection reads it; None where it does not."""
    source = spec.source
    if source.type is EndpointSource.S3:
        return source.text if source.bucket in connection.allowed else None
    if source.type is EndpointSource.FSX:
        # A file system is one that is mounted already: the connection is called as its id.
        if not spec.options.connection and connection.name != source.file_system.lower():
            return None
        return f"file://{str(connection.allowed[0]).rstrip('/')}/{source.location}".rstrip("/")
    if source.type is EndpointSource.JUMPSTART:
        return jumpstart_address(spec, connection)
    owner = source.model_id.partition("/")[0]
    if not {source.model_id, f"{owner}/*", owner, "*"} & set(connection.allowed):
        return None
    return f"hf://{source.model_id}@{source.revision or 'main'}"
