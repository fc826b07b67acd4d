"""What is served where, as the watcher saw it. On Kubernetes the custom resource is the truth; these rows follow it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models

from controlplane.clusters.models import Cluster, Node
from controlplane.models_base import Row

# An endpoint that no cluster has: its instances are addresses that a person gave.
STATIC_KIND, STATIC_NAMESPACE = "StaticEndpoint", "static"


class Endpoint(Row):
    """One endpoint document in a cluster, one row for each uid.

    ``gone_at``: the cluster no longer has it, although nobody released it here. ``released_at``: everything that was
    made for it is gone, so that the row goes with the object. ``unwritten``: the status that the cluster did not take
    when it was to be written last, {} while it takes them.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="endpoints")
    kind = models.CharField(max_length=40)
    namespace = models.CharField(max_length=63)
    name = models.CharField(max_length=253)
    uid = models.CharField(max_length=64)
    generation = models.BigIntegerField(default=0)
    document = models.JSONField(default=dict)  # its spec
    annotations = models.JSONField(default=dict)  # those of hearth.dev
    finalizers = models.JSONField(default=list)
    status = models.JSONField(default=dict)  # as the cluster has it, whoever wrote it
    unwritten = models.JSONField(default=dict, db_default={})
    deleting_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    observed_at = models.DateTimeField()

    class Meta:
        ordering = ["cluster__name", "namespace", "name", "kind"]
        constraints = [models.UniqueConstraint(fields=["cluster", "uid"], name="serving_endpoint_uid")]

    def __str__(self) -> str:
        return self.full_name

    @property
    def full_name(self) -> str:
        """``namespace/name``, as kubectl says it."""
        return f"{self.namespace}/{self.name}"

    @property
    def heard_at(self) -> datetime:
        """Until when what is stored of it is known to be so: a watch that says nothing new of it confirms it."""
        told = self.cluster.observed_at
        if self.gone_at is not None or self.kind == STATIC_KIND or told is None:
            return self.observed_at
        return max(self.observed_at, told)

    @property
    def said(self) -> dict[str, Any]:
        """Its status for people: what the cluster has, or what Hearth would have written there."""
        found: dict[str, Any] = self.unwritten or self.status
        return found


class Variant(Row):
    """What requests are routed to: one for each endpoint, named ``default``, and those that somebody put beside it."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="variants")
    name = models.CharField(max_length=63, default="default")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["endpoint", "name"], name="serving_variant_name")]


class Instance(Row):
    """One pod or engine of an endpoint. ``digest`` is what it serves; during a rollout two digests coexist.

    ``address``: host:port, or a host alone when the endpoint's document names the port. ``tls``: it speaks TLS there.
    ``node_name`` and ``node_uid`` are the cluster's words, "" before it is placed; ``node`` is there once its row is.
    ``wait_reason``, ``wait_message``, ``leaving`` and ``warm_up``: see documents.Consumer.
    """

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="instances")
    uid = models.CharField(max_length=64)
    name = models.CharField(max_length=253)
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="instances")
    node_name = models.CharField(max_length=253, blank=True, default="", db_default="")
    node_uid = models.CharField(max_length=64, blank=True, default="", db_default="")
    digest = models.CharField(max_length=80, blank=True, default="")
    ready = models.BooleanField(default=False)
    warm_up = models.CharField(max_length=300, blank=True, default="")
    wait_reason = models.CharField(max_length=24, blank=True, default="", db_default="")
    wait_message = models.CharField(max_length=500, blank=True, default="", db_default="")
    leaving = models.BooleanField(default=False, db_default=False)
    restart_count = models.PositiveIntegerField(default=0)
    address = models.CharField(max_length=300, blank=True, default="")
    tls = models.BooleanField(default=False)
    observed_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["endpoint", "uid"], name="serving_instance_uid")]

    @property
    def runs_on(self) -> str | None:
        """The name of its node, also before that is known as more than a name; None before it is placed."""
        return self.node.name if self.node is not None else self.node_name or None
