"""Small pieces: what a change reads like, where a thing lives, work done once, a form's spec."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.http import QueryDict
from django.test import RequestFactory
from django.utils import timezone

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.forms import PinForm
from caches.selectors.nodes import pools_list
from caches.selectors.operations import operation_pools
from caches.selectors.overview import Severity, Trouble
from caches.selectors.pins import pin_statuses, pins_list
from caches.views import trail
from caches.views.base import curl, trouble_url, version_path
from caches.views.pins import pin_state
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from controlplane.errors import Clash
from controlplane.operations.models import Operation
from controlplane.rest.models import IdempotencyKey
from controlplane.web.form_keys import fresh_key, once
from tests import factories
from tests.views.conftest import Stage


def event(**fields: Any) -> AuditEvent:
    return AuditEvent(**({"object_type": "pin", "object_id": "", "object_name": ""} | fields))


def test_it_reads_a_change_as_from_and_to() -> None:
    changed = event(before={"priority": 5, "pools": ["a"], "same": 1}, after={"priority": 8, "pools": ["b"], "same": 1})
    assert trail.changes(changed) == ["pools a → b", "priority 5 → 8"]
    assert trail.changes(event(before={"paused": False}, after={"paused": True})) == ["paused no → yes"]
    nested = event(before={"a": {"x": False, "y": 1}}, after={"a": {"x": True, "y": 1}})
    assert trail.changes(nested) == ["x no → yes"], "also within an object"
    assert trail.changes(event(before=None, after={"priority": 8})) == []
    assert trail.changes(event(before={"state": "Ready"}, after={"asked": True})) == []


UUID = "01a228c6-e5bb-75e3-bb71-5689c57fb6b7"


@pytest.mark.parametrize(
    ("kind", "name", "address"),
    [
        ("pin", "llama v1", f"/pins/{UUID}"),
        ("entry", "x on n1", f"/entries/{UUID}"),
        ("version", "llama v1 rc 2", "/models/llama/versions/v1%20rc%202"),
        ("NodePool", "lab.gpu", "/fleet/lab.gpu"),
        ("connection", "store", "/connections/store"),
        ("Token", "ada/ci", "/tokens"),
        ("SignIn", "ada", ""),
    ],
)
def test_it_knows_where_an_object_lives(kind: str, name: str, address: str) -> None:
    assert trail.subject_url((kind, UUID), name, {(kind, UUID)}) == address
    if kind != "Token":
        assert trail.subject_url((kind, UUID), name, set()) == "", "what is gone is no link"


def test_it_shows_an_event_without_a_link_when_its_name_is_no_address() -> None:
    assert trail.subject_url(("pin", ""), "", {("pin", "")}) == ""
    assert trail.subject_url(("version", UUID), "nameless", {("version", UUID)}) == ""


@pytest.mark.parametrize(
    ("page", "query", "address"),
    [
        ("pool", "lab.gpu", "/fleet/lab.gpu"),
        ("version", "llama/v1", "/models/llama/versions/v1"),
        ("entries", "state=Failed", "/entries?state=Failed"),
        ("fleet", "", "/fleet"),
    ],
)
def test_it_leads_from_a_trouble_to_its_page(page: str, query: str, address: str) -> None:
    assert trouble_url(Trouble(Severity.BAD, "x", 1, page, query)) == address


def test_it_writes_a_command_that_shows_no_secret(stage: Stage) -> None:
    request = RequestFactory().get("/")
    command = curl(request, version_path(stage.llama), method="POST", body='{"a": 1}')
    assert command.startswith('curl -sS -X POST -H "Authorization: Bearer $HEARTH_TOKEN"')
    assert "Idempotency-Key" in command
    assert command.endswith("-d '{\"a\": 1}' 'http://testserver/api/v1/models/llama/versions/v1'")


class Work:
    def __init__(self) -> None:
        self.done = 0

    def __call__(self) -> str:
        self.done += 1
        return f"/result/{self.done}"


def sent(user: User, key: str) -> Any:
    request = RequestFactory().post("/pins/new", {"form_key": key})
    request.user = user
    return request


def test_it_does_the_work_of_a_key_once_for_each_person(operator: User, admin: User) -> None:
    work, key = Work(), fresh_key()
    assert once(sent(operator, key), work)["Location"] == "/result/1"
    assert once(sent(operator, key), work)["Location"] == "/result/1"
    assert once(sent(admin, key), work)["Location"] == "/result/2"
    assert once(sent(operator, fresh_key()), work)["Location"] == "/result/3"


def test_it_frees_the_key_of_work_that_failed(operator: User) -> None:
    work, key = Work(), fresh_key()

    def fails() -> str:
        raise Clash("x:user:y", "no")

    with pytest.raises(Clash):
        once(sent(operator, key), fails)
    assert once(sent(operator, key), work)["Location"] == "/result/1"


def test_it_tells_a_twin_to_wait_and_takes_over_from_a_dead_one(operator: User) -> None:
    work, key = Work(), fresh_key()
    row = IdempotencyKey.objects.create(
        owner=f"{operator.pk}/form", key=key, fingerprint="x", expires_at=timezone.now() + timedelta(hours=1)
    )
    with pytest.raises(Clash, match="sent twice"):
        once(sent(operator, key), work)
    IdempotencyKey.objects.filter(pk=row.pk).update(updated_at=timezone.now() - timedelta(minutes=2))
    assert once(sent(operator, key), work)["Location"] == "/result/1"


def test_it_turns_a_form_into_the_spec(stage: Stage) -> None:
    data = QueryDict(
        f"version={stage.qwen.id}&pools={stage.pool.id}&priority=10&placement_type=Percent&placement_value=50"
        "&spread_label=zone&gate_type=Timeout&gate_value=90&retention_hours=3&needed_at=2026-09-01T10:00"
        "&window_start=22:00&window_end=06:00&window_time_zone=Europe/Berlin"
    )
    form = PinForm(data, pools=pools_list())
    assert form.is_valid(), form.errors
    spec = form.spec()
    assert (spec.version_id, spec.pool_ids, spec.priority) == (stage.qwen.id, (stage.pool.id,), 10)
    assert spec.placement == Placement(PlacementType.PERCENT, 50, "zone")
    assert spec.window == DailyWindow(time(22), time(6), "Europe/Berlin")
    assert spec.needed_at == datetime(2026, 9, 1, 10, tzinfo=UTC)
    assert (spec.gate_type, spec.gate_value, spec.retention_seconds) == ("Timeout", 90, 10800)


def test_it_knows_which_pools_an_operation_touches(stage: Stage) -> None:
    assert operation_pools(stage.operation) == ["lab.gpu"]
    evict = Operation(kind="EntryEvict", subject_id=str(stage.loose.id))
    assert operation_pools(evict) == ["lab.gpu"]
    assert operation_pools(Operation(kind="ModelRegister", subject_id=str(stage.llama.id))) == ()
    assert operation_pools(Operation(kind="EntryEvict", subject_id=UUID)) == ()


def test_it_has_one_word_for_a_pin(stage: Stage) -> None:
    def word() -> str:
        [pin] = pins_list()
        return pin_state(pin, pin_statuses([pin])[pin.id])

    assert word() == "Degraded"
    stage.failed.delete()
    assert word() == "Warming"
    stage.pin.suspended = True
    stage.pin.save()
    assert word() == "Suspended"
    for node in stage.nodes[2:]:
        node.delete()
    stage.downloading.delete()
    factories.entry(on=stage.nodes[1], of=stage.llama.artifact)
    assert word() == "Warm"
