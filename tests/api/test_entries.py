"""Entries, nodes, pools and operations over REST."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import CacheEntry, Webhook
from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import NodePool
from controlplane.errors import Permanent
from controlplane.operations.models import Operation, OperationKind, OperationState
from controlplane.operations.services import operation_fail, operation_start
from tests import factories
from tests.api.conftest import OPERATOR_SCOPES, Api, api_for
from tests.factories import MIB


@pytest.fixture
def entry(db: None) -> CacheEntry:
    """A Ready entry that nothing protects any more."""
    long_ago = timezone.now() - timedelta(days=1)
    version = factories.version(model="llama", version="v1")
    return factories.entry(on=factories.node(of=factories.pool()), of=version.artifact, ready_at=long_ago)


def test_it_previews_an_eviction_and_then_does_just_that(operator_api: Api, entry: CacheEntry) -> None:
    plan = operator_api.post(f"cache-entries/{entry.id}/evict?dry_run=true").json()
    [line] = plan["evictions"]
    assert (line["node"], line["digest"], line["reason"]) == (entry.node.name, entry.artifact.digest, "Manual")
    assert line["bytes"] == 100 * MIB and line["restore_seconds"] is None
    assert not CacheEntry.objects.filter(evict_requested_at__isnull=False).exists()

    answer = operator_api.post(f"cache-entries/{entry.id}/evict")
    assert (answer.status_code, answer.json()["kind"]) == (202, "EntryEvict")
    assert CacheEntry.objects.filter(evict_requested_at__isnull=False).exists()
    assert AuditEvent.objects.get(action="entry.evict").actor == "olga/ci"


def test_it_does_not_evict_what_a_pin_protects(operator_api: Api, entry: CacheEntry) -> None:
    assert entry.node.pool is not None
    factories.pin(of=entry.artifact.versions.get(), pools=(entry.node.pool,))

    for query in ("", "?dry_run=true"):
        answer = operator_api.post(f"cache-entries/{entry.id}/evict{query}")
        assert answer.status_code == 409
        assert "pin" in answer.json()["detail"]


@pytest.mark.parametrize("state", [EntryState.ABSENT, EntryState.LOST])
def test_it_tells_in_a_dry_run_that_the_entry_is_not_there(
    operator_api: Api, entry: CacheEntry, state: EntryState
) -> None:
    CacheEntry.objects.update(state=state)

    answers = [operator_api.post(f"cache-entries/{entry.id}/evict{query}") for query in ("", "?dry_run=true")]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(409, "entry:user:not-there")] * 2


def test_it_needs_the_scope_evict_to_evict(operator: User, entry: CacheEntry) -> None:
    api = api_for(operator, *(set(OPERATOR_SCOPES) - {Scope.EVICT}))

    answer = api.post(f"cache-entries/{entry.id}/evict")

    assert answer.status_code == 403 and "evict" in answer.json()["detail"]
    assert api.post(f"cache-entries/{entry.id}/scrub").status_code == 202


def test_it_scrubs_and_retries(operator_api: Api, entry: CacheEntry) -> None:
    assert operator_api.post(f"cache-entries/{entry.id}/retry").status_code == 409
    assert operator_api.post(f"cache-entries/{entry.id}/scrub?dry_run=true").json()["notes"]
    assert operator_api.post(f"cache-entries/{entry.id}/scrub").json()["kind"] == "EntryScrub"

    CacheEntry.objects.update(state="Failed", reason="AccessDenied", message="403")
    assert operator_api.post(f"cache-entries/{entry.id}/retry?dry_run=true").json()["notes"]
    answer = operator_api.post(f"cache-entries/{entry.id}/retry")

    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["reason"]) == ("Failed", "AccessDenied")
    entry.refresh_from_db()
    assert (entry.verify_round, entry.retry_round) == (1, 1)


def test_it_shows_what_a_node_holds_should_hold_and_would_lose(viewer_api: Api, entry: CacheEntry) -> None:
    node = entry.node
    assert node.pool is not None
    factories.pin(pools=(node.pool,))

    shown = viewer_api.get(f"nodes/{node.id}").json()
    [held] = viewer_api.get(f"nodes/{node.id}/cache-entries").json()["items"]
    [first] = viewer_api.get(f"nodes/{node.id}/eviction-forecast").json()["items"]

    assert shown["state"] == "Ready" and shown["last_known"] is None
    assert shown["coverage"] == {"required": 1, "ready": 0, "bytes_required": 100 * MIB, "bytes_ready": 0}
    assert shown["free_bytes"] == 1000 * MIB and shown["pool"] == node.pool.full_name
    assert held["artifact"] == {"kind": "Weights", "digest": entry.artifact.digest, "name": "llama v1"}
    assert (first["rank"], first["digest"], first["protected_by"]) == (1, entry.artifact.digest, None)


def test_it_counts_coverage_by_what_is_verified_and_heard_of(viewer_api: Api, entry: CacheEntry) -> None:
    node = entry.node
    assert node.pool is not None
    factories.pin(of=entry.artifact.versions.get(), pools=(node.pool,))
    other = factories.node(of=node.pool)

    def coverage(of: Any) -> tuple[int, int]:
        shown = viewer_api.get(f"nodes/{of.id}").json()["coverage"]
        return shown["required"], shown["ready"]

    assert (coverage(node), coverage(other)) == ((1, 1), (1, 0))
    node.reported_at = None
    node.save(update_fields=["reported_at"])
    assert coverage(node) == (1, 0)


def test_it_changes_a_pool_with_its_etag_and_previews_it(admin_api: Api, entry: CacheEntry) -> None:
    pool = entry.node.pool
    assert pool is not None
    path = f"node-pools/{pool.full_name}"
    etag = admin_api.get(path)["ETag"]

    assert admin_api.patch(f"{path}?dry_run=true", {"paused": True}).json()["moves"] == []
    assert NodePool.objects.get(pk=pool.pk).paused is False
    changed = admin_api.patch(path, {"paused": True}, headers={"If-Match": etag})
    assert (changed.status_code, changed.json()["paused"]) == (200, True)
    assert admin_api.patch(path, {"paused": False}, headers={"If-Match": etag}).status_code == 412
    wrong = admin_api.patch(path, {"low_watermark": 0.9, "high_watermark": 0.8})
    assert wrong.status_code == 400 and wrong.json()["errors"][0]["field"] == "low_watermark"


def test_it_makes_a_pool(admin_api: Api, operator_api: Api) -> None:
    cluster = factories.cluster()
    body = {"cluster": cluster.name, "name": "gpu", "selector": {"kind": "gpu"}, "max_downloads": 4}

    assert operator_api.post("node-pools", body).status_code == 403
    assert admin_api.post("node-pools?dry_run=true", body).json()["moves"] == []
    made = admin_api.post("node-pools", body)

    assert made.status_code == 201
    assert made["Location"].endswith(f"/node-pools/{cluster.name}.gpu")
    assert (made.json()["max_downloads"], made.json()["nodes_count"]) == (4, 0)
    assert admin_api.post("node-pools", body).status_code == 409
    assert admin_api.post("node-pools", body | {"cluster": "none"}).json()["errors"][0]["field"] == "cluster"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Upper_Case"}, "name"),
        ({"low_watermark": 0.9, "high_watermark": 0.8}, "low_watermark"),
        ({"freshness_seconds": 10, "status_interval_seconds": 9}, "freshness_seconds"),
        ({"selector": {"no label!": "x"}}, "selector"),
        ({"cache_path": "/a/../b"}, "cache_path"),
    ],
)
def test_it_refuses_a_pool_in_a_dry_run_as_in_earnest(admin_api: Api, changes: dict[str, Any], field: str) -> None:
    pool = factories.pool()
    body = {"cluster": pool.cluster.name, "name": "gpu", "selector": {"kind": "gpu"}} | changes
    answers = [admin_api.post(f"node-pools{query}", body) for query in ("?dry_run=true", "")]
    if not {"name", "cache_path"} & changes.keys():
        path = f"node-pools/{pool.full_name}"
        answers += [admin_api.patch(f"{path}{query}", changes) for query in ("?dry_run=true", "")]

    assert {answer.status_code for answer in answers} == {400}
    assert {answer.json()["errors"][0]["field"] for answer in answers} == {field}


def test_it_tells_in_a_dry_run_that_a_name_is_taken_and_that_a_pool_was_changed(admin_api: Api) -> None:
    pool = factories.pool()
    body = {"cluster": pool.cluster.name, "name": pool.name, "selector": {"kind": "gpu"}}
    old = admin_api.get(f"node-pools/{pool.full_name}")["ETag"]
    admin_api.patch(f"node-pools/{pool.full_name}", {"paused": True})

    taken = admin_api.post("node-pools?dry_run=true", body)
    stale = admin_api.patch(f"node-pools/{pool.full_name}?dry_run=true", {"paused": False}, headers={"If-Match": old})

    assert (taken.status_code, taken.json()["code"]) == (409, "pool:user:name-taken")
    assert stale.status_code == 412


def started(**fields: Any) -> Operation:
    return operation_start(
        actor=SYSTEM,
        kind=OperationKind.MODEL_REGISTER,
        subject_type="version",
        subject_id=str(factories.version().id),
        subject_name="llama v1",
        **fields,
    )


def test_it_shows_the_problem_of_a_failed_operation_whole(viewer_api: Api) -> None:
    operation = started()
    operation_fail(operation_id=operation.id, error=Permanent("version:source:empty", "Empty.", next_step="Look."))

    answer = viewer_api.get(f"operations/{operation.id}")

    error = answer.json()["error"]
    assert answer.status_code == 200
    assert (error["code"], error["next_step"]) == ("version:source:empty", "Look.")
    assert "request_id" in error and error["errors"] == []


def test_it_cancels_once_and_says_when_it_is_too_late(operator_api: Api, viewer_api: Api) -> None:
    operation = started()

    assert viewer_api.post(f"operations/{operation.id}/cancel").status_code == 403
    assert operator_api.post(f"operations/{operation.id}/cancel?dry_run=true").json()["moves"] == []
    answer = operator_api.post(f"operations/{operation.id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "Canceling")

    Operation.objects.update(state=OperationState.CANCELED)
    assert operator_api.post(f"operations/{operation.id}/cancel").status_code == 409
    again = operator_api.post(f"operations/{operation.id}/retry")
    assert (again.status_code, again.json()["retry_of"]) == (202, str(operation.id))


def test_it_keeps_the_trail_from_those_who_see_only_a_part(viewer_api: Api) -> None:
    pool = factories.pool()
    local = api_for(factories.user(role="Viewer", target=pool.full_name))

    assert viewer_api.get("audit-events").json()["items"] != []
    assert local.get("audit-events").json()["items"] == []
    assert [row["name"] for row in local.get("node-pools").json()["items"]] == [pool.full_name]
    assert [row["name"] for row in local.get("clusters").json()["items"]] == [pool.cluster.name]


def test_it_changes_and_removes_a_webhook(admin_api: Api, operator_api: Api) -> None:
    body = {"name": "ops", "url": "https://hooks.test/x", "secret_name": "hooks", "events": ["entry.failed"]}
    assert operator_api.post("webhooks", body).status_code == 403
    etag = admin_api.post("webhooks", body)["ETag"]

    changed = admin_api.patch("webhooks/ops", {"enabled": False}, headers={"If-Match": etag})
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)
    assert admin_api.patch("webhooks/ops", {"enabled": True}, headers={"If-Match": etag}).status_code == 412
    secret = admin_api.patch("webhooks/ops", {"url": "https://user:pass@hooks.test/"})
    assert secret.status_code == 400 and secret.json()["errors"][0]["field"] == "url"
    assert admin_api.delete("webhooks/ops").status_code == 204
    assert not Webhook.objects.exists()
    actions = list(AuditEvent.objects.filter(object_type="Webhook").order_by("id").values_list("action", flat=True))
    assert actions == ["webhook.create", "webhook.update", "webhook.delete"]
