"""A dry run counts what its own document would bring to nodes: an image that nobody registered, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings

from caches.models import Artifact, Image
from caches.services.endpoints.asking import Answer
from caches.services.endpoints.preview import EndpointPreview, endpoint_preview
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.errors import Permanent, Transient
from tests import factories
from tests.domain.endpoints import GONE, config
from tests.services.endpoints import EndpointWorld
from tests.services.registries import Registry, use
from tests.services.world import MIB

pytestmark = pytest.mark.django_db
IMAGE = "vllm/vllm-openai:latest"


@pytest.fixture
def registry(served: EndpointWorld, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """That of the document's image, which is 300 MiB once it is unpacked."""
    settings.DRY_RUN_SECONDS, settings.IMAGES_SHARE_DISK = 30.0, True
    served.gateway.applied = []
    made = use(Registry(), monkeypatch)
    made.push(IMAGE, "one", compressed_bytes=120 * MIB, unpacked_bytes=300 * MIB)
    return made


def previewed(**changes: Any) -> tuple[EndpointPreview, list[tuple[Answer, str]]]:
    """And what it says of the room. Only now its nodes are more than folders: rounds could give those no agents."""
    Cluster.objects.update(type=ClusterType.KUBERNETES)
    found = endpoint_preview(cluster=Cluster.objects.get(), document=config(**{"spec__instanceType": GONE, **changes}))
    return found, [(one.answer, one.said) for one in found.findings if one.about == "room"]


def test_an_image_that_nobody_registered_is_counted(served: EndpointWorld, registry: Registry) -> None:
    version = served.version()
    served.world.warm(version)
    found, said = previewed()
    pool = served.world.pool.full_name
    assert said == [(Answer.FINE, f"{pool}: 240 MiB in 2 transfers, 0 evictions.")]
    [plan] = found.plans
    assert {move.digest for move in plan.moves} == {registry.names[IMAGE].digest}  # type: ignore[union-attr]
    assert registry.asked == [IMAGE], "one question says digest and size"
    assert not Image.objects.exists() and not Artifact.objects.filter(kind="Image").exists()


def test_it_says_where_such_an_image_has_no_room(served: EndpointWorld, registry: Registry) -> None:
    served.version()
    registry.push(IMAGE, "huge", compressed_bytes=1, unpacked_bytes=5000 * MIB)
    found, [(answer, said)] = previewed()
    assert answer is Answer.PROBLEM and "no room on 2 nodes" in said and "needs 4.9 GiB" in said
    assert "under the high watermark of" in said, "which room that is"
    assert "image" in {one.what for one in found.obstacles}


@pytest.mark.parametrize("known", [False, True])
def test_a_tag_that_names_another_image_now_is_asked_for_its_size(
    served: EndpointWorld, registry: Registry, known: bool
) -> None:
    served.world.warm(served.version())
    digest = registry.names[IMAGE].digest if known else "sha256:" + "b" * 64  # type: ignore[union-attr]
    facts = factories.artifact(kind="Image", digest=digest, size_bytes=300 * MIB, files_count=0, manifest=b"")
    factories.image(reference=IMAGE, artifact=facts, compressed_bytes=120 * MIB)
    _, said = previewed()
    assert [answer for answer, _ in said] == [Answer.FINE] and "240 MiB in 2 transfers" in said[0][1]
    assert len(registry.asked) == (1 if known else 2), "what is known is not asked for again"
    assert Image.objects.get().moved_to == ""


def test_a_registry_that_does_not_answer_leaves_it_unknown(served: EndpointWorld, registry: Registry) -> None:
    served.world.warm(served.version())
    registry.names[IMAGE] = Transient("a:b:c", "The registry is silent.")
    _, said = previewed()
    assert said[0] == (
        Answer.UNKNOWN,
        "How much room its image needs is known once its registry has said how large it is. The registry is silent.",
    )
    registry.names[IMAGE] = Permanent("a:b:c", "No such image.")
    assert all(answer is Answer.FINE for answer, _ in previewed()[1]), "what will never come needs no room"


def test_without_its_image_cache_no_image_is_counted(served: EndpointWorld, registry: Registry) -> None:
    served.world.warm(served.version())
    off = {"spec__modelCacheConfig__imageCache__enabled": False}
    [(answer, said)] = previewed(**off)[1]
    assert answer is Answer.FINE and "0 B in 0 transfers" in said


def test_nobody_elses_transfers_are_this_documents(served: EndpointWorld, registry: Registry) -> None:
    other = served.version("llms/other", size=50 * MIB)
    assert other.artifact is not None
    factories.pin(of=other, pools=(served.world.pool,))
    served.world.reconcile()  # on its way
    served.world.warm(served.version(), "n1")
    found, [(answer, said)] = previewed(spec__modelCacheConfig__imageCache__enabled=False)
    assert answer is Answer.FINE and "100 MiB in 1 transfer," in said
    [plan] = found.plans
    assert other.artifact.digest not in {move.digest for move in plan.moves}
    assert plan.total_bytes == 100 * MIB


def test_nobody_elses_lack_of_room_is_this_documents(served: EndpointWorld, registry: Registry) -> None:
    factories.pin(of=served.version("llms/giant", size=5000 * MIB), pools=(served.world.pool,))
    served.world.warm(served.version())
    found, [(answer, said)] = previewed(spec__modelCacheConfig__imageCache__enabled=False)
    assert (answer, found.plans[0].refusals) == (Answer.FINE, ()), said


def test_what_would_wait_for_its_node_is_said(served: EndpointWorld, registry: Registry) -> None:
    served.version()
    node = served.world.node("n2")
    node.ready = False
    node.save()
    [(_, said)] = previewed(spec__modelCacheConfig__imageCache__enabled=False)[1]
    assert "100 MiB in 1 transfer, 0 evictions. 1 more transfer of 100 MiB would wait: on n2 the node is" in said
