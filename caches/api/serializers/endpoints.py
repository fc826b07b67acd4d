"""Endpoints and rollouts, and what a document would do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.common import ConditionSerializer, ObjectSerializer
from caches.api.serializers.plans import PlanSerializer
from caches.domain.endpoints.specs import EndpointKind
from caches.domain.gating import GateState, GateType
from caches.domain.rollouts import RolloutState
from caches.models import Rollout
from caches.selectors.endpoints import endpoint_image, endpoint_source
from caches.services.endpoints.asking import Answer
from controlplane.clusters.documents import EntryState, WaitReason
from controlplane.rest.validation import Input
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance
from controlplane.serving.standing import NODE_NOT_READY, PENDING, Standings

KINDS = [*(kind.value for kind in EndpointKind), STATIC_KIND]
STATES = [state.value for state in RolloutState]


class RolloutBriefSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="rollout_id")
    number = serializers.IntegerField(source="rollout_number")
    state = serializers.ChoiceField(source="rollout_state", choices=STATES)
    message = serializers.CharField(source="rollout_message")
    weights = serializers.CharField(source="rollout_source", help_text="where they come from")
    image = serializers.CharField(source="rollout_image")

    def to_representation(self, row: Endpoint) -> dict[str, Any]:
        found: dict[str, Any] = super().to_representation(row)
        return {**found, "weights": endpoint_source(row), "image": endpoint_image(row)}


class EndpointSerializer(ObjectSerializer):
    cluster = serializers.CharField(source="cluster.name")
    namespace = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=KINDS)
    generation = serializers.IntegerField(help_text="of its document")
    state = serializers.SerializerMethodField(
        help_text="as its status says it; Gone once the cluster has it no more; Unknown while its cluster is silent. "
        "Of a StaticEndpoint Ready, Partial, NotReady, Unknown (no router says), DeploymentPending without an address"
    )
    state_detail = serializers.SerializerMethodField(help_text="how it came to that; empty: as its status says")
    unknown_since = serializers.SerializerMethodField(help_text="null: it is known, or nobody ever said")
    last_known = serializers.SerializerMethodField(help_text="what an Unknown one was; null: it is known")
    replicas = serializers.SerializerMethodField(help_text="pods there are")
    conditions = serializers.SerializerMethodField()
    rollout = serializers.SerializerMethodField(help_text="the newest")
    served_version = serializers.CharField(
        allow_null=True, default=None, help_text="of a local fleet's, which has no rollouts: what its engines serve"
    )
    deleting = serializers.SerializerMethodField()
    gone_at = serializers.DateTimeField(allow_null=True, help_text="since when the cluster no longer has it")
    observed_at = serializers.DateTimeField(
        source="heard_at", help_text="until when its cluster was heard of; what changed when is said by its conditions"
    )

    def get_state(self, row: Endpoint) -> str:
        state = standings_of(self).of_endpoint(row).state
        return "" if state == PENDING else state

    def get_state_detail(self, row: Endpoint) -> str:
        return standings_of(self).of_endpoint(row).detail

    def get_unknown_since(self, row: Endpoint) -> datetime | None:
        return standings_of(self).of_endpoint(row).since

    def get_last_known(self, row: Endpoint) -> str | None:
        return standings_of(self).of_endpoint(row).last_known

    def get_replicas(self, row: Endpoint) -> int:
        if row.gone_at is not None:
            return 0
        count = row.said.get("replicas")
        return count if isinstance(count, int) else 0

    def get_deleting(self, row: Endpoint) -> bool:
        return row.deleting_at is not None

    @extend_schema_field(ConditionSerializer(many=True))
    def get_conditions(self, row: Endpoint) -> list[dict[str, Any]]:
        return [ConditionSerializer(condition_of(one)).data for one in conditions_of(row)]

    @extend_schema_field(RolloutBriefSerializer(allow_null=True))
    def get_rollout(self, row: Any) -> dict[str, Any] | None:
        return RolloutBriefSerializer(row).data if row.rollout_id is not None else None


def standings_of(serializer: serializers.BaseSerializer[Any]) -> Standings:
    """One for all rows of an answer: the same moment, and the same few statements."""
    context: dict[str, Any] = serializer.context  # type: ignore[assignment]  # the stubs call it a Mapping
    found: Standings = context.setdefault("standings", Standings(now=timezone.now()))
    return found


def conditions_of(row: Endpoint) -> list[Mapping[str, Any]]:
    """Those that can be read; the status may be anybody's."""
    found = row.said.get("conditions")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def condition_of(one: Mapping[str, Any]) -> dict[str, Any]:
    try:
        since = datetime.fromisoformat(str(one.get("lastTransitionTime")))
    except ValueError:
        since = None
    status = one.get("status")
    return {
        "type": str(one.get("type", "")),
        "status": status if status in ("True", "False") else "Unknown",
        "reason": str(one.get("reason", "")),
        "message": str(one.get("message", "")),
        "last_transition": since if since is not None and since.tzinfo is not None else None,
    }


class InstanceSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    uid = serializers.CharField()
    node = serializers.CharField(source="runs_on", allow_null=True, default=None)
    digest = serializers.CharField()
    ready = serializers.SerializerMethodField(help_text="null: nobody knows now, see state")
    state = serializers.SerializerMethodField(
        help_text="Ready, NotReady, Terminating (it gets no new request), or Unknown while its cluster or its node is "
        "silent"
    )
    unknown_since = serializers.SerializerMethodField(
        help_text="null: it is known, nobody ever said, or its node's agent was heard of a moment ago"
    )
    restart_count = serializers.IntegerField()
    wait_reason = serializers.SerializerMethodField(
        help_text=f"why it does not run what it should: {', '.join((*WaitReason, NODE_NOT_READY))}; empty: it waits "
        "for nothing, or its cluster is silent"
    )
    wait_message = serializers.SerializerMethodField(help_text="the cluster's own words for it, without credentials")
    warm_up = serializers.CharField(
        help_text="ok, or why it serves without having answered the warm-up request; empty while that is not known"
    )

    def get_ready(self, row: Instance) -> bool | None:
        return standings_of(self).of_instance(row).ready

    def get_state(self, row: Instance) -> str:
        return standings_of(self).of_instance(row).state

    def get_unknown_since(self, row: Instance) -> datetime | None:
        return standings_of(self).of_instance(row).since

    def get_wait_reason(self, row: Instance) -> str:
        return standings_of(self).of_instance(row).reason

    def get_wait_message(self, row: Instance) -> str:
        return standings_of(self).of_instance(row).wait_message


class EndpointDetailSerializer(EndpointSerializer):
    instances = InstanceSerializer(many=True, source="instances.all")


class RolloutVersionSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(source="model.name")
    version = serializers.CharField()
    digest = serializers.CharField(source="artifact.digest", allow_null=True, default=None)


class RolloutPreviousSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    number = serializers.IntegerField()
    weights = serializers.CharField(source="source")
    image = serializers.CharField()
    image_digest = serializers.CharField(source="resolved_image.artifact.digest", allow_null=True, default=None)


class RolloutSerializer(ObjectSerializer):
    endpoint_id = serializers.UUIDField()
    cluster = serializers.CharField(source="endpoint.cluster.name")
    namespace = serializers.CharField(source="endpoint.namespace")
    endpoint = serializers.CharField(source="endpoint.name")
    number = serializers.IntegerField()
    state = serializers.ChoiceField(choices=STATES)
    reason = serializers.CharField()
    message = serializers.CharField()
    weights = serializers.CharField(source="shown_source", help_text="where they come from")
    image = serializers.CharField(source="shown_image", help_text="as the document says it, or else its model")
    image_digest = serializers.CharField(
        source="resolved_image.artifact.digest", allow_null=True, default=None, help_text="null while it is not known"
    )
    version = RolloutVersionSerializer(allow_null=True)
    previous = RolloutPreviousSerializer(allow_null=True, help_text="what served when it began")
    previous_number = serializers.IntegerField(source="previous.number", allow_null=True, default=None)
    state_since = serializers.DateTimeField()
    opened_at = serializers.DateTimeField(allow_null=True, help_text="when its gate opened")
    held_until = serializers.DateTimeField(
        allow_null=True, help_text="until when the version before is kept, as far as it is pinned: see `message`"
    )
    held_at = serializers.DateTimeField(
        allow_null=True, help_text="when a person said so; null: the document's seconds"
    )
    held_by = serializers.CharField(help_text="who said so; empty: the document")
    ended_at = serializers.DateTimeField(allow_null=True)
    released_by = serializers.CharField(help_text="who opened its gate by hand")


class RolloutNodeSerializer(serializers.Serializer[Any]):
    """A target node of the weights; those that are not Ready are what a gate waits for."""

    node = serializers.CharField()
    state = serializers.ChoiceField(choices=[state.value for state in EntryState])
    reason = serializers.CharField()
    refused = serializers.BooleanField(help_text="there is no room for it")
    unknown = serializers.BooleanField(help_text="the node has not been heard of lately")


class RolloutGateSerializer(serializers.Serializer[Any]):
    type = serializers.ChoiceField(source="policy.type", choices=[one.value for one in GateType])
    value = serializers.IntegerField(source="policy.value", help_text="nodes, percent or seconds, by type")
    state = serializers.ChoiceField(source="gate.state", choices=[one.value for one in GateState])
    reason = serializers.CharField(source="gate.reason")
    ready = serializers.IntegerField(source="gate.ready")
    required = serializers.IntegerField(source="gate.required")  # type: ignore[assignment]  # the metaclass takes it off
    failed = serializers.IntegerField(source="gate.failed", help_text="nodes that cannot become ready without help")
    unknown = serializers.IntegerField(source="gate.unknown")


class WarmthSerializer(serializers.Serializer[Any]):
    ready = serializers.IntegerField(help_text="target nodes that hold it now")
    targets = serializers.IntegerField()


class RolloutWarmthSerializer(serializers.Serializer[Any]):
    """What going back to this rollout would find; null: it has none such, or it is not known what it was."""

    weights = WarmthSerializer(allow_null=True)
    image = WarmthSerializer(allow_null=True)


class RolloutDetailSerializer(RolloutSerializer):
    nodes = serializers.SerializerMethodField()
    gate = serializers.SerializerMethodField(help_text="null: it waits for no node, or it has ended")
    warm = serializers.SerializerMethodField()

    @extend_schema_field(RolloutNodeSerializer(many=True))
    def get_nodes(self, row: Rollout) -> list[dict[str, Any]]:
        return [RolloutNodeSerializer(target).data for target in self.context["nodes"]]

    @extend_schema_field(RolloutGateSerializer(allow_null=True))
    def get_gate(self, row: Rollout) -> Any:
        gate = self.context["gate"]
        return RolloutGateSerializer(gate).data if gate is not None else None

    @extend_schema_field(RolloutWarmthSerializer)
    def get_warm(self, row: Rollout) -> Any:
        return RolloutWarmthSerializer(self.context["warm"]).data


class EndpointInput(Input):
    cluster = serializers.CharField(max_length=63)
    manifest = serializers.CharField(
        max_length=1024 * 1024,
        trim_whitespace=False,
        help_text="one InferenceEndpointConfig or JumpStartModel, YAML or JSON",
    )


class RolloutHoldInput(Input):
    seconds = serializers.IntegerField(help_text="from now")


class EndpointCacheInput(Input):
    """Only what is sent is changed."""

    weights = serializers.BooleanField(required=False)
    image = serializers.BooleanField(required=False)
    host_path = serializers.CharField(required=False, max_length=255)


class IgnoredSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    why = serializers.CharField()


class ObstacleSerializer(serializers.Serializer[Any]):
    what = serializers.ChoiceField(
        choices=["endpoint", "weights", "image"],
        help_text="endpoint: nothing would be served; otherwise what pods would have to do without or wait for",
    )
    why = serializers.CharField(help_text="with what to do about it")


class FindingSerializer(serializers.Serializer[Any]):
    about = serializers.ChoiceField(
        choices=["kinds", "object", "deployment", "service", "image", "source", "worker", "room"]
    )
    answer = serializers.ChoiceField(
        choices=[one.value for one in Answer], help_text="Unknown: nobody may say, or did in time"
    )
    said = serializers.CharField()


class EndpointPreviewSerializer(serializers.Serializer[Any]):
    """What a document would do: nothing was written; cluster, registry and source were asked, for a few seconds."""

    namespace = serializers.CharField(source="reading.spec.namespace")
    name = serializers.CharField(source="reading.spec.name")
    kind = serializers.CharField(source="reading.spec.kind")
    weights = serializers.CharField(source="reading.spec.source.text", help_text="where they come from")
    digest = serializers.CharField(help_text="of the weights; empty while they are not registered")
    image = serializers.CharField(source="reading.spec.image")
    pools = serializers.SerializerMethodField(help_text="whose nodes would be warmed")
    host_path = serializers.CharField(source="targets.host_path")
    not_warmed = serializers.CharField(source="targets.why", help_text="why nothing would be warmed; empty: it would")
    ignored = IgnoredSerializer(many=True, source="reading.ignored")
    obstacles = ObstacleSerializer(many=True, help_text="what its first round would refuse")
    findings = FindingSerializer(many=True, help_text="what cluster, registry and source said, and the room there is")
    plan = serializers.SerializerMethodField()

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_pools(self, row: Any) -> list[str]:
        return [pool.full_name for pool in row.targets.pools]

    @extend_schema_field(PlanSerializer(allow_null=True))
    def get_plan(self, row: Any) -> Any:
        return self.context["plan"]
