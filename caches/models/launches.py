"""Launches: what observers saw (append-only), the timeline that follows from it, and what is counted of them.

Rows keep the names of what they are about, because launches outlive nodes, pools, versions and endpoints.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from caches.domain.launches.labels import unmeasured
from caches.domain.launches.timeline import RULE
from caches.domain.launches.words import (
    TRIAL_NAMES,
    TRIAL_PREFIX,
    Cached,
    EventClass,
    LaunchState,
    MissReason,
    Phase,
    is_trial,
)
from caches.models.catalogue import ModelVersion
from controlplane.clusters.models import Cluster, ClusterType, Node
from controlplane.models_base import Row
from controlplane.serving.models import Endpoint

# How clusters say that a pod ended because its node went away; the first is a local fleet's word of an engine.
NODE_LOST_REASONS = ("NodeLost", "TaintManagerEviction", "DeletionByTaintManager", "DeletionByPodGC")
# Launches that trials provoked, as rows say it: the prefix first, which costs next to nothing.
_NAMED_SO = models.Q(endpoint_name__startswith=TRIAL_PREFIX) & models.Q(endpoint_name__regex=TRIAL_NAMES)
# Local fleets by a statement of its own: launches joined with their clusters cost the report a third more.
OF_TRIALS = _NAMED_SO & models.Q(cluster__in=Cluster.objects.filter(type=ClusterType.LOCAL).values("pk"))


class Launch(Row):
    """One start of one container; ``id`` is domain.launches.words.launch_id(). ``stale_at``: since when observations
    wait that the fields below it do not know of; everything but the four names of the id follows from observations and
    from the rows around it.

    ``phase_seconds`` is in the order of the phases, null where not measured. ``began_at`` is when it counts.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="launches", db_index=False)
    pod_uid = models.CharField(max_length=100)
    container = models.CharField(max_length=63)
    restart_count = models.PositiveIntegerField()
    began_at = models.DateTimeField()
    stale_at = models.DateTimeField(null=True)

    pod_name = models.CharField(max_length=320, blank=True, default="")
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="launches", db_index=False)
    node_name = models.CharField(max_length=253, blank=True, default="")
    pool_name = models.CharField(max_length=63, blank=True, default="")
    endpoint = models.ForeignKey(Endpoint, null=True, on_delete=models.SET_NULL, related_name="launches")
    endpoint_name = models.CharField(max_length=320, blank=True, default="")
    digest = models.CharField(max_length=80, blank=True, default="")
    version = models.ForeignKey(ModelVersion, null=True, on_delete=models.SET_NULL, related_name="launches")
    version_name = models.CharField(max_length=320, blank=True, default="")

    state = models.CharField(max_length=8, choices=[(s.value, s.value) for s in LaunchState], default="Starting")
    event_class = models.CharField(max_length=24, choices=[(c.value, c.value) for c in EventClass], default="Unknown")
    weights = models.CharField(max_length=8, choices=[(c.value, c.value) for c in Cached], default="Unknown")
    image = models.CharField(max_length=8, choices=[(c.value, c.value) for c in Cached], default="Unknown")
    miss_reason = models.CharField(
        max_length=16, blank=True, default="", choices=[(r.value, r.value) for r in MissReason]
    )
    first_on_node = models.BooleanField(null=True)
    node_age_seconds = models.FloatField(null=True)
    reached = models.CharField(max_length=24, choices=[(p.value, p.value) for p in Phase], default=Phase.WAITING.value)
    started_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(null=True)
    served_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=200, blank=True, default="")
    ready_seconds = models.FloatField(null=True)
    total_seconds = models.FloatField(null=True)
    unknown_seconds = models.FloatField(null=True)
    clock_shift_seconds = models.FloatField(default=0)
    phase_seconds = ArrayField(models.FloatField(null=True), size=7, default=list)
    phases = models.JSONField(default=list, help_text="state, seconds, observer and pieces of each phase")
    # 1 in the database: what processes of the version before write.
    rule = models.PositiveSmallIntegerField(default=RULE, db_default=1, help_text="which one the phases follow")

    class Meta:
        ordering = [models.F("began_at").desc(nulls_last=True), "-id"]
        # Each has its reader: lists, pods that go, the slowest, the launch at a quantile, and what was there before.
        indexes = [
            models.Index(
                models.F("began_at").desc(nulls_last=True), models.F("id").desc(), name="caches_launch_newest"
            ),
            models.Index(
                models.F("ready_seconds").desc(nulls_last=True), models.F("id").desc(), name="caches_launch_slow"
            ),
            models.Index(fields=["cluster", "pod_uid"], name="caches_launch_pod"),
            models.Index(fields=["event_class", "ready_seconds"], name="caches_launch_class"),
            models.Index(fields=["cluster", "endpoint_name", "digest", "ready_at"], name="caches_launch_served"),
            models.Index(fields=["node", "digest", "began_at"], name="caches_launch_first"),
            # Random parts of a class, of all its launches or of one version's or pool's.
            models.Index(fields=["event_class", "weights", "id"], name="caches_launch_part"),
            models.Index(fields=["version_name", "event_class", "id"], name="caches_launch_part_version"),
            models.Index(fields=["pool_name", "event_class", "id"], name="caches_launch_part_pool"),
            models.Index(fields=["endpoint_name", "event_class", "id"], name="caches_launch_part_endpoint"),
            models.Index(fields=["began_at", "id"], name="caches_launch_trials", condition=_NAMED_SO),
            models.Index(fields=["began_at"], name="caches_launch_rule", condition=models.Q(rule__lt=RULE)),
            models.Index(fields=["stale_at"], name="caches_launch_stale", condition=models.Q(stale_at__isnull=False)),
            models.Index(
                fields=["ended_at"], name="caches_launch_lost", condition=models.Q(end_reason__in=NODE_LOST_REASONS)
            ),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def title(self) -> str:
        """What people call it: its endpoint and its pod (or engine), and of a uid no more than tells them apart."""
        namespace = self.endpoint_name.partition("/")[0]
        pod = self.pod_name.removeprefix(f"{namespace}/") or f"pod {self.pod_uid[:8]}"
        run = f"restart {self.restart_count}" if self.restart_count else ""
        return ", ".join(name for name in (self.endpoint_name, pod, run) if name)

    @property
    def of_trial(self) -> bool:
        """As OF_TRIALS says it of rows."""
        return is_trial(self.endpoint_name) and self.cluster.type == ClusterType.LOCAL

    @property
    def unmeasured(self) -> str:
        """Why its ``ready_seconds`` are not known although it was ready; "" where they are, or where it was not."""
        return unmeasured(LaunchState(self.state), self.started_at, self.ready_at)


class LaunchObservation(models.Model):
    """domain.launches.observations.Observation as it came. ``id`` follows from the content: a repeat is none."""

    id = models.UUIDField(primary_key=True, editable=False)
    launch = models.ForeignKey(Launch, on_delete=models.CASCADE, related_name="observations")
    observer = models.CharField(max_length=16)
    mark = models.CharField(max_length=16)
    phase = models.CharField(max_length=24, blank=True, default="")
    at = models.DateTimeField(null=True)
    seconds = models.FloatField(null=True)
    clock = models.CharField(max_length=8)
    facts = models.JSONField(default=dict)
    received_at = models.DateTimeField()

    class Meta:
        ordering = ["at", "received_at", "id"]


class LaunchCount(models.Model):
    """Launches of one hour or one day (UTC) that are alike: exact counts, and a sketch of the seconds until ready.

    Every launch is counted once under each ``by``: what the row tells apart beside its cluster. Columns that it does
    not tell apart are "". A page reads the coarsest that answers it. Each row is of ``trial`` launches or of others.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="launch_counts")
    step = models.CharField(max_length=4, choices=[("Hour", "Hour"), ("Day", "Day")])
    by = models.CharField(
        max_length=8,
        choices=[(one, one) for one in ("Nothing", "Class", "Names", "Digest", "Pool", "Place", "Version", "Endpoint")],
    )
    start = models.DateTimeField()
    trial = models.BooleanField(default=False)
    pool_name = models.CharField(max_length=63, blank=True)
    endpoint_name = models.CharField(max_length=320, blank=True, default="")
    version_name = models.CharField(max_length=320, blank=True)
    digest = models.CharField(max_length=80, blank=True, default="")
    event_class = models.CharField(max_length=24)
    weights = models.CharField(max_length=8)
    image = models.CharField(max_length=8)
    launches = models.PositiveIntegerField()
    ready = models.PositiveIntegerField()
    ended = models.PositiveIntegerField(help_text="never became ready")
    reasons = models.JSONField(default=dict, help_text="why how many missed their weights")
    sketch = models.BinaryField(default=b"", help_text="domain.launches.sketch.Sketch of ready_seconds")

    class Meta:
        ordering = ["start"]
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "by",
                    "step",
                    "start",
                    "cluster",
                    "pool_name",
                    "version_name",
                    "event_class",
                    "weights",
                    "image",
                    "digest",
                    "endpoint_name",
                    "trial",
                ],
                name="caches_launch_count_once",
            )
        ]
        indexes = [
            models.Index(
                fields=["version_name", "step", "start"],
                name="caches_launch_count_of",
                condition=models.Q(by="Version"),
            ),
            models.Index(
                fields=["endpoint_name", "step", "start"],
                name="caches_launch_count_at",
                condition=models.Q(by="Endpoint"),
            ),
        ]


class LaunchHour(models.Model):
    """One hour of one cluster whose counts are to be made again since ``dirty_at``, or one day whose hours were counted
    since it was; the row goes when that is done."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="launch_hours")
    step = models.CharField(max_length=4, choices=[("Hour", "Hour"), ("Day", "Day")], default="Hour")
    start = models.DateTimeField()
    dirty_at = models.DateTimeField()

    class Meta:
        ordering = ["start"]
        constraints = [models.UniqueConstraint(fields=["cluster", "step", "start"], name="caches_launch_hour_once")]
