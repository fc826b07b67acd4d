"""What endpoints of one namespace may have of another, and of Hearth: nothing that was not given to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from caches.models import Rollout
from caches.services.connections import connection_update
from caches.services.endpoints.serving import ASK_AGAIN
from caches.services.endpoints.versions import version_known
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import SourceType
from tests import factories
from tests.domain.endpoints import config, spec_of
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB

pytestmark = pytest.mark.django_db


def ensure_environment(served: EndpointWorld) -> list[dict[str, Any]]:
    """Of the ensure step that was written last."""
    [ensure] = served.gateway.deployments[-1]["spec"]["template"]["spec"]["initContainers"]
    found: list[dict[str, Any]] = ensure["env"]
    return found


def test_a_connection_of_other_namespaces_is_read_for_none_but_those(served: EndpointWorld) -> None:
    served.version()
    connection_update(actor=SYSTEM, connection_id=served.connection.pk, changes={"namespaces": ["team-a", "team-b"]})
    served.apply()
    served.round()
    assert (served.status["state"], served.gateway.deployments, served.pins) == ("DeploymentFailed", [], [])
    assert "connection store is not for endpoints of namespace default" in served.condition("RolledOut")[2]
    assert version_known(cluster=served.world.cluster, spec=spec_of(config())) is None, (
        "and a dry run does not say what is there"
    )

    connection_update(actor=SYSTEM, connection_id=served.connection.pk, changes={"namespaces": ["default"]})
    Rollout.objects.update(updated_at=timezone.now() - ASK_AGAIN)
    served.until_served()
    assert served.status["state"] == "DeploymentComplete"
    [source] = [e["value"] for e in ensure_environment(served) if e["name"] == "HEARTH_SOURCE"]
    assert json.loads(source)["connection"]["namespaces"] == [], "who else may is nobody's business"

    # Another connection that allows the bucket counts for those whom the first one leaves out.
    factories.connection(name="another", type=SourceType.S3, allowed=["models"], namespaces=["elsewhere"])
    served.version("llms/chat-next")
    served.apply(spec__modelSourceConfig__modelLocation="llms/chat-next")
    served.round()
    assert (served.rollout.number, served.rollout.state) == (2, "Warming")


def test_the_name_that_somebody_else_gave_its_weights_is_not_told(served: EndpointWorld) -> None:
    version = served.version(size=1024 * 1024 * MIB)
    version.model.name = "their-secret-plan"
    version.model.save()
    served.apply(spec__modelCacheConfig__imageCache__enabled=False)
    served.round()
    said = served.condition("RolledOut")[2]
    assert said.startswith("s3://models/llms/chat-small does not fit on 2 of 2 nodes.")
    assert "their-secret-plan" not in json.dumps(served.status)
