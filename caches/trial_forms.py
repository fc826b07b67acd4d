"""What people type to start a controlled trial. Fields only; the service decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from caches.domain.launches.trials import MOST_RUNS
from caches.forms import HearthForm
from caches.models import ModelVersion
from caches.selectors.launches.trials import versions_to_try
from caches.services.launches.trials import DEFAULT_RUNS, DEFAULT_TARGET, MOST_TARGET
from controlplane.clusters.models import Cluster


class _VersionField(forms.ModelChoiceField):  # type: ignore[type-arg]  # the stubs alone have them
    def label_from_instance(self, obj: Any) -> str:
        name: str = obj.full_name
        return name


class TrialForm(HearthForm):
    version = _VersionField(
        ModelVersion.objects.none(),
        empty_label="Choose a version",
        help_text="The local fleet's engines serve models that are one file of type GGUF.",
    )
    cluster = forms.ModelChoiceField(
        Cluster.objects.none(),
        to_field_name="name",
        empty_label=None,
        help_text="A local fleet: the trial makes an endpoint and nodes of its own there, and takes them away again.",
    )
    runs = forms.IntegerField(
        min_value=1,
        max_value=MOST_RUNS,
        initial=DEFAULT_RUNS,
        label="Launches of each kind",
        help_text=f"Warm restarts, cold pods and pods on new nodes; {MOST_RUNS} at most. From 20 on there is a p95.",
    )
    target_seconds = forms.FloatField(
        min_value=0.001,
        max_value=MOST_TARGET,
        initial=DEFAULT_TARGET,
        label="Target, in seconds",
        help_text="Ready within so long is good enough: the result says which share was.",
    )
    seed = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        help_text="Of the random order. The same seed gives the same order; empty takes a new one.",
    )

    def __init__(self, *args: Any, clusters: Sequence[Cluster], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["version"].queryset = versions_to_try()  # type: ignore[attr-defined]  # a choice of models
        names = [one.pk for one in clusters]
        self.fields["cluster"].queryset = Cluster.objects.filter(pk__in=names)  # type: ignore[attr-defined]
