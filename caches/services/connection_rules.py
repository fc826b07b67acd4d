"""Every reason why a source connection cannot be what somebody asked for, field by field."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping

from django.conf import settings

from caches.models import SourceConnection
from caches.sources import allowed, hub_uri, jumpstart_uri, registry
from controlplane.clusters.documents import SourceType
from controlplane.errors import FieldError, HearthError, Transient

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?")
MAX_RATE = 10**15
MAX_ENDPOINT = 500
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MOST_NAMESPACES = 1000
_REGION = re.compile(r"[a-z0-9-]{0,64}")
_CHECKS: Mapping[str, Callable[[str], None]] = {
    SourceType.HUGGING_FACE: hub_uri.check_repository,
    SourceType.REGISTRY: registry.check_repository,
    SourceType.JUMP_START: jumpstart_uri.check_model,
}


def connection_problems(connection: SourceConnection) -> list[FieldError]:
    """Empty when the connection may exist. Its endpoint's name is resolved; nothing is connected to."""
    return [*_text_problems(connection), *_place_problems(connection)]


def _text_problems(connection: SourceConnection) -> Iterator[FieldError]:
    if not _NAME.fullmatch(connection.name):
        yield _wrong("name", "name", "A name has lower-case letters, digits and dashes, at most 63.")
    if connection.type not in list(SourceType):
        yield _wrong("type", "type", f"The type must be one of {', '.join(SourceType)}.")
    if connection.addressing not in ("path", "virtual"):
        yield _wrong("addressing", "addressing", "The addressing must be path or virtual.")
    if not _REGION.fullmatch(connection.region):
        yield _wrong("region", "region", "A region has lower-case letters, digits and dashes.")
    if connection.secret_name and not _SECRET.fullmatch(connection.secret_name):
        yield _wrong("secret_name", "secret-name", "A secret's name has lower-case letters, digits, dots and dashes.")
    if connection.max_downloads is not None and not 1 <= connection.max_downloads <= 100_000:
        yield _wrong("max_downloads", "max-downloads", "The limit must be at least 1; leave it out for none.")
    if connection.bytes_per_second is not None and not 1024 <= connection.bytes_per_second <= MAX_RATE:
        yield _wrong(
            "bytes_per_second", "rate", "The rate must be 1024 to 10^15 bytes a second; leave it out for none."
        )
    if len(connection.endpoint) > MAX_ENDPOINT:
        yield _wrong("endpoint", "endpoint-length", f"An endpoint has at most {MAX_ENDPOINT} characters.")
    named = connection.namespaces
    if len(named) > MOST_NAMESPACES or not all(isinstance(one, str) and _NAMESPACE.fullmatch(one) for one in named):
        detail = f"Namespaces are at most {MOST_NAMESPACES} names of lower-case letters, digits and dashes."
        yield _wrong("namespaces", "namespaces", detail)
    if connection.ca_bundle:
        try:
            ssl.create_default_context(cadata=connection.ca_bundle)
        except (ssl.SSLError, ValueError, TypeError):  # TypeError: not ASCII
            yield _wrong("ca_bundle", "ca-bundle", "This is no PEM certificate.")


def _place_problems(connection: SourceConnection) -> Iterator[FieldError]:
    if not connection.allowed or not all(isinstance(place, str) for place in connection.allowed):
        yield _wrong(
            "allowed", "allowed", "Name at least one place that may be read: a bucket, a root folder, a repository."
        )
        return
    if connection.type == SourceType.FILESYSTEM:
        for field in ("endpoint", "secret_name"):
            if getattr(connection, field):
                yield _wrong(field, "filesystem", "A Filesystem connection has no endpoint and no secret.")
        yield from _jumpstart_problems(connection)
        for root in connection.allowed:
            try:
                allowed.check_root(root, settings.SOURCE_ROOTS, connection.name)
            except HearthError as error:
                yield FieldError("allowed", error.code, error.detail)
        return
    check_place = _CHECKS.get(connection.type, allowed.check_bucket)
    if connection.type == SourceType.REGISTRY and not connection.endpoint:
        yield _wrong("endpoint", "endpoint", "A Registry connection names its registry, for example https://registry.")
    for place in connection.allowed:
        try:
            check_place(place)
        except HearthError as error:
            yield FieldError("allowed", error.code, error.detail)
    yield from _jumpstart_problems(connection)
    for field in ("endpoint", "hub_endpoint"):
        try:
            allowed.check_endpoint(getattr(connection, field), allow_private=settings.SOURCE_PRIVATE_ADDRESSES)
        except Transient:
            pass  # a name that does not resolve now is the store's trouble, and is looked at again before every use
        except HearthError as error:
            yield FieldError(field, error.code, error.detail)


def _jumpstart_problems(connection: SourceConnection) -> Iterator[FieldError]:
    if connection.type != SourceType.JUMP_START:
        for field in ("manifest", "hub_endpoint"):
            if getattr(connection, field):
                yield _wrong(field, "jumpstart", "Only a JumpStart connection has a manifest and a hub.")
        return
    if not connection.region:
        yield _wrong("region", "region", "A JumpStart connection names its region.")
    try:
        jumpstart_uri.check_manifest(connection.manifest)
    except HearthError as error:
        yield FieldError("manifest", error.code, error.detail)


def _wrong(field: str, what: str, detail: str) -> FieldError:
    return FieldError(field, f"connection:user:{what}", detail)
