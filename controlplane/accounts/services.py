"""Issuing and revoking tokens. The secret is returned once and never stored, logged or audited."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from controlplane import errors
from controlplane.accounts import access
from controlplane.accounts.models import Scope, Token, User
from controlplane.audit.services import Actor, audit_write

LONGEST_LIFE = timedelta(days=366)
DEFAULT_LIFE = timedelta(days=30)


def token_create(
    *,
    actor: Actor,
    user: User,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None = None,
    targets: Sequence[str] = (),
    addresses: Sequence[str] = (),
    parent: Token | None = None,
) -> tuple[Token, str]:
    """A new token and its secret. ``parent`` is the token that asks: its child never gets more than it has.

    Raises errors.Invalid with one FieldError for each wrong field.
    """
    now = timezone.now()
    expires_at = expires_at or min(now + DEFAULT_LIFE, (parent and parent.expiry) or now + DEFAULT_LIFE)
    problems = [
        *_scope_problems(user, scopes, parent),
        *_target_problems(user, scopes, targets, parent),
        *_address_problems(addresses, parent),
        *_expiry_problems(expires_at, now, parent),
    ]
    if problems:
        raise errors.Invalid(
            "token:user:invalid",
            "The token was not created: " + " ".join(problem.detail for problem in problems),
            next_step="Correct the named fields and try again.",
            errors=problems,
        )
    with transaction.atomic():
        token, secret = Token.objects.create(
            user=user,
            expiry=None,
            name=name,
            scopes=sorted(set(scopes)),
            targets=sorted(set(targets)),
            addresses=sorted(set(addresses)),
        )
        # Set here, because the library would count from its own, later now.
        token.expiry = expires_at
        token.save(update_fields=["expiry"])
        _audit(actor, "token.create", token, before=None, after=_facts(token))
    return token, secret


def token_revoke(*, actor: Actor, token_id: UUID) -> Token:
    """Revoke for good; revoking again changes nothing. Raises errors.Missing."""
    token: Token | None
    with transaction.atomic():
        token = Token.objects.select_for_update(of=("self",), no_key=True).filter(id=token_id).first()
        if token is None:
            raise errors.Missing("token:user:missing", "There is no such token.", next_step="List the tokens.")
        if token.revoked_at is None:
            before = _facts(token)
            token.revoked_at = timezone.now()
            token.save(update_fields=["revoked_at"])
            _audit(actor, "token.revoke", token, before=before, after=_facts(token))
    return token


def _scope_problems(user: User, scopes: Sequence[str], parent: Token | None) -> list[errors.FieldError]:
    if not scopes:
        return [errors.FieldError("scopes", "required", "At least one scope is needed.")]
    problems = []
    for scope in scopes:
        if scope not in Scope.values:
            problems.append(errors.FieldError("scopes", "unknown", f"There is no scope {scope}."))
        elif not access.can_anywhere(user, access.SCOPE_ROLE[Scope(scope)]):
            detail = f"The scope {scope} needs the role {access.SCOPE_ROLE[Scope(scope)].value}."
            problems.append(errors.FieldError("scopes", "above-role", detail))
        elif parent is not None and scope not in parent.scopes and Scope.ADMIN not in parent.scopes:
            problems.append(errors.FieldError("scopes", "above-token", f"The calling token lacks the scope {scope}."))
    return problems


def _target_problems(
    user: User, scopes: Sequence[str], targets: Sequence[str], parent: Token | None
) -> list[errors.FieldError]:
    problems = []
    limits = parent.targets if parent is not None else []
    if limits and not targets:
        problems.append(errors.FieldError("targets", "required", "The calling token is limited to targets."))
    for target in targets:
        if not target or target.count(".") > 1 or len(target) > 200:
            problems.append(errors.FieldError("targets", "invalid", "A target is a cluster or cluster.pool."))
        elif access.role_of(user, target) is None:
            problems.append(errors.FieldError("targets", "above-role", f"The owner has no role on {target}."))
        elif limits and not any(access.covers(limit, target) for limit in limits):
            problems.append(errors.FieldError("targets", "above-token", f"The calling token does not reach {target}."))
    return problems


def _address_problems(addresses: Sequence[str], parent: Token | None) -> list[errors.FieldError]:
    problems = []
    limits = [ipaddress.ip_network(one, strict=False) for one in parent.addresses] if parent is not None else []
    if limits and not addresses:
        problems.append(errors.FieldError("addresses", "required", "The calling token is limited to addresses."))
    for address in addresses:
        try:
            network = ipaddress.ip_network(address, strict=False)
        except ValueError:
            detail = f"{address} is no address or network such as 10.0.0.0/8."
            problems.append(errors.FieldError("addresses", "invalid", detail))
            continue
        if limits and not any(_inside(network, limit) for limit in limits):
            problems.append(errors.FieldError("addresses", "above-token", f"The calling token excludes {address}."))
    return problems


def _expiry_problems(expires_at: datetime, now: datetime, parent: Token | None) -> list[errors.FieldError]:
    if expires_at <= now:
        return [errors.FieldError("expires_at", "past", f"The time is past; server time is {now:%Y-%m-%dT%H:%M:%SZ}.")]
    if expires_at > now + LONGEST_LIFE:
        return [errors.FieldError("expires_at", "too-far", f"A token lives at most {LONGEST_LIFE.days} days.")]
    if parent is not None and parent.expiry is not None and expires_at > parent.expiry:
        return [errors.FieldError("expires_at", "above-token", "The calling token ends before that.")]
    return []


def _inside(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, limit: ipaddress.IPv4Network | ipaddress.IPv6Network
) -> bool:
    if isinstance(network, ipaddress.IPv4Network) and isinstance(limit, ipaddress.IPv4Network):
        return network.subnet_of(limit)
    if isinstance(network, ipaddress.IPv6Network) and isinstance(limit, ipaddress.IPv6Network):
        return network.subnet_of(limit)
    return False


def _facts(token: Token) -> dict[str, object]:
    return {
        "name": token.name,
        "owner": token.user.get_username(),
        "prefix": token.token_key,
        "scopes": token.scopes,
        "targets": token.targets,
        "addresses": token.addresses,
        "expires_at": token.expiry.isoformat() if token.expiry else None,
        "revoked_at": token.revoked_at.isoformat() if token.revoked_at else None,
    }


def _audit(
    actor: Actor, action: str, token: Token, *, before: dict[str, object] | None, after: dict[str, object]
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="Token",
        object_id=str(token.id),
        object_name=f"{token.user.get_username()}/{token.name}",
        before=before,
        after=after,
    )
