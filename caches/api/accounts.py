"""Tokens and me."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.accounts import MeSerializer, NewTokenSerializer, TokenInput, TokenSerializer
from caches.filters import TokenFilter
from caches.selectors.token_targets import token_targets_check
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role, Scope, Token
from controlplane.accounts.permissions import person_of, require_scope, token_of
from controlplane.accounts.services import token_create, token_revoke


def visible_tokens(request: Request) -> QuerySet[Token]:
    """One's own; an administrator of everything sees all."""
    rows: QuerySet[Token] = Token.objects.select_related("user")
    person, token = person_of(request), token_of(request)
    if access.can(person, Role.ADMIN) and (token is None or Scope.ADMIN in token.scopes):
        return rows
    return rows.filter(user=person)


class TokenView(ApiView):
    """People manage their tokens in the browser; a program needs the scope ``admin`` to make or revoke any."""

    write_scope = None

    def allow_change(self, request: Request) -> None:
        if token_of(request) is not None:
            require_scope(request, Scope.ADMIN)


class TokenList(TokenView, ApiRowsView):
    serializer_class = TokenSerializer
    filterset_class = TokenFilter
    ordering_fields = {"created_at": "created", "name": "name", "expires_at": "expiry", "last_used_at": "last_used_at"}
    ordering = "-created_at"
    tie_breaker = "id"
    redacted = ("secret",)

    def rows(self) -> QuerySet[Token]:
        return visible_tokens(self.request)

    @extend_schema(request=TokenInput, responses={201: NewTokenSerializer})
    def post(self, request: Request) -> Response:
        self.allow_change(request)
        body = self.read(TokenInput, request)
        token_targets_check(person=person_of(request), targets=body["targets"])
        token, secret = token_create(actor=actor_of(request), user=person_of(request), parent=token_of(request), **body)
        token.secret = secret
        response = self.answer(NewTokenSerializer, token, status=201)
        response["Cache-Control"] = "no-store"
        return response


class TokenDetail(TokenView):
    @extend_schema(responses=TokenSerializer)
    def get(self, request: Request, token_id: UUID) -> Response:
        return self.answer(TokenSerializer, one(visible_tokens(request).filter(id=token_id)))

    @extend_schema(responses={200: TokenSerializer})
    def delete(self, request: Request, token_id: UUID) -> Response:
        """Revoke for good; the row stays, so that the audit trail can name it."""
        self.allow_change(request)
        token = one(visible_tokens(request).filter(id=token_id))
        return self.answer(TokenSerializer, token_revoke(actor=actor_of(request), token_id=token.id))


class Me(ApiView):
    """Who is calling, and what they may do."""

    read_scope = None

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        person, token = person_of(request), token_of(request)
        granted = [scope for scope in Scope if access.can_anywhere(person, access.SCOPE_ROLE[scope])]
        held = granted if token is None or Scope.ADMIN in token.scopes else token.scopes
        me = {
            "user": person.get_username(),
            "roles": access.grants_of(person),
            "scopes": [scope for scope in granted if scope in held],
            "targets": token.targets if token is not None else [],
            "token": token.name if token is not None else None,
            "expires_at": token.expiry if token is not None else None,
        }
        return self.answer(MeSerializer, me)
