"""A REST call needs its scope (token) and the role that the scope stands for (user), both on the target it touches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane import errors
from controlplane.accounts import access
from controlplane.accounts.models import Scope, Token, User

if TYPE_CHECKING:
    # REST framework's views read their default permissions, this module, while they load.
    from rest_framework.views import APIView


class ScopePermission(BasePermission):
    """Views name what they need: ``read_scope`` (default read) and ``write_scope``. None: any signed-in person."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.user, User):
            return False
        require_scope(request, scope_of(request, view))
        return True


def scope_of(request: Request, view: APIView) -> Scope | None:
    """The scope this call needs; writing without a declared scope needs ``admin``."""
    if request.method in SAFE_METHODS:
        return getattr(view, "read_scope", Scope.READ)
    return getattr(view, "write_scope", Scope.ADMIN)


def require_scope(request: Request, scope: Scope | None) -> None:
    """Raise errors.Denied naming the role that the owner lacks everywhere, or the scope that the token lacks."""
    if scope is None:
        return
    token, person = token_of(request), person_of(request)
    # The role first: nobody can create a token with a scope that their roles do not reach.
    access.require_anywhere(person, access.SCOPE_ROLE[scope])
    if token is not None and scope not in token.scopes and Scope.ADMIN not in token.scopes:
        raise errors.Denied(
            "token:user:scope-missing",
            f"The token lacks the scope {scope.value}.",
            next_step=f"Create a token that has the scope {scope.value}.",
        )


def require_target(request: Request, scope: Scope, *targets: str) -> None:
    """Raise errors.Denied unless the token's limits and its owner's role both reach every target."""
    token = token_of(request)
    for target in targets:
        if token is not None and token.targets and not any(access.covers(limit, target) for limit in token.targets):
            raise errors.Denied(
                "token:user:target",
                f"The token is limited to {', '.join(token.targets)} and may not touch {target or 'the whole fleet'}.",
                next_step="Use a token whose targets include it.",
            )
        access.require(person_of(request), access.SCOPE_ROLE[scope], target)


def may(request: Request, scope: Scope, *targets: str) -> bool:
    """require_scope() and require_target() as a question."""
    try:
        require_scope(request, scope)
        require_target(request, scope, *targets)
    except errors.Denied:
        return False
    return True


def readable_targets(request: Request) -> frozenset[str] | None:
    """What this request may see of the fleet (access.readable_targets under the token's limits)."""
    token = token_of(request)
    return access.readable_targets(person_of(request), token.targets if token is not None else ())


def token_of(request: Request) -> Token | None:
    """The bearer token of the request, None for a session."""
    return request.auth if isinstance(request.auth, Token) else None


def person_of(request: Request) -> User:
    """The signed-in person. ScopePermission has run before any view, so there is one."""
    assert isinstance(request.user, User)
    return request.user
