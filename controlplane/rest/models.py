"""Idempotency-Key: the first answer to a key, replayed to every repeat for 24 hours."""

from __future__ import annotations

from django.db import models

from controlplane.models_base import Row


class IdempotencyKey(Row):
    """Inserted before the work starts (``status`` null: a twin is still running), completed with the answer."""

    owner = models.CharField(max_length=200)  # user id: two users may use the same key
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)  # SHA-256 over method, path, query and body
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=dict)
    body = models.BinaryField(default=bytes)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="rest_idempotency_once")]
