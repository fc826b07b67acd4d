"""What people choose for a variant. Fields only; the service decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from controlplane.errors import FieldError
from routing.domain.policies import PREFIX_LENGTHS, SPELLED_CONFIG, THRESHOLDS, WHOLES, RoutingPolicy, RoutingStrategy

_STRATEGIES = [
    (RoutingStrategy.RANDOM.value, "RANDOM: any instance, by weight"),
    (RoutingStrategy.LEAST_OUTSTANDING_REQUESTS.value, "LEAST_OUTSTANDING_REQUESTS: the least busy one"),
    (RoutingStrategy.PREFIX_AWARE.value, "PREFIX_AWARE: the one that holds the beginning already"),
]
_FLAGS = (
    "adaptive_depth",
    "strict_text",
    "body_key",
    "inspect_bodies",
    "queue_when_saturated",
    "record_keys",
    "avoid_waits",
)


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
    strategy = forms.ChoiceField(choices=_STRATEGIES)
    prefix_length = forms.IntegerField(
        required=False,
        min_value=PREFIX_LENGTHS[0],
        max_value=PREFIX_LENGTHS[1],
        help_text="With PREFIX_AWARE: characters of message text (bytes of other bodies), 1024 to 65536. Cover what a "
        "group of requests shares and some of what is its own: a length inside a system prompt that everybody sends "
        "says nothing.",
    )
    concurrency_threshold = forms.IntegerField(
        required=False,
        min_value=THRESHOLDS[0],
        max_value=THRESHOLDS[1],
        help_text="With PREFIX_AWARE: requests in flight on an instance, 1 to 1024, from which on others get what "
        "comes next. About what an engine computes side by side.",
    )
    adaptive_depth = forms.BooleanField(
        required=False, help_text="Pass over beginnings that everybody sends. Off: exactly the prefix length, always."
    )
    strict_text = forms.BooleanField(required=False, help_text="Hash message text alone, without roles and tools.")
    body_key = forms.BooleanField(required=False, label="Take prompt_cache_key as the key")
    inspect_bodies = forms.BooleanField(
        required=False, help_text="Off: requests are never looked into; PREFIX_AWARE then needs a key header."
    )
    queue_when_saturated = forms.BooleanField(
        required=False,
        help_text="When all instances are at the threshold, wait for room instead of going to the least busy one.",
    )
    record_keys = forms.BooleanField(
        required=False,
        label="Record keys for replay",
        help_text="Keyed digests and sizes of requests, no text, are kept for an hour, so that another strategy can be "
        "tried on them before it is in force. Requests are looked into for that whatever the strategy.",
    )
    key_header = forms.CharField(
        required=False, max_length=64, help_text="A request header whose value is the key, for example x-session-id."
    )
    hot_fraction = forms.FloatField(
        required=False,
        min_value=0.05,
        max_value=1,
        help_text="A beginning is everybody's above this share of the requests, divided by the instances.",
    )
    body_bytes = forms.IntegerField(
        required=False,
        min_value=WHOLES["body_bytes"][0],
        max_value=WHOLES["body_bytes"][1],
        help_text="Greater bodies are refused with 413: some engines never finish with a very long prompt. A "
        "router may have been started with a smaller limit (--body-bytes; 512 KiB in make run): the smaller counts.",
    )
    first_byte_seconds = forms.IntegerField(
        required=False,
        min_value=WHOLES["first_byte_seconds"][0],
        max_value=WHOLES["first_byte_seconds"][1],
        help_text="An instance that has not begun to answer by then is left, and the client gets 504. An answer that "
        "is not streamed begins when it is whole.",
    )
    unanswered_threshold = forms.IntegerField(
        required=False,
        min_value=WHOLES["unanswered_threshold"][0],
        max_value=WHOLES["unanswered_threshold"][1],
        help_text="PREFIX_AWARE sends a request elsewhere also when so many wait at an instance for the beginning of "
        "their answer. Shortens the longest waits, for some hits; 0: no such bound.",
    )
    avoid_waits = forms.BooleanField(
        required=False,
        help_text="PREFIX_AWARE goes elsewhere while clearly more waits at an instance for the beginning of its answer "
        "than elsewhere, and the key stays where it went. Off: it waits for the cache however long that takes.",
    )
    queue_requests = forms.IntegerField(
        required=False,
        min_value=WHOLES["queue_requests"][0],
        max_value=WHOLES["queue_requests"][1],
        help_text="So many wait at each router process while there is no instance for them, as while one starts "
        "from zero. One more gets 429 and is told when to come back; 0: nobody waits, all get 503 at once.",
    )
    queue_seconds = forms.IntegerField(
        required=False,
        min_value=WHOLES["queue_seconds"][0],
        max_value=WHOLES["queue_seconds"][1],
        help_text="How long each of them waits before it gets 503. Longer than an instance takes to start, and shorter "
        "than clients and what stands before the router have patience. Counts for requests that come from now on.",
    )

    @classmethod
    def initial_of(cls, policy: RoutingPolicy) -> dict[str, Any]:
        """What the form shows of a policy; PREFIX_AWARE's numbers are offered also while another one is in force."""
        config = policy.prefix_aware
        return {
            "strategy": policy.strategy.value,
            "prefix_length": config.prefix_length if config else SPELLED_CONFIG["PrefixLength"],
            "concurrency_threshold": config.concurrency_threshold if config else SPELLED_CONFIG["ConcurrencyThreshold"],
            "key_header": policy.extensions.key_header,
            "hot_fraction": policy.extensions.hot_fraction,
            **{name: getattr(policy.extensions, name) for name in (*_FLAGS, *WHOLES)},
        }

    def document(self) -> dict[str, Any]:
        """The policy as REST takes it. PREFIX_AWARE's numbers are left out with other strategies."""
        given = self.cleaned_data
        document: dict[str, Any] = {
            "RoutingStrategy": given["strategy"],
            "RoutingExtensions": {
                "key_header": given["key_header"],
                **{name: given[name] for name in _FLAGS},
                **{name: given[name] for name in ("hot_fraction", *WHOLES) if given[name] is not None},
            },
        }
        if given["strategy"] == RoutingStrategy.PREFIX_AWARE:
            numbers = {"PrefixLength": given["prefix_length"], "ConcurrencyThreshold": given["concurrency_threshold"]}
            document["PrefixAwareRoutingConfig"] = {
                name: number for name, number in numbers.items() if number is not None
            }
        return document
