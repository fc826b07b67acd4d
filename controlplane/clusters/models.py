"""Cluster, NodePool and Node rows: what the watcher saw and what people configured. No rule lives here."""

from __future__ import annotations

from django.db import models

from controlplane.models_base import Row


class ClusterType(models.TextChoices):
    LOCAL = "Local"
    KUBERNETES = "Kubernetes"


class Cluster(Row):
    """``address`` is a folder for the local fleet or a kubeconfig context; ``observed_at`` the last contact."""

    name = models.SlugField(max_length=63, unique=True)
    type = models.CharField(max_length=16, choices=ClusterType.choices)
    address = models.CharField(max_length=500)
    uid = models.CharField(max_length=64, blank=True, default="", help_text="of what answered there last")
    paused = models.BooleanField(default=False, help_text="no new transfer starts anywhere in the cluster")
    observed_at = models.DateTimeField(null=True, blank=True)
    error = models.CharField(max_length=1000, blank=True, default="")

    def __str__(self) -> str:
        return self.name


class NodePool(Row):
    """Nodes chosen by a label selector; the highest ``priority`` wins a node that two pools select."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pools")
    name = models.SlugField(max_length=63)
    selector = models.JSONField(default=dict)  # label → value, all must match
    priority = models.IntegerField(default=0)
    cache_path = models.CharField(max_length=500, default="/opt/dlami/nvme")
    source_paths = models.JSONField(
        default=list,
        help_text="folders of its nodes that Filesystem connections may read there, such as a shared mount",
    )
    high_watermark = models.FloatField(default=0.85)
    low_watermark = models.FloatField(default=0.75)
    max_downloads_per_node = models.PositiveIntegerField(default=2)
    max_downloads = models.PositiveIntegerField(default=16)
    max_requests_per_node = models.PositiveIntegerField(default=8)
    node_bytes_per_second = models.BigIntegerField(null=True, blank=True)
    evict_grace_seconds = models.PositiveIntegerField(default=600)
    settle_seconds = models.PositiveIntegerField(default=0)
    startup_taint = models.BooleanField(
        default=False, help_text="remove the taint hearth.dev/cold from a node once what is pinned there is warm"
    )
    paused = models.BooleanField(default=False)
    deleting_at = models.DateTimeField(null=True, blank=True, help_text="it takes no pins, and its nodes are emptied")
    status_interval_seconds = models.FloatField(default=30)
    freshness_seconds = models.FloatField(default=120, help_text="older observations read as Unknown")
    scrub_interval_seconds = models.FloatField(default=86400)
    conditions = models.JSONField(default=list)

    class Meta:
        ordering = ["cluster__name", "name"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="clusters_pool_name"),
            models.CheckConstraint(
                condition=models.Q(low_watermark__gt=0)
                & models.Q(low_watermark__lte=models.F("high_watermark"))
                & models.Q(high_watermark__lte=1),
                name="clusters_pool_watermarks",
            ),
        ]

    @property
    def full_name(self) -> str:
        """``cluster.pool``, the name in addresses and grants."""
        return f"{self.cluster.name}.{self.name}"


class Node(Row):
    """One machine incarnation. ``lost_at`` set means that its uid is gone for good."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    pool = models.ForeignKey(NodePool, null=True, blank=True, on_delete=models.SET_NULL, related_name="nodes")
    name = models.CharField(max_length=253)
    uid = models.CharField(max_length=64)
    labels = models.JSONField(default=dict)
    ready = models.BooleanField(null=True)
    schedulable = models.BooleanField(default=True)
    taints = models.JSONField(default=list)
    terminating_at = models.DateTimeField(null=True, blank=True, help_text="announced end, e.g. a spot interruption")
    joined_at = models.DateTimeField()
    observed_at = models.DateTimeField(null=True, help_text="last time the cluster confirmed the node")
    reported_at = models.DateTimeField(null=True, help_text="last status written by the node's agent")
    capacity_bytes = models.BigIntegerField(null=True)
    used_bytes = models.BigIntegerField(default=0)
    other_bytes = models.BigIntegerField(default=0)
    reserved_bytes = models.BigIntegerField(default=0)
    orphans = models.JSONField(default=list)
    agent_version = models.CharField(max_length=40, blank=True, default="")
    conditions = models.JSONField(default=list)
    lost_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name", "-joined_at"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "uid"], name="clusters_node_uid"),
            models.UniqueConstraint(
                fields=["cluster", "name"],
                condition=models.Q(lost_at__isnull=True),
                name="clusters_one_live_incarnation",
            ),
        ]

    def __str__(self) -> str:
        return self.name
