"""Filters that REST and the pages share. Each is named like the field it reads."""

from __future__ import annotations

from django_filters import CharFilter, ChoiceFilter, FilterSet, UUIDFilter

from controlplane.serving.models import Instance
from routing.domain.policies import RoutingStrategy
from routing.models import RouterProcess, RoutingPolicy


class PolicyFilter(FilterSet):  # type: ignore[misc]  # django-filter ships no types
    endpoint_id = UUIDFilter(field_name="variant__endpoint_id")
    cluster = CharFilter(field_name="variant__endpoint__cluster__name")
    namespace = CharFilter(field_name="variant__endpoint__namespace")
    endpoint = CharFilter(field_name="variant__endpoint__name")
    variant = CharFilter(field_name="variant__name")
    strategy = ChoiceFilter(choices=[(one.value, one.value) for one in RoutingStrategy])

    class Meta:
        model = RoutingPolicy
        fields: list[str] = []


class InstanceFilter(FilterSet):  # type: ignore[misc]
    endpoint_id = UUIDFilter()
    cluster = CharFilter(field_name="endpoint__cluster__name")
    endpoint = CharFilter(field_name="endpoint__name")
    uid = CharFilter()
    digest = CharFilter()

    class Meta:
        model = Instance
        fields: list[str] = []


class RouterFilter(FilterSet):  # type: ignore[misc]
    name = CharFilter()
    host = CharFilter()

    class Meta:
        model = RouterProcess
        fields: list[str] = []
