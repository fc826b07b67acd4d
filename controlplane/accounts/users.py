"""People: made, given roles and passwords, and deactivated. Rows stay, so that the trail keeps its names."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from controlplane.accounts.models import Role, RoleGrant, Token, User
from controlplane.accounts.services import token_revoke
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.models import Cluster, NodePool
from controlplane.errors import Clash, FieldError, Invalid, Missing

RESERVED = ("system",)  # the trail's name for what nobody asked for


def user_add(*, actor: Actor, name: str, password: str, role: str, target: str = "") -> User:
    """A user who may sign in. One that was removed comes back with this role alone.

    Invalid for a name, password, role or target that cannot be; Clash when the name is taken.
    """
    _check_name(name)
    _check_grant(role, target)
    _check_password(password, User(username=name))
    with transaction.atomic():
        user = User.objects.select_for_update().filter(username__iexact=name).first()
        if user is not None and (user.is_active or user.username != name):
            raise _taken(user.username)
        restored = user is not None
        try:
            with transaction.atomic():
                user = user or User.objects.create(username=name)
        except IntegrityError:
            raise _taken(name) from None  # somebody else was first
        user.is_active = True
        user.set_password(password)
        user.save(update_fields=["is_active", "password"])
        RoleGrant.objects.create(user=user, role=role, target=target)
        _audit(actor, "user.restore" if restored else "user.create", user, None, user_roles(user))
    return user


def user_set_role(*, actor: Actor, name: str, role: str | None, target: str = "") -> User:
    """Give the role on the target ("" everywhere), in place of the one there; None takes that grant away."""
    if role is not None:
        _check_grant(role, target)
    with transaction.atomic():
        user = _locked(name)
        if user.is_superuser:
            raise Clash(
                "user:user:superuser",
                f"{name} is a superuser: Admin everywhere, whatever its roles.",
                next_step="Add a user of its own for whoever needs less.",
            )
        before = user_roles(user)
        grants = RoleGrant.objects.filter(user=user, target=target)
        if role is None:
            if not grants.delete()[0]:
                where = f"on {target}" if target else "everywhere"
                raise Missing("user:user:no-such-role", f"{name} has no role {where}.", next_step="List the users.")
        else:
            RoleGrant.objects.update_or_create(user=user, target=target, defaults={"role": role})
        _check_admin_left(before)
        if (after := user_roles(user)) != before:
            _audit(actor, "user.role", user, before, after)
    return user


def user_set_password(*, actor: Actor, name: str, password: str) -> User:
    """Another password; whoever is signed in with the old one is signed out. Tokens stay."""
    with transaction.atomic():
        user = _locked(name)
        _check_password(password, user)
        user.set_password(password)
        user.save(update_fields=["password"])
        _audit(actor, "user.password", user, None, None)
    return user


def user_remove(*, actor: Actor, name: str) -> int:
    """Deactivate: sessions and tokens end, roles go. Returns how many tokens were revoked. Clash for the last Admin."""
    with transaction.atomic():
        user = _locked(name)
        before = user_roles(user)
        tokens = list(Token.objects.filter(user=user, revoked_at=None).values_list("id", flat=True))
        for token_id in tokens:
            token_revoke(actor=actor, token_id=token_id)
        user.role_grants.all().delete()
        User.objects.filter(pk=user.pk).update(is_active=False, is_superuser=False, is_staff=False)
        _check_admin_left(before)
        _audit(actor, "user.remove", user, before, None)
    return len(tokens)


def user_roles(user: User) -> dict[str, object]:
    """What the trail keeps of a user: roles by target, ``*`` for everywhere."""
    if user.is_superuser:
        return {"*": Role.ADMIN.value}
    grants = RoleGrant.objects.filter(user=user).order_by("target").values_list("target", "role")
    return {target or "*": role for target, role in grants}


def _locked(name: str) -> User:
    # All of them: of two that take the last two Admins away at once, one must see the other.
    users = {user.username: user for user in User.objects.select_for_update().filter(is_active=True).order_by("pk")}
    if name not in users:
        raise Missing("user:user:missing", f"There is no user {name}.", next_step="See them with: manage.py user list")
    return users[name]


def _check_admin_left(before: Mapping[str, object]) -> None:
    if before.get("*") != Role.ADMIN:
        return
    active = User.objects.filter(is_active=True)
    admins = active.filter(role_grants__role=Role.ADMIN, role_grants__target="")
    if not (active.filter(is_superuser=True).exists() or admins.exists()):
        raise Clash(
            "user:user:last-admin",
            "Nobody would be Admin everywhere any more.",
            next_step="Give another user the role Admin first.",
        )


def _check_name(name: str) -> None:
    problem = ""
    try:
        User._meta.get_field("username").run_validators(name)
    except ValidationError:
        problem = "A user's name has letters, digits and @ . + - _, at most 150."
    if not name or name.lower() in RESERVED:
        problem = f"{name or 'An empty text'} cannot be a user's name."
    if problem:
        raise _invalid("name", problem)


def _check_grant(role: str, target: str) -> None:
    if role not in Role.values:
        raise _invalid("role", f"The role is one of {', '.join(Role.values)}.")
    cluster, dot, pool = target.partition(".")
    clusters, pools = Cluster.objects.filter(name=cluster), NodePool.objects.filter(cluster__name=cluster, name=pool)
    if target and not (pools.exists() if dot else clusters.exists()):
        known = [*Cluster.objects.values_list("name", flat=True)]
        known += [pool.full_name for pool in NodePool.objects.select_related("cluster")]
        raise _invalid("target", f"There is no {target}. There are {', '.join(sorted(known)) or 'no clusters yet'}.")


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise _invalid("password", " ".join(error.messages)) from None


def _invalid(field: str, detail: str) -> Invalid:
    errors = [FieldError(field, "invalid", detail)]
    return Invalid("user:user:invalid", detail, next_step="Correct it and try again.", errors=errors)


def _taken(name: str) -> Clash:
    return Clash("user:user:taken", f"There is a user {name} already.", next_step="Choose another name.")


def _audit(
    actor: Actor, action: str, user: User, before: Mapping[str, object] | None, after: Mapping[str, object] | None
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="User",
        object_id=str(user.pk),
        object_name=user.get_username(),
        before=before,
        after=after,
    )
