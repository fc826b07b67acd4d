"""Adopting a cluster: what is published on it tells a fresh database which versions there are and where they come from.

Everything is read back from the cluster: manifests with their origins become artifacts, source connections (by name,
without credentials) and Available versions. Entries that nodes report count as known from then on. Pins are intent and
are not on the cluster: they are made again. Repeating it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.manifests import manifest_build
from caches.models import Artifact, DriftState, Model, ModelVersion, SourceConnection, UnknownCopy, VersionState
from caches.services.adoption_rules import connection_difference, version_problem
from caches.services.artifacts import weights_artifact
from caches.services.catalogue import check_names
from caches.services.connections import connection_create
from caches.services.entry_mirror import statuses_mirror
from caches.services.launches.rows import launches_of_version_refresh
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.resolving import revision_of
from caches.services.unknown_copies import unknown_copies_record
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import Manifest, Origin
from controlplane.clusters.gateway import ClusterGateway, GatewayError, Kind, ObservedNodeCache
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.registry import gateway_for
from controlplane.errors import Clash, HearthError, Missing, Transient

NO_MANIFEST = "No manifest of it is published on the cluster."
MOST_NAMED = 100  # versions and connections that the audit event lists


@dataclass(frozen=True, slots=True)
class NotAdopted:
    """Something on the cluster that this database cannot take over, and what a person can do."""

    digest: str
    name: str  # "model version", "" where nobody said it
    reason: str
    next_step: str
    nodes: tuple[str, ...] = ()  # that hold it or are told to


@dataclass(frozen=True, slots=True)
class OrphanTree:
    """A tree in the stores of these nodes that no line mentions. It stays until its pool is deleted."""

    name: str
    bytes: int  # over all nodes
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Adoption:
    """What was adopted (or would be), and what was not. ``known`` counts versions that were here before."""

    cluster: str
    dry_run: bool
    connections: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)  # digests
    known: int = 0
    copies: int = 0  # on nodes, that are known now and were not before
    not_adopted: list[NotAdopted] = field(default_factory=list)
    orphans: list[OrphanTree] = field(default_factory=list)


def cluster_adopt(*, actor: Actor, cluster_id: UUID, dry_run: bool = False) -> Adoption:
    """Take over what is published on the cluster. Transient when it does not answer; what was done by then stays."""
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    if cluster is None:
        raise Missing(
            "cluster:user:missing", "There is no such cluster.", next_step="List the clusters and choose one."
        )
    found = Adoption(cluster.name, dry_run)
    gateway = gateway_for(cluster)
    try:
        with transaction.atomic() if dry_run else nullcontext():
            _read(actor, cluster, gateway, found)
            if dry_run:
                transaction.set_rollback(True)
    except GatewayError as error:
        raise Transient(
            "cluster:cluster:unreachable", f"{cluster.name} does not answer: {error}",
            next_step="Adopt it again once the cluster answers.",
        ) from error  # fmt: skip
    return found


def _read(actor: Actor, cluster: Cluster, gateway: ClusterGateway, found: Adoption) -> None:
    caches = [item for item in gateway.list(Kind.NODE_CACHE).items if isinstance(item, ObservedNodeCache)]
    unknown_copies_record(cluster_id=cluster.pk, caches=caches)
    before = UnknownCopy.objects.filter(node__cluster=cluster).count()
    for manifest, origin in gateway.manifests():
        with transaction.atomic():
            _take(actor, manifest, origin, found)
    unknown_copies_record(cluster_id=cluster.pk, caches=caches)
    statuses_mirror(cluster_id=cluster.pk, caches=caches)
    left = UnknownCopy.objects.filter(node__cluster=cluster)
    found.copies = before - left.count()
    _name_the_rest(cluster, found)
    with transaction.atomic():
        left.filter(released=False).update(released=True)
        if found.connections or found.versions or found.artifacts:
            _audit(actor, cluster, found)
        pools_mark_dirty(pool_ids=NodePool.objects.filter(cluster=cluster).values_list("pk", flat=True))


def _take(actor: Actor, manifest: Manifest, origin: Origin | None, found: Adoption) -> None:
    name = f"{origin.model} {origin.version}".strip() if origin is not None else ""
    try:
        if manifest_build(manifest.files).digest != manifest.digest:
            raise ValueError("its digest is not that of its files")
    except ValueError as error:
        found.not_adopted.append(_refused(manifest, name, f"Its manifest is damaged: {error}.", "Register it again."))
        return
    artifact, made = weights_artifact(manifest, witness=origin.witness[:80] if origin is not None else "")
    if made:
        found.artifacts.append(manifest.digest)
    if problem := version_problem(origin):
        if not ModelVersion.objects.filter(artifact=artifact).exists():
            found.not_adopted.append(_refused(manifest, name, problem, "Register it again: its copies are known."))
        return
    assert origin is not None
    try:
        with transaction.atomic():
            _version(actor, artifact, manifest, origin, found)
    except HearthError as error:
        found.not_adopted.append(_refused(manifest, name, error.detail, error.next_step))


def _version(actor: Actor, artifact: Artifact, manifest: Manifest, origin: Origin, found: Adoption) -> None:
    check_names(origin.model, origin.version, origin.uri)
    existing = ModelVersion.objects.filter(model__name=origin.model, version=origin.version).first()
    if existing is not None and existing.state == VersionState.AVAILABLE:
        if existing.artifact_id != artifact.pk:
            raise Clash(
                "version:user:content-differs",
                f"{existing.full_name} is registered here with other content.",
                next_step="Register the cluster's content under another version.",
            )
        found.known += 1
        return
    if existing is not None and existing.state == VersionState.RESOLVING:
        raise Clash(
            "version:user:registering",
            f"{existing.full_name} is being registered now.",
            next_step="Adopt the cluster again when that has ended.",
        )
    connection = _connection(actor, origin, found)
    model, _ = Model.objects.get_or_create(name=origin.model)
    row, _ = ModelVersion.objects.update_or_create(
        model=model,
        version=origin.version,
        defaults={
            "connection": connection,
            "uri": origin.uri,
            "allow_patterns": list(origin.allow_patterns),
            "ignore_patterns": list(origin.ignore_patterns),
            "state": VersionState.AVAILABLE,
            "code": "",
            "message": "",
            "next_step": "",
            "artifact": artifact,
            "revision": revision_of(manifest),
            "drift": DriftState.UNCHECKED,
        },
    )
    found.versions.append(row.full_name)
    launches_of_version_refresh(digest=artifact.digest)


def _connection(actor: Actor, origin: Origin, found: Adoption) -> SourceConnection:
    """The connection of that name, made where there is none. Clash where the name means another store here."""
    spec = origin.connection
    existing = SourceConnection.objects.filter(name=spec.name).first()
    if existing is not None:
        if difference := connection_difference(existing, spec):
            raise Clash(
                "connection:user:exists",
                f"There is another source connection {spec.name} here: {difference}.",
                next_step="Register the version again through the right connection.",
            )
        return existing
    made = connection_create(
        actor=actor,
        name=spec.name,
        type=spec.type,
        endpoint=spec.endpoint,
        region=spec.region,
        addressing=spec.addressing,
        ca_bundle=spec.ca_bundle,
        secret_name=spec.secret_name,
        allowed=spec.allowed,
        namespaces=spec.namespaces,
        bytes_per_second=spec.bytes_per_second,
        manifest=spec.manifest,
        hub_endpoint=spec.hub_endpoint,
    )
    found.connections.append(made.name)
    return made


def _name_the_rest(cluster: Cluster, found: Adoption) -> None:
    """What nodes hold and no manifest speaks of, and their orphaned trees."""
    nodes: dict[str, list[str]] = {}
    for digest, name in UnknownCopy.objects.filter(node__cluster=cluster).values_list("digest", "node__name"):
        nodes.setdefault(digest, []).append(name)
    told = {item.digest: item for item in found.not_adopted}
    for digest in sorted(nodes):
        item = told.get(digest) or NotAdopted(digest, "", NO_MANIFEST, "Register it again, or let its copies be.")
        told[digest] = NotAdopted(item.digest, item.name, item.reason, item.next_step, tuple(sorted(nodes[digest])))
    found.not_adopted = list(told.values())
    found.orphans = list(_orphans(Node.objects.filter(cluster=cluster, lost_at=None).exclude(orphans=[])))


def _orphans(nodes: Iterable[Node]) -> Iterator[OrphanTree]:
    trees: dict[str, list[tuple[str, int]]] = {}
    for node in nodes:
        for orphan in node.orphans:
            trees.setdefault(str(orphan["name"]), []).append((node.name, int(orphan["bytes"])))
    for name in sorted(trees):
        yield OrphanTree(name, sum(size for _, size in trees[name]), tuple(sorted({node for node, _ in trees[name]})))


def _refused(manifest: Manifest, name: str, reason: str, next_step: str) -> NotAdopted:
    return NotAdopted(manifest.digest, name, reason, next_step)


def _audit(actor: Actor, cluster: Cluster, found: Adoption) -> None:
    audit_write(
        actor=actor,
        action="cluster.adopt",
        object_type="Cluster",
        object_id=str(cluster.pk),
        object_name=cluster.name,
        after={
            "connections": found.connections[:MOST_NAMED],
            "versions": found.versions[:MOST_NAMED],
            "artifacts": len(found.artifacts),
            "copies": found.copies,
            "not_adopted": len(found.not_adopted),
        },
        message=f"At {timezone.now():%Y-%m-%d %H:%M} UTC, from what is published on the cluster.",
    )
