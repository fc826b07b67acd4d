"""Documents that change quickly, that share a name, and that name another connection, on a real API server.

Pods are asked for by nobody (no replicas), so that a rollout is over once the Deployment's controller has seen it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import LazySettings
from django.utils import timezone

from caches.domain.labels import ready_label
from caches.models import CacheEntry, ModelVersion, Pin, Rollout
from caches.services.connections import connection_create
from caches.services.endpoints.rounds import endpoints_round
from caches.services.loop.rounds import pool_reconcile, pools_due
from caches.sources.secrets import write_secret
from controlplane.audit.services import SYSTEM
from controlplane.clusters.gateway import Kind
from controlplane.clusters.kubernetes import names
from controlplane.embedded.seaweed import S3
from controlplane.operations.models import ACTIVE_STATES, Operation
from controlplane.operations.steps import operation_step
from controlplane.serving.models import Endpoint
from controlplane.serving.sinks import ServingSink
from tests.kube.endpoint_kinds import API, MANIFESTS, endpoint_kinds
from tests.kube.installed import answers
from tests.kube.world import KubeWorld
from tests.plugins.kube import KubeApi
from tests.sources.conftest import make_bucket
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]
NAME, OURS, THEIRS = "chat-small", "default", "team-b"
IMAGE = "registry.invalid/engine@sha256:" + "1" * 64
SINK = ServingSink()


class Documents:
    """The same name in two namespaces, over two simulated nodes and a real bucket."""

    def __init__(self, world: KubeWorld, bucket: str) -> None:
        self.world, self.client, self.bucket = world, world.api, bucket

    def path(self, namespace: str) -> str:
        return f"{API}/namespaces/{namespace}/{names.CONFIGS}/{NAME}"

    def apply(self, namespace: str, location: str, **annotations: str) -> None:
        """As somebody does with kubectl."""
        document: dict[str, Any] = copy.deepcopy(yaml.safe_load(MANIFESTS[0].read_text()))
        kept = {"hearth.dev/hold-seconds": "0", **annotations}
        document["metadata"] |= {"namespace": namespace, "annotations": kept}
        spec = document["spec"] | {"replicas": 0}
        del spec["instanceType"]
        spec["modelSourceConfig"]["s3Storage"]["bucketName"] = self.bucket
        spec["modelSourceConfig"]["modelLocation"] = location
        spec["modelCacheConfig"] = {"weightsCache": {"enabled": True}}
        spec["worker"]["image"] = IMAGE
        self.client.apply(self.path(namespace), {**document, "spec": spec}, manager="kubectl", force=True)

    def step(self) -> None:
        """What watcher, agents and worker would do now."""
        world, cluster = self.world, str(self.world.cluster.pk)
        world.observe()
        SINK.relisted(cluster, Kind.ENDPOINT, world.gateway.list(Kind.ENDPOINT).items, datetime.now(UTC))
        for pool_id in pools_due(now=timezone.now()):
            pool_reconcile(pool_id=pool_id)
        world.obey(*(name for name in world.names if world.known(name) is not None))
        for operation_id in Operation.objects.filter(state__in=ACTIVE_STATES).values_list("pk", flat=True):
            operation_step(operation_id=operation_id)
        endpoints_round(cluster_id=world.cluster.pk)

    def until(self, condition: Callable[[], object], what: str) -> None:
        def held() -> bool:
            self.step()
            return bool(condition())

        until(held, what, seconds=240)

    def rollouts(self, namespace: str) -> list[tuple[str, str]]:
        rows = Rollout.objects.filter(endpoint__namespace=namespace).order_by("number")
        return [(source.rpartition("/")[2], state) for source, state in rows.values_list("source", "state")]

    def done(self, namespace: str, place: str) -> bool:
        return self.rollouts(namespace)[-1:] == [(place, "Done")]

    def deployment(self, namespace: str) -> dict[str, Any]:
        return dict(self.client.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}"))

    def digest(self, namespace: str) -> str:
        template = self.deployment(namespace)["spec"]["template"]
        return str(template["metadata"]["annotations"]["cache.hearth.dev/weights"])

    def condition(self, namespace: str, type_: str) -> str:
        found = self.client.get(self.path(namespace)).get("status", {}).get("conditions", ())
        return next((str(one["status"]) for one in found if one["type"] == type_), "")

    def pinned(self, namespace: str) -> set[str]:
        rows = Pin.objects.filter(endpoint__namespace=namespace, removed_at=None)
        return {uri.rpartition("/")[2] for uri in rows.values_list("version__uri", flat=True)}

    def pinned_connection(self) -> str:
        rows = Pin.objects.filter(endpoint__namespace=OURS, removed_at=None)
        return "".join(rows.values_list("version__connection__name", flat=True))

    def held(self) -> set[str]:
        """Places whose bytes some node has."""
        digests = CacheEntry.objects.exclude(state="Absent").values_list("artifact__digest", flat=True)
        return {digest_place(digest) for digest in set(digests)}


def digest_place(digest: str) -> str:
    uri = ModelVersion.objects.filter(artifact__digest=digest).values_list("uri", flat=True)[0]
    return uri.rpartition("/")[2]


@pytest.fixture
def documents(
    make_world: Callable[..., KubeWorld], kube_api: KubeApi, s3_server: S3, settings: LazySettings, tmp_path: Path
) -> Iterator[Documents]:
    settings.SECRETS_DIR, settings.SOURCE_PRIVATE_ADDRESSES = tmp_path / "secrets", True
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    write_secret("reader", keys)
    bucket = make_bucket(s3_server.endpoint, keys)
    for place in ("one", "two", "three"):
        bucket.put(f"llms/{place}/model.safetensors", place.encode() * 1000, ChecksumAlgorithm="SHA256")
    world = make_world(nodes=2)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIRS}}
    world.api.apply(f"/api/v1/namespaces/{THEIRS}", namespace, manager="test")
    for name in ("store", "twin"):
        connection_create(
            actor=SYSTEM, name=name, type="S3", endpoint=s3_server.endpoint, region=s3_server.region,
            secret_name="reader", allowed=[bucket.name],
        )  # fmt: skip
    with endpoint_kinds(world.api):
        yield Documents(world, bucket.name)
        for place in (OURS, THEIRS):
            for kind, group in (("deployments", "/apis/apps/v1"), ("services", "/api/v1")):
                world.api.delete(f"{group}/namespaces/{place}/{kind}/{NAME}")


def test_the_last_word_counts_and_a_name_is_a_namespaces_own(documents: Documents) -> None:
    for namespace in (OURS, THEIRS):
        documents.apply(namespace, "llms/one")
    documents.until(lambda: documents.done(OURS, "one") and documents.done(THEIRS, "one"), "both are served")
    shares_its_bytes_and_nothing_else(documents)

    before = documents.deployment(THEIRS)["metadata"]["generation"]
    three_changes_within_a_second(documents)
    assert (documents.deployment(THEIRS)["metadata"]["generation"], documents.rollouts(THEIRS)) == (
        before, [("one", "Done")],
    ), "the namesake saw nothing of it"  # fmt: skip

    another_connection(documents)
    documents.client.delete(documents.path(OURS))
    documents.until(lambda: not answers(documents.client, documents.path(OURS)), "ours is let go")
    documents.until(lambda: documents.held() == {"one"}, "and its bytes are")
    assert answers(documents.client, f"/api/v1/namespaces/{THEIRS}/services/{NAME}")
    assert documents.pinned(THEIRS) == {"one"} and not answers_deployment(documents, OURS)
    documents.client.delete(documents.path(THEIRS))
    documents.until(lambda: not Endpoint.objects.filter(gone_at=None).exists(), "theirs too")
    documents.until(lambda: documents.held() == set(), "and nothing is left")
    assert not Pin.objects.filter(removed_at=None).exists() and not answers_deployment(documents, THEIRS)


def answers_deployment(documents: Documents, namespace: str) -> bool:
    return answers(documents.client, f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}")


def shares_its_bytes_and_nothing_else(documents: Documents) -> None:
    """One copy and one label on each node; a pin, a Deployment, a Service and a mirror for each."""
    assert documents.digest(OURS) == documents.digest(THEIRS)
    assert ModelVersion.objects.count() == 1
    assert Pin.objects.filter(removed_at=None).count() == 2
    uids = set()
    for namespace in (OURS, THEIRS):
        uids.add(documents.client.get(f"/api/v1/namespaces/{namespace}/services/{NAME}")["metadata"]["uid"])
        mirror = f"{API}/namespaces/{namespace}/modelweightscacheconfigs/{NAME}-model-cache"
        documents.until(
            lambda path=mirror: documents.client.get(path)["status"]["state"] == "Ready",  # type: ignore[misc]
            f"the table of {namespace}",
        )
    assert len(uids) == 2
    for node in documents.world.names:
        documents.until(
            lambda node=node: ready_label(documents.digest(OURS)) in documents.world.labels(node),  # type: ignore[misc]
            f"{node} is labelled",
        )
        found = documents.world.known(node)
        assert found is not None and [line.digest for line in found.spec.desired] == [documents.digest(OURS)]


def three_changes_within_a_second(documents: Documents) -> None:
    for location in ("llms/two", "llms/one", "llms/three"):
        documents.apply(OURS, location)
    documents.until(lambda: documents.done(OURS, "three"), "the last is served")
    assert documents.rollouts(OURS) == [("one", "Done"), ("three", "Done")]
    # And where each of them was begun before the next one came.
    for location in ("llms/one", "llms/two", "llms/three"):
        documents.apply(OURS, location)
        documents.step()
    documents.until(lambda: documents.done(OURS, "three"), "the last is served again")
    states = [state for _, state in documents.rollouts(OURS)]
    assert set(states) <= {"Done", "Superseded"}, states
    assert digest_place(documents.digest(OURS)) == "three"
    status = documents.client.get(documents.path(OURS))
    assert status["status"]["observedGeneration"] == status["metadata"]["generation"]
    documents.until(lambda: documents.pinned(OURS) == {"three"}, "the others are released")
    documents.until(lambda: documents.held() == {"one", "three"}, "and leave the nodes")


def another_connection(documents: Documents) -> None:
    """The same bucket through it: no rollout, no pod made again, and nodes read through it."""
    count, before = len(documents.rollouts(OURS)), documents.deployment(OURS)["metadata"]["generation"]
    documents.apply(OURS, "llms/three", **{"hearth.dev/connection": "twin"})
    documents.until(lambda: documents.condition(OURS, "ConnectionFollowed") == "True", "it is followed")
    documents.until(lambda: documents.pinned_connection() == "twin", "its pin is of that connection's version")
    for _ in range(2):
        documents.step()
    assert len(documents.rollouts(OURS)) == count
    assert documents.deployment(OURS)["metadata"]["generation"] == before
    assert documents.held() == {"one", "three"}
