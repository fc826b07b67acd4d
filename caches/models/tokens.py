"""Tokens of a hub that endpoints bring along, named by a Secret of their own namespace."""

from __future__ import annotations

from django.db import models

from caches.models.catalogue import SourceConnection
from controlplane.clusters.models import Cluster
from controlplane.models_base import Row


class EndpointToken(Row):
    """One token: ``key`` of the Secret ``secret`` in a namespace of a cluster, for what is read through ``base``.

    ``connection`` is a copy of ``base`` that reads with this token, for endpoints of this namespace alone: versions are
    registered through it, so that nobody else is served what the token opened. The token itself stands in no row.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="endpoint_tokens")
    namespace = models.CharField(max_length=63)
    secret = models.CharField(max_length=253)
    key = models.CharField(max_length=253)
    base = models.ForeignKey(SourceConnection, on_delete=models.PROTECT, related_name="endpoint_tokens")
    connection = models.OneToOneField(SourceConnection, on_delete=models.CASCADE, related_name="token")
    content_mac = models.CharField(max_length=64, blank=True, default="")  # keyed; "" while agents do not have it
    read_at = models.DateTimeField(null=True)
    written_at = models.DateTimeField(null=True)
    missing = models.BooleanField(default=False, help_text="there simply is no such Secret, or no such key in it")
    problem = models.CharField(max_length=1000, blank=True, default="")  # why it could not be read

    class Meta:
        ordering = ["namespace", "secret", "key"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "namespace", "secret", "key", "base"], name="caches_endpoint_token_once"
            )
        ]
