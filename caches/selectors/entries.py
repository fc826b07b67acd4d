"""Cache entries for pages and REST: what is on which node, as far as anybody knows now."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Case, CharField, F, Prefetch, Q, QuerySet, Value, When
from django.utils import timezone

from caches.models import CacheEntry, ModelVersion
from caches.selectors.nodes import Targets, stale
from controlplane.accounts.access import targets_filter
from controlplane.clusters.documents import EntryState

UNKNOWN = "Unknown"
SHOWN_STATES = (*(state.value for state in EntryState), UNKNOWN)


def entries_list(*, targets: Targets = None, now: datetime | None = None) -> QuerySet[CacheEntry]:
    """Entries with node, pool, artifact and the versions that share it; ``shown_state`` is an EntryState or Unknown.

    An entry is Unknown when its node's agent is silent for longer than the pool's freshness limit; Lost stays Lost.
    """
    visible = targets_filter(targets, cluster="node__cluster__name", pool="node__pool__name")
    rows = CacheEntry.objects.filter(visible).select_related("node__cluster", "node__pool__cluster", "artifact")
    versions = ModelVersion.objects.select_related("model").order_by("model__name", "version")
    return (
        rows.defer("artifact__manifest")
        .prefetch_related(Prefetch("artifact__versions", queryset=versions))
        .annotate(shown_state=_entry_state(now or timezone.now()))
    )


def artifact_name(entry: CacheEntry) -> str:
    """``model version`` of the first version that names the artifact, its short digest where none does."""
    version = next(iter(entry.artifact.versions.all()), None)
    return version.full_name if version is not None else entry.artifact.digest[:19]


def _entry_state(now: datetime) -> Case:
    silent = Q(node__lost_at__isnull=True) & stale(now, "node__reported_at", "node__pool__")
    return Case(
        When(~Q(state=EntryState.LOST.value) & silent, then=Value(UNKNOWN)),
        default=F("state"),
        output_field=CharField(),
    )
