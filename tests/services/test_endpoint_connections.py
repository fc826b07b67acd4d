"""Another connection named for what is served: the same bytes are followed without a rollout, others roll out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from caches.models import ModelVersion, Rollout, SourceConnection
from caches.services.connections import connection_update
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import SourceType
from tests import factories
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB, version_of

pytestmark = pytest.mark.django_db
PLACE = "s3://models/llms/chat-small"
NAMED = {"metadata__annotations": {"hearth.dev/connection": "twin"}}


@pytest.fixture
def twin(db: None) -> SourceConnection:
    made: SourceConnection = factories.connection(
        name="twin", type=SourceType.S3, allowed=["models"], endpoint="http://127.0.0.1:9"
    )
    return made


def same_bytes(version: ModelVersion, connection: SourceConnection) -> ModelVersion:
    made: ModelVersion = factories.version(artifact=version.artifact, connection=connection, uri=PLACE)
    return made


def test_the_same_bytes_are_read_through_it_without_a_rollout(served: EndpointWorld, twin: SourceConnection) -> None:
    old = served.version()
    served.apply()
    served.until_served()
    pods = len(served.gateway.deployments)
    new = same_bytes(old, twin)
    served.apply(**NAMED)
    served.round()
    served.round()
    assert (served.rollout.number, served.rollout.state, served.rollout.version) == (1, "Done", new)
    assert [pin.version for pin in served.pins] == [new], "agents read through it from now on"
    assert len(served.gateway.deployments) == pods, "and no pod is made again"
    assert served.entries(new) == {"n1": "Ready", "n2": "Ready"}
    assert served.condition("ConnectionFollowed")[:2] == ("True", "Followed")
    assert AuditEvent.objects.filter(action="rollout.connection").count() == 1
    connection_update(actor=SYSTEM, connection_id=twin.pk, changes={"bytes_per_second": 5000})
    served.round()
    assert len(served.gateway.deployments) == pods, "nor when somebody changes how fast it is read"


def test_other_bytes_of_the_same_name_roll_out(served: EndpointWorld, twin: SourceConnection) -> None:
    old = served.version()
    served.apply()
    served.until_served()
    new = version_of(50 * MIB, connection=twin, uri=PLACE)
    served.apply(**NAMED)
    served.round()
    rollout = served.rollout
    assert (rollout.number, rollout.state, rollout.version) == (2, "Warming", new)
    assert rollout.previous is not None and rollout.previous.version == old
    assert {pin.version for pin in served.pins} == {old, new}, "what serves stays"
    status, _, why = served.condition("ConnectionFollowed")
    assert status == "False" and "number 2) is on its way" in why
    served.until_served()
    assert served.rollout.state == "Holding" and len(served.gateway.deployments) == 2
    assert served.condition("ConnectionFollowed")[:2] == ("True", "Followed")
    served.apply()
    served.round()
    assert (served.rollout.number, served.rollout.version) == (3, old), (
        "the annotation taken away again is the way back"
    )
    assert Rollout.objects.get(number=2).state == "RolledBack"


def test_a_rollout_to_it_that_failed_is_not_called_followed(served: EndpointWorld, twin: SourceConnection) -> None:
    served.version()
    served.apply()
    served.until_served()
    version_of(50 * MIB, connection=twin, uri=PLACE)
    served.apply(**NAMED)
    served.until_failed()
    status, reason, why = served.condition("ConnectionFollowed")
    assert (status, reason) == ("False", "NotFollowed") and "number 2) failed; what served before it goes on" in why
    served.apply(**NAMED, spec__worker__image="vllm/vllm-openai:v2")
    served.round()
    assert served.rollout.number == 3 and "number 3) is on its way" in served.condition("ConnectionFollowed")[2]


def test_pods_of_a_failed_rollout_that_came_all_the_same_follow_it(
    served: EndpointWorld, twin: SourceConnection
) -> None:
    served.version()
    served.apply()
    served.until_served()
    version_of(50 * MIB, connection=twin, uri=PLACE)
    served.apply(**NAMED)
    served.until_failed()
    assert served.condition("ConnectionFollowed")[0] == "False"
    served.serve()
    served.round()
    assert served.rollout.state == "Failed" and served.condition("ConnectionFollowed")[0] == "True"


def test_one_that_leads_nowhere_leaves_what_serves_and_says_why(served: EndpointWorld, twin: SourceConnection) -> None:
    old = served.version()
    served.apply()
    served.until_served()
    connection_update(actor=SYSTEM, connection_id=twin.pk, changes={"namespaces": ["elsewhere"]})
    served.apply(**NAMED)
    served.round()
    assert (served.rollout.number, served.rollout.state, served.rollout.version) == (1, "Done", old)
    status, reason, why = served.condition("ConnectionFollowed")
    assert (status, reason) == ("False", "NotFollowed") and "twin is not for endpoints of namespace default" in why
    assert served.status["state"] == "DeploymentComplete"

    connection_update(actor=SYSTEM, connection_id=twin.pk, changes={"namespaces": []})
    new = same_bytes(old, twin)
    with time_machine.travel(timezone.now() + timedelta(seconds=16)):
        served.round()
    assert served.rollout.version == new and served.condition("ConnectionFollowed")[0] == "True"


def test_one_that_is_taken_back_is_forgotten(served: EndpointWorld) -> None:
    old = served.version()
    served.apply()
    served.until_served()
    served.apply(metadata__annotations={"hearth.dev/connection": "nobodys"})
    served.round()
    assert "No source connection named nobodys" in served.condition("ConnectionFollowed")[2]
    served.apply()
    served.round()
    assert not [one for one in served.status["conditions"] if one["type"] == "ConnectionFollowed"]
    assert (served.rollout.number, served.rollout.version) == (1, old)


@pytest.mark.parametrize("same", [True, False])
def test_it_is_named_while_the_version_still_warms(served: EndpointWorld, twin: SourceConnection, same: bool) -> None:
    old = served.version()
    served.apply()
    served.round()
    new: Any = same_bytes(old, twin) if same else version_of(50 * MIB, connection=twin, uri=PLACE)
    served.apply(**NAMED)
    served.round()
    assert (served.rollout.number, served.rollout.version, served.rollout.state) == (1 if same else 2, new, "Warming")
    assert {pin.version for pin in served.pins} == {new}
    served.until_served()
    assert served.status["state"] == "DeploymentComplete"
