"""Tokens and who is calling; webhooks."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.common import LinksField, MomentField, NameField, ObjectSerializer
from caches.models import Webhook
from caches.services.webhooks.announcing import EVENTS
from caches.services.webhooks.posts import url_shown
from controlplane.accounts.models import Role, Scope, Token
from controlplane.accounts.permissions import may
from controlplane.rest.validation import Input


class TokenSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    created_at = serializers.DateTimeField(source="created")
    updated_at = serializers.SerializerMethodField()
    links = LinksField()
    name = serializers.CharField()
    owner = serializers.CharField(source="user.username")
    prefix = serializers.CharField(source="token_key", help_text="how the secret begins")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.choices))
    targets = serializers.ListField(child=serializers.CharField(), help_text="empty: wherever its owner may")
    addresses = serializers.ListField(child=serializers.CharField(), help_text="empty: from anywhere")
    expires_at = serializers.DateTimeField(source="expiry", allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="to the minute")
    revoked_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(serializers.DateTimeField)
    def get_updated_at(self, token: Token) -> str | None:
        return serializers.DateTimeField().to_representation(token.revoked_at or token.created)


class NewTokenSerializer(TokenSerializer):
    secret = serializers.CharField(
        allow_null=True, help_text="shown this once; null when an Idempotency-Key replays the answer"
    )


class TokenInput(Input):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.choices), min_length=1, max_length=20)
    expires_at = MomentField(required=False, allow_null=True, help_text="30 days from now by default")
    targets = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, default=list, max_length=100
    )
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=64), required=False, default=list, max_length=100
    )

    def validate_name(self, value: str) -> str:
        # It is a part of the actor's name in logs and in the trail.
        if not value.isprintable():
            raise serializers.ValidationError("A name has printable characters only.", "not-printable")
        return value


class GrantSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=Role.choices)
    target = serializers.CharField(help_text="'' everywhere, 'cluster' or 'cluster.pool'")


class MeSerializer(serializers.Serializer[Any]):
    user = serializers.CharField()
    roles = GrantSerializer(many=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.choices))
    targets = serializers.ListField(child=serializers.CharField(), help_text="what the token is limited to")
    token = serializers.CharField(allow_null=True, help_text="the token's name; null in a browser session")
    expires_at = serializers.DateTimeField(allow_null=True)


class LastDeliverySerializer(serializers.Serializer[Any]):
    event = serializers.CharField()
    state = serializers.ChoiceField(choices=["Pending", "Delivered", "GivenUp"])
    attempts = serializers.IntegerField()
    status = serializers.IntegerField(source="last_status", allow_null=True, help_text="of the last answer")
    error = serializers.CharField(source="last_error", help_text="of the last attempt, '' when there was none")
    updated_at = serializers.DateTimeField()


class WebhookSerializer(ObjectSerializer):
    """A webhook with ``last_delivery`` set on the row."""

    name = serializers.CharField()
    url = serializers.SerializerMethodField(help_text="its scheme and host alone for those who may not change it")
    secret_name = serializers.CharField(help_text="the name of the signing key's secret, never its content")
    events = serializers.ListField(child=serializers.CharField(), help_text="empty: all")
    enabled = serializers.BooleanField()
    last_delivery = LastDeliverySerializer(allow_null=True, help_text="null: nothing was announced yet")

    def get_url(self, webhook: Webhook) -> str:
        return webhook.url if may(self.context["request"], Scope.FLEET_WRITE, "") else url_shown(webhook.url)


class WebhookChanges(Input):
    url = serializers.URLField(required=False, max_length=1000)
    secret_name = serializers.CharField(required=False, max_length=100)
    events = serializers.ListField(child=serializers.ChoiceField(choices=EVENTS), required=False, max_length=20)
    enabled = serializers.BooleanField(required=False)


class WebhookInput(WebhookChanges):
    name = NameField(max_length=63)
    url = serializers.URLField(max_length=1000)
    secret_name = serializers.CharField(max_length=100)
