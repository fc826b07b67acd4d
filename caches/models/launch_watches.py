"""What Hearth keeps beside a launch that it follows itself: whether its log was read, and what was asked of it."""

from __future__ import annotations

from django.db import models

from caches.models.launches import Launch


class LaunchLog(models.Model):
    """Of a launch that a watcher sees from the outside. ``state``: "" until it is ready or has ended; then its log is
    Due, and afterwards Read, whatever could be had of it."""

    launch = models.OneToOneField(Launch, primary_key=True, on_delete=models.CASCADE, related_name="log")
    state = models.CharField(max_length=4, blank=True, default="", choices=[("Due", "Due"), ("Read", "Read")])

    class Meta:
        indexes = [models.Index(fields=["launch"], name="caches_launch_log_due", condition=models.Q(state="Due"))]


class LaunchTraffic(models.Model):
    """``requests`` that routers sent to the instance that the launch brought up, since it did."""

    launch = models.OneToOneField(Launch, primary_key=True, on_delete=models.CASCADE, related_name="traffic")
    requests = models.PositiveBigIntegerField(default=0)
