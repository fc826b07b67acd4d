"""The fields every Hearth row has."""

from __future__ import annotations

from django.db import models

from controlplane.ids import new_id


class Row(models.Model):
    """UUIDv7 primary key and the two times. ``updated_at`` is also the base of an object's ETag."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True
