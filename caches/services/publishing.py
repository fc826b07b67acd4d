"""Publishing to a cluster what every node may need: manifests, where their bytes are, and the credentials for that.

Every available version is published, pinned or not: a pod may land on a node that has nothing of it, and its agent
then reads here what to fetch. A published manifest is looked after again now and then, in case somebody removed it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.db import transaction

from caches.domain.manifests import manifest_decode
from caches.domain.states import NO_MANIFEST
from caches.models import Artifact, CacheEntry, EndpointToken, ModelVersion, PoolLoop, PublishedManifest, VersionState
from caches.selectors.artifact_facts import ArtifactOrigin, artifact_origins
from caches.services.connections import connection_spec
from caches.services.loop.round_budget import RoundBudget
from caches.sources.secrets import read_secret
from controlplane.clusters.codec import dumps
from controlplane.clusters.documents import ArtifactKind, ConnectionSpec, EntryState, Origin
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.models import Cluster
from controlplane.errors import HearthError

AGAIN_AFTER = timedelta(minutes=5)
MISSED_AFTER = timedelta(seconds=10)  # what an agent does not find any more; less would be its view of before
AT_ONCE = 50  # of those that no node is told of in this round


def artifacts_publish(
    *,
    cluster: Cluster,
    gateway: ClusterGateway,
    now: datetime,
    first: Collection[str] = (),
    budget: RoundBudget | None = None,
) -> tuple[list[str], frozenset[str]]:
    """Publish what is new, changed or long ago: those of ``first`` (digests) at once, of the others a bounded number.
    Returns what could not be done, as sentences, and those of ``first`` that the budget had no time for: no node may be
    told of them before the next round. GatewayError as raised by the cluster."""
    available = ModelVersion.objects.filter(state=VersionState.AVAILABLE, artifact__kind=ArtifactKind.WEIGHTS)
    wanted = set(available.values_list("artifact__digest", flat=True)) | set(first)
    origins = {digest: origin_of(found) for digest, found in artifact_origins(wanted).items()}
    secrets, problems = secrets_read({origin.connection.name: origin.connection for origin in origins.values()})
    known = {
        row.artifact.digest: row
        for row in PublishedManifest.objects.filter(cluster=cluster, artifact__digest__in=wanted)
        .select_related("artifact")
        .defer("artifact__manifest")
    }
    hashes = {digest: _hash(origins.get(digest), secrets) for digest in wanted}
    missed = _missed(cluster)
    due = [
        digest
        for digest in sorted(wanted)
        if (row := known.get(digest)) is None
        or row.origin_hash != hashes[digest]
        or row.published_at <= now - (MISSED_AFTER if digest in missed else AGAIN_AFTER)
    ]
    later = [digest for digest in due if digest not in first][:AT_ONCE]
    names = sorted({digest for digest in due if digest in first}) + later
    _secrets_apply(gateway, [origins[digest].connection for digest in names if digest in origins], secrets)
    urgent = names[: len(names) - len(later)]
    left: set[str] = set()
    is_first = True  # one at least, so that every round comes further
    for batch in (urgent, later):
        rows = Artifact.objects.filter(digest__in=batch).order_by("digest").values_list("pk", "digest", "manifest")
        for artifact_id, digest, manifest in rows.iterator(chunk_size=8):
            if budget is not None and budget.spent and not is_first:
                left.add(digest)
                continue
            is_first = False
            gateway.apply_manifest(manifest_decode(bytes(manifest)), origins.get(digest))
            PublishedManifest.objects.update_or_create(
                cluster=cluster,
                artifact_id=artifact_id,
                defaults={"origin_hash": hashes[digest], "published_at": now},
            )
    left &= set(urgent)
    if budget is not None:
        budget.put_off(len(left))
    return problems, frozenset(left)


def _missed(cluster: Cluster) -> set[str]:
    """What some node was told of and did not find published."""
    failed = CacheEntry.objects.filter(
        node__cluster=cluster, node__lost_at=None, state=EntryState.FAILED, message=NO_MANIFEST
    )
    return set(failed.values_list("artifact__digest", flat=True))


def origin_of(found: ArtifactOrigin) -> Origin:
    """What travels beside a manifest: where its bytes are, and by which name they are known."""
    version = found.version
    return Origin(
        connection=connection_spec(found.connection),
        uri=found.facts.uri,
        size_bytes=found.facts.size_bytes,
        witness=found.facts.witness,
        model=version.model.name,
        version=version.version,
        allow_patterns=tuple(version.allow_patterns),
        ignore_patterns=tuple(version.ignore_patterns),
    )


def published_forget(cluster: Cluster) -> None:
    """Publish everything again in the next round: another cluster is at this address now, and holds nothing."""
    with transaction.atomic():
        PublishedManifest.objects.filter(cluster=cluster).delete()
        EndpointToken.objects.filter(cluster=cluster).update(content_mac="", written_at=None, read_at=None)
        # Locked in id order, as everywhere, so that two callers never wait for each other.
        locked = PoolLoop.objects.select_for_update(no_key=True).filter(pool__cluster=cluster).order_by("id")
        PoolLoop.objects.filter(pk__in=list(locked.values_list("pk", flat=True))).update(agent_hash="")


def secrets_read(connections: Mapping[str, ConnectionSpec]) -> tuple[dict[str, Mapping[str, str]], list[str]]:
    """Credentials by secret name, and a sentence for each that cannot be read."""
    found: dict[str, Mapping[str, str]] = {}
    problems = []
    # Tokens of endpoints are nowhere here: agents are given them by whoever follows those endpoints.
    tokens = EndpointToken.objects.filter(connection__name__in=list(connections))
    theirs = set(tokens.values_list("connection__secret_name", flat=True))
    for name in sorted({spec.secret_name for spec in connections.values() if spec.secret_name} - theirs):
        try:
            found[name] = read_secret(name)
        except HearthError as error:
            problems.append(f"secret {name}: {error.detail}")
    return found, problems


def _secrets_apply(
    gateway: ClusterGateway, connections: Collection[ConnectionSpec], secrets: Mapping[str, Mapping[str, str]]
) -> None:
    for name in sorted({connection.secret_name for connection in connections} & secrets.keys()):
        gateway.apply_secret(name, secrets[name])


def _hash(origin: Origin | None, secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Over the origin and its credentials, so that a rotated secret is published like any other change."""
    if origin is None:
        return ""
    secret = dict(secrets.get(origin.connection.secret_name, {}))
    return hashlib.sha256((dumps(origin) + json.dumps(secret, sort_keys=True)).encode()).hexdigest()
