"""Cache entries for pages and REST: what is on which node, as far as anybody knows now."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Case, CharField, DateTimeField, F, OuterRef, Prefetch, Q, QuerySet, Subquery, Value, When
from django.utils import timezone

from caches.models import CacheEntry, Image, ModelVersion
from caches.selectors.nodes import Targets, silent_nodes, silent_since, stale
from controlplane.accounts.access import targets_filter
from controlplane.clusters.documents import ArtifactKind, EntryState

UNKNOWN = "Unknown"
_LOST = Q(node__lost_at__isnull=False) | Q(state=EntryState.LOST.value)
SHOWN_STATES = (*(state.value for state in EntryState), UNKNOWN)


def entries_list(*, targets: Targets = None, now: datetime | None = None) -> QuerySet[CacheEntry]:
    """Entries with node, pool, artifact and the versions that share it; ``shown_state`` is an EntryState or Unknown.

    An entry is Unknown while its node is silent (see nodes.silent_nodes) and Lost once its node is. ``shown_since`` is
    when that began; None where nobody can tell.
    """
    at = now or timezone.now()
    visible = targets_filter(targets, cluster="node__cluster__name", pool="node__pool__name")
    rows = CacheEntry.objects.filter(visible).select_related("node__cluster", "node__pool__cluster", "artifact")
    versions = ModelVersion.objects.select_related("model").order_by("model__name", "version")
    return (
        rows.defer("artifact__manifest")
        .prefetch_related(Prefetch("artifact__versions", queryset=versions))
        .annotate(image_reference=Subquery(_references().filter(artifact=OuterRef("artifact"))[:1]))
        .annotate(shown_state=_entry_state(at), shown_since=_entry_since(at))
    )


def artifact_name(entry: CacheEntry) -> str:
    """``model version`` of the first version that names the artifact, the reference of an image, its short digest where
    nothing names it."""
    version = next(iter(entry.artifact.versions.all()), None)
    if version is not None:
        return version.full_name
    if entry.artifact.kind != ArtifactKind.IMAGE:
        return entry.artifact.digest[:19]
    known = getattr(entry, "image_reference", None) or _references().filter(artifact=entry.artifact).first()
    return str(known or entry.artifact.digest[:19])


def _references() -> QuerySet[Image, str]:
    """References of images, those first that were registered first."""
    return Image.objects.order_by("pk").values_list("reference", flat=True)


def _entry_state(now: datetime) -> Case:
    return Case(
        When(_LOST, then=Value(EntryState.LOST.value)),
        When(silent_nodes(now, "node__"), then=Value(UNKNOWN)),
        default=F("state"),
        output_field=CharField(),
    )


def _entry_since(now: datetime) -> Case:
    silent = silent_nodes(now, "node__")
    unheard = Q(node__observed_at__isnull=True) | Q(node__reported_at__isnull=True)
    ran_out = stale(now, "node__observed_at", "node__pool__") | stale(now, "node__reported_at", "node__pool__")
    return Case(
        When(node__lost_at__isnull=False, then=F("node__lost_at")),
        When(state=EntryState.LOST.value, then=F("state_since")),
        When(silent & unheard, then=F("created_at")),  # unknown from its beginning
        When(silent & ran_out, then=silent_since("node__")),
        When(silent, then=Value(None)),  # its cluster does not know the node's state, nor says since when
        default=F("state_since"),
        output_field=DateTimeField(),
    )
