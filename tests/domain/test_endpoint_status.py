"""The words of an endpoint's conditions, from facts alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from caches.domain.endpoints.resolved import resolved_source
from caches.domain.endpoints.specs import read_endpoint
from caches.domain.endpoints.status import StatusFacts, WorkFacts, cache_facts, endpoint_status, mirror_status
from caches.domain.gating import Gate, GateState, Target, cold_words
from controlplane.clusters.documents import EntryState
from tests.domain.endpoints import config

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def said(type_: str, **facts: Any) -> tuple[str, str, str]:
    """Status, reason and message of one condition."""
    status = endpoint_status(StatusFacts("chat", 1, NOW, **facts), {})
    [found] = [one for one in status["conditions"] if one["type"] == type_]
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(
    ("changes", "field", "begins"),
    [
        (
            {"metadata__annotations": {"hearth.dev/hold-seconds": "soon"}},
            "metadata.annotations.hearth.dev/hold-seconds",
            "metadata.annotations.hearth.dev/hold-seconds must be a number of seconds",
        ),
        (
            {"metadata__annotations": {"hearth.dev/gate": "Never"}},
            "metadata.annotations.hearth.dev/gate",
            "metadata.annotations.hearth.dev/gate: The gate is All",
        ),
        ({"spec__replicas": -1}, "spec.replicas", "spec.replicas must be between"),
        ({"spec__modelName": None}, "spec.modelName", "spec.modelName is required."),
    ],
)
def test_a_refused_field_is_named_once(changes: dict[str, Any], field: str, begins: str) -> None:
    refusals = read_endpoint(config(**changes)).refusals
    status, reason, message = said("Accepted", refusals=refusals)
    assert (status, reason) == ("False", "Refused")
    assert message.startswith(begins) and message.count(field) == 1


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (WorkFacts(2, 2, 2, True), ("True", "Serving", "2 of 2 replicas serve.")),
        (WorkFacts(3, 2, 2, False, "", "Crashing", "P."), ("True", "Serving", "2 of 2 replicas serve.")),
        (WorkFacts(2, 2, 1, False, "", "Crashing", "P."), ("True", "Serving", "1 of 2 replicas serve. P.")),
        (WorkFacts(1, 1, 0, False, "", "Crashing", "P."), ("False", "Crashing", "0 of 1 replicas serve. P.")),
        (WorkFacts(1, 1, 0, False), ("False", "NoReplica", "0 of 1 replicas serve.")),
        (WorkFacts(0, 0, 0, True), ("True", "Serving", "0 of 0 replicas serve.")),
    ],
)
def test_what_is_wanting_says_which_pod_waits(work: WorkFacts, found: tuple[str, str, str]) -> None:
    assert said("Available", work=work) == found


@pytest.mark.parametrize(
    ("gate", "status", "words"),
    [
        (Gate(GateState.CLOSED, "3 of 4 ready", 3, 4), "False", "3 of 4 nodes are warm."),
        (Gate(GateState.CLOSED, "0 of 1 ready", 0, 1), "False", "0 of 1 node is warm."),
        (Gate(GateState.OPEN, "4 nodes ready, 4 required", 4, 4), "True", "4 of 4 nodes are warm."),
        (Gate(GateState.CLOSED, "no node matches the pin", 0, 0), "False", "no node matches the pin"),
        (Gate(GateState.FAILED, "3 copies are required and only 2 can", 2, 3), "False", "2 of 3 nodes are warm."),
    ],
)
def test_a_cache_counts_its_nodes_in_the_same_words_on_its_way_and_when_it_is_warm(
    gate: Gate, status: str, words: str
) -> None:
    facts = cache_facts(gate, moving=True)
    found = said("WeightsCacheReady", weights=facts)
    assert (found[0], found[2]) == (status, words)
    assert mirror_status(facts)["message"] == ("" if status == "True" else words)


@pytest.mark.parametrize(
    ("source", "facts", "shown"),
    [
        ("s3://models/a", {"model_id": "a", "version": "1"}, "s3://models/a"),
        ("jumpstart:llama@latest", {"model_id": "llama", "version": "1.2.0"}, "jumpstart://llama@1.2.0"),
        ("jumpstart:llama@latest", None, "jumpstart://llama@*"),
        ("jumpstart:llama@1.0.0", {"model_id": 7}, "jumpstart://llama@1.0.0"),
    ],
)
def test_a_jumpstart_model_is_shown_as_its_address(source: str, facts: object, shown: str) -> None:
    assert resolved_source(source, facts) == shown


def test_a_cache_names_the_first_nodes_that_are_not_warm_and_why() -> None:
    found = [
        Target("a", EntryState.READY),
        Target("b", EntryState.READY, unknown=True),
        Target("c", EntryState.DOWNLOADING),
        Target("d", EntryState.FAILED, "SourceUnavailable"),
        Target("e", EntryState.ABSENT, refused=True),
    ]
    assert (cold_words(found[:1]), cold_words(found[:2])) == ("", "b (not heard of)")
    told = "d (SourceUnavailable), e (no room), b (not heard of) and 1 more"
    assert cold_words(found) == told
    facts = cache_facts(Gate(GateState.CLOSED, "1 of 5 ready", 1, 5), moving=True, cold=told)
    assert said("ImageCacheReady", image=facts)[2] == f"1 of 5 nodes are warm. Not yet: {told}."
