"""What the control plane writes: node caches, manifests, secrets, labels and taints, each guarded by the node's uid."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controlplane.clusters.documents import Algorithm, FileRecord, Manifest, Origin
from controlplane.clusters.gateway import (
    ClusterGateway,
    Conflict,
    ImageHolder,
    Kind,
    NotApplicable,
    NotFound,
    ObservedNode,
    ObservedNodeCache,
    PoolAgent,
    Refused,
    Workload,
)
from tests.contracts.clusters import ContractCluster
from tests.contracts.observing import DIGEST, OTHER, changes, spec, status


def _cache(cluster: ContractCluster) -> ObservedNodeCache:
    (item,) = cluster.gateway.list(Kind.NODE_CACHE).items
    assert isinstance(item, ObservedNodeCache)
    return item


def _node(cluster: ContractCluster) -> ObservedNode:
    (item,) = cluster.gateway.list(Kind.NODE).items
    assert isinstance(item, ObservedNode)
    return item


def _files(count: int, revision: str = "r") -> tuple[FileRecord, ...]:
    return tuple(
        FileRecord(f"shard-{n:05}.safetensors", n, Algorithm.SHA256, f"{n * 7919:064x}", f"{revision}{n}", "", "s")
        for n in range(count)
    )


def test_it_counts_changes_of_the_spec_and_nothing_else(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    apply = cluster.gateway.apply_node_cache

    first = apply(spec("n-1", uid, DIGEST))
    token = cluster.gateway.list(Kind.NODE_CACHE).token
    assert apply(spec("n-1", uid, DIGEST)) == first
    assert changes(cluster.gateway, Kind.NODE_CACHE, token) == []

    cluster.link("n-1", uid).report(status("n-1", uid))
    assert apply(spec("n-1", uid, DIGEST)) == first
    assert apply(spec("n-1", uid, DIGEST, OTHER)) > first


def test_it_gives_back_exactly_what_was_written(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    wanted, told = spec("n-1", uid, DIGEST, OTHER), status("n-1", uid)
    generation = cluster.gateway.apply_node_cache(wanted)
    assert _cache(cluster) == ObservedNodeCache("n-1", uid, generation, wanted, None)

    cluster.link("n-1", uid).report(told)
    cluster.gateway.apply_node_cache(changed := spec("n-1", uid, OTHER))
    seen = _cache(cluster)
    assert (seen.spec, seen.status) == (changed, told)


def test_it_refuses_a_spec_for_an_incarnation_that_is_gone(cluster: ContractCluster) -> None:
    old = cluster.add_node("n-1")
    cluster.gateway.apply_node_cache(spec("n-1", old, DIGEST))
    new = cluster.replace_node("n-1")

    for name, uid in (("n-1", old), ("never", "x")):
        with pytest.raises(NotFound):
            cluster.gateway.apply_node_cache(spec(name, uid, DIGEST))
    assert cluster.gateway.list(Kind.NODE_CACHE).items == ()

    cluster.gateway.apply_node_cache(spec("n-1", new, OTHER))
    assert (_cache(cluster).node_uid, _cache(cluster).status) == (new, None)
    with pytest.raises(NotFound):
        cluster.gateway.apply_node_cache(spec("n-1", old, DIGEST))
    assert _cache(cluster).spec == spec("n-1", new, OTHER), (
        "a late word about the old machine takes nothing from the new"
    )


def test_it_removes_what_a_node_owned_together_with_the_node(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    cluster.use("n-1", DIGEST)
    cluster.remove_node("n-1")

    for kind in (Kind.NODE, Kind.NODE_CACHE, Kind.CONSUMER):
        assert cluster.gateway.list(kind).items == ()


def test_it_forgets_the_cache_of_the_named_incarnation_only(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    cluster.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    cluster.gateway.delete_node_cache("n-1", "another")
    assert _cache(cluster).spec.desired

    for _ in range(2):
        cluster.gateway.delete_node_cache("n-1", uid)
    assert cluster.gateway.list(Kind.NODE_CACHE).items == ()
    assert cluster.link("n-1", uid).desired() is None


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_it_carries_a_manifest_of_any_size_to_the_node(cluster: ContractCluster, count: int) -> None:
    manifest = Manifest(DIGEST, _files(count))
    link = cluster.link("n-1", cluster.add_node("n-1"))
    cluster.gateway.apply_manifest(manifest)
    cluster.gateway.apply_manifest(manifest)

    assert link.manifest(DIGEST) == manifest


def test_it_keeps_manifests_immutable_in_what_the_digest_covers(cluster: ContractCluster) -> None:
    link = cluster.link("n-1", cluster.add_node("n-1"))
    cluster.gateway.apply_manifest(Manifest(DIGEST, _files(3)))

    with pytest.raises(Conflict):
        cluster.gateway.apply_manifest(Manifest(DIGEST, _files(2)))
    assert link.manifest(DIGEST).files == _files(3)

    moved = Manifest(DIGEST, _files(3, revision="other"))
    cluster.gateway.apply_manifest(moved)
    assert link.manifest(DIGEST) == moved


def test_it_forgets_a_manifest_on_request(cluster: ContractCluster) -> None:
    link = cluster.link("n-1", cluster.add_node("n-1"))
    cluster.gateway.apply_manifest(Manifest(DIGEST, _files(1)))
    cluster.gateway.delete_manifest(DIGEST)
    cluster.gateway.delete_manifest(DIGEST)

    with pytest.raises(NotFound):
        link.manifest(DIGEST)


def test_it_gives_back_everything_that_is_published(cluster: ContractCluster) -> None:
    assert list(cluster.gateway.manifests()) == []
    one, other = Manifest(DIGEST, _files(3)), Manifest(OTHER, _files(10_000))
    origin = Origin(
        spec("n", "u").connections[0], "s3://bucket/prefix", 2**40, "w", "llama", "v1", ("*.bin",), ("*.md",)
    )
    cluster.gateway.apply_manifest(one, origin)
    cluster.gateway.apply_manifest(other)

    assert list(cluster.gateway.manifests()) == [(one, origin), (other, None)]
    cluster.gateway.delete_manifest(DIGEST)
    assert [manifest.digest for manifest, _ in cluster.gateway.manifests()] == [OTHER]


def test_it_carries_a_secret_to_the_node(cluster: ContractCluster) -> None:
    link = cluster.link("n-1", cluster.add_node("n-1"))
    cluster.gateway.apply_secret("store.key-1", {"access_key_id": "me", "secret_access_key": 'q"\n✓'})
    assert link.secret("store.key-1") == {"access_key_id": "me", "secret_access_key": 'q"\n✓'}

    cluster.gateway.apply_secret("store.key-1", {"access_key_id": "rotated"})
    assert link.secret("store.key-1") == {"access_key_id": "rotated"}

    cluster.gateway.delete_secret("store.key-1")
    cluster.gateway.delete_secret("store.key-1")
    with pytest.raises(NotFound):
        link.secret("store.key-1")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "/etc/passwd", ".hidden", "x" * 300, "nul\0"])
def test_it_takes_no_secret_by_a_name_that_leads_elsewhere(cluster: ContractCluster, name: str) -> None:
    link = cluster.link("n-1", cluster.add_node("n-1"))
    for call in (lambda: link.secret(name), lambda: cluster.gateway.apply_secret(name, {"a": "b"})):
        with pytest.raises(NotFound):
            call()


def test_it_sets_and_removes_only_the_named_labels(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    before = dict(_node(cluster).labels)
    ready = "hearth.dev/weights-cache-ready.a1"

    cluster.gateway.set_node_labels("n-1", uid, {ready: "true"})
    assert _node(cluster).labels == {**before, ready: "true"}

    token = cluster.gateway.list(Kind.NODE).token
    cluster.gateway.set_node_labels("n-1", uid, {ready: "true", "hearth.dev/never": None})
    assert changes(cluster.gateway, Kind.NODE, token) == []

    cluster.gateway.set_node_labels("n-1", uid, {ready: None})
    assert _node(cluster).labels == before


def test_it_sets_and_removes_a_taint(cluster: ContractCluster) -> None:
    uid = cluster.add_node("n-1")
    if not cluster.gateway.capabilities().taints:
        pytest.skip("this kind of cluster has no taints")
    before = set(_node(cluster).taints)

    for _ in range(2):
        cluster.gateway.set_node_taint("n-1", uid, "hearth.dev/warming", True)
        assert set(_node(cluster).taints) == before | {"hearth.dev/warming"}
    cluster.gateway.set_node_taint("n-1", uid, "hearth.dev/warming", False)
    assert set(_node(cluster).taints) == before


def test_it_labels_no_incarnation_but_the_one_it_was_told(cluster: ContractCluster) -> None:
    old = cluster.add_node("n-1")
    cluster.replace_node("n-1")
    before = _node(cluster)

    with pytest.raises(Conflict):
        cluster.gateway.set_node_labels("n-1", old, {"hearth.dev/x": "y"})
    with pytest.raises(Conflict):
        cluster.gateway.set_node_taint("n-1", old, "hearth.dev/x", True)
    with pytest.raises(NotFound):
        cluster.gateway.set_node_labels("never", old, {"hearth.dev/x": "y"})
    assert _node(cluster) == before


IMAGE_CALLS: tuple[Callable[[ClusterGateway], object], ...] = (
    lambda gateway: gateway.apply_image_holder(ImageHolder("pool-a", "r@sha256:1")),
    lambda gateway: gateway.delete_image_holder("pool-a", "r@sha256:1"),
    lambda gateway: gateway.renew_image_holder("pool-a", "r@sha256:1", "n-1"),
    lambda gateway: gateway.image_holders("pool-a"),
    lambda gateway: gateway.image_presence("pool-a"),
    lambda gateway: gateway.images_listed("n-1", "uid"),
    lambda gateway: gateway.apply_pull_secret("hearth-pull-a", "registry.invalid", "reader", "secret"),
    lambda gateway: gateway.delete_pull_secret("hearth-pull-a"),
)
AGENT_CALLS: tuple[Callable[[ClusterGateway], object], ...] = (
    lambda gateway: gateway.apply_agent(PoolAgent("pool-a", "image@sha256:0", "/opt/dlami/nvme")),
    lambda gateway: gateway.delete_agent("pool-a"),
    lambda gateway: gateway.has_agents("pool-a"),
)
WORKLOAD_CALLS: tuple[Callable[[ClusterGateway], object], ...] = (
    lambda gateway: gateway.apply_workload(Workload("w", "default", {})),
    lambda gateway: gateway.delete_workload("default", "w"),
)


def test_it_says_not_applicable_to_what_it_cannot_do(cluster: ContractCluster) -> None:
    able = cluster.gateway.capabilities()
    assert able.version
    refused = () if able.images else IMAGE_CALLS
    refused += () if able.workloads else WORKLOAD_CALLS
    refused += () if able.agents else AGENT_CALLS
    for call in refused:
        with pytest.raises(NotApplicable):
            call(cluster.gateway)


IMAGES = tuple(f"registry.invalid/engine@{digest}" for digest in (DIGEST, OTHER))


def test_it_has_a_holder_of_an_image_until_it_is_taken_away(cluster: ContractCluster) -> None:
    gateway = cluster.gateway
    if not gateway.capabilities().images:
        pytest.skip("this kind of cluster has no images")
    uid = cluster.add_node("n-1")

    for _ in range(2):
        gateway.apply_image_holder(ImageHolder("pool-a", IMAGES[0]))
    gateway.apply_image_holder(ImageHolder("pool-a", IMAGES[1]))
    gateway.apply_image_holder(ImageHolder("pool-b", IMAGES[0]))

    assert gateway.image_holders("pool-a") == IMAGES and gateway.image_holders("pool-b") == IMAGES[:1]
    assert gateway.image_presence("pool-a") == (), "it is wanted on no node"
    for _ in range(2):
        gateway.delete_image_holder("pool-a", IMAGES[0])
    assert gateway.image_holders("pool-a") == IMAGES[1:] and gateway.image_holders("pool-b") == IMAGES[:1]
    gateway.renew_image_holder("pool-b", IMAGES[0], "n-1")
    gateway.renew_image_holder("pool-a", IMAGES[0], "n-1")
    assert gateway.images_listed("n-1", uid) == frozenset()
    for name, other in (("n-1", "another"), ("never", uid), ("../n-1", uid)):
        with pytest.raises(NotFound):
            gateway.images_listed(name, other)
    with pytest.raises(Refused):
        gateway.apply_image_holder(ImageHolder("pool-a", "registry.invalid/engine:latest"))


DEPLOYMENT = {
    "metadata": {"labels": {"app": "w"}},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "w"}},
        "template": {
            "metadata": {"labels": {"app": "w"}},
            "spec": {"containers": [{"name": "engine", "image": "registry.invalid/engine:1"}]},
        },
    },
}


def test_it_applies_a_workload_until_it_is_taken_away(cluster: ContractCluster) -> None:
    if not cluster.gateway.capabilities().workloads:
        pytest.skip("this kind of cluster has no workloads")
    for _ in range(2):
        cluster.gateway.apply_workload(Workload("w", "default", DEPLOYMENT))
    for _ in range(2):
        cluster.gateway.delete_workload("default", "w")
    with pytest.raises(NotFound):
        cluster.gateway.apply_workload(Workload("../w", "default", DEPLOYMENT))
    with pytest.raises(NotFound):
        cluster.gateway.delete_workload("default/x", "w")


def test_nobody_s_log_is_not_found(cluster: ContractCluster) -> None:
    with pytest.raises(NotFound):
        cluster.gateway.logs("nobody", 10)
