"""Changes that come thick and fast, and ground that goes while a rollout waits: the last word counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.models import CacheEntry, ModelVersion, Rollout
from caches.services.catalogue import version_register
from caches.services.endpoints.rollouts import rollout_release
from caches.services.pool_deletion import pool_delete
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import SourceType
from controlplane.clusters.models import NodePool
from controlplane.clusters.services import pool_update
from controlplane.errors import Clash
from controlplane.operations.steps import operation_step
from tests import factories
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB

pytestmark = pytest.mark.django_db
PLACE = "spec__modelSourceConfig__modelLocation"
HOLD = {"hearth.dev/hold-seconds": "3600"}


def states() -> list[str]:
    return list(Rollout.objects.order_by("number").values_list("state", flat=True))


def places(served: EndpointWorld) -> set[str]:
    """What the endpoint's pins are for."""
    return {pin.version.uri.rpartition("/")[2] for pin in served.pins if pin.version}


@pytest.mark.parametrize(
    ("seen", "ended"),
    [
        ("the last alone", ["Done", "Done"]),
        ("each of them", ["Done", "Superseded", "Superseded", "Done"]),
        ("each of them, and that each is warm", ["Done", "Superseded", "Superseded", "Done"]),
    ],
)
def test_of_three_changes_within_a_second_the_last_is_served(
    served: EndpointWorld, seen: str, ended: list[str]
) -> None:
    """However many of them a round comes to see, and however far it gets with each."""
    names = ("a", "b", "c")
    versions = {name: served.version(f"llms/{name}") for name in names}
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    for name in names:
        served.apply(**{PLACE: f"llms/{name}"}, metadata__annotations=HOLD)
        if seen != "the last alone":
            served.round()
        if seen.endswith("is warm"):
            served.warm()
    served.until_served()
    assert (served.rollout.state, served.rollout.version) == ("Holding", versions["c"])
    assert served.status["observedGeneration"] == served.generation
    assert places(served) == {"chat-small", "c"}
    rollout_release(actor=SYSTEM, rollout_id=served.rollout.pk)
    served.round()
    served.world.settle()
    assert states() == ended and places(served) == {"c"}
    left = CacheEntry.objects.exclude(state="Absent").values_list("artifact__digest", flat=True)
    assert set(left) == {served.rollout.version.artifact.digest}, "nothing of the others is on any node"  # type: ignore[union-attr]
    digests = [
        d["spec"]["template"]["metadata"]["annotations"]["cache.hearth.dev/weights"] for d in deployments(served)
    ]
    assert digests[-1] == versions["c"].artifact.digest  # type: ignore[union-attr]
    skipped = {versions[name].artifact.digest for name in "ab"}  # type: ignore[union-attr]
    assert not skipped & set(digests) or seen.endswith("is warm"), "what was never opened made no pod"


def deployments(served: EndpointWorld) -> list[dict[str, Any]]:
    return served.gateway.deployments


def test_a_pool_that_goes_while_a_rollout_waits_for_room_keeps_nobody_from_starting(served: EndpointWorld) -> None:
    served.version(size=1024 * 1024 * MIB)
    served.apply()
    served.round()
    assert served.rollout.state == "WaitingForRoom" and served.pins == []
    operation = pool_delete(actor=SYSTEM, pool_id=served.world.pool.pk)
    served.round()
    assert (served.rollout.state, served.rollout.reason) == ("Switching", "NothingToWaitFor")
    assert served.pins == [] and len(deployments(served)) == 1
    assert served.condition("WeightsCacheReady") == ("False", "Failed", "No node of a pool matches the endpoint.")
    served.warm()
    operation_step(operation_id=operation.pk)
    assert not NodePool.objects.exists()
    served.serve()
    served.round()
    assert served.status["state"] == "DeploymentComplete" and states() == ["Done"]


def test_a_pool_that_holds_what_serves_is_not_taken_from_under_a_rollout_that_waits(served: EndpointWorld) -> None:
    served.version(size=600 * MIB)
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    served.version("llms/next", size=600 * MIB)
    served.apply(**{PLACE: "llms/next"}, metadata__annotations=HOLD)
    served.round()
    assert served.rollout.state == "WaitingForRoom"
    with pytest.raises(Clash, match="Pins still want something"):
        pool_delete(actor=SYSTEM, pool_id=served.world.pool.pk)
    # Its nodes may go all the same: nobody else's business. Then there is nothing to wait for.
    pool_update(actor=SYSTEM, pool_id=served.world.pool.pk, changes={"selector": {"hearth.dev/pool": "elsewhere"}})
    served.round()
    assert served.rollout.state == "Switching" and len(deployments(served)) == 2
    assert places(served) == {"chat-small"}, "what is held for the way back stays pinned"
    served.serve()
    served.round()
    assert states() == ["Done", "Holding"]


def test_pods_read_the_file_system_that_their_connection_names(
    served: EndpointWorld, tmp_path: Path, settings: LazySettings
) -> None:
    """Its root, read-only and for the ensure step alone; other sources mount nothing."""
    root = tmp_path / "mounted"
    (root / "llms" / "chat").mkdir(parents=True)
    (root / "llms" / "chat" / "model.safetensors").write_bytes(b"weights")
    settings.SOURCE_ROOTS = [str(root)]
    connection = factories.connection(name="fs-1", type=SourceType.FILESYSTEM, allowed=[f"{root}/"])
    _, operation = version_register(
        actor=SYSTEM, model="chat", version="v1", connection=connection, uri=f"file://{root}/llms/chat"
    )
    while not operation_step(operation_id=operation.pk):
        pass
    source = {"modelSourceType": "fsx", "fsxStorage": {"fileSystemId": "fs-1"}, "modelLocation": "llms/chat"}
    served.apply(spec__modelSourceConfig=source)
    served.until_served()
    assert ModelVersion.objects.count() == 1 and served.status["state"] == "DeploymentComplete"
    pod = deployments(served)[-1]["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "hearth-source"]
    assert volume["hostPath"] == {"path": str(root)}
    [ensure] = pod["initContainers"]
    [told] = [json.loads(one["value"]) for one in ensure["env"] if one["name"] == "HEARTH_SOURCE"]
    assert told["uri"] == f"file://{root}/llms/chat", "which is where the step reads"

    served.version("llms/bucket")
    served.apply(**{PLACE: "llms/bucket"})
    served.until_served()
    assert "hearth-source" not in {
        one["name"] for one in deployments(served)[-1]["spec"]["template"]["spec"]["volumes"]
    }
