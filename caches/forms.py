"""What people type: a version to register, a pin, a token. Fields only; services decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.domain.text import plural
from caches.models import GateType, ModelVersion, SourceConnection, VersionState
from caches.selectors.nodes import Targets, clusters_list
from caches.services.pins import PinSpec
from controlplane.accounts.models import Scope
from controlplane.clusters.models import Cluster, ClusterType, NodePool

_LIFETIMES = [("1", "1 day"), ("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year")]


class HearthForm(forms.Form):
    """Says in ARIA what is wrong with a field, and takes field errors from services."""

    FIELDS: Mapping[str, str] = {}  # where a service's field is called otherwise here

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        for name in self.errors:
            if name in self.fields:
                self.fields[name].widget.attrs["aria-invalid"] = "true"
        return cleaned

    def take(self, errors: Sequence[Any], detail: str) -> None:
        """Show a service's FieldErrors at their fields, what names no field of this form above them."""
        placed = False
        for error in errors:
            first, _, last = error.field.partition(".")
            names = (self.FIELDS.get(error.field, ""), last.rpartition(".")[2], first)
            target = next((name for name in names if name in self.fields), None)
            self.add_error(target, error.detail)
            placed = placed or target is not None
            if target:
                self.fields[target].widget.attrs["aria-invalid"] = "true"
        if not errors or (not placed and not self.non_field_errors()):
            self.add_error(None, detail)


class RegisterForm(HearthForm):
    model = forms.CharField(
        max_length=120, help_text="Letters, digits, - and _. It comes into being with its first version."
    )
    version = forms.CharField(max_length=120, help_text="What a pipeline would call it, for example v3 or 2026-09-01.")
    connection = forms.ModelChoiceField(
        SourceConnection.objects.filter(token=None), empty_label="Choose where it is stored"
    )
    uri = forms.CharField(
        max_length=1500,
        label="Source",
        help_text="s3://bucket/prefix, file:///folder of an allowed root, hf://organisation/name@revision, "
        "or jumpstart://model@version.",
    )
    allow_patterns = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        label="Only these files",
        help_text="One pattern a line, for example *.safetensors. Empty: all files.",
    )
    ignore_patterns = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        label="Not these files",
        help_text="For example *.bin.",
    )
    accept_eula = forms.BooleanField(
        required=False,
        label="I accept the model's terms",
        help_text="Only where a source asks for it. Who accepted which text is recorded.",
    )

    def patterns(self, name: str) -> tuple[str, ...]:
        return tuple(line.strip() for line in self.cleaned_data[name].splitlines() if line.strip())


class ImageForm(HearthForm):
    reference = forms.CharField(
        max_length=300,
        help_text="As in a manifest: [registry/]repository[:tag]. Its digest is looked up once and kept.",
    )
    pull_secret = forms.CharField(
        max_length=253,
        required=False,
        label="Pull secret",
        help_text="The name of a secret with which nodes pull it. Empty: without credentials.",
    )


class EndpointForm(HearthForm):
    cluster = forms.ModelChoiceField(Cluster.objects.none(), to_field_name="name", empty_label="Choose a cluster")
    manifest = forms.CharField(
        max_length=1024 * 1024,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 20, "spellcheck": "false"}),
        help_text="One document as kubectl takes it, YAML or JSON.",
    )

    def __init__(self, *args: Any, targets: Targets = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        clusters, field = clusters_list(targets=targets), self.fields["cluster"]
        field.queryset = clusters  # type: ignore[attr-defined]
        # The local fleet takes no document: it is not offered, and says so itself to whoever names it.
        offered = [(one.name, str(one)) for one in clusters if one.type != ClusterType.LOCAL]
        field.widget.choices = [("", "Choose a cluster"), *offered]
        if len(offered) == 1:
            field.initial = offered[0][0]
        if not offered:
            field.help_text = "None here takes documents. On the local fleet, manage.py fleet serve has a model served."


class RolloutHoldForm(HearthForm):
    """How long from now; ``longest`` in seconds."""

    UNITS = (("hours", "hours"), ("days", "days"), ("minutes", "minutes"))
    FIELDS = {"seconds": "amount"}

    amount = forms.IntegerField(min_value=1, initial=4, label="Keep it for", help_text="From now on.")
    unit = forms.ChoiceField(choices=UNITS, initial="hours")

    def __init__(self, *args: Any, longest: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.longest = longest

    @property
    def seconds(self) -> int:
        return int(self.cleaned_data["length"].total_seconds())

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        amount, unit = cleaned.get("amount"), cleaned.get("unit")
        if amount is not None and unit:
            if amount > self.longest or (length := timedelta(**{unit: amount})).total_seconds() > self.longest:
                self.add_error("amount", f"It is kept for {plural(self.longest // 86400, 'day')} at most.")
            else:
                cleaned["length"] = length
        return cleaned


class PinForm(HearthForm):
    version = forms.ModelChoiceField(ModelVersion.objects.none(), empty_label="Choose a version", label="Model version")
    pools = forms.ModelMultipleChoiceField(NodePool.objects.none(), widget=forms.CheckboxSelectMultiple)
    priority = forms.IntegerField(
        min_value=0,
        max_value=1000,
        initial=500,
        help_text="0 to 1000. Where there is no room for both, the higher one stays.",
    )
    placement_type = forms.ChoiceField(
        choices=[("All", "every node"), ("Count", "a number of nodes"), ("Percent", "a share of the nodes")],
        initial="All",
        label="On",
        required=False,
    )
    placement_value = forms.IntegerField(
        min_value=1, max_value=100_000, initial=100, required=False, label="Nodes or percent"
    )
    spread_label = forms.CharField(
        max_length=200, required=False, label="Spread over label", help_text="For example topology.kubernetes.io/zone."
    )
    gate_type = forms.ChoiceField(
        choices=[
            ("All", "every copy is ready"),
            ("Count", "so many are ready"),
            ("Percent", "so many percent are ready"),
            ("Timeout", "so many seconds passed"),
        ],
        initial="All",
        label="Succeeds when",
        required=False,
    )
    gate_value = forms.IntegerField(
        min_value=1, max_value=7 * 86400, initial=100, required=False, label="Copies, percent or seconds"
    )
    retention_hours = forms.IntegerField(
        min_value=0, max_value=366 * 24, initial=0, required=False, label="Keep after unpinning (hours)"
    )
    needed_at = forms.DateTimeField(
        required=False,
        label="Needed at (UTC)",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text="A known launch goes before pins of the same priority.",
    )
    window_start = forms.TimeField(
        required=False, label="Fetch only from", widget=forms.TimeInput(attrs={"type": "time"})
    )
    window_end = forms.TimeField(required=False, label="until", widget=forms.TimeInput(attrs={"type": "time"}))
    window_time_zone = forms.CharField(max_length=64, required=False, initial="UTC", label="in time zone")

    FIELDS: Mapping[str, str] = {
        "placement": "placement_value",
        "gate": "gate_value",
        "retention": "retention_hours",
        "window": "window_end",
        "window.end": "window_end",
        "window.start": "window_start",
        "window.time_zone": "window_time_zone",
    }
    ADVANCED = (
        "placement_type",
        "placement_value",
        "spread_label",
        "gate_type",
        "gate_value",
        "retention_hours",
        "needed_at",
        "window_start",
        "window_end",
        "window_time_zone",
    )

    def __init__(self, *args: Any, pools: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        available = ModelVersion.objects.filter(state=VersionState.AVAILABLE).select_related("model")
        self.fields["version"].queryset = available.order_by("model__name", "-created_at")  # type: ignore[attr-defined]
        self.fields["version"].label_from_instance = lambda version: version.full_name  # type: ignore[attr-defined]
        self.fields["pools"].queryset = pools  # type: ignore[attr-defined]
        self.fields["pools"].label_from_instance = lambda pool: pool.full_name  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        start, end = cleaned.get("window_start"), cleaned.get("window_end")
        if (start is None) != (end is None):
            self.add_error("window_end" if end is None else "window_start", "A window needs both times.")
        for what, counted in (("placement", ("Count",)), ("gate", ("Count", "Timeout"))):
            value = f"{what}_value"
            if cleaned.get(f"{what}_type") in counted and cleaned.get(value) is None and value not in self.errors:
                self.add_error(value, "Say how many.")
        return cleaned

    def spec(self) -> PinSpec:
        """The PinSpec of a valid form."""
        data = self.cleaned_data
        window = None
        if data["window_start"] is not None and data["window_end"] is not None:
            window = DailyWindow(data["window_start"], data["window_end"], data["window_time_zone"] or "UTC")
        return PinSpec(
            version_id=data["version"].pk,
            pool_ids=tuple(sorted((pool.pk for pool in data["pools"]), key=UUID.__str__)),
            priority=data["priority"],
            placement=Placement(
                PlacementType(data["placement_type"] or "All"), data["placement_value"] or 100, data["spread_label"]
            ),
            window=window,
            needed_at=data["needed_at"],
            retention_seconds=(data["retention_hours"] or 0) * 3600,
            gate_type=GateType(data["gate_type"] or "All"),
            gate_value=data["gate_value"] or 100,
        )


class PriorityForm(HearthForm):
    priority = forms.IntegerField(min_value=0, max_value=1000)


class TokenForm(HearthForm):
    name = forms.CharField(max_length=100, help_text="What will use it, for example release-pipeline.")
    scopes = forms.MultipleChoiceField(choices=Scope.choices, widget=forms.CheckboxSelectMultiple, initial=["read"])
    days = forms.ChoiceField(choices=_LIFETIMES, initial="30", label="Valid for")
    targets = forms.CharField(
        required=False,
        label="Only for",
        help_text="cluster or cluster.pool, separated by spaces. Empty: all that you may reach.",
    )
    addresses = forms.CharField(
        required=False,
        label="Only from",
        help_text="Addresses or networks such as 10.0.0.0/8, separated by spaces. Empty: anywhere.",
    )

    def __init__(self, *args: Any, scopes: Sequence[Scope], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["scopes"].choices = [(scope.value, scope.value) for scope in scopes]  # type: ignore[attr-defined]
