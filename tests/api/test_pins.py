"""Pins over REST: what is previewed is what happens, and every refusal says what to do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import CacheEntry, ModelVersion, Pin
from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent, Via
from controlplane.clusters.models import NodePool
from controlplane.operations.models import Operation, OperationState
from tests import factories
from tests.api.conftest import Api, api_for
from tests.factories import MIB


@pytest.fixture
def pool(db: None) -> NodePool:
    """Two empty nodes of 1,000 MiB."""
    pool = factories.pool()
    for _ in range(2):
        factories.node(of=pool)
    return pool


@pytest.fixture
def version(db: None) -> ModelVersion:
    return factories.version(model="llama", version="v1", artifact=factories.artifact(size_bytes=300 * MIB))


def body(*pools: NodePool, **fields: Any) -> dict[str, Any]:
    return {"model": "llama", "version": "v1", "pools": [pool.full_name for pool in pools], **fields}


def test_it_previews_a_pin_without_writing_anything(operator_api: Api, pool: NodePool, version: ModelVersion) -> None:
    answer = operator_api.post("pins?dry_run=true", body(pool))

    plan = answer.json()
    assert answer.status_code == 200
    assert {move["node"] for move in plan["moves"]} == set(pool.nodes.values_list("name", flat=True))
    assert {move["bytes"] for move in plan["moves"]} == {300 * MIB}
    assert plan["total_bytes"] == 600 * MIB
    assert plan["refusals"] == plan["evictions"] == []
    # Nothing was ever transferred, so no time is made up.
    assert plan["estimate_basis"] is None and plan["estimated_seconds"] is None
    assert not Pin.objects.exists() and not Operation.objects.exists() and not AuditEvent.objects.filter(via=Via.API)


def test_it_pins_and_answers_with_the_operation_to_follow(
    operator_api: Api, pool: NodePool, version: ModelVersion
) -> None:
    answer = operator_api.post("pins", body(pool, priority=700, retention={"seconds": 60}))

    operation = answer.json()
    assert answer.status_code == 202
    assert answer["Location"].endswith(f"/api/v1/operations/{operation['id']}") and answer["Retry-After"]
    assert (operation["kind"], operation["subject"]["name"]) == ("PinWarm", "llama v1")
    assert len(operation["targets"]) == 2
    pin = operator_api.get(f"pins/{operation['subject']['id']}").json()
    assert (pin["model"], pin["version"], pin["pools"]) == ("llama", "v1", [pool.full_name])
    assert (pin["priority"], pin["retention"], pin["gate"]) == (700, {"seconds": 60}, {"type": "All", "value": 100})
    event = AuditEvent.objects.get(action="pin.create")
    assert (event.actor, event.via, event.request_id) == ("olga/ci", Via.API, answer["X-Request-Id"])


def test_it_refuses_what_does_not_fit_with_the_numbers(operator_api: Api, pool: NodePool) -> None:
    factories.version(model="llama", version="v1", artifact=factories.artifact(size_bytes=1200 * MIB))

    preview = operator_api.post("pins?dry_run=true", body(pool)).json()
    answer = operator_api.post("pins", body(pool))

    assert (answer.status_code, answer.json()["code"]) == (409, "pin:user:insufficient-capacity")
    refusals = answer.json()["plan"]["refusals"]
    assert {line["node"] for line in refusals} == {line["node"] for line in preview["refusals"]}
    for line in refusals:
        assert line["reason"] == "InsufficientCapacity"
        assert line["need_bytes"] == 1200 * MIB
        # What is free under the pool's high watermark of 0.85.
        assert line["free_bytes"] == 850 * MIB
        assert line["reserved_bytes"] == 0 and line["next_step"]
    assert not Pin.objects.exists() and not Operation.objects.exists()


def test_it_says_which_image_a_pin_is_about_and_whose_it_is(viewer_api: Api, pool: NodePool) -> None:
    image, owner = factories.image(), factories.endpoint(of=pool.cluster)
    version = factories.version(image=image)
    alone = factories.pin(of=version, pools=(pool,), artifacts=["Image"], image=image, endpoint=owner)
    weights = factories.pin(of=version, pools=(pool,))

    shown = viewer_api.get(f"pins/{alone.pk}").json()
    assert image.artifact is not None
    assert shown["image"] == {"reference": image.reference, "digest": image.artifact.digest}
    assert shown["endpoint_id"] == str(owner.pk)
    shown = viewer_api.get(f"pins/{weights.pk}").json()
    assert (shown["image"], shown["endpoint_id"]) == (None, None)


def test_it_refuses_names_that_do_not_exist_by_field(operator_api: Api, pool: NodePool, version: ModelVersion) -> None:
    for wrong, field in (
        (body(pool) | {"version": "v9"}, "version"),
        (body(pool) | {"pools": [pool.full_name, "no.where"]}, "pools.1"),
        (body(pool, window={"start": "22:00", "end": "06:00", "time_zone": "Mars/Base"}), "window.time_zone"),
    ):
        answer = operator_api.post("pins", wrong)
        assert answer.status_code == 400
        assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_it_says_that_a_version_is_pinned_already(operator_api: Api, pool: NodePool, version: ModelVersion) -> None:
    operator_api.post("pins", body(pool))

    answer = operator_api.post("pins", body(pool))

    assert (answer.status_code, answer.json()["code"]) == (409, "pin:user:exists")
    # The preview of the same pin does not count it twice.
    assert operator_api.post("pins?dry_run=true", body(pool)).json()["total_bytes"] == 600 * MIB


def test_it_changes_a_pin_only_on_the_base_of_its_latest_version(
    operator_api: Api, pool: NodePool, version: ModelVersion
) -> None:
    pin = factories.pin(of=version, pools=(pool,))
    etag = operator_api.get(f"pins/{pin.id}")["ETag"]

    first = operator_api.patch(f"pins/{pin.id}", {"priority": 900}, headers={"If-Match": etag})
    second = operator_api.patch(f"pins/{pin.id}", {"priority": 100}, headers={"If-Match": etag})

    assert (first.status_code, first.json()["priority"]) == (200, 900)
    assert first["ETag"] != etag
    assert (second.status_code, second.json()["code"]) == (412, "request:user:stale")
    assert Pin.objects.get().priority == 900
    assert operator_api.delete(f"pins/{pin.id}", headers={"If-Match": etag}).status_code == 412
    for current in (first["ETag"], "*", f'"older", {first["ETag"]}'):
        answer = operator_api.patch(f"pins/{pin.id}", {"priority": 900}, headers={"If-Match": current})
        assert answer.status_code == 200
    event = AuditEvent.objects.get(action="pin.update")
    assert event.before is not None and event.after is not None
    assert (event.before["priority"], event.after["priority"]) == (500, 900)


def test_it_previews_a_change_and_a_removal(operator_api: Api, pool: NodePool, version: ModelVersion) -> None:
    other = factories.node(of=factories.pool()).pool
    assert other is not None
    pin = factories.pin(of=version, pools=(pool,))

    wider = operator_api.patch(f"pins/{pin.id}?dry_run=true", {"pools": [pool.full_name, other.full_name]})
    removed = operator_api.delete(f"pins/{pin.id}?dry_run=true")

    assert wider.json()["total_bytes"] == 900 * MIB
    assert {move["pool"] for move in wider.json()["moves"]} == {pool.full_name, other.full_name}
    assert removed.status_code == 200 and removed.json()["total_bytes"] == 0
    assert [row.full_name for row in Pin.objects.get().pools.select_related("cluster")] == [pool.full_name]


def test_it_changes_every_field_that_people_may_change(
    operator_api: Api, pool: NodePool, version: ModelVersion
) -> None:
    pin = factories.pin(of=version, pools=(pool,))
    changes = {
        "placement": {"type": "Percent", "value": 50, "spread_label": "zone"},
        "node_selector": {},
        "window": {"start": "22:00:00", "end": "06:00:00", "time_zone": "Europe/Berlin"},
        "needed_at": "2030-01-01T00:00:00.000000Z",
        "suspended": True,
        "retention": {"seconds": 3600},
        "gate": {"type": "Count", "value": 1},
    }

    answer = operator_api.patch(f"pins/{pin.id}", changes)

    assert answer.status_code == 200
    assert {name: answer.json()[name] for name in changes} == changes
    assert operator_api.patch(f"pins/{pin.id}", {"window": None}).json()["window"] is None


def test_it_removes_a_pin_and_forgets_its_address(operator_api: Api, pool: NodePool, version: ModelVersion) -> None:
    pin = factories.pin(of=version, pools=(pool,))

    answer = operator_api.delete(f"pins/{pin.id}")

    assert (answer.status_code, answer.json()["kind"]) == (202, "PinRemove")
    assert operator_api.get(f"pins/{pin.id}").status_code == 404
    assert operator_api.delete(f"pins/{pin.id}").status_code == 404
    assert operator_api.get("pins").json()["items"] == []


def test_it_holds_the_answer_until_the_work_has_ended(operator_api: Api, pool: NodePool, version: ModelVersion) -> None:
    pin = factories.pin(of=version, pools=(pool,))
    operation = operator_api.delete(f"pins/{pin.id}").json()
    Operation.objects.update(state=OperationState.SUCCEEDED)

    assert operator_api.get(f"operations/{operation['id']}?wait=300").status_code == 200


def test_it_tells_how_warm_a_pin_is(viewer_api: Api, pool: NodePool, version: ModelVersion) -> None:
    factories.pin(of=version, pools=(pool,))
    one, two = pool.nodes.all()
    factories.entry(on=one, of=version.artifact)

    def status() -> dict[str, Any]:
        shown: dict[str, Any] = viewer_api.get("pins").json()["items"][0]["status"]
        return shown

    assert (status()["target"], status()["ready"], status()["failed"]) == (2, 1, 0)
    assert status()["eta_seconds"] is None  # nobody measured the other node
    factories.entry(on=two, of=version.artifact, state="Downloading", eta_seconds=12.5)
    assert status()["eta_seconds"] == 12.5
    CacheEntry.objects.filter(node=two).update(state="Failed")
    assert status()["failed"] == 1
    assert [(one["type"], one["status"], one["reason"]) for one in status()["conditions"]] == [
        ("Warm", "False", "Failed"),
        ("Admitted", "True", "Fits"),
    ]
    CacheEntry.objects.filter(node=two).update(state="Ready")
    assert status()["conditions"][0]["status"] == "True"
    pool.nodes.update(reported_at=None)
    # A node that fell silent is not warm by its last good word.
    assert (status()["ready"], status()["conditions"][0]["status"]) == (0, "Unknown")


def test_it_lets_nobody_pin_where_they_have_no_say(viewer_api: Api, pool: NodePool, version: ModelVersion) -> None:
    assert viewer_api.post("pins", body(pool)).status_code == 403
    elsewhere = factories.pool()
    local = factories.user(role="Operator", target=pool.full_name)
    api = api_for(local, Scope.READ, Scope.PINS_WRITE)

    assert api.post("pins", body(pool, elsewhere)).status_code == 400  # a pool it cannot even see
    assert api.post("pins", body(pool)).status_code == 202
    foreign = factories.pin(pools=(elsewhere,))
    assert api.patch(f"pins/{foreign.id}", {"priority": 1}).status_code == 404


def test_it_needs_the_role_on_every_pool_of_a_pin(pool: NodePool, version: ModelVersion) -> None:
    other = factories.pool()
    person: User = factories.user(role="Viewer")
    person.role_grants.create(role="Operator", target=pool.full_name)
    api = api_for(person, Scope.READ, Scope.PINS_WRITE)
    shared = factories.pin(of=version, pools=(pool, other))

    answer = api.delete(f"pins/{shared.id}")

    assert (answer.status_code, answer.json()["code"]) == (403, "access:user:role-missing")
    assert other.full_name in answer.json()["detail"]
    assert api.patch(f"pins/{shared.id}", {"pools": [pool.full_name]}).status_code == 403


def test_it_says_since_when_a_condition_holds_as_the_rows_say(viewer_api: Api) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    since = timezone.now() + timedelta(minutes=5)  # later than the pin itself
    factories.entry(on=factories.node(of=pool), of=factories.version_of(pin).artifact, state_since=since)
    idle = factories.pin()

    first, again = (viewer_api.get(f"pins/{pin.id}").json()["status"]["conditions"] for _ in range(2))

    assert first == again
    assert datetime.fromisoformat(first[0]["last_transition"]) == since
    assert [one["last_transition"] for one in viewer_api.get(f"pins/{idle.id}").json()["status"]["conditions"]] == [
        None,
        None,
    ]
