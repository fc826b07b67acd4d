"""Three different rows in every collection, and what the description says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from django.utils import timezone

from caches.models import CacheEntry, Image, Launch, Model, ModelVersion, Rollout, Webhook
from controlplane.accounts.models import Token
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node, NodePool
from controlplane.operations.models import Operation, OperationKind, OperationState
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance
from routing.models import RouterProcess, RoutingPolicy
from tests import factories
from tests.api.conftest import ROOT, Api, api_for
from tests.services.world import version_of

NOWHERE = "01a228ac-bd6d-7055-847c-9529d6e50fbf"
PAGING = {"cursor", "format", "ordering", "page_size"}
METHODS = ("get", "post", "put", "patch", "delete")
Item = Mapping[str, Any]


@cache
def description() -> Mapping[str, Mapping[str, Any]]:
    """The paths of openapi.yaml, as they follow /api/v1/."""
    text = (Path(__file__).parents[2] / "openapi.yaml").read_text()
    paths = yaml.load(text, Loader=yaml.CSafeLoader)["paths"]
    return {path.removeprefix(ROOT): operations for path, operations in paths.items()}


def operations() -> list[tuple[str, str]]:
    """Every (METHOD, path) there is."""
    return [(method.upper(), path) for path, methods in description().items() for method in methods]


def parameters(path: str, method: str = "get") -> Mapping[str, Mapping[str, Any]]:
    """The query parameters of one call, by name, with their schemas."""
    found = description()[path][method].get("parameters", ())
    return {one["name"]: one["schema"] for one in found if one["in"] == "query"}


def lists() -> list[str]:
    return [path for path in description() if "get" in description()[path] and "ordering" in parameters(path)]


def populate() -> dict[str, str]:
    """Three rows everywhere; no two fields sort alike. Gives the path parameters that name the first of each."""
    now = timezone.now()
    pools = [
        factories.pool(of=factories.cluster(name=cluster), name=pool)
        for cluster, pool in (("bb", "xx"), ("cc", "ww"), ("aa", "yy"))
    ]
    nodes = _nodes(pools)
    versions = [
        version_of(size, model="llama", version=name, connection=factories.connection(name=at, state=state))
        for size, name, at, state in (
            (20, "v3", "sb", "Reachable"),
            (30, "v1", "sa", "Unreachable"),
            (10, "v2", "sc", ""),
        )
    ]
    for name in ("opt", "gemma"):
        factories.version(model=name, version=f"{name}-1")
    entries = _entries(nodes, versions)
    others = ModelVersion.objects.exclude(model__name="llama").order_by("pk")
    pins = [
        factories.pin(of=version, pools=(pool,), priority=priority, suspended=priority == 300)
        for version, pool, priority in zip((versions[0], *others), pools, (200, 300, 100), strict=True)
    ]
    images = _images()
    rollouts = _rollouts(pools, versions)
    launches = _launches(nodes)
    routing = _routing([one.endpoint for one in rollouts], nodes)
    operation = _operations(entries[0], str(pins[0].pk))
    for name, enabled in (("hb", True), ("hc", False), ("ha", True)):
        Webhook.objects.create(name=name, url="https://192.0.2.1/x", secret_name="hooks", enabled=enabled)
    _tokens()
    for actor, action, via in (("zoe", "pin.create", Via.API), ("yan", "pin.remove", Via.BROWSER)):
        audit_write(
            actor=Actor(actor, via, f"request-of-{actor}"),
            action=action,
            object_type="pin",
            object_id=actor,
            object_name=f"llama of {actor}",
            operation_id=operation.pk,
        )
    Model.objects.filter(name="opt").update(created_at=now - timedelta(days=1))
    return {
        "image_id": str(images[0].pk),
        "endpoint_id": str(rollouts[0].endpoint_id),
        "launch_id": str(launches[0].pk),
        "rollout_id": str(rollouts[0].pk),
        "node_id": str(nodes[0].pk),
        "entry_id": str(entries[0].pk),
        "pin_id": str(pins[0].pk),
        "operation_id": str(operation.pk),
        "event_id": str(AuditEvent.objects.values_list("pk", flat=True)[0]),
        "token_id": str(Token.objects.get(name="tb").id),
        "model": "llama",
        "version": "v3",
        **routing,
    }


# The one {name} of each collection that is addressed by names.
NAMES = {"clusters": "bb", "node-pools": "bb.xx", "source-connections": "sb", "webhooks": "hb"}


def filled(path: str, known: Mapping[str, str]) -> str:
    """The path with every parameter replaced by what ``known`` (of populate) says."""
    if path.startswith("static-endpoints/") and Endpoint.objects.filter(pk=known["endpoint_id"]).exists():
        # Lists are as they were while nobody asks for it.
        known = {**known, "endpoint_id": str(factories.endpoint(kind=STATIC_KIND, namespace="static").pk)}
    return path.format_map({**known, "name": NAMES.get(path.split("/")[0], "")})


def walk(api: Api, path: str, **query: Any) -> Iterator[Item]:
    """Every item of a list, page by page."""
    while True:
        answer = api.get(path, query_params=query)
        assert answer.status_code == 200, answer.content
        yield from answer.json()["items"]
        if (cursor := answer.json()["next"]) is None:
            return
        query["cursor"] = cursor


def dig(item: Any, path: str) -> Any:
    """``object.type`` of an item."""
    for part in path.split("."):
        item = item[part]
    return item


def _nodes(pools: list[NodePool]) -> list[Node]:
    now = timezone.now()
    facts: tuple[dict[str, Any], ...] = (
        {"name": "nb", "uid": "ub", "capacity_bytes": 3000},
        {"name": "na", "uid": "uc", "capacity_bytes": None, "ready": False},
        {"name": "nc", "uid": "ua", "capacity_bytes": 2000, "schedulable": False},
    )
    made = [factories.node(of=pool, **fact) for pool, fact in zip(pools, facts, strict=True)]
    for node, hours in zip(made, (2, 3, 1), strict=True):
        Node.objects.filter(pk=node.pk).update(joined_at=now - timedelta(hours=hours))
    return made


def _entries(nodes: list[Node], versions: list[Any]) -> list[CacheEntry]:
    """All three versions on the first node, the first version on the others."""
    now = timezone.now()
    states = (EntryState.READY, EntryState.FAILED, EntryState.DOWNLOADING, EntryState.QUEUED, EntryState.READY)
    places = [*((nodes[0], version) for version in versions), *((node, versions[0]) for node in nodes[1:])]
    made = []
    for number, ((node, version), state) in enumerate(zip(places, states, strict=True)):
        fields: dict[str, Any] = {"last_used_at": now - timedelta(hours=5 - number) if number else None}
        if state == EntryState.FAILED:
            fields |= {"reason": "AccessDenied", "message": "No."}
        made.append(factories.entry(on=node, of=version.artifact, state=state, **fields))
    return made


def _images() -> list[Image]:
    """One in order, one that moved, one that is revoked, and one without a digest."""
    facts: tuple[dict[str, Any], ...] = (
        {"artifact": factories.artifact(kind="Image", size_bytes=20)},
        {"artifact": factories.artifact(kind="Image", size_bytes=30), "moved_to": "sha256:" + "f" * 64},
        {"artifact": factories.artifact(kind="Image", size_bytes=10), "revoked_at": timezone.now()},
        {"artifact": None},
    )
    return [
        factories.image(reference=f"{name}:1", repository=name, registry="", **fact)
        for name, fact in zip(("ib", "ic", "ia", "id"), facts, strict=True)
    ]


def _launches(nodes: list[Node]) -> list[Launch]:
    """One on each node: ready, on its way, and one that never became ready."""
    facts: tuple[dict[str, Any], ...] = (
        {"state": "Ready", "event_class": "PodOnNewNode", "weights": "Hit", "image": "Miss"},
        {"state": "Ended", "event_class": "NewModelVersion", "weights": "Miss", "image": "Unknown"},
        {"state": "Starting", "event_class": "WarmPodRestart", "weights": "Partial", "image": "Hit"},
    )
    made = []
    for node, fact, hours, seconds in zip(nodes, facts, (2, 3, 1), (40.0, 50.0, None), strict=True):
        names = {
            "endpoint_name": f"n/{node.name}",
            "version_name": f"llama {node.name}",
            "digest": f"sha256:{node.uid}",
        }
        began = timezone.now() - timedelta(hours=hours)
        made.append(factories.launch(
            on=node, began_at=began, ready_seconds=seconds, total_seconds=seconds, **names, **fact,
        ))  # fmt: skip
    return made


def _rollouts(pools: list[NodePool], versions: list[Any]) -> list[Rollout]:
    """One endpoint in each cluster with one rollout each: done, warming, superseded."""
    facts = (("eb", "n1", "Done", 2), ("ec", "n2", "Warming", 3), ("ea", "n0", "Superseded", 1))
    made = []
    for pool, version, (name, namespace, state, number) in zip(pools, versions, facts, strict=True):
        kind = "InferenceEndpointConfig" if number > 1 else "JumpStartModel"
        row = factories.endpoint(of=pool.cluster, name=name, namespace=namespace, kind=kind)
        made.append(factories.rollout(of=row, version=version, state=state, number=number))
    return made


def _routing(endpoints: list[Endpoint], nodes: list[Node]) -> dict[str, str]:
    """One variant, policy, instance and router for each endpoint."""
    now = timezone.now()
    facts = (("RANDOM", "rb", "hc"), ("PREFIX_AWARE", "rc", "ha"), ("LEAST_OUTSTANDING_REQUESTS", "ra", "hb"))
    for number, (endpoint, node, (strategy, name, host)) in enumerate(zip(endpoints, nodes, facts, strict=True)):
        row = factories.variant(of=endpoint, name=("default", "canary", "blue")[number])
        document = {"RoutingStrategy": strategy, "RoutingExtensions": {}}
        row.routing_policies.create(version=number + 1, strategy=strategy, document=document, set_by="ada")
        factories.instance(of=endpoint, name=f"pod-{name}", uid=f"uid-{name}", node=node, digest=f"sha256:{name}")
        seen = now - timedelta(seconds=number)
        RouterProcess.objects.create(name=name, host=host, started_at=seen, seen_at=seen)
    return {
        "variant": "default",
        "policy_id": str(RoutingPolicy.objects.get(version=1).pk),
        "instance_id": str(Instance.objects.get(name="pod-rb").pk),
        "router_id": str(RouterProcess.objects.get(name="rb").pk),
    }


def _operations(entry: CacheEntry, pin_id: str) -> Operation:
    """The last one has not ended; the first one has failed."""
    now = timezone.now()
    made = [
        Operation.objects.create(
            kind=kind,
            state=state,
            subject_type=subject_type,
            subject_id=subject_id,
            subject_name="llama v3",
            started_by=by,
            params={f"{subject_type}_id": subject_id},
            ended_at=ended,
        )
        for kind, state, subject_type, subject_id, by, ended in (
            (OperationKind.ENTRY_SCRUB, OperationState.FAILED, "entry", str(entry.pk), "olga", now),
            (OperationKind.PIN_WARM, OperationState.SUCCEEDED, "pin", pin_id, "system", now - timedelta(hours=1)),
            (OperationKind.MODEL_REGISTER, OperationState.PENDING, "version", "1", "ada", None),
        )
    ]
    return made[0]


def _tokens() -> None:
    now = timezone.now()
    for name, days, used in (("tb", 3, now), ("tc", 2, None), ("ta", 1, now - timedelta(days=1))):
        api_for(factories.user(username=f"{name}-owner", role="Viewer"), expires_at=now + timedelta(days=days))
        Token.objects.filter(name="ci", user__username=f"{name}-owner").update(name=name, last_used_at=used)
