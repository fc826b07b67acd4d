"""Policies, instances and routers as people send and read them. The managed API's names are kept as they are."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.rest.validation import Input
from routing.api.base import RoutedObject
from routing.domain.extensions import HEADER_CHARACTERS, PARAMETERS, Parameter
from routing.domain.policies import PREFIX_LENGTHS, SPELLINGS, THRESHOLDS, RoutingStrategy

STRATEGIES = [strategy.value for strategy in RoutingStrategy]


class PrefixAwareInput(Input):
    """Both are needed with PREFIX_AWARE, and neither may be there without it."""

    PrefixLength = serializers.IntegerField(
        min_value=PREFIX_LENGTHS[0],
        max_value=PREFIX_LENGTHS[1],
        help_text="characters of message text, bytes of a raw body: what all requests of a group begin with, and more",
    )
    ConcurrencyThreshold = serializers.IntegerField(
        min_value=THRESHOLDS[0],
        max_value=THRESHOLDS[1],
        help_text="requests in flight on an instance at which others get what would be next",
    )


class ExtensionsInput(Input):
    """Hearth's own; each may be left out."""

    def get_fields(self) -> dict[str, Any]:
        return {name: _field(one) for name, one in PARAMETERS.items()}


def _field(one: Parameter) -> Any:
    told: dict[str, Any] = {"required": False, "help_text": one.said}
    if one.kind is bool:
        return serializers.BooleanField(**told)
    if one.kind is str:
        return serializers.CharField(**told, allow_blank=True, max_length=HEADER_CHARACTERS)
    number = serializers.FloatField if one.kind is float else serializers.IntegerField
    return number(**told, min_value=one.least, max_value=one.most)


class RoutingPolicyInput(Input):
    RoutingStrategy = serializers.ChoiceField(choices=STRATEGIES, required=False)
    PrefixAwareRoutingConfig = PrefixAwareInput(required=False)
    RoutingExtensions = ExtensionsInput(required=False)
    routingStrategy = serializers.ChoiceField(
        choices=list(SPELLINGS), required=False, help_text="HyperPod's spelling, instead of RoutingStrategy"
    )


class PolicyDocumentSerializer(serializers.Serializer[Any]):
    """A policy as routers run it: every extension is spelled out."""

    RoutingStrategy = serializers.ChoiceField(choices=STRATEGIES)
    PrefixAwareRoutingConfig = PrefixAwareInput(required=False)
    RoutingExtensions = ExtensionsInput()


class PolicyInForceSerializer(serializers.Serializer[Any]):
    """``version`` 0: nobody has set one here; it comes from the endpoint's document, or is the default."""

    endpoint_id = serializers.UUIDField()
    variant = serializers.CharField()
    version = serializers.IntegerField()
    policy = serializers.SerializerMethodField()
    notes = serializers.ListField(child=serializers.CharField())
    set_by = serializers.CharField(help_text="empty for version 0")
    updated_at = serializers.DateTimeField(allow_null=True, help_text="since when; null for version 0")
    published_version = serializers.IntegerField(allow_null=True, help_text="of the routers' configuration")

    @extend_schema_field(PolicyDocumentSerializer)
    def get_policy(self, shown: Any) -> Any:
        return shown["policy"]


class PolicyPreviewSerializer(serializers.Serializer[Any]):
    """What setting it would do: nothing was written."""

    before = PolicyDocumentSerializer()
    after = PolicyDocumentSerializer()
    changes = serializers.BooleanField(help_text="false: the same is in force already")
    differences = serializers.ListField(
        child=serializers.CharField(), help_text="each parameter that would be another one, as name: old → new"
    )
    notes = serializers.ListField(child=serializers.CharField())


class RoutingPolicySerializer(RoutedObject):
    endpoint_id = serializers.UUIDField(source="variant.endpoint_id")
    cluster = serializers.CharField(source="variant.endpoint.cluster.name")
    namespace = serializers.CharField(source="variant.endpoint.namespace")
    endpoint = serializers.CharField(source="variant.endpoint.name")
    variant = serializers.CharField(source="variant.name")
    version = serializers.IntegerField()
    strategy = serializers.ChoiceField(choices=STRATEGIES)
    policy = serializers.SerializerMethodField()
    notes = serializers.ListField(child=serializers.CharField())
    set_by = serializers.CharField()

    @extend_schema_field(PolicyDocumentSerializer)
    def get_policy(self, row: Any) -> Any:
        return row.document


class RoutedInstanceSerializer(RoutedObject):
    """One copy that may get requests."""

    endpoint_id = serializers.UUIDField()
    cluster = serializers.CharField(source="endpoint.cluster.name")
    endpoint = serializers.CharField(source="endpoint.name")
    name = serializers.CharField()
    uid = serializers.CharField(help_text="by which routers know it")
    node = serializers.CharField(
        source="runs_on", allow_null=True, default=None, help_text="null: none, or one of a pool that you may not see"
    )
    digest = serializers.CharField(help_text="of what it serves")
    address = serializers.CharField(help_text="empty while it has none, or where its node may not be seen")
    ready = serializers.BooleanField(allow_null=True, help_text="null: nobody knows now, see state")
    state = serializers.ChoiceField(
        source="standing.state",
        choices=["Ready", "NotReady", "Terminating", "Unknown"],
        help_text="Terminating: it gets no new request; Unknown: its cluster, or of an address every router, is silent",
    )
    unknown_since = serializers.DateTimeField(
        source="standing.since", allow_null=True, help_text="null: it is known, or nobody ever said"
    )
    last_known = serializers.CharField(
        source="standing.last_known", allow_null=True, help_text="what an Unknown one was; null: it is known"
    )
    wait_reason = serializers.CharField(
        source="standing.reason",
        help_text="why its pod does not run what it should; empty: no wait, or its cluster is silent",
    )
    wait_message = serializers.CharField(source="standing.wait_message", help_text="the cluster's own words for it")
    in_flight = serializers.IntegerField(allow_null=True, help_text="over all routers; null: no router says")
    ejected_by = serializers.IntegerField(
        allow_null=True, help_text="routers that leave it out for its failures; null: no router says"
    )
    observed_at = serializers.DateTimeField()


class RouterSerializer(RoutedObject):
    """One router process."""

    name = serializers.CharField(help_text="drawn when it starts")
    host = serializers.CharField()
    address = serializers.CharField(help_text="where it serves")
    config_version = serializers.IntegerField()
    published_version = serializers.IntegerField(allow_null=True, help_text="that it should run")
    current = serializers.BooleanField(allow_null=True, help_text="whether it runs that one; null: not heard of lately")
    in_flight = serializers.IntegerField(allow_null=True, help_text="null: not heard of lately")
    started_at = serializers.DateTimeField()
    seen_at = serializers.DateTimeField()


class TextField(serializers.CharField):
    """Text and nothing that could be written as text: a number here is a body that somebody forgot to quote."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)
