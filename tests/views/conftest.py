"""A small fleet with one of everything, and a browser for each of the three people."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from caches.domain.manifests import manifest_build, manifest_encode
from caches.models import CacheEntry, Image, Launch, ModelVersion, Pin, Rollout
from caches.selectors.health import fleet_health
from controlplane.accounts.models import User
from controlplane.audit.models import Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import Algorithm, EntryState, FileRecord, Reason
from controlplane.clusters.models import Node, NodePool
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint
from routing.models import RouterProcess, RoutingWindow
from routing.services.policies import policy_set
from tests import factories
from tests.factories import MIB
from tests.plugins.standing import standing

ACTOR = Actor(name="ada", via=Via.BROWSER, request_id="request-1")


@dataclass(frozen=True, slots=True)
class Stage:
    """Pool ``lab.gpu``: n1 holds llama v1 and an unpinned qwen v1, n2 downloads llama, n3 failed, n4 is silent."""

    pool: NodePool
    nodes: tuple[Node, ...]
    llama: ModelVersion
    qwen: ModelVersion
    pin: Pin
    ready: CacheEntry
    loose: CacheEntry
    downloading: CacheEntry
    failed: CacheEntry
    operation: Operation
    image: Image
    endpoint: Endpoint
    rollout: Rollout
    launch: Launch


def files(name: str, size: int) -> tuple[FileRecord, ...]:
    return (
        FileRecord("config.json", 10, Algorithm.CRC64NVME, "AAAAAAAAAAA=", "e1"),
        FileRecord(f"{name}.safetensors", size - 10, Algorithm.CRC64NVME, "AAAAAAAAAAE=", "e2"),
    )


def available(name: str, label: str, size: int) -> ModelVersion:
    """An Available version with a real manifest of two files."""
    manifest = manifest_build(files(f"{name}-{label}", size))
    artifact = factories.artifact(
        digest=manifest.digest, size_bytes=size, files_count=2, manifest=manifest_encode(manifest)
    )
    return factories.version(model=name, version=label, artifact=artifact)


def stray_node(pool: NodePool, **fields: Any) -> Node:
    """A node of the pool's cluster that no pool selects."""
    node = factories.node(of=pool, **fields)
    node.pool = None
    node.save()
    return node


def staged() -> Stage:
    now = timezone.now()
    pool = factories.pool(of=factories.cluster(name="lab"), name="gpu")
    nodes = tuple(factories.node(of=pool, name=f"n{number}") for number in (1, 2, 3, 4))
    Node.objects.filter(pk=nodes[3].pk).update(reported_at=now - timedelta(days=1))
    llama, qwen = available("llama", "v1", 100 * MIB), available("qwen", "v1", 50 * MIB)
    assert llama.artifact is not None and qwen.artifact is not None
    pin = factories.pin(of=llama, pools=(pool,))
    operation = Operation.objects.create(
        kind="PinWarm",
        state="Running",
        subject_type="pin",
        subject_id=str(pin.pk),
        subject_name="llama v1",
        started_by="ada",
        params={"pin_id": str(pin.pk)},
        bytes_total=400 * MIB,
        bytes_done=100 * MIB,
    )
    operation.targets.create(key=str(nodes[0].pk), name="lab.gpu/n1", state="Succeeded")
    audit_write(
        actor=ACTOR,
        action="pin.create",
        object_type="pin",
        object_id=str(pin.pk),
        object_name="llama v1",
        after={"priority": 500},
        operation_id=operation.pk,
    )
    long_ago = now - timedelta(days=2)
    endpoint = factories.endpoint(of=pool.cluster, name="chat", status={"state": "DeploymentInProgress"})
    variant = factories.variant(of=endpoint)
    factories.instance(of=endpoint, uid="pod-uid-a", name="chat-a", node=nodes[0])
    policy_set(actor=ACTOR, variant_id=variant.pk, document={"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"})
    RouterProcess.objects.create(name="r" * 32, host="edge-1", started_at=now, seen_at=now, config_version=1)
    figures = {"requests": 3, "outcomes": {"LeastBusy": 3}, "instances": {"pod-uid-a": 3}, "overhead": {"-500": 3}}
    RoutingWindow.objects.create(variant=variant, seconds=10, at=now - timedelta(minutes=1), figures=figures)
    served = factories.rollout(of=endpoint, number=1, source="s3://models/old", parts={"worker": {"image": "x:1"}})
    return Stage(
        pool=pool,
        nodes=nodes,
        llama=llama,
        qwen=qwen,
        pin=pin,
        ready=factories.entry(on=nodes[0], of=llama.artifact),
        loose=factories.entry(on=nodes[0], of=qwen.artifact, desired="", ready_at=long_ago, last_used_at=long_ago),
        downloading=factories.entry(
            on=nodes[1],
            of=llama.artifact,
            state=EntryState.DOWNLOADING,
            bytes_done=25 * MIB,
            rate_bytes_per_second=5.0 * MIB,
            eta_seconds=15,
        ),
        failed=factories.entry(
            on=nodes[2],
            of=llama.artifact,
            state=EntryState.FAILED,
            reason=Reason.ACCESS_DENIED,
            message="403 from the store.",
            retry_at=now + timedelta(minutes=7),
            attempts=2,
        ),
        operation=operation,
        image=factories.image(reference="registry.example/serving:v1"),
        endpoint=endpoint,
        rollout=factories.rollout(of=endpoint, number=2, state="Warming", version=llama, previous=served),
        launch=factories.launch(on=nodes[0], endpoint=endpoint, endpoint_name=endpoint.full_name),
    )


@standing
def stage() -> Stage:
    """What most pages are looked at with."""
    return staged()


def _browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def victor(viewer: User) -> Client:
    return _browser(viewer)


@pytest.fixture
def olga(operator: User) -> Client:
    return _browser(operator)


@pytest.fixture
def ada(admin: User) -> Client:
    return _browser(admin)


@pytest.fixture
def health_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sweeps over pages whose rows stay as they are: the fleet's health, two fifths of what a page costs, is looked
    into once for each choice of pools."""

    @functools.cache
    def looked(targets: frozenset[str] | None) -> Any:
        return fleet_health(now=timezone.now(), targets=targets)

    def known(*, now: Any, targets: frozenset[str] | None = None, covered: Any = None) -> Any:
        return looked(targets)

    for base in ("caches.views.base", "routing.views.base"):
        monkeypatch.setattr(f"{base}.fleet_health", known)
