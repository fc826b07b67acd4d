"""Who may do what, where. A target is "" (everywhere), "cluster" or "cluster.pool"; a grant covers all below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import Q, prefetch_related_objects

from controlplane import errors
from controlplane.accounts.models import Role, RoleGrant, Scope, User

RANK = {Role.VIEWER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}

# The role that a scope stands for: a token never does more than its owner could.
SCOPE_ROLE = {
    Scope.READ: Role.VIEWER,
    Scope.MODELS_WRITE: Role.OPERATOR,
    Scope.PINS_WRITE: Role.OPERATOR,
    Scope.EVICT: Role.OPERATOR,
    Scope.ROLLOUTS_WRITE: Role.OPERATOR,
    Scope.ROUTING_WRITE: Role.OPERATOR,
    Scope.LAUNCHES_INGEST: Role.OPERATOR,
    Scope.FLEET_WRITE: Role.ADMIN,
    Scope.ADMIN: Role.ADMIN,
}


def covers(grant_target: str, target: str) -> bool:
    """True when a grant (or token limit) on ``grant_target`` reaches ``target``."""
    return grant_target in ("", target) or target.startswith(grant_target + ".")


def role_of(user: User, target: str = "") -> Role | None:
    """The highest role on ``target``; on "" only grants that hold everywhere count. None: may not even look."""
    return _highest(grant for grant in _grants(user) if covers(grant.target, target)) if _active(user) else None


def role_anywhere(user: User) -> Role | None:
    """The highest role on any target: what decides about things that belong to no pool, such as models."""
    return _highest(_grants(user)) if _active(user) else None


def grants_of(user: User) -> Sequence[RoleGrant]:
    """Every grant, by target. A superuser's is one that was never stored."""
    return sorted(_grants(user), key=lambda grant: grant.target) if _active(user) else []


def can(user: User, role: Role, target: str = "") -> bool:
    """True when the user has ``role`` or a higher one on ``target``."""
    return _at_least(role_of(user, target), role)


def can_anywhere(user: User, role: Role) -> bool:
    """True when the user has ``role`` or a higher one on at least one target."""
    return _at_least(role_anywhere(user), role)


def require(user: User, role: Role, target: str = "") -> None:
    """Raise errors.Denied unless the user has ``role`` on ``target``."""
    if not can(user, role, target):
        where = f"on {target}" if target else "on the whole fleet"
        raise errors.Denied(
            "access:user:role-missing",
            f"This needs the role {Role(role).value} {where}.",
            next_step=f"Ask an administrator for the role {Role(role).value} {where}.",
        )


def require_anywhere(user: User, role: Role) -> None:
    """Raise errors.Denied unless the user has ``role`` on at least one target."""
    if not can_anywhere(user, role):
        raise errors.Denied(
            "access:user:role-missing",
            f"This needs the role {Role(role).value} on at least one cluster or pool.",
            next_step=f"Ask an administrator for the role {Role(role).value}.",
        )


def readable_targets(user: User, limits: Sequence[str] = ()) -> frozenset[str] | None:
    """What the user may see of the fleet, narrowed by a token's ``limits``. None: everything."""
    if not _active(user):
        return frozenset()
    granted = {""} if user.is_superuser else {grant.target for grant in _grants(user)}
    if limits:
        # Of a grant and a limit that overlap, the narrower one is what both allow.
        granted = {narrow for wide in granted for limit in limits if (narrow := _narrower(wide, limit)) is not None}
    return None if "" in granted else frozenset(granted)


def is_within(targets: frozenset[str] | None, target: str) -> bool:
    """targets_filter() for one name: whether what readable_targets() gave reaches ``target``."""
    return targets is None or any(covers(one, target) for one in targets)


def targets_filter(targets: frozenset[str] | None, *, cluster: str, pool: str) -> Q:
    """A queryset condition for readable_targets(); ``cluster`` and ``pool`` are lookups of the two names."""
    if targets is None:
        return Q()
    condition = Q(pk__in=[])
    for target in sorted(targets):
        cluster_name, _, pool_name = target.partition(".")
        condition |= Q(**{cluster: cluster_name, pool: pool_name}) if pool_name else Q(**{cluster: cluster_name})
    return condition


def _narrower(one: str, other: str) -> str | None:
    if covers(one, other):
        return other
    return one if covers(other, one) else None


def _active(user: User) -> bool:
    return user.is_active


def _grants(user: User) -> Sequence[RoleGrant]:
    if user.is_superuser:
        return [RoleGrant(role=Role.ADMIN, target="")]
    if "role_grants" not in getattr(user, "_prefetched_objects_cache", ()):  # even to find that out it takes long
        prefetch_related_objects([user], "role_grants")
    return list(user.role_grants.all())


def _highest(grants: Iterable[RoleGrant]) -> Role | None:
    return max((Role(grant.role) for grant in grants), key=lambda role: RANK[role], default=None)


def _at_least(role: Role | None, wanted: Role) -> bool:
    return role is not None and RANK[role] >= RANK[Role(wanted)]
