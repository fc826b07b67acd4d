"""Endpoints that a trial made for itself (caches.services.launches.trial_fleet): nobody is to send requests there."""

from __future__ import annotations

from django.db.models import Q

from controlplane.clusters.models import ClusterType


def of_a_trial() -> Q:
    """A condition on endpoints. What somebody else calls trial-chat is his."""
    return Q(cluster__type=ClusterType.LOCAL, name__regex=r"\Atrial-[0-9a-f]{8}\Z")
