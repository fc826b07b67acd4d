"""What people choose for a variant. Fields only; the service decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from controlplane.errors import FieldError
from routing.domain.extensions import HEADER_CHARACTERS, PARAMETERS, Parameter, whole_number
from routing.domain.policies import PREFIX_LENGTHS, SPELLED_CONFIG, THRESHOLDS, RoutingPolicy, RoutingStrategy

_STRATEGIES = [
    (RoutingStrategy.RANDOM.value, "RANDOM: any instance, by weight"),
    (RoutingStrategy.LEAST_OUTSTANDING_REQUESTS.value, "LEAST_OUTSTANDING_REQUESTS: the least busy one"),
    (RoutingStrategy.PREFIX_AWARE.value, "PREFIX_AWARE: the one that holds the beginning already"),
]
_LABELS = {"body_key": "Take prompt_cache_key as the key", "record_keys": "Record keys for replay"}


def _field(one: Parameter) -> forms.Field:
    told: dict[str, Any] = {"required": False, "help_text": one.said, "label": _LABELS.get(one.name)}
    if one.kind is bool:
        return forms.BooleanField(**told)
    if one.kind is str:
        return forms.CharField(**told, max_length=HEADER_CHARACTERS)
    number = forms.FloatField if one.kind is float else forms.IntegerField
    return number(**told, min_value=one.least, max_value=one.most, error_messages=_said(one.wanted))


def _said(wanted: str) -> dict[str, str]:
    """The same words as over REST, whatever is wrong with a number."""
    return dict.fromkeys(("invalid", "min_value", "max_value"), wanted)


def prefix_aware_number(limits: tuple[int, int], help_text: str) -> forms.IntegerField:
    """One of the two that PREFIX_AWARE needs, and no other strategy."""
    low, high = limits
    said = _said(whole_number(low, high))
    made = forms.IntegerField(required=False, min_value=low, max_value=high, help_text=help_text, error_messages=said)
    made.needed = "needed with PREFIX_AWARE"  # type: ignore[attr-defined]  # for the template
    return made


class StrategyForm(forms.Form):
    """Names a strategy and its numbers, and shows a service's errors at their fields."""

    def take(self, errors: Sequence[FieldError], detail: str) -> None:
        """Show a service's errors at their fields."""
        places = {"PrefixLength": "prefix_length", "ConcurrencyThreshold": "concurrency_threshold"}
        for error in errors:
            last = error.field.rpartition(".")[2]
            name = places.get(last, last)
            self.add_error(name if name in self.fields else None, error.detail)
            if name in self.fields:
                self.fields[name].widget.attrs["aria-invalid"] = "true"
        if not errors:
            self.add_error(None, detail)


class PolicyForm(StrategyForm):
    strategy = forms.ChoiceField(
        choices=_STRATEGIES, error_messages={"invalid_choice": f"one of {', '.join(RoutingStrategy)}"}
    )
    prefix_length = prefix_aware_number(
        PREFIX_LENGTHS,
        "With PREFIX_AWARE: characters of message text (bytes of other bodies), 1024 to 65536. Cover what a "
        "group of requests shares and some of what is its own: a length inside a system prompt that everybody sends "
        "says nothing.",
    )
    concurrency_threshold = prefix_aware_number(
        THRESHOLDS,
        "With PREFIX_AWARE: requests in flight on an instance, 1 to 1024, from which on others get what "
        "comes next. About what an engine computes side by side.",
    )

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.fields.update({name: _field(one) for name, one in PARAMETERS.items()})

    @classmethod
    def initial_of(cls, policy: RoutingPolicy) -> dict[str, Any]:
        """What the form shows of a policy; PREFIX_AWARE's numbers are offered also while another one is in force."""
        config = policy.prefix_aware
        return {
            "strategy": policy.strategy.value,
            "prefix_length": config.prefix_length if config else SPELLED_CONFIG["PrefixLength"],
            "concurrency_threshold": config.concurrency_threshold if config else SPELLED_CONFIG["ConcurrencyThreshold"],
            **{name: getattr(policy.extensions, name) for name in PARAMETERS},
        }

    def document(self) -> dict[str, Any]:
        """The policy as REST takes it. PREFIX_AWARE's numbers are left out with other strategies."""
        given = self.cleaned_data
        document: dict[str, Any] = {
            "RoutingStrategy": given["strategy"],
            "RoutingExtensions": {name: given[name] for name in PARAMETERS if given[name] is not None},
        }
        if given["strategy"] == RoutingStrategy.PREFIX_AWARE:
            numbers = {"PrefixLength": given["prefix_length"], "ConcurrencyThreshold": given["concurrency_threshold"]}
            document["PrefixAwareRoutingConfig"] = {
                name: number for name, number in numbers.items() if number is not None
            }
        return document
