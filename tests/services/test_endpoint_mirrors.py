"""Mirrors of images and pins of endpoints, without rounds: names that stay apart, repeats, and what fails midway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.endpoints.specs import INSTANCE_TYPE_LABEL
from caches.domain.endpoints.status import image_mirror_name
from caches.models import CacheEntry, Image, Pin, ShownMirror
from caches.selectors.endpoint_targets import CacheTargets
from caches.services.endpoints import mirrors as endpoint_mirrors
from caches.services.endpoints.mirrors import image_mirrors_write, mirror_write, mirrors_delete, placement
from caches.services.endpoints.pins import image_pin_ensure, pins_release
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import EntryState
from controlplane.clusters.endpoints import CacheMirror, MirrorKind
from controlplane.clusters.gateway import Unreachable
from controlplane.clusters.kubernetes.names import is_object_name
from controlplane.clusters.models import Cluster, ClusterType, NodePool
from controlplane.serving.models import Endpoint
from tests import factories

pytestmark = pytest.mark.django_db
MIRROR = CacheMirror(MirrorKind.IMAGE, "n", "m", {"image": "x"}, {"state": "Ready"})


class Mirrors:
    """What was applied; ``fails`` answers nothing after so many calls."""

    def __init__(self) -> None:
        self.there: dict[tuple[MirrorKind, str], CacheMirror] = {}
        self.calls, self.fails = 0, 10**9

    def _call(self) -> None:
        self.calls += 1
        if self.calls > self.fails:
            raise Unreachable("no answer")

    def apply_cache_mirror(self, mirror: CacheMirror) -> None:
        self._call()
        self.there[mirror.kind, mirror.name] = mirror

    def delete_cache_mirror(self, kind: MirrorKind, namespace: str, name: str) -> None:
        self._call()
        self.there.pop((kind, name), None)


class Fleet:
    """A Kubernetes cluster with one pool of two nodes, and endpoints with pins of images there."""

    def __init__(self) -> None:
        self.cluster: Cluster = factories.cluster(type=ClusterType.KUBERNETES)
        self.pool: NodePool = factories.pool(of=self.cluster)
        self.nodes = [factories.node(of=self.pool) for _ in range(2)]
        self.gateway: Any = Mirrors()

    def pin(self, image: Image, of: Endpoint | None = None, **fields: Any) -> Pin:
        endpoint = of or factories.endpoint(of=self.cluster)
        fields = {"artifacts": ["Image"], "pools": (self.pool,), **fields}
        return factories.pin(of=factories.version(), image=image, endpoint=endpoint, **fields)

    def write(self, now: datetime | None = None) -> None:
        image_mirrors_write(cluster=self.cluster, gateway=self.gateway, now=now or timezone.now())

    @property
    def shown(self) -> dict[str, CacheMirror]:
        return {name: mirror for (kind, name), mirror in self.gateway.there.items() if kind is MirrorKind.IMAGE}

    def counts(self) -> list[tuple[int, int]]:
        return sorted((mirror.status["readyNodes"], mirror.status["targetNodes"]) for mirror in self.shown.values())


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.mark.parametrize(
    ("selector", "plain", "lists"),
    [
        ({}, {}, None),
        ({"zone": "a"}, {"zone": "a"}, None),
        ({"zone": "a|b", "type": "g5"}, {"type": "g5"}, [("zone", ["a", "b"])]),
        ({"z": "a|b", "a": "x|y"}, {}, [("a", ["x", "y"]), ("z", ["a", "b"])]),
    ],
)
def test_a_selector_is_told_in_the_words_of_the_mirrors(selector: Mapping[str, str], plain: Any, lists: Any) -> None:
    made = placement(selector)
    assert made["nodeSelector"] == plain
    if lists is None:
        assert "nodeAffinity" not in made
        return
    [term] = made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(one["key"], one["values"]) for one in term["matchExpressions"]] == lists


def test_a_mirror_that_could_not_be_written_is_remembered_and_written_again(fleet: Fleet) -> None:
    """What was sent must never be forgotten, and what was not must not count as written."""
    now, fleet.gateway.fails = timezone.now(), 0
    with pytest.raises(Unreachable):
        mirror_write(cluster=fleet.cluster, mirror=MIRROR, gateway=fleet.gateway, now=now)
    row = ShownMirror.objects.get()
    assert (row.name, row.written_hash, row.written_at) == ("m", "", None)
    fleet.gateway.fails = 10**9
    mirror_write(cluster=fleet.cluster, mirror=MIRROR, gateway=fleet.gateway, now=now)
    assert fleet.gateway.there == {(MirrorKind.IMAGE, "m"): MIRROR}


def test_a_mirror_is_written_when_it_changed_or_is_old(fleet: Fleet) -> None:
    now = timezone.now()
    other = replace(MIRROR, status={"state": "Failed"})
    for mirror, after, calls in (
        (MIRROR, 0, 1), (MIRROR, 1, 1), (MIRROR, 599, 1), (MIRROR, 600, 2), (other, 601, 3), (MIRROR, 602, 4),
        (MIRROR, 603, 4),
    ):  # fmt: skip
        at = now + timedelta(seconds=after)
        mirror_write(cluster=fleet.cluster, mirror=mirror, gateway=fleet.gateway, now=at)
        assert fleet.gateway.calls == calls, after


def test_a_removal_that_is_interrupted_goes_on(fleet: Fleet) -> None:
    for name in ("a", "b", "c"):
        mirror = replace(MIRROR, name=name)
        mirror_write(cluster=fleet.cluster, mirror=mirror, gateway=fleet.gateway, now=timezone.now())
    fleet.gateway.fails = fleet.gateway.calls + 1
    with pytest.raises(Unreachable):
        mirrors_delete(rows=ShownMirror.objects.order_by("name"), gateway=fleet.gateway)
    assert list(ShownMirror.objects.order_by("name").values_list("name", flat=True)) == ["b", "c"]
    fleet.gateway.fails = 10**9
    mirrors_delete(rows=ShownMirror.objects.all(), gateway=fleet.gateway)
    assert fleet.gateway.there == {} and not ShownMirror.objects.exists()


def test_endpoints_with_the_same_image_for_the_same_nodes_share_a_mirror(fleet: Fleet) -> None:
    image = factories.image()
    again = factories.image(reference="b.example/x:v1", artifact=image.artifact)
    pins = [fleet.pin(image), fleet.pin(again)]
    fleet.pin(factories.image(), removed_at=timezone.now())
    fleet.pin(image, of=factories.endpoint())  # of another cluster
    factories.pin(of=factories.version(), image=image, pools=(fleet.pool,), artifacts=["Image"])  # of no endpoint
    factories.entry(on=fleet.nodes[0], of=image.artifact)
    fleet.write()
    [mirror] = fleet.shown.values()
    parents = {parent["uid"] for parent in mirror.spec["parentReferences"]}
    assert parents == {pin.endpoint.uid for pin in pins if pin.endpoint is not None}
    assert fleet.counts() == [(1, 2)], "each node once, however many endpoints want it"
    calls = fleet.gateway.calls
    fleet.write()
    assert fleet.gateway.calls == calls, "nothing is new"


def test_the_same_image_for_other_nodes_is_another_mirror(fleet: Fleet) -> None:
    image, label = factories.image(), INSTANCE_TYPE_LABEL
    fleet.nodes[0].labels |= {label: "ml.g5.xlarge"}
    fleet.nodes[0].save()
    for selector in ({}, {label: "ml.g5.xlarge"}, {label: "ml.g5.xlarge|ml.p5.48xlarge"}):
        fleet.pin(image, node_selector=selector)
    fleet.write()
    assert fleet.counts() == [(0, 1), (0, 1), (0, 2)]
    assert sorted(name.rpartition("-")[0].removeprefix(f"iic-{image.repository}-") for name in fleet.shown) == [
        "any", "ml-g5-xlarge", "ml-g5-xlarge",
    ]  # fmt: skip


def test_images_whose_short_names_are_alike_stay_apart(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four digits are alike once in a while: the second one gets more of them, and neither overwrites the other."""
    real = image_mirror_name

    def alike(repository: str, instance_type: str, suffix: str) -> str:
        return real(repository, instance_type, "beef" if len(suffix) == 4 else suffix)

    monkeypatch.setattr(endpoint_mirrors, "image_mirror_name", alike)
    for _ in range(3):
        fleet.pin(factories.image(repository="team/server"))
    fleet.write()
    assert len(fleet.shown) == 3 and sum(len(name) == len("iic-server-any-beef") for name in fleet.shown) == 1
    digests = {mirror.status["resolvedDigest"] for mirror in fleet.shown.values()}
    assert len(digests) == 3
    before = dict(fleet.shown)
    fleet.write()
    assert fleet.shown == before, "and keeps its name"


@pytest.mark.parametrize(
    ("repository", "instance"),
    [
        ("a/" * 40 + "x" * 200, "ml.g5.xlarge"),
        ("Weird__Name..x", "ml.p5.48xlarge|ml.g5.xlarge"),
        ("x", "größe/ß"),
        ("___", ""),
        ("x", "-" * 63),
        ("x", "y" * 250),
    ],
)
def test_a_mirror_has_a_name_that_an_api_server_takes(repository: str, instance: str, fleet: Fleet) -> None:
    fleet.pin(factories.image(repository=repository), node_selector={INSTANCE_TYPE_LABEL: instance} if instance else {})
    fleet.write()
    [name] = fleet.shown
    assert is_object_name(name) and name.startswith("iic-") and len(name) <= 253


def test_a_mirror_goes_with_the_last_pin_and_only_in_its_cluster(fleet: Fleet) -> None:
    other = Fleet()
    image = factories.image()
    pin = fleet.pin(image)
    other.pin(image)
    for one in (fleet, other):
        one.write()
    Pin.objects.filter(pk=pin.pk).update(removed_at=timezone.now())
    for one in (fleet, other):
        one.write()
    assert fleet.shown == {} and len(other.shown) == 1
    assert ShownMirror.objects.filter(cluster=fleet.cluster).count() == 0


def test_mirrors_of_weights_are_none_of_the_images_business(fleet: Fleet) -> None:
    weights = replace(MIRROR, kind=MirrorKind.WEIGHTS)
    mirror_write(cluster=fleet.cluster, mirror=weights, gateway=fleet.gateway, now=timezone.now())
    fleet.write()
    assert set(fleet.gateway.there) == {(MirrorKind.WEIGHTS, "m")}


# -- what an endpoint's pins leave behind


def asked(image: Image) -> set[str]:
    rows = CacheEntry.objects.filter(artifact=image.artifact, evict_requested_at__isnull=False)
    return set(rows.values_list("node__name", flat=True))


def test_what_its_last_pin_leaves_is_asked_to_go_from_its_pools_alone(fleet: Fleet) -> None:
    endpoint, image, elsewhere = (
        factories.endpoint(of=fleet.cluster),
        factories.image(),
        factories.pool(of=fleet.cluster),
    )
    kept, gone = fleet.nodes
    factories.entry(on=kept, of=image.artifact)
    factories.entry(on=gone, of=image.artifact, state=EntryState.ABSENT, desired="")
    lost = factories.node(of=fleet.pool, lost_at=timezone.now())
    factories.entry(on=lost, of=image.artifact)
    factories.entry(on=factories.node(of=elsewhere), of=image.artifact)
    fleet.pin(image, of=endpoint)
    assert pins_release(endpoint=endpoint, keep=()) == 1
    assert asked(image) == {kept.name}
    [event] = AuditEvent.objects.filter(action="endpoint.evict")
    assert event.before is not None and event.before["nodes"] == 1
    assert pins_release(endpoint=endpoint, keep=()) == 0, "once"


@pytest.mark.parametrize("how", ["another endpoint", "somebody's own", "its version's", "of no pool"])
def test_what_somebody_else_has_pinned_stays(how: str, fleet: Fleet) -> None:
    endpoint, image = factories.endpoint(of=fleet.cluster), factories.image()
    factories.entry(on=fleet.nodes[0], of=image.artifact)
    fleet.pin(image, of=endpoint)
    if how == "another endpoint":
        fleet.pin(image)
    elif how == "its version's":
        factories.pin(of=factories.version(image=image), pools=(fleet.pool,), artifacts=["Image"])
    else:
        own = factories.pin(of=factories.version(), image=image, pools=(fleet.pool,), artifacts=["Image"])
        if how == "of no pool":
            own.pools.clear()  # it holds nothing anywhere
    pins_release(endpoint=endpoint, keep=())
    assert asked(image) == ({fleet.nodes[0].name} if how == "of no pool" else set())


def test_only_what_is_to_be_kept_is_kept(fleet: Fleet) -> None:
    endpoint, image, other = factories.endpoint(of=fleet.cluster), factories.image(), factories.image()
    version = factories.version()
    weights = factories.pin(of=version, endpoint=endpoint, pools=(fleet.pool,))
    pins = {one.pk: factories.pin(of=version, image=one, endpoint=endpoint, pools=(fleet.pool,), artifacts=["Image"])
            for one in (image, other)}  # fmt: skip
    assert pins_release(endpoint=endpoint, keep=[version.pk], images=[(version.pk, image.pk)]) == 1
    assert set(Pin.objects.filter(removed_at=None)) == {weights, pins[image.pk]}
    assert pins_release(endpoint=endpoint, keep=[], images=[(version.pk, image.pk)]) == 1, "each by itself"
    assert set(Pin.objects.filter(removed_at=None)) == {pins[image.pk]}


def test_an_images_pin_is_of_the_pools_that_hold_images_and_is_repeated_in_vain(fleet: Fleet) -> None:
    endpoint, image, version = factories.endpoint(of=fleet.cluster), factories.image(), factories.version()
    targets = CacheTargets((fleet.pool, factories.pool()), {"zone": "a"}, "/opt")

    def ensure(of: CacheTargets) -> Any:
        return image_pin_ensure(endpoint=endpoint, version=version, image=image, targets=of)

    made = ensure(targets).pin
    assert made is not None and list(made.pools.all()) == [fleet.pool] and made.node_selector == {"zone": "a"}
    Pin.objects.update(suspended=True)
    assert ensure(targets).pin == made, "somebody's pause is no other pin"
    moved = ensure(replace(targets, selector={}))
    assert moved.pin is not None and moved.pin != made and moved.pin.node_selector == {}
    assert Pin.objects.get(removed_at=None) == moved.pin


def test_a_pin_that_cannot_move_stays_where_it_is(fleet: Fleet) -> None:
    """A revoked image takes no new pin; that one may hold what serves."""
    endpoint, image, version = factories.endpoint(of=fleet.cluster), factories.image(), factories.version()
    targets = CacheTargets((fleet.pool,), {}, "/opt")
    made = image_pin_ensure(endpoint=endpoint, version=version, image=image, targets=targets).pin
    Image.objects.update(revoked_at=timezone.now(), revoked_reason="CVE")
    again = image_pin_ensure(endpoint=endpoint, version=version, image=image, targets=targets)
    assert again.pin == made and made is not None
    moved = replace(targets, selector={"zone": "b"})
    found = image_pin_ensure(endpoint=endpoint, version=version, image=image, targets=moved)
    assert found.pin is None and "revoked" in found.no_room
    assert Pin.objects.get(removed_at=None) == made
