"""Registering and adopting clusters."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from caches.api.serializers.common import NameField
from controlplane.clusters.models import ClusterType
from controlplane.rest.validation import Input


class ClusterInput(Input):
    name = NameField(max_length=63)
    type = serializers.ChoiceField(choices=[ClusterType.KUBERNETES.value], default=ClusterType.KUBERNETES.value)
    address = serializers.CharField(
        max_length=500,
        help_text="in-cluster, or <kubeconfig>[#<context>]: an absolute path as Hearth's own processes see it",
    )


class NotAdoptedSerializer(serializers.Serializer[Any]):
    digest = serializers.CharField()
    name = serializers.CharField(help_text="model and version, '' where nobody said them")
    reason = serializers.CharField()
    next_step = serializers.CharField()
    nodes = serializers.ListField(child=serializers.CharField(), help_text="that hold it or are told to")


class OrphanTreeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="the folder's name in the stores")
    bytes = serializers.IntegerField(help_text="over all nodes")
    nodes = serializers.ListField(child=serializers.CharField())


class AdoptionSerializer(serializers.Serializer[Any]):
    cluster = serializers.CharField()
    dry_run = serializers.BooleanField()
    connections = serializers.ListField(child=serializers.CharField(), help_text="made, without credentials")
    versions = serializers.ListField(child=serializers.CharField(), help_text="made Available: model and version")
    artifacts = serializers.ListField(child=serializers.CharField(), help_text="digests that were not known before")
    known = serializers.IntegerField(help_text="published versions that were known before")
    copies = serializers.IntegerField(help_text="copies on nodes that are known now and were not before")
    not_adopted = NotAdoptedSerializer(many=True)
    orphans = OrphanTreeSerializer(many=True)
