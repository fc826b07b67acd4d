"""Credentials of Registry connections where the holders of images run, for the kubelets that pull with them.

They are copied when something is held that needs them, follow their rotation, and go with their last user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from urllib.parse import urlsplit

from django.utils import timezone
from django.utils.crypto import salted_hmac

from caches.domain.images import DEFAULT_NAMES
from caches.models import Image, ImageHold, PullSecret, SourceConnection
from caches.selectors.image_demand import image_rows
from caches.sources.secrets import read_secret
from controlplane.clusters.gateway import ClusterGateway, Conflict, NotApplicable, Refused
from controlplane.clusters.models import Cluster
from controlplane.errors import HearthError

NODES_DEFAULT = "https://index.docker.io/v1/"  # where nodes look for credentials of references that name no registry
SENT_AGAIN = timedelta(minutes=10)  # in case somebody removed what kubelets read


def pull_secret_name(connection: SourceConnection) -> str:
    return f"hearth-pull-{connection.name}"


def pull_secrets_apply(*, cluster: Cluster, images: Iterable[Image], gateway: ClusterGateway) -> list[str]:
    """Have the credentials of these images' connections there; returns a sentence for each that cannot be."""
    problems: list[str] = []
    wanted = {image.connection.pk: image.connection for image in images if image.connection is not None}
    for connection in sorted(wanted.values(), key=lambda one: one.name):
        if not connection.secret_name:
            continue
        try:
            content = read_secret(connection.secret_name)
        except HearthError as error:
            problems.append(f"secret {connection.secret_name}: {error.detail}")
            continue
        if not content.get("username"):
            problems.append(
                f"Connection {connection.name} has no username and password: nodes pull its images without credentials."
            )
            continue
        try:
            _apply(cluster, connection, content, gateway)
        except (Conflict, Refused, NotApplicable) as error:
            problems.append(f"Nodes get no credentials of {connection.name}: {error}")
    return problems


def _apply(cluster: Cluster, connection: SourceConnection, content: Mapping[str, str], gateway: ClusterGateway) -> None:
    host = _registry(connection)
    text = json.dumps([host, content["username"], content.get("password", "")])
    mac = salted_hmac("caches.pull-secret", text, algorithm="sha256").hexdigest()
    # Before it is sent: what was sent must never be forgotten.
    row, _ = PullSecret.objects.get_or_create(
        cluster=cluster, name=pull_secret_name(connection), defaults={"connection": connection}
    )
    now = timezone.now()
    if row.content_mac == mac and row.updated_at > now - SENT_AGAIN:
        return
    gateway.apply_pull_secret(row.name, host, content["username"], content.get("password", ""))
    PullSecret.objects.filter(pk=row.pk).update(content_mac=mac, connection=connection, updated_at=now)


def _registry(connection: SourceConnection) -> str:
    """As kubelets look it up: by the name in references, which for the default registry is none of its addresses."""
    host = urlsplit(connection.endpoint).netloc.lower()
    return NODES_DEFAULT if host in DEFAULT_NAMES else host


def pull_secrets_release(*, cluster: Cluster, gateway: ClusterGateway) -> list[str]:
    """Remove those that nothing held in the cluster needs any more."""
    rows = list(PullSecret.objects.filter(cluster=cluster))
    if not rows:
        return []
    held = ImageHold.objects.filter(pool__cluster=cluster).values_list("artifact__digest", flat=True)
    used = {image.connection_id for image in image_rows(set(held)).values()}
    problems = []
    for row in rows:
        if row.connection_id is not None and row.connection_id in used:
            continue
        try:
            gateway.delete_pull_secret(row.name)
        except (Conflict, Refused, NotApplicable) as error:
            problems.append(f"The credentials {row.name} cannot be removed: {error}")
            continue
        row.delete()
    return problems
