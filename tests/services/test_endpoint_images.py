"""Images of endpoints: resolved once, kept beside weights, rolled out side by side, and gone with their last user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.conf import LazySettings
from django.utils import timezone

from caches.domain.images import parse_reference
from caches.models import CacheEntry, Image, Pin
from caches.selectors.endpoint_targets import CacheTargets
from caches.selectors.endpoints import Warmth, rollout_warmth
from caches.services.endpoints.images import registry_connection
from caches.services.endpoints.mirrors import IMAGE_KINDS, WEIGHTS_KINDS
from caches.services.endpoints.pins import image_pin_ensure, pins_release
from caches.services.endpoints.rounds import clusters_with_endpoints
from caches.services.images.catalogue import image_check, image_delete, image_revoke
from caches.services.images.observing import pool_images_observe
from caches.services.images.resolving import image_resolve_step
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Reason, SourceType
from controlplane.clusters.endpoints import MirrorKind
from controlplane.clusters.gateway import ImagePresence
from controlplane.clusters.models import ClusterType
from controlplane.clusters.registry import override_gateway
from controlplane.errors import Clash, Permanent, Transient
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from controlplane.serving.models import Endpoint
from tests import factories
from tests.services.endpoints import EndpointWorld
from tests.services.image_cluster import ImageGateway
from tests.services.registries import Registry, use
from tests.services.world import World

pytestmark = pytest.mark.django_db
VLLM = "vllm/vllm-openai:latest"
NEXT = "vllm/vllm-openai:next"
HOLD = {"hearth.dev/hold-seconds": "3600"}


class ImagesWorld(EndpointWorld):
    """An endpoint over nodes that hold images, with a registry that says what a test wants."""

    registry: Registry
    images: ImageGateway

    def resolve(self) -> None:
        """What the worker does with every registration that was asked for."""
        asked = Operation.objects.filter(kind=OperationKind.IMAGE_REGISTER, state__in=ACTIVE_STATES)
        for operation in asked:
            image_resolve_step(operation_id=operation.pk)

    def pull(self, *nodes: str, ready: bool = True, reason: str = "") -> None:
        """The planner plans, the holders' pods say this, and Hearth looks."""
        self.world.reconcile()
        for (_, reference), holder in self.images.holders.items():
            for name in holder.nodes:
                if not nodes or name in nodes:
                    uid = self.images.uids[name]
                    self.images.said[uid, reference] = ImagePresence(name, uid, reference, ready, reason, reason)
        pool_images_observe(pool_id=self.world.pool.pk)

    def until_held(self) -> None:
        self.round()
        self.resolve()
        self.round()
        self.warm()
        self.pull()
        self.round()
        self.serve()
        self.round()

    @property
    def image(self) -> str:
        """What the server of the last Deployment runs."""
        [server] = self.gateway.deployments[-1]["spec"]["template"]["spec"]["containers"]
        return str(server["image"])

    @property
    def image_pins(self) -> list[Pin]:
        return [pin for pin in self.pins if pin.image_id is not None]

    @property
    def held(self) -> set[str]:
        """The references that holders hold."""
        return {reference for _, reference in self.images.holders}


@pytest.fixture
def served(
    make_world: Callable[..., World], settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ImagesWorld]:
    made = ImagesWorld(make_world(), settings)
    settings.SCHEDULING_LAG_SECONDS = 0.0
    made.world.cluster.type = ClusterType.KUBERNETES
    made.world.cluster.save()
    made.images = ImageGateway(made.gateway)
    made.images.uids = {name: link.node_uid for name, link in made.world.links.items()}
    override_gateway(made.world.cluster.pk, made.images)
    made.registry = use(Registry(), monkeypatch)
    yield made
    made.close()


def by_digest(reference: str, digest: str) -> str:
    return f"{reference.rpartition(':')[0]}@{digest}"


def test_its_image_is_resolved_kept_and_run_by_its_digest(served: ImagesWorld) -> None:
    version = served.version()
    digest = served.registry.push(VLLM, "one")
    served.apply()
    served.round()
    assert served.status["imageCacheStatus"]["message"] == "Its registry is asked for the digest."
    served.round()
    assert Operation.objects.filter(kind=OperationKind.IMAGE_REGISTER).count() == 1, "asked once"

    served.resolve()
    served.round()
    [pin] = served.image_pins
    assert (pin.version, pin.artifacts, pin.endpoint) == (version, ["Image"], served.endpoint)
    assert served.condition("ImageCacheReady")[:2] == ("False", "Pending")

    served.warm()
    served.round()
    assert served.image == by_digest(VLLM, digest), "the image is on no node yet, and holds nothing up"
    assert served.held == {by_digest(VLLM, digest)}
    served.pull("n1")
    served.round()
    counts = served.status["imageCacheStatus"]
    assert (counts["readyNodes"], counts["targetNodes"]) == (1, 2)
    served.pull()
    served.round()
    assert served.status["imageCacheStatus"]["state"] == "Ready"
    assert served.condition("ImageCacheReady") == ("True", "Ready", "2 of 2 nodes are warm.")
    assert served.rollout.resolved_image is not None and served.rollout.resolved_image.reference == VLLM


def test_a_registry_that_does_not_answer_delays_the_first_pods_by_a_moment(served: ImagesWorld) -> None:
    served.version()
    served.registry.names[VLLM] = Transient("source:source:down", "No answer.", reason=Reason.SOURCE_UNAVAILABLE)
    served.apply(spec__modelCacheConfig__weightsCache__enabled=False)
    served.round()
    assert served.gateway.deployments == [] and served.condition("RolledOut")[1] == "ResolvingImage"
    with time_machine.travel(timezone.now() + timedelta(seconds=16)):
        served.round()
        assert served.image == VLLM, "then pods pull it by its tag, as they would without Hearth"
        served.serve()
        served.round()
        digest = served.registry.push(VLLM, "one")
        served.resolve()
        served.round()
        assert served.image == by_digest(VLLM, digest), "and go over to the digest that nodes keep"
    assert served.rollout.number == 1


def test_what_a_registry_refuses_is_said_and_asked_for_again_later(served: ImagesWorld) -> None:
    served.version()
    served.registry.names[VLLM] = Permanent(
        "source:source:no-image", "There is no such image.", reason=Reason.SOURCE_UNAVAILABLE, next_step="Push it."
    )
    served.apply()
    served.round()
    served.resolve()
    served.round()
    assert served.condition("ImageCacheReady") == ("False", "Failed", "There is no such image. Push it.")
    served.round()
    assert served.registry.asked == [VLLM]
    served.warm()
    served.round()
    assert served.image == VLLM, "its pods are the cluster's business"
    with time_machine.travel(timezone.now() + timedelta(minutes=6)):
        served.registry.push(VLLM, "one")
        served.round()
        served.resolve()
        served.round()
    assert served.rollout.resolved_image is not None


def test_another_image_rolls_out_beside_the_one_before(served: ImagesWorld) -> None:
    served.version()
    old = by_digest(VLLM, served.registry.push(VLLM, "one"))
    new = by_digest(NEXT, served.registry.push(NEXT, "two"))
    served.apply(metadata__annotations=HOLD)
    served.until_held()
    assert served.rollout.state == "Done" and len(served.pins) == 2

    served.apply(spec__worker__image=NEXT, metadata__annotations=HOLD)
    served.round()
    assert served.image == old, "its digest is asked for first"
    served.resolve()
    served.round()
    assert (served.rollout.number, served.rollout.state, served.image) == (2, "Switching", new)
    assert len(served.pins) == 3 and len(served.image_pins) == 2, "the weights are pinned once"
    served.pull()
    assert served.held == {old, new}
    served.serve()
    served.round()
    assert served.rollout.state == "Holding" and len(served.image_pins) == 2
    with time_machine.travel(timezone.now() + timedelta(seconds=3601)):
        served.round()
    served.pull()
    served.pull()
    assert served.held == {new}
    [pin] = served.image_pins
    assert pin.image is not None and pin.image.reference == NEXT
    [event] = AuditEvent.objects.filter(action="endpoint.evict")
    assert event.before is not None and (event.before["artifact"], event.before["nodes"]) == (VLLM, 2)


def test_going_back_runs_what_is_held_whatever_the_tag_names_by_then(served: ImagesWorld) -> None:
    served.version()
    old = by_digest(VLLM, served.registry.push(VLLM, "one"))
    served.registry.push(NEXT, "two")
    served.apply(metadata__annotations=HOLD)
    served.until_held()
    served.apply(spec__worker__image=NEXT, metadata__annotations=HOLD)
    served.until_held()
    assert served.rollout.state == "Holding"
    moved = served.registry.push(VLLM, "three")
    image_check(image_id=Image.objects.get(reference=VLLM).pk)
    assert served.rollout.previous is not None
    warm = rollout_warmth(served.rollout.previous)
    assert (warm.weights, warm.image) == (Warmth(2, 2), Warmth(2, 2)), "it says so before anybody goes back"

    served.apply(metadata__annotations=HOLD)
    served.round()
    assert (served.rollout.number, served.image) == (3, old)
    assert served.condition("ImageTagMoved")[0] == "True" and moved in served.condition("ImageTagMoved")[2]


def test_a_tag_that_moves_is_shown_and_rolls_nothing(served: ImagesWorld) -> None:
    served.version()
    old = by_digest(VLLM, served.registry.push(VLLM, "one"))
    served.apply()
    served.until_held()
    before = len(served.gateway.deployments)
    moved = served.registry.push(VLLM, "two")
    image_check(image_id=Image.objects.get().pk)
    # Somebody registers what it names now: no reason to touch pods either.
    factories.image(reference=VLLM, registry="", repository="vllm/vllm-openai", tag="latest")
    served.round()
    assert (len(served.gateway.deployments), served.image, served.rollout.number) == (before, old, 1)
    status, reason, message = served.condition("ImageTagMoved")
    assert (status, reason) == ("True", "TagMoved") and moved in message and "name the other one" in message


def test_the_cache_of_images_is_switched_while_it_serves(served: ImagesWorld) -> None:
    served.version()
    digest = served.registry.push(VLLM, "one")
    served.apply(spec__modelCacheConfig__imageCache__enabled=False)
    served.until_served()
    assert served.image == VLLM and served.image_pins == [] and served.registry.asked == []
    assert "imageCacheStatus" not in served.status

    served.apply()
    served.until_held()
    assert served.image == by_digest(VLLM, digest) and len(served.image_pins) == 1
    assert served.rollout.number == 1, "no other version, so no rollout"

    served.apply(spec__modelCacheConfig__imageCache__enabled=False)
    served.round()
    assert "imageCacheStatus" not in served.status
    assert {kind for kind, _ in served.gateway.mirrors} == set(WEIGHTS_KINDS)
    served.pull()
    served.pull()
    assert served.image_pins == [] and served.held == set()
    assert served.image == by_digest(VLLM, digest), "pods are not made again for it"

    served.apply(spec__modelCacheConfig__weightsCache__enabled=False)
    served.round()
    assert [pin.artifacts for pin in served.pins] == [["Image"]], "each of the two by itself"


def test_an_image_that_several_endpoints_run_stays_until_the_last_is_gone(served: ImagesWorld) -> None:
    version = served.version()
    served.registry.push(VLLM, "one")
    served.apply()
    served.until_held()
    [pin] = served.image_pins
    assert pin.image is not None
    other = factories.endpoint(of=served.world.cluster, name="other")
    targets = CacheTargets((served.world.pool,), {}, "/opt")
    image_pin_ensure(endpoint=other, version=version, image=pin.image, targets=targets)

    served.delete()
    served.round()
    served.pull()
    assert served.held and not AuditEvent.objects.filter(action="endpoint.evict", after__artifact=VLLM).exists()
    with pytest.raises(Clash, match="A pin keeps"):
        image_delete(actor=SYSTEM, image_id=pin.image.pk)
    pins_release(endpoint=other, keep=())
    served.pull()
    served.pull()
    assert served.held == set()
    assert set(CacheEntry.objects.filter(artifact=pin.image.artifact).values_list("desired", flat=True)) <= {
        "",
        "Evict",
    }
    image_delete(actor=SYSTEM, image_id=pin.image.pk)


def test_its_mirrors_show_what_the_documents_show_and_go_with_the_last_endpoint(served: ImagesWorld) -> None:
    version = served.version()
    digest = served.registry.push(VLLM, "one")
    served.apply()
    served.round()
    assert set(served.gateway.mirrors) == {(kind, "chat-small-model-cache") for kind in WEIGHTS_KINDS}
    served.until_held()
    shown = {kind: mirror for (kind, _), mirror in served.gateway.mirrors.items() if kind in IMAGE_KINDS}
    assert set(shown) == set(IMAGE_KINDS)
    mirror = shown[MirrorKind.IMAGE]
    assert mirror.namespace == "hyperpod-inference-system"
    assert re.fullmatch("iic-vllm-openai-any-[0-9a-f]{4}", mirror.name)
    assert (mirror.spec["image"], mirror.spec["nodeSelector"]) == (VLLM, {})
    [parent] = mirror.spec["parentReferences"]
    assert parent == {"kind": served.endpoint.kind, "name": "chat-small", "namespace": "default", "uid": "uid-1"}
    status = {name: mirror.status[name] for name in ("state", "phase", "readyNodes", "targetNodes", "resolvedDigest")}
    assert list(status.values()) == ["Ready", "Complete", 2, 2, digest]

    other = factories.endpoint(of=served.world.cluster, name="other")
    [pin] = served.image_pins
    assert pin.image is not None
    targets = CacheTargets((served.world.pool,), {}, "/opt")
    image_pin_ensure(endpoint=other, version=version, image=pin.image, targets=targets)
    served.delete()
    served.round()
    assert set(served.gateway.mirrors) == {(kind, mirror.name) for kind in IMAGE_KINDS}
    [parent] = served.gateway.mirrors[MirrorKind.IMAGE, mirror.name].spec["parentReferences"]
    assert parent["name"] == "other"

    pins_release(endpoint=other, keep=())
    Endpoint.objects.all().delete()
    assert clusters_with_endpoints() == [served.world.cluster.pk], "although no endpoint is left"
    served.round()
    assert served.gateway.mirrors == {} and clusters_with_endpoints() == []


def test_an_image_that_was_revoked_is_kept_for_no_new_rollout(served: ImagesWorld) -> None:
    served.version()
    served.registry.push(VLLM, "one")
    served.apply()
    served.round()
    served.resolve()
    image_revoke(actor=SYSTEM, image_id=Image.objects.get().pk, reason="It has a hole.")
    served.round()
    status, reason, message = served.condition("ImageCacheReady")
    assert (status, reason) == ("False", "Failed") and "It has a hole." in message
    assert served.image_pins == []


def test_nodes_that_cannot_have_it_are_counted(served: ImagesWorld) -> None:
    served.version()
    served.registry.push(VLLM, "one")
    served.apply()
    served.until_held()
    served.pull("n2", ready=False, reason=Reason.INVALID_REQUEST)
    served.round()
    assert served.condition("ImageCacheReady")[1] == "PartiallyReady"
    assert "n2 (InvalidRequest)" in served.condition("ImageCacheReady")[2]


def test_the_connection_that_leads_to_a_registry_is_found_by_host_repository_and_namespace() -> None:
    def connection(name: str, **fields: Any) -> None:
        fields = {"endpoint": "https://registry.example", "allowed": ["team"], **fields}
        factories.connection(name=name, type=SourceType.REGISTRY, **fields)

    def found(reference: str, namespace: str = "default") -> str:
        row = registry_connection(parse_reference(reference), namespace=namespace)
        return row.name if row is not None else ""

    connection("a-closed", namespaces=["theirs"])
    connection("b-open")
    connection("c-hub", endpoint="https://registry-1.docker.io", allowed=["vllm/vllm-openai"])
    assert found("registry.example/team/server:1") == "b-open"
    assert found("registry.example/team/server:1", "theirs") == "a-closed"
    assert found("registry.example/others/server:1") == ""
    assert found("registry.example:5000/team/server:1") == ""
    assert found("vllm/vllm-openai") == found("docker.io/vllm/vllm-openai:v1") == "c-hub"
    assert found("registry-1.docker.io/vllm/vllm-openai") == found("index.docker.io/vllm/vllm-openai") == "c-hub"
    assert found("vllm/other") == ""
    connection("d-one", endpoint="https://docker.io", allowed=["busybox"])
    assert found("registry-1.docker.io/library/busybox") == found("library/busybox:1") == found("busybox") == "d-one"
