"""dry_run=true on everything that changes the fleet: nothing is written, a Plan is answered, the same is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from caches.api.serializers.plans import PlanSerializer
from caches.models import CacheEntry, Pin
from controlplane.accounts.models import Token
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import NodePool
from controlplane.operations.models import Operation, OperationKind, OperationState
from tests import factories
from tests.api.conftest import Api
from tests.api.rows import description, filled, parameters

pytestmark = pytest.mark.thorough

BODIES: Mapping[tuple[str, str], Any] = {
    ("post", "images/{image_id}/withdraw"): {"reason": "CVE"},
    ("post", "pins"): {"model": "gemma", "version": "gemma-2", "pools": ["cc.ww"]},
    ("patch", "pins/{pin_id}"): {"pools": ["bb.xx", "aa.yy"], "priority": 900},
    ("post", "node-pools"): {"cluster": "bb", "name": "new", "selector": {"kind": "gpu"}},
    ("patch", "node-pools/{name}"): {"priority": 9, "selector": {"kind": "gpu"}, "max_downloads": 1},
}
CALLS = [(method, path) for path, ways in description().items() for method in ways]
# These answer with more than a plan, or with another thing: test_clusters.py, test_endpoints.py, test_routing.py.
ELSEWHERE = (
    "clusters/{name}/adopt",
    "endpoints",
    "endpoints/{endpoint_id}/variants/{variant}/routing-policy",
    "rollouts/{rollout_id}/rollback",
)
DRY = [(method, path) for method, path in CALLS if "dry_run" in parameters(path, method) and path not in ELSEWHERE]


def everything() -> dict[str, list[Any]]:
    """Every row of every table, but for when the token was used."""
    kinds = [kind for kind in apps.get_models() if kind is not Token]
    return {kind._meta.label: list(kind._base_manager.order_by("pk").values()) for kind in kinds}


def ready_for(path: str, known: dict[str, str]) -> dict[str, str]:
    """Rows on which the call would really do something."""
    factories.version(model="gemma", version="gemma-2")
    if path.endswith("/evict"):
        # Nothing protects it any more.
        Pin.objects.all().delete()
        CacheEntry.objects.update(ready_at=timezone.now() - timedelta(days=1), last_used_at=None)
    if path.startswith("cache-entries") and path.endswith("/retry"):
        known["entry_id"] = str(CacheEntry.objects.get(state=EntryState.FAILED).pk)
    if path == "node-pools/{name}":
        Pin.objects.all().delete()
    if path.endswith("/cancel"):
        known["operation_id"] = str(Operation.objects.get(kind=OperationKind.MODEL_REGISTER).pk)
    return known


def test_it_can_try_out_whatever_changes_the_fleet() -> None:
    fleet = ("pins", "cache-entries", "node-pools", "operations")
    changes = [(method, path) for method, path in CALLS if path.split("/")[0] in fleet and method != "get"]
    changes.append(("post", "images/{image_id}/withdraw"))

    assert sorted(DRY) == sorted(changes)


@pytest.mark.parametrize(("method", "path"), DRY)
def test_it_writes_nothing_and_answers_with_a_plan(
    admin_api: Api, method: str, path: str, populated: dict[str, str]
) -> None:
    place, body = filled(path, ready_for(path, populated)), BODIES.get((method, path))
    admin_api.get("me")
    before = everything()

    answer = admin_api.call(method.upper(), f"{place}?dry_run=true", body)

    assert answer.status_code == 200, answer.content
    assert everything() == before
    plan = answer.json()
    assert set(plan) == set(PlanSerializer().fields)
    assert not answer.has_header("Location") and not answer.has_header("Retry-After")
    # And it does change something when it is meant.
    real = admin_api.call(method.upper(), place, body)
    assert real.status_code in (200, 201, 202), real.content
    assert everything() != before


@pytest.mark.parametrize(("method", "path"), DRY)
def test_it_reads_the_switch_in_one_way_only(admin_api: Api, method: str, path: str, populated: dict[str, str]) -> None:
    place, body = filled(path, ready_for(path, populated)), BODIES.get((method, path))
    before = everything()

    for query in ("dry_run=1", "dry_run=True", "dry_run=", "dry_run=true&dry_run=false", "dry-run=true", "dryRun=true"):
        answer = admin_api.call(method.upper(), f"{place}?{query}", body)
        assert answer.status_code == 400, query
        assert answer.json()["errors"][0]["field"] == query.split("=")[0]
    # Only the token was used meanwhile.
    assert everything() == before


def entry_in(state: EntryState) -> Any:
    return lambda: f"cache-entries/{factories.entry(state=state).pk}"


def operation_in(state: OperationState) -> Any:
    def made() -> str:
        row = Operation.objects.create(
            kind=OperationKind.MODEL_RECHECK, state=state, subject_type="version", subject_id="1", subject_name="x"
        )
        return f"operations/{row.pk}"

    return made


def twice() -> str:
    """A failed operation whose work somebody does already."""
    operation_in(OperationState.RUNNING)()
    return str(operation_in(OperationState.FAILED)())


def protected() -> str:
    pool = factories.pool()
    version = factories.version()
    factories.pin(of=version, pools=(pool,))
    return f"cache-entries/{factories.entry(on=factories.node(of=pool), of=version.artifact).pk}"


@pytest.mark.parametrize(
    ("made", "action", "code"),
    [
        (entry_in(EntryState.ABSENT), "evict", "entry:user:not-there"),
        (entry_in(EntryState.LOST), "evict", "entry:user:not-there"),
        (protected, "evict", "entry:user:protected"),
        (entry_in(EntryState.READY), "retry", "entry:user:not-failed"),
        (entry_in(EntryState.DOWNLOADING), "retry", "entry:user:not-failed"),
        (entry_in(EntryState.QUEUED), "scrub", "entry:user:not-ready"),
        (entry_in(EntryState.ABSENT), "scrub", "entry:user:not-ready"),
        (operation_in(OperationState.SUCCEEDED), "cancel", "operation:user:ended"),
        (operation_in(OperationState.FAILED), "cancel", "operation:user:ended"),
        (operation_in(OperationState.CANCELED), "cancel", "operation:user:ended"),
        (operation_in(OperationState.SUCCEEDED), "retry", "operation:user:not-retryable"),
        (operation_in(OperationState.PENDING), "retry", "operation:user:not-retryable"),
        (operation_in(OperationState.CANCELING), "retry", "operation:user:not-retryable"),
        (twice, "retry", "operation:user:already-running"),
    ],
)
def test_it_refuses_in_a_dry_run_what_it_would_refuse(admin_api: Api, made: Any, action: str, code: str) -> None:
    place = f"{made()}/{action}"
    before = everything()

    dry, real = admin_api.post(f"{place}?dry_run=true"), admin_api.post(place)

    assert (real.status_code, real.json()["code"]) == (409, code)
    assert (dry.status_code, dry.json()["code"]) == (409, code)
    assert dry.json()["detail"] == real.json()["detail"] and dry.json()["next_step"] == real.json()["next_step"]
    assert everything() == before


def test_it_plans_a_pin_as_it_then_warms_it(admin_api: Api) -> None:
    pool = factories.pool()
    nodes = {factories.node(of=pool).name for _ in range(3)}
    version = factories.version(artifact=factories.artifact(size_bytes=10 * factories.MIB))
    body = {"model": version.model.name, "version": version.version, "pools": [pool.full_name]}

    plan = admin_api.post("pins?dry_run=true", body).json()
    operation = admin_api.post("pins", body).json()

    assert {move["node"] for move in plan["moves"]} == nodes
    assert [move["order"] for move in plan["moves"]] == sorted(move["order"] for move in plan["moves"])
    assert plan["total_bytes"] == sum(move["bytes"] for move in plan["moves"]) == 30 * factories.MIB
    assert operation["progress"]["bytes_total"] == plan["total_bytes"]
    assert len(operation["targets"]) == len(nodes)
    assert not any(plan[name] for name in ("evictions", "refusals", "waits"))


def test_it_tries_out_a_change_on_the_reading_it_is_based_on(admin_api: Api, populated: dict[str, str]) -> None:
    for path, body in ((f"pins/{populated['pin_id']}", {"priority": 7}), ("node-pools/bb.xx", {"priority": 7})):
        old = admin_api.get(path)["ETag"]
        assert admin_api.patch(path, {"priority": 8}).status_code == 200
        answer = admin_api.patch(f"{path}?dry_run=true", body, headers={"If-Match": old})
        assert (answer.status_code, answer.json()["code"]) == (412, "request:user:stale")
    stale = admin_api.delete(f"pins/{populated['pin_id']}?dry_run=true", headers={"If-Match": '"0"'})
    assert stale.status_code == 412 and Pin.objects.filter(removed_at=None).count() == 3
    assert set(NodePool.objects.values_list("priority", flat=True)) == {0, 8}
