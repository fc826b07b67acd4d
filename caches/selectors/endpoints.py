"""Endpoints and rollouts for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Concat
from django.utils import timezone

from caches.domain.demand import selects
from caches.domain.endpoints.options import GatePolicy
from caches.domain.endpoints.resolved import resolved_image, resolved_source
from caches.domain.endpoints.specs import GROUP, EndpointSpec, read_endpoint
from caches.domain.gating import Gate, GateState, Target, gate
from caches.domain.rollouts import FINAL
from caches.domain.text import plural, second_text
from caches.models import Artifact, CacheEntry, Image, ModelVersion, Pin, Rollout
from caches.selectors.endpoint_targets import cache_targets, gate_targets
from caches.selectors.nodes import Targets, silent_nodes
from controlplane.accounts.access import targets_filter
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.local.serving import DIGEST_ANNOTATION
from controlplane.clusters.models import Cluster, Node
from controlplane.errors import Missing
from controlplane.serving.models import STATIC_KIND, Endpoint


def endpoints_list(*, targets: Targets = None) -> QuerySet[Endpoint]:
    """Endpoints of the clusters that the reader may see in whole or in part, each with its newest rollout's facts:
    ``rollout_id``, ``rollout_number``, ``rollout_state``, ``rollout_source``, ``rollout_image``, ``rollout_facts``; see
    endpoint_source and endpoint_image. ``served_version``: of one of a local fleet, which has no rollouts, the full
    name of the version that its engines serve; None where none is known."""
    rows = Endpoint.objects.select_related("cluster")
    if targets is not None:
        rows = rows.filter(cluster__name__in={target.partition(".")[0] for target in targets})
    newest = Rollout.objects.filter(endpoint=OuterRef("pk")).order_by("-number")
    served = ModelVersion.objects.filter(artifact__digest=KeyTextTransform(DIGEST_ANNOTATION, OuterRef("annotations")))
    full_name = Concat("model__name", Value(" "), "version", output_field=TextField())
    return rows.annotate(
        rollout_id=Subquery(newest.values("pk")[:1]),
        rollout_number=Subquery(newest.values("number")[:1]),
        rollout_state=Subquery(newest.values("state")[:1]),
        rollout_message=Subquery(newest.values("message")[:1]),
        rollout_source=Subquery(newest.values("source")[:1]),
        rollout_image=Subquery(newest.values("image")[:1]),
        rollout_facts=Subquery(newest.values("version__metadata__jumpstart")[:1]),
        served_version=Subquery(served.order_by("pk").values(name=full_name)[:1]),
    )


def endpoints_keeping(image: Image, *, targets: Targets = None) -> QuerySet[Endpoint]:
    """Those that have the image pinned; a pin without pools holds nothing."""
    pins = Pin.objects.filter(image=image, removed_at__isnull=True, endpoint__isnull=False, pools__isnull=False)
    return endpoints_list(targets=targets).filter(pk__in=pins.values("endpoint"))


def endpoint_source(row: Any) -> str:
    """Where the weights of the newest rollout come from, for people, or which version a local fleet's engines serve; ""
    where neither is known. Of endpoints_list."""
    return resolved_source(row.rollout_source or "", row.rollout_facts) or row.served_version or ""


def endpoint_image(row: Any) -> str:
    """The image of the newest rollout, for people; "" where none is. Of endpoints_list."""
    return resolved_image(row.rollout_image or "", row.rollout_facts)


def endpoint_get(*, endpoint_id: UUID, targets: Targets = None) -> Endpoint:
    """One endpoint. Raises errors.Missing, also for one that the reader may not see."""
    found = endpoints_list(targets=targets).filter(pk=endpoint_id).first()
    if found is None:
        raise Missing(
            "endpoint:user:not-found", f"There is no endpoint {endpoint_id}.", next_step="List the endpoints."
        )
    return found


@dataclass(frozen=True, slots=True)
class Warmth:
    """How many of an endpoint's target nodes hold something now, as far as they are heard of."""

    ready: int
    targets: int


@dataclass(frozen=True, slots=True)
class RolloutWarmth:
    """Whether going back to a rollout finds it warm. None: it has none such, or nothing says what it is.
    ``weights_asked``, ``image_asked``: whether the document asks for that cache, as far as it can be read."""

    weights: Warmth | None = None
    image: Warmth | None = None
    weights_asked: bool = True
    image_asked: bool = True


def rollout_warmth(rollout: Rollout) -> RolloutWarmth:
    """What a rollout would find on the nodes that its endpoint's document asks for now."""
    spec = _spec(rollout.endpoint)
    if spec is None:
        return RolloutWarmth()
    targets, now = cache_targets(rollout.endpoint.cluster, spec), timezone.now()
    nodes = Node.objects.filter(pool__in=targets.pools, lost_at__isnull=True)
    silent = set(nodes.filter(silent_nodes(now)).values_list("pk", flat=True))
    rows = nodes.values_list("pk", "labels")
    mine = {key: key in silent for key, labels in rows if selects(targets.selector, labels)}

    def warmth(artifact: Artifact | None) -> Warmth | None:
        if artifact is None:
            return None
        held = CacheEntry.objects.filter(node__in=mine, artifact=artifact, state=EntryState.READY)
        held = held.exclude(desired=Action.EVICT)
        return Warmth(sum(not mine[key] for key in held.values_list("node_id", flat=True)), len(mine))

    image = rollout.resolved_image
    return RolloutWarmth(
        warmth(rollout.version.artifact if rollout.version is not None else None),
        warmth(image.artifact if image is not None else None),
        spec.cache.weights,
        spec.cache.image,
    )


def _spec(endpoint: Endpoint) -> EndpointSpec | None:
    """What its stored document says; None where it is refused."""
    metadata = {"name": endpoint.name, "namespace": endpoint.namespace, "annotations": endpoint.annotations}
    document = {"apiVersion": f"{GROUP}/v1", "kind": endpoint.kind, "metadata": metadata, "spec": endpoint.document}
    return read_endpoint(document).spec


def namesake(endpoint: Endpoint) -> Endpoint | None:
    """The endpoint of the other kind that had this one's name first: one alone can have the Deployment of a name."""
    rows = Endpoint.objects.filter(cluster=endpoint.cluster_id, namespace=endpoint.namespace, name=endpoint.name)
    rows = rows.filter(gone_at__isnull=True, released_at__isnull=True, pk__lt=endpoint.pk)
    return rows.exclude(kind__in=(endpoint.kind, STATIC_KIND)).order_by("pk").first()


def rollouts_list(*, targets: Targets = None) -> QuerySet[Rollout]:
    """Rollouts of the endpoints that the reader may see, newest first."""
    rows = Rollout.objects.select_related(
        "endpoint__cluster", "version__model", "version__artifact", "resolved_image__artifact",
        "previous__resolved_image__artifact",
    )  # fmt: skip
    if targets is not None:
        rows = rows.filter(endpoint__cluster__name__in={target.partition(".")[0] for target in targets})
    images = ("resolved_image__artifact__manifest", "previous__resolved_image__artifact__manifest")
    return rows.defer("version__artifact__manifest", *images)


def rollout_get(*, rollout_id: UUID, targets: Targets = None) -> Rollout:
    """One rollout. Raises errors.Missing, also for one that the reader may not see."""
    found = rollouts_list(targets=targets).filter(pk=rollout_id).first()
    if found is None:
        raise Missing("rollout:user:not-found", f"There is no rollout {rollout_id}.", next_step="List the rollouts.")
    return found


def rollout_nodes(rollout: Rollout) -> Sequence[Target]:
    """How far each target node of the rollout's weights is; empty where nothing is or was warmed for it."""
    if rollout.version_id is None:
        return ()
    pins = Pin.objects.filter(endpoint=rollout.endpoint_id, version=rollout.version_id, removed_at__isnull=True)
    pins = pins.filter(image=None)  # those of its image hold nothing up
    pin = pins.select_related("version__artifact").prefetch_related("pools").first()
    return gate_targets(pin, now=timezone.now()) if pin is not None else ()


def nodes_seen(nodes: Sequence[Target], *, cluster: Cluster, targets: Targets) -> Sequence[Target]:
    """Those that the reader may see; a gate counts all of them."""
    if targets is None or not nodes:
        return nodes
    visible = targets_filter(targets, cluster="cluster__name", pool="pool__name")
    names = set(Node.objects.filter(visible, cluster=cluster).values_list("name", flat=True))
    return tuple(one for one in nodes if one.node in names)


@dataclass(frozen=True, slots=True)
class RolloutGate:
    """What a rollout's gate asks for, and how it stands over the target nodes as they are now."""

    policy: GatePolicy
    gate: Gate

    @property
    def words(self) -> str:
        """The policy for people."""
        value = self.policy.value
        return {
            "All": "every target node",
            "Count": plural(value, "node"),
            "Percent": f"{value} % of the target nodes",
            "Timeout": f"every target node, or {plural(value, 'second')}",
        }[self.policy.type]


def rollout_gate(rollout: Rollout, nodes: Sequence[Target]) -> RolloutGate | None:
    """The gate over ``nodes`` (rollout_nodes); None where it waits for none: nothing is warmed for it, or it ended.
    One that opened stays open, whatever became of the nodes since."""
    spec = _spec(rollout.endpoint)
    if not nodes or spec is None or rollout.state in FINAL:
        return None
    policy, now = spec.options.gate, timezone.now()
    began = rollout.warming_at or now
    stands = gate(policy.type, policy.value, nodes, started_at=began, now=now)
    if rollout.opened_at is not None:
        since = f"since {second_text(rollout.opened_at)}. {_opened_words(rollout)}".rstrip()
        stands = replace(stands, state=GateState.OPEN, reason=since)
    return RolloutGate(policy, stands)


def _opened_words(rollout: Rollout) -> str:
    """What was said when its gate opened; "" of one that had nothing to wait for."""
    rows = AuditEvent.objects.filter(object_type="rollout", object_id=str(rollout.pk), action="rollout.switching")
    said = rows.order_by("-at").values_list("after", flat=True).first()
    return str((said or {}).get("message") or "")
