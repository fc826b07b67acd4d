"""What people ask before they change anything: a request to be explained, a policy to be tried. Fields only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from routing.domain.policies import (
    PREFIX_LENGTHS,
    SPELLED_CONFIG,
    THRESHOLDS,
    RoutingPolicy,
    RoutingStrategy,
    policy_document,
)
from routing.forms import StrategyForm, prefix_aware_number
from routing.services.replays import MOST_INSTANCES, MOST_ROUTERS, Asked

_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/invocations",
)
MINUTES = (5, 15, 60)
_AS_IT_IS = ("", "As it is now")


class ExplainForm(forms.Form):
    path = forms.ChoiceField(choices=[(one, one) for one in _PATHS])
    body = forms.CharField(
        max_length=1024 * 1024,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 10, "spellcheck": "false", "autocomplete": "off"}),
        help_text="As a client would send it. It is read once, as a router reads it, and neither kept nor logged.",
    )
    tenant = forms.CharField(required=False, max_length=64, help_text="Its X-Amzn-SageMaker-Prefix-Aware-Id.")


class ReplayForm(StrategyForm):
    minutes = forms.TypedChoiceField(
        coerce=int, choices=[(one, f"the last {one} minutes") for one in MINUTES], label="Recorded in"
    )
    strategy = forms.ChoiceField(
        required=False, choices=[_AS_IT_IS, *((one.value, one.value) for one in RoutingStrategy)]
    )
    prefix_length = prefix_aware_number(PREFIX_LENGTHS, "With PREFIX_AWARE.")
    concurrency_threshold = prefix_aware_number(THRESHOLDS, "With PREFIX_AWARE.")
    adaptive_depth = forms.ChoiceField(
        required=False,
        choices=[_AS_IT_IS, ("on", "Pass over beginnings that everybody sends"), ("off", "Exactly the prefix length")],
        label="Depth",
    )
    instances = forms.IntegerField(
        required=False, min_value=1, max_value=MOST_INSTANCES, help_text="Empty: those that are ready now."
    )
    routers = forms.IntegerField(
        required=False, min_value=1, max_value=MOST_ROUTERS, help_text="Router processes. Empty: as many as now."
    )

    @classmethod
    def initial_of(cls, policy: RoutingPolicy) -> dict[str, Any]:
        config = policy.prefix_aware
        return {
            "minutes": 15,
            "prefix_length": config.prefix_length if config else SPELLED_CONFIG["PrefixLength"],
            "concurrency_threshold": config.concurrency_threshold if config else SPELLED_CONFIG["ConcurrencyThreshold"],
        }

    def asked(self, policy: RoutingPolicy) -> Asked:
        """What is to be tried, where ``policy`` is in force."""
        given = self.cleaned_data
        return Asked(given["minutes"], self._document(given, policy), given["instances"] or 0, given["routers"] or 0)

    def _document(self, given: Mapping[str, Any], policy: RoutingPolicy) -> dict[str, Any] | None:
        if not given["strategy"] and not given["adaptive_depth"]:
            return None
        document = policy_document(policy)
        if given["adaptive_depth"]:
            document["RoutingExtensions"]["adaptive_depth"] = given["adaptive_depth"] == "on"
        if not given["strategy"]:
            return document
        document["RoutingStrategy"] = given["strategy"]
        document.pop("PrefixAwareRoutingConfig", None)
        if given["strategy"] == RoutingStrategy.PREFIX_AWARE:
            numbers = {"PrefixLength": given["prefix_length"], "ConcurrencyThreshold": given["concurrency_threshold"]}
            document["PrefixAwareRoutingConfig"] = {name: one for name, one in numbers.items() if one is not None}
        return document
