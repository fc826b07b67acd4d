"""Who may do what: users, role grants and scoped tokens. Rules live in controlplane.accounts.access."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from knox.models import AbstractAuthToken

from controlplane.ids import new_id
from controlplane.models_base import Row


class Role(models.TextChoices):
    """Each role includes the ones before it."""

    VIEWER = "Viewer"
    OPERATOR = "Operator"
    ADMIN = "Admin"


class Scope(models.TextChoices):
    """What a token may do; a token never does more than its owner's role allows."""

    READ = "read"
    MODELS_WRITE = "models:write"
    PINS_WRITE = "pins:write"
    EVICT = "evict"
    ROLLOUTS_WRITE = "rollouts:write"
    ROUTING_WRITE = "routing:write"
    LAUNCHES_INGEST = "launches:ingest"
    FLEET_WRITE = "fleet:write"
    ADMIN = "admin"


class User(AbstractUser):  # type: ignore[django-manager-missing]  # knox ships no types
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)


class RoleGrant(Row):
    """A role for one user: everywhere, in one cluster, or in one pool (by name, as ``cluster`` or ``cluster.pool``)."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="role_grants")
    role = models.CharField(max_length=16, choices=Role.choices)
    target = models.CharField(
        max_length=200, blank=True, default="", help_text="'' everywhere, 'cluster' or 'cluster.pool'"
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "target"], name="accounts_one_role_per_target")]


class Token(AbstractAuthToken):  # type: ignore[misc]  # knox ships no types
    """A bearer token: shown once, stored as a digest. Empty lists of targets or addresses mean no limit."""

    id = models.UUIDField(default=new_id, editable=False, unique=True)
    name = models.CharField(max_length=100)
    scopes = ArrayField(models.CharField(max_length=32, choices=Scope.choices), default=list)
    targets = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    addresses = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
