"""Bookkeeping of the control loop: dirty pools, what was projected to each node, and webhooks."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from caches.models.catalogue import Artifact
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.models_base import Row


class PoolLoop(Row):
    """One per pool. A pool is dirty while ``wanted_round`` is ahead of ``done_round``."""

    pool = models.OneToOneField(NodePool, on_delete=models.CASCADE, related_name="loop")
    wanted_round = models.BigIntegerField(default=1)
    done_round = models.BigIntegerField(default=0)
    wanted_at = models.DateTimeField(null=True)
    reconciled_at = models.DateTimeField(null=True)
    not_before = models.DateTimeField(null=True)  # the cluster asked for patience until then
    lag_seconds = models.FloatField(null=True)
    error = models.CharField(max_length=1000, blank=True, default="")
    plan = models.JSONField(null=True)  # what the last Plan refused, for pages
    agent_hash = models.CharField(max_length=64, blank=True, default="")  # of the agent's workload as last applied
    agent_applied_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]


class PublishedManifest(Row):
    """A manifest that a cluster was given, with where its bytes are (``origin_hash`` covers credentials too)."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    artifact = models.ForeignKey(Artifact, on_delete=models.CASCADE, related_name="+")
    origin_hash = models.CharField(max_length=64, blank=True)
    published_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "artifact"], name="caches_published_once")]


class NodeProjection(Row):
    """The NodeCache spec last applied for a node incarnation: nothing is sent when it would not change.

    ``foreign``: the cluster holds another hand's spec; ``repairs`` counts how often that was put right lately.
    """

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="projection")
    spec_hash = models.CharField(max_length=64, blank=True)  # over the spec and its credentials; "" is: apply again
    document_hash = models.CharField(max_length=64, blank=True, default="")  # over the spec, written before it is sent
    generation = models.BigIntegerField()
    applied_at = models.DateTimeField()
    foreign = models.BooleanField(default=False)
    repairs = models.PositiveIntegerField(default=0)
    repaired_at = models.DateTimeField(null=True)


class UnknownCopy(Row):
    """A copy on a node, or a line that asks for one, whose artifact this database does not know: another control plane
    put it there, or this one before its database was lost. Nothing of it is touched until the cluster is adopted."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="unknown_copies")
    digest = models.CharField(max_length=80)
    state = models.CharField(max_length=16, blank=True)  # as reported; "" where only the spec names it
    bytes_done = models.BigIntegerField(default=0)
    wanted = models.BooleanField(help_text="a line of the node's spec asks for it")
    released = models.BooleanField(default=False, help_text="it could not be adopted, and is no longer waited for")
    observed_at = models.DateTimeField()

    objects: ClassVar[models.Manager[UnknownCopy]] = models.Manager()

    class Meta:
        ordering = ["node", "digest"]
        constraints = [models.UniqueConstraint(fields=["node", "digest"], name="caches_unknown_once")]


class Webhook(Row):
    """Where failures are announced. The signing key is a secret of this name, readable by the workers only."""

    name = models.SlugField(max_length=63, unique=True)
    url = models.CharField(max_length=1000)
    secret_name = models.CharField(max_length=100)
    events = models.JSONField(default=list)  # ["entry.failed", "pin.refused"]; empty: all
    enabled = models.BooleanField(default=True)


class WebhookDelivery(Row):
    """One announcement: retried with backoff until delivered or given up."""

    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=40)
    dedup_key = models.CharField(max_length=200)
    payload = models.JSONField()
    state = models.CharField(max_length=12, default="Pending")  # Pending, Delivered, GivenUp
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    last_status = models.IntegerField(null=True)
    last_error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["webhook", "dedup_key"], name="caches_webhook_once")]
        indexes = [
            models.Index(fields=["next_attempt_at"], name="caches_webhook_due", condition=models.Q(state="Pending"))
        ]
