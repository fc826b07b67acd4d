"""Filters that REST and the pages share. Each is named like the field it reads."""

from __future__ import annotations

from datetime import UTC
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django_filters import (
    BooleanFilter,
    CharFilter,
    ChoiceFilter,
    FilterSet,
    IsoDateTimeFilter,
    MultipleChoiceFilter,
    UUIDFilter,
)
from django_filters.fields import IsoDateTimeField

from caches.domain.endpoints.specs import EndpointKind
from caches.domain.launches.words import Cached, EventClass, LaunchState, Trials, is_trial
from caches.domain.rollouts import RolloutState
from caches.models import (
    CacheEntry,
    DriftState,
    Image,
    ImageState,
    Launch,
    Model,
    ModelVersion,
    Pin,
    Rollout,
    SourceConnection,
    VersionState,
    Webhook,
)
from caches.models.launches import OF_TRIALS
from caches.selectors.entries import SHOWN_STATES
from caches.selectors.trials import of_a_trial
from controlplane.accounts.models import Token
from controlplane.audit.models import AuditEvent, Via
from controlplane.clusters.documents import Action, ArtifactKind, NodeState, Reason, SourceType
from controlplane.clusters.models import Cluster, ClusterType, Node, NodePool
from controlplane.operations.models import Operation, OperationKind, OperationState
from controlplane.serving.models import STATIC_KIND, Endpoint


def _choices(names: Any) -> list[tuple[str, str]]:
    return [(str(name), str(name)) for name in names]


def pool_is(full_name: str, *, cluster: str, pool: str) -> Q:
    """``cluster.pool``, or a pool's name alone in whatever cluster."""
    cluster_name, dot, pool_name = full_name.partition(".")
    return Q(**{cluster: cluster_name, pool: pool_name}) if dot else Q(**{pool: full_name})


_VERSION_LOOKUPS = {"model": "model__name", "version": "version"}


class Filters(FilterSet):  # type: ignore[misc]  # django-filter ships no types
    """Base of every filter set."""


class MomentField(IsoDateTimeField):  # type: ignore[misc]
    """A time with any offset that ISO 8601 allows, as UTC: PostgreSQL refuses offsets beyond 16 hours."""

    def clean(self, value: Any) -> Any:
        moment = super().clean(value)
        try:
            return moment and moment.astimezone(UTC)
        except (OverflowError, ValueError):
            raise ValidationError("Out of range.", code="overflow") from None


class MomentFilter(IsoDateTimeFilter):  # type: ignore[misc]
    field_class = MomentField


class PoolFilter(CharFilter):  # type: ignore[misc]
    """Accepts ``cluster.pool`` or a bare pool name; ``prefix`` leads from the row to its pool."""

    def __init__(self, *, prefix: str, cluster: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prefix, self.cluster = prefix, cluster

    def filter(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        if not value:
            return rows
        return rows.filter(pool_is(value, cluster=self.cluster, pool=f"{self.prefix}name"))


class FlagField(forms.NullBooleanField):
    """``true`` or ``false``; the framework's field takes any other word for no filter at all."""

    widget = forms.TextInput  # hands on the word itself

    def to_python(self, value: Any) -> bool | None:  # type: ignore[override]  # None: not asked for
        words = {"true": True, "false": False}
        if value not in (None, "") and str(value).lower() not in words:
            raise ValidationError("Must be true or false.", code="invalid")
        return words.get(str(value).lower())


class FlagFilter(BooleanFilter):  # type: ignore[misc]
    field_class = FlagField


class ConnectionFilter(Filters):
    name = CharFilter()
    type = ChoiceFilter(choices=_choices(SourceType))
    state = CharFilter()

    class Meta:
        model = SourceConnection
        fields: list[str] = []


class ClusterFilter(Filters):
    name = CharFilter()
    type = ChoiceFilter(choices=ClusterType.choices)

    class Meta:
        model = Cluster
        fields: list[str] = []


class NodePoolFilter(Filters):
    cluster = CharFilter(field_name="cluster__name")
    name = PoolFilter(prefix="", cluster="cluster__name")

    class Meta:
        model = NodePool
        fields: list[str] = []


class NodeFilter(Filters):
    """Nodes that are gone for good are left out unless they are asked for by ``state`` or ``uid``."""

    cluster = CharFilter(field_name="cluster__name")
    pool = PoolFilter(prefix="pool__", cluster="cluster__name")
    name = CharFilter()
    uid = CharFilter()
    state = MultipleChoiceFilter(field_name="shown_state", choices=_choices(NodeState))

    class Meta:
        model = Node
        fields: list[str] = []

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().filter_queryset(queryset)
        asked = self.form.cleaned_data.get("state") or self.form.cleaned_data.get("uid")
        return rows if asked else rows.filter(lost_at__isnull=True)


class ModelFilter(Filters):
    name = CharFilter()
    search = CharFilter(field_name="name", lookup_expr="icontains")

    class Meta:
        model = Model
        fields: list[str] = []


class VersionFilter(Filters):
    model = CharFilter(field_name="model__name")
    version = CharFilter()
    state = ChoiceFilter(choices=VersionState.choices)
    drift = ChoiceFilter(choices=DriftState.choices)
    connection = CharFilter(field_name="connection__name")
    digest = CharFilter(field_name="artifact__digest")

    class Meta:
        model = ModelVersion
        fields: list[str] = []


class ImageFilter(Filters):
    reference = CharFilter()
    repository = CharFilter()
    digest = CharFilter(field_name="artifact__digest")
    state = ChoiceFilter(choices=ImageState.choices)
    moved = FlagFilter(method="by_mark")
    revoked = FlagFilter(method="by_mark")
    search = CharFilter(field_name="reference", lookup_expr="icontains")

    class Meta:
        model = Image
        fields: list[str] = []

    def by_mark(self, rows: QuerySet[Image], name: str, value: bool) -> QuerySet[Image]:
        marked = ~Q(moved_to="") if name == "moved" else Q(revoked_at__isnull=False)
        return rows.filter(marked) if value else rows.exclude(marked)


class EndpointFilter(Filters):
    """Endpoints that trials made and took away again are left out unless their name is asked for."""

    cluster = CharFilter(field_name="cluster__name")
    namespace = CharFilter()
    name = CharFilter()
    kind = ChoiceFilter(choices=_choices([*EndpointKind, STATIC_KIND]))

    class Meta:
        model = Endpoint
        fields: list[str] = []

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().filter_queryset(queryset)
        if self.form.cleaned_data.get("name"):
            return rows
        return rows.exclude(of_a_trial(), gone_at__isnull=False)


class RolloutFilter(Filters):
    """``endpoint`` is a name, namespace/name as pages show it, or an id."""

    cluster = CharFilter(field_name="endpoint__cluster__name")
    namespace = CharFilter(field_name="endpoint__namespace")
    endpoint = CharFilter(method="by_endpoint")
    endpoint_id = UUIDFilter()
    state = ChoiceFilter(choices=_choices(RolloutState))

    class Meta:
        model = Rollout
        fields: list[str] = []

    def by_endpoint(self, rows: QuerySet[Rollout], name: str, value: str) -> QuerySet[Rollout]:
        namespace, slash, last = value.rpartition("/")
        if slash:
            return rows.filter(endpoint__namespace=namespace, endpoint__name=last)
        try:
            return rows.filter(Q(endpoint__name=value) | Q(endpoint=UUID(value)))
        except ValueError:
            return rows.filter(endpoint__name=value)


class PinFilter(Filters):
    model = CharFilter(field_name="version__model__name")
    version = CharFilter(field_name="version__version")
    pool = CharFilter(method="by_pool")
    suspended = FlagFilter()

    class Meta:
        model = Pin
        fields: list[str] = []

    def by_pool(self, rows: QuerySet[Pin], name: str, value: str) -> QuerySet[Pin]:
        named = Pin.objects.filter(pool_is(value, cluster="pools__cluster__name", pool="pools__name"))
        return rows.filter(pk__in=named.values("pk"))


class EntryFilter(Filters):
    """Entries of nodes that are gone are left out unless state=Lost is asked for."""

    one_node = False

    cluster = CharFilter(field_name="node__cluster__name")
    pool = PoolFilter(prefix="node__pool__", cluster="node__cluster__name")
    node = CharFilter(field_name="node__name")
    node_id = UUIDFilter(field_name="node_id")
    model = CharFilter(method="by_version")
    version = CharFilter(method="by_version")
    digest = CharFilter(field_name="artifact__digest")
    kind = ChoiceFilter(field_name="artifact__kind", choices=_choices(ArtifactKind))
    desired = ChoiceFilter(choices=_choices(Action))
    state = MultipleChoiceFilter(field_name="shown_state", choices=_choices(SHOWN_STATES))
    reason = MultipleChoiceFilter(choices=_choices(Reason))

    class Meta:
        model = CacheEntry
        fields: list[str] = []

    def by_version(self, rows: QuerySet[CacheEntry], name: str, value: str) -> QuerySet[CacheEntry]:
        # Both names together are one version, not a model of one and a version of another that share the bytes.
        asked = self.form.cleaned_data
        given = {lookup: asked[key] for key, lookup in _VERSION_LOOKUPS.items() if asked.get(key)}
        return rows.filter(artifact__in=ModelVersion.objects.filter(**given).values("artifact"))

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().filter_queryset(queryset)
        asked = self.form.cleaned_data.get("state") or self.form.cleaned_data.get("node_id")
        return rows if asked or self.one_node else rows.filter(node__lost_at__isnull=True)


class NodeEntryFilter(EntryFilter):
    """Entries of one node, which was asked for by its address even if it is gone."""

    one_node = True


class OperationFilter(Filters):
    kind = MultipleChoiceFilter(choices=OperationKind.choices)
    state = MultipleChoiceFilter(choices=OperationState.choices)
    subject_type = CharFilter()
    subject_id = CharFilter()
    started_by = CharFilter()
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Operation
        fields: list[str] = []


class AuditFilter(Filters):
    actor = CharFilter()
    action = CharFilter()
    object_type = CharFilter()
    object_id = CharFilter()
    object_name = CharFilter(lookup_expr="icontains")
    via = ChoiceFilter(choices=Via.choices)
    request_id = CharFilter()
    operation_id = UUIDFilter()
    after = MomentFilter(field_name="at", lookup_expr="gte")
    before = MomentFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = AuditEvent
        fields: list[str] = []


class LaunchFilter(Filters):
    cluster = CharFilter(field_name="cluster__name")
    pool = CharFilter(method="by_pool")
    node = CharFilter(field_name="node_name")
    pod_uid = CharFilter()
    endpoint = CharFilter(field_name="endpoint_name")
    version = CharFilter(field_name="version_name")
    digest = CharFilter()
    state = MultipleChoiceFilter(choices=_choices(LaunchState))
    event_class = MultipleChoiceFilter(choices=_choices(EventClass))
    weights = MultipleChoiceFilter(choices=_choices(Cached))
    image = MultipleChoiceFilter(choices=_choices(Cached))
    trial = ChoiceFilter(
        choices=_choices(Trials),
        method="by_trial",
        help_text="launches that trials provoked: Without (unless a trial's endpoint or a pod is named), With or Only",
    )
    began_after = MomentFilter(field_name="began_at", lookup_expr="gte")
    began_before = MomentFilter(field_name="began_at", lookup_expr="lt")

    class Meta:
        model = Launch
        fields: list[str] = []

    def by_pool(self, rows: QuerySet[Launch], name: str, value: str) -> QuerySet[Launch]:
        return rows.filter(pool_is(value, cluster="cluster__name", pool="pool_name"))

    def filter_queryset(self, queryset: QuerySet[Launch]) -> QuerySet[Launch]:
        """Without what trials provoked, as pages and statistics have it, unless it is asked for by its name."""
        rows: QuerySet[Launch] = super().filter_queryset(queryset)
        asked = self.form.cleaned_data
        if asked.get("trial") or asked.get("pod_uid") or is_trial(asked.get("endpoint", "")):
            return rows
        return self.by_trial(rows, "trial", Trials.WITHOUT)

    def by_trial(self, rows: QuerySet[Launch], name: str, value: str) -> QuerySet[Launch]:
        of_trials = {Trials.WITHOUT: ~OF_TRIALS, Trials.WITH: Q(), Trials.ONLY: OF_TRIALS}
        return rows.filter(of_trials[Trials(value)])


class TokenFilter(Filters):
    name = CharFilter()
    owner = CharFilter(field_name="user__username")

    class Meta:
        model = Token
        fields: list[str] = []


class WebhookFilter(Filters):
    name = CharFilter()
    enabled = FlagFilter()

    class Meta:
        model = Webhook
        fields: list[str] = []
