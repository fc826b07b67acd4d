"""What an endpoint of a local fleet says of its engines."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.clusters import codec
from controlplane.clusters.gateway import Kind
from controlplane.clusters.local.serving import EndpointReadiness, LocalEndpoint, observed_endpoint
from controlplane.clusters.local.store import Stored


@pytest.mark.parametrize(
    ("ready", "replicas", "state", "reason", "message"),
    [
        (0, 2, "DeploymentInProgress", "EnginesStarting", "0 of 2 engines are ready."),
        (1, 2, "DeploymentInProgress", "EnginesStarting", "1 of 2 engines are ready."),
        (2, 2, "DeploymentComplete", "EnginesReady", "2 of 2 engines are ready."),
        (3, 1, "DeploymentComplete", "EnginesReady", "1 of 1 engines are ready. 2 more will leave."),
        (0, 0, "DeploymentComplete", "NoneWanted", "No engine is wanted."),
        (2, 0, "DeploymentComplete", "NoneWanted", "No engine is wanted. 2 will leave."),
    ],
)
def test_it_never_says_that_more_are_ready_than_are_wanted_nor_that_none_is(
    ready: int, replicas: int, state: str, reason: str, message: str
) -> None:
    endpoint = LocalEndpoint("chat", "u", "sha256:a", replicas, "chat", "", datetime(2030, 1, 1, tzinfo=UTC))
    status = codec.dumps(EndpointReadiness(ready))
    seen = observed_endpoint(Stored(Kind.ENDPOINT.value, "chat", "u", 1, codec.dumps(endpoint), status))
    (condition,) = seen.status["conditions"]
    assert (seen.status["state"], condition["reason"], condition["message"]) == (state, reason, message)
    assert seen.status["readyReplicas"] == ready
