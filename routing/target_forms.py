"""What people fill in about who serves: addresses, and shares of variants. Fields only; the services decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from caches.selectors.nodes import clusters_list
from caches.selectors.trials import of_a_trial
from controlplane.clusters.models import Cluster
from controlplane.errors import FieldError
from controlplane.serving.models import Endpoint
from routing.domain.addresses import DEFAULT_HEALTH_PATH, LONGEST_MODEL, LONGEST_PATH, MOST_ADDRESSES
from routing.domain.shifting import LARGEST, WantedVariant
from routing.selectors.variants import ShownVariant


class TargetForm(forms.Form):
    """Shows a service's errors at its fields."""

    def take(self, errors: Sequence[FieldError], detail: str) -> None:
        """``errors`` by the names of REST; those of no field here stand above the form."""
        for error in errors:
            first = error.field.partition(".")[0]
            name = first if first in self.fields else None
            self.add_error(name, error.detail if name == error.field else f"{error.field}: {error.detail}")
            if name:
                self.fields[name].widget.attrs["aria-invalid"] = "true"
        if not errors:
            self.add_error(None, detail)


class StaticForm(TargetForm):
    cluster = forms.ModelChoiceField(
        Cluster.objects.none(),
        to_field_name="name",
        empty_label="Choose a cluster",
        help_text="Whose operators may change it.",
    )
    name = forms.CharField(max_length=63, help_text="By which clients ask for it. It stays.")
    model = forms.CharField(
        required=False, max_length=LONGEST_MODEL, help_text="What clients of /v1/… may call it beside its name."
    )
    health_path = forms.CharField(
        required=False,
        max_length=LONGEST_PATH,
        initial=DEFAULT_HEALTH_PATH,
        help_text="Every router asks it every two seconds; below 400 is well. Empty: nobody asks.",
    )
    addresses = forms.CharField(
        required=False,
        max_length=400 * MOST_ADDRESSES,
        strip=False,  # lines are counted as they are seen
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        help_text="A name and a URL in each line: engine-1 http://10.0.0.7:8000. With https:// it speaks TLS.",
    )

    def __init__(self, *args: Any, targets: frozenset[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["cluster"].queryset = clusters_list(targets=targets)  # type: ignore[attr-defined]

    def take(self, errors: Sequence[FieldError], detail: str) -> None:
        super().take([self._at_line(one) for one in errors], detail)

    def _at_line(self, error: FieldError) -> FieldError:
        """What is wrong with an address, by the line where it stands."""
        field, _, rest = error.field.partition(".")
        number, _, part = rest.partition(".")
        if field != "addresses" or not number.isdigit():
            return error
        lines = self.cleaned_data["addresses"].splitlines()
        at, text = [(at, line.strip()) for at, line in enumerate(lines, 1) if line.strip()][int(number)]
        said = f"Line {at}" if "@" in text else f"Line {at}, “{text[:80]}”"  # a password may stand before the @
        if part == "name":
            return FieldError(field, error.code, f"{said}: a name has {error.detail}.")
        wanted = f"expected a name and {error.detail}" if error.detail.startswith("http") else error.detail
        return FieldError(field, error.code, f"{said}: {wanted}.")

    def given(self) -> dict[str, Any]:
        """As REST takes it, without the cluster. A line without a space has no URL, which the service says."""
        lines = [line.split(None, 1) for line in self.cleaned_data["addresses"].splitlines() if line.strip()]
        addresses = [{"name": words[0], "url": words[1].strip() if len(words) > 1 else ""} for words in lines]
        return {name: self.cleaned_data[name] for name in ("name", "model", "health_path")} | {"addresses": addresses}


class StaticChangeForm(StaticForm):
    """Of one that is there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["cluster"], self.fields["name"]

    @staticmethod
    def initial_of(document: dict[str, Any]) -> dict[str, Any]:
        lines = [f"{one['name']} {one['url']}" for one in document["addresses"]]
        return {**document, "addresses": "\n".join(lines)}

    def given(self) -> dict[str, Any]:
        self.cleaned_data["name"] = self.initial["name"]
        return super().given()


class VariantsForm(TargetForm):
    """A weight for each variant there is, and room for one more."""

    new_name = forms.CharField(required=False, max_length=63, label="Another variant")
    new_endpoint = forms.ModelChoiceField(
        Endpoint.objects.none(),
        required=False,
        label="Served by",
        empty_label="this endpoint's own instances",
        help_text="An endpoint with the other version. It is warmed and started as its own document says.",
    )
    new_weight = forms.FloatField(required=False, min_value=0, max_value=LARGEST, label="Its weight", initial=0)

    def __init__(self, *args: Any, endpoint: Endpoint, shown: Sequence[ShownVariant], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        others = Endpoint.objects.filter(cluster=endpoint.cluster_id, gone_at__isnull=True).exclude(pk=endpoint.pk)
        others = others.exclude(of_a_trial())
        self.fields["new_endpoint"].queryset = others  # type: ignore[attr-defined]
        self._shown = shown
        for number, one in enumerate(shown):
            self.fields[f"weight_{number}"] = forms.FloatField(
                required=False,
                min_value=0,
                max_value=LARGEST,
                label=f"Weight of {one.name}",
                initial=one.wanted_weight,
                help_text="Over the sum of all it is the share. Empty: take the variant away.",
            )
        self.order_fields([f"weight_{number}" for number in range(len(shown))])

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if not given.get("new_name") and (given.get("new_endpoint") or given.get("new_weight")):
            self.add_error("new_name", "Name it, or leave the others empty: there is no variant without a name.")
        return given

    def wanted(self) -> list[WantedVariant]:
        """Those that stay, and the new one."""
        weights = [self.cleaned_data.get(f"weight_{number}") for number in range(len(self._shown))]
        kept = [
            WantedVariant(one.name, weight, one.endpoint_id)
            for one, weight in zip(self._shown, weights, strict=True)
            if weight is not None
        ]
        given = self.cleaned_data
        if not given["new_name"]:
            return kept
        source = given["new_endpoint"].pk if given["new_endpoint"] else None
        return [*kept, WantedVariant(given["new_name"], given["new_weight"] or 0.0, source)]
