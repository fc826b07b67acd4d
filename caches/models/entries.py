"""CacheEntry mirrors what an agent reported of one artifact on one node, beside what is desired of it."""

from __future__ import annotations

from django.db import models

from caches.models.catalogue import Artifact, SourceConnection
from controlplane.clusters.documents import Action, EntryState, Reason
from controlplane.clusters.models import Node
from controlplane.ids import new_id
from controlplane.models_base import Row


class CacheEntry(Row):
    """``state`` and everything below it is observed; freshness comes from the node's ``reported_at``."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="entries")
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="entries")
    desired = models.CharField(max_length=8, choices=[(a.value, a.value) for a in Action], blank=True, default="")
    wanted_at = models.DateTimeField(null=True)  # when Ensure was first projected; queueing is measured from here
    evict_requested_at = models.DateTimeField(null=True, blank=True)
    verify_round = models.PositiveIntegerField(default=0)
    retry_round = models.PositiveIntegerField(default=0)
    hold_reason = models.CharField(max_length=100, blank=True, default="")
    hold_until = models.DateTimeField(null=True, blank=True)
    labeled_at = models.DateTimeField(null=True, help_text="when Hearth set the node's ready-label for it")
    unlabeled_at = models.DateTimeField(null=True, help_text="since when that label is away for an eviction")

    state = models.CharField(max_length=16, choices=[(s.value, s.value) for s in EntryState], default=EntryState.ABSENT)
    reason = models.CharField(max_length=32, choices=[(r.value, r.value) for r in Reason], blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")
    attempts = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(default=0)
    bytes_moved = models.BigIntegerField(default=0)
    bytes_recorded = models.BigIntegerField(default=0)  # the part of bytes_moved that Transfer rows already hold
    rate_bytes_per_second = models.FloatField(null=True)
    eta_seconds = models.FloatField(null=True)
    started_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(null=True)
    verified_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    damaged = models.JSONField(default=list)
    scrub = models.JSONField(null=True)  # documents.ScrubFindings as an object
    observed_verify_round = models.PositiveIntegerField(default=0)
    observed_retry_round = models.PositiveIntegerField(default=0)
    observed_generation = models.BigIntegerField(default=0)
    observed_at = models.DateTimeField(null=True)
    state_since = models.DateTimeField(null=True)

    class Meta:
        ordering = ["node__name", "-id"]
        constraints = [models.UniqueConstraint(fields=["node", "artifact"], name="caches_entry_once_per_node")]
        indexes = [
            models.Index(fields=["artifact", "state"], name="caches_entry_artifact_state"),
            models.Index(
                fields=["state"],
                name="caches_entry_unsettled",
                condition=~models.Q(state__in=["Ready", "Absent", "Lost"]),
            ),
        ]


class EntryChange(models.Model):
    """Append-only: one row for each observed change of an entry's state."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    entry = models.ForeignKey(CacheEntry, on_delete=models.CASCADE, related_name="changes")
    at = models.DateTimeField()
    old_state = models.CharField(max_length=16)
    new_state = models.CharField(max_length=16)
    reason = models.CharField(max_length=32, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")

    class Meta:
        ordering = ["-at", "-id"]


class Transfer(models.Model):
    """A finished transfer as measured: the base of every estimate."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    entry = models.ForeignKey(CacheEntry, on_delete=models.CASCADE, related_name="transfers")
    connection = models.ForeignKey(SourceConnection, on_delete=models.CASCADE, related_name="transfers")
    bytes_moved = models.BigIntegerField()
    seconds = models.FloatField()
    queued_seconds = models.FloatField(default=0)
    ended_at = models.DateTimeField(db_index=True)


class ConsumerSeen(models.Model):
    """Who mounts what, as the watcher last saw it: good for pages. An eviction asks the cluster afresh."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="consumers")
    uid = models.CharField(max_length=100)
    name = models.CharField(max_length=253)
    digests = models.JSONField(default=list)
    observed_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["node", "uid"], name="caches_consumer_once_per_node")]
