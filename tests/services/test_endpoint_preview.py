"""A dry run of an endpoint's document says what its first round would, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.models import Image, Model, ModelVersion, Pin, PoolLoop, Rollout
from caches.services.endpoints.asking import Answer
from caches.services.endpoints.looking import worker_told
from caches.services.endpoints.preview import EndpointPreview, endpoint_preview
from caches.services.endpoints.versions import version_name
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import SourceType
from controlplane.clusters.models import ClusterType
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint
from tests import factories
from tests.domain.endpoints import GONE, config, spec_of
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB, World

pytestmark = pytest.mark.django_db
TIB = 1024 * 1024 * MIB
WEIGHTS_ALONE = {"spec__modelCacheConfig__imageCache__enabled": False}


@pytest.fixture
def served(db: None, tmp_path: Path, settings: LazySettings) -> Iterator[EndpointWorld]:
    made = EndpointWorld(World(tmp_path / "fleet"), settings)
    made.gateway.applied = []  # it takes documents
    yield made
    made.close()


def preview(served: EndpointWorld, **changes: Any) -> EndpointPreview:
    document = config(**{"spec__instanceType": GONE, **WEIGHTS_ALONE, **changes})
    return endpoint_preview(cluster=served.world.cluster, document=document)


def told(served: EndpointWorld, **changes: Any) -> list[tuple[str, str]]:
    return [(one.what, one.why) for one in preview(served, **changes).obstacles]


def rows() -> list[int]:
    return [kind.objects.count() for kind in (Endpoint, Rollout, Pin, Image, ModelVersion, Operation, AuditEvent)]


def no_connection(served: EndpointWorld) -> dict[str, Any]:
    return {"spec__modelSourceConfig__s3Storage__bucketName": "nobodys"}


def not_its_namespace(served: EndpointWorld) -> dict[str, Any]:
    served.connection.namespaces = ["theirs"]
    served.connection.save()
    return {}


def refused_before(served: EndpointWorld) -> dict[str, Any]:
    served.version()
    ModelVersion.objects.update(artifact=None, state="Refused", message="It is empty.", next_step="Fill it.")
    model, version = version_name(spec_of(config(spec__instanceType=GONE)), served.connection.name)
    Model.objects.update(name=model)
    ModelVersion.objects.update(version=version)
    return {}


def no_room(served: EndpointWorld) -> dict[str, Any]:
    served.version(size=TIB)
    return {}


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (no_connection, "No source connection of type S3 allows s3://nobodys/llms/chat-small. Add one"),
        (not_its_namespace, "Source connection store is not for endpoints of namespace default."),
        (refused_before, "It is empty. Fill it."),
        (no_room, "1 TiB"),
    ],
)
def test_it_says_of_weights_what_the_round_says(
    served: EndpointWorld, prepare: Callable[[EndpointWorld], dict[str, Any]], words: str
) -> None:
    changes = prepare(served)
    before = rows()
    [(what, why)] = told(served, **changes)
    assert what == "weights" and words in why
    assert rows() == before

    served.apply(**WEIGHTS_ALONE, **changes)
    served.round()
    assert served.condition("RolledOut")[2] == why, "and no other opinion"


def test_it_says_of_images_what_the_round_says(served: EndpointWorld) -> None:
    served.version()
    on = {"spec__modelCacheConfig__imageCache__enabled": True}
    [(what, why)] = told(served, **on)
    assert (what, why) == ("image", "The nodes of its pools are folders: they hold no images.")
    served.apply(**on)
    served.round()
    assert served.condition("ImageCacheReady")[2] == why
    factories.image(reference="unused:1")
    assert ("image", "The nodes of its pools are folders: they hold no images.") in told(served, **on)


def test_it_says_when_nothing_would_be_served(served: EndpointWorld) -> None:
    served.version()
    assert told(served) == []
    factories.endpoint(of=served.world.cluster, kind="JumpStartModel", name="chat-small")
    [(what, why)] = told(served)
    assert what == "endpoint" and "JumpStartModel default/chat-small has this name" in why
    Endpoint.objects.all().delete()

    served.gateway.applied = None
    [(what, why)] = told(served)
    assert what == "endpoint" and "takes no endpoint documents" in why


@pytest.mark.parametrize("here", ["", "registry.invalid/hearth:1"])
def test_the_settings_of_the_worker_count_and_not_those_of_who_is_asked(
    served: EndpointWorld, settings: LazySettings, here: str
) -> None:
    served.version()
    settings.AGENT_IMAGE = here
    cluster, rounds = served.world.cluster, PoolLoop.objects.filter(pool__cluster=served.world.cluster)
    assert list(worker_told(cluster)) == [], "the local fleet has no use for it"
    cluster.type = ClusterType.KUBERNETES
    assert rounds.exists()

    rounds.update(error="No node gets an agent, because HEARTH_AGENT_IMAGE is not set. Set it and restart the workers.")
    [(what, why)] = told(served)
    assert what == "endpoint" and "HEARTH_AGENT_IMAGE is not set" in why, "it has none, whatever is set here"
    rounds.update(error="")
    assert [one.answer for one in worker_told(cluster)] == ([] if here else [Answer.UNKNOWN])
    assert told(served) == [], "what is not known is no obstacle"
    rounds.update(agent_hash="a" * 64)
    assert list(worker_told(cluster)) == []


def test_it_leaves_what_serves_as_it_is(served: EndpointWorld, django_capture_on_commit_callbacks: Any) -> None:
    served.version()
    served.apply(**WEIGHTS_ALONE)
    served.until_served()
    served.version("llms/next")
    before = (rows(), served.rollout.state, list(Pin.objects.values_list("pk", "removed_at")), served.endpoint.document)
    with django_capture_on_commit_callbacks() as callbacks:
        found = preview(served, spec__modelSourceConfig__modelLocation="llms/next")
    assert found.obstacles == () and found.digest
    assert callbacks == [], "nobody is told of anything"
    assert before == (
        rows(), served.rollout.state, list(Pin.objects.values_list("pk", "removed_at")), served.endpoint.document,
    )  # fmt: skip


def test_a_place_that_nobody_registered_is_asked_whether_it_may_be_read(
    served: EndpointWorld, tmp_path: Path, settings: LazySettings
) -> None:
    """As the round does; its answer registers nothing."""
    (tmp_path / "mounted" / "llms" / "chat").mkdir(parents=True)
    settings.SOURCE_ROOTS = [str(tmp_path / "mounted")]
    factories.connection(
        name="fs-1", type=SourceType.FILESYSTEM, endpoint="", allowed=[str(tmp_path / "mounted")], secret_name=""
    )
    source = {"modelSourceType": "fsx", "fsxStorage": {"fileSystemId": "fs-1"}, "modelLocation": "llms/missing"}
    before = rows()
    [(what, why)] = told(served, spec__modelSourceConfig=source)
    assert what == "weights" and "missing" in why
    found = preview(served, spec__modelSourceConfig=source | {"modelLocation": "llms/chat"})
    assert found.digest == "" and rows() == before
    (tmp_path / "mounted" / "llms" / "chat" / "model.safetensors").write_bytes(b"weights")
    found = preview(served, spec__modelSourceConfig=source | {"modelLocation": "llms/chat"})
    assert (found.digest, found.obstacles, rows()) == ("", (), before)
    [room] = [one for one in found.findings if one.about == "room"]
    assert room.answer is Answer.UNKNOWN and "its weights need is known once they are registered" in room.said
