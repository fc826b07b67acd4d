"""The words of an endpoint's conditions, from facts alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from caches.domain.endpoints.specs import read_endpoint
from caches.domain.endpoints.status import StatusFacts, endpoint_status
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
