"""Somebody was faster: a button pressed too late says so, breaks nothing and does nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from caches.models import CacheEntry, ModelVersion, Pin
from controlplane.accounts.models import Token, User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node
from controlplane.operations.models import Operation
from controlplane.rest.models import IdempotencyKey
from controlplane.web.form_keys import fresh_key
from tests import factories
from tests.views.addresses import BUTTONS
from tests.views.conftest import Stage
from tests.views.reading import Page


def entry_becomes(state: str) -> Callable[[Stage], None]:
    def happens(stage: Stage) -> None:
        CacheEntry.objects.update(state=state)

    return happens


def operation_becomes(state: str) -> Callable[[Stage], None]:
    def happens(stage: Stage) -> None:
        Operation.objects.update(state=state)

    return happens


def pin_is_gone(stage: Stage) -> None:
    Pin.objects.update(removed_at=timezone.now())


def node_is_gone(stage: Stage) -> None:
    Node.objects.update(lost_at=timezone.now())
    CacheEntry.objects.update(state=EntryState.LOST)


def version_is_pinned(stage: Stage) -> None:
    factories.pin(of=stage.qwen, pools=(stage.pool,))


def version_is_gone(stage: Stage) -> None:
    stage.loose.delete()
    ModelVersion.objects.filter(pk=stage.qwen.pk).delete()


# button, what happened between looking and pressing, status, a word of the answer
TOO_LATE = [
    ("evict", entry_becomes("Absent"), 409, "entry:user:not-there"),
    ("evict", node_is_gone, 409, "entry:user:not-there"),
    ("evict", version_is_pinned, 409, "entry:user:protected"),
    ("scrub", entry_becomes("Downloading"), 409, "entry:user:not-ready"),
    ("scrub", entry_becomes("Failed"), 409, "entry:user:not-ready"),
    ("retry", entry_becomes("Ready"), 409, "entry:user:not-failed"),
    ("retry", node_is_gone, 409, "entry:user:not-failed"),
    ("suspend", pin_is_gone, 404, "pin:user:not-found"),
    ("priority", pin_is_gone, 404, "pin:user:not-found"),
    ("unpin", pin_is_gone, 404, "pin:user:not-found"),
    ("cancel", operation_becomes("Succeeded"), 409, "operation:user:"),
    ("cancel", operation_becomes("Failed"), 409, "operation:user:"),
    ("retry-operation", operation_becomes("Succeeded"), 409, "operation:user:"),
    ("delete", version_is_pinned, 409, "version:user:"),
    ("delete", version_is_gone, 404, "version:user:not-found"),
    ("pin", version_is_pinned, 409, "pin:user:"),
    ("pin", version_is_gone, 400, "Select a valid choice"),
]


@pytest.mark.parametrize(("button", "meanwhile", "status", "word"), TOO_LATE)
def test_it_says_that_somebody_was_faster(
    button: str, meanwhile: Callable[[Stage], None], status: int, word: str, stage: Stage, olga: Client
) -> None:
    address, body = BUTTONS[button](stage)
    meanwhile(stage)
    before = AuditEvent.objects.count(), Operation.objects.count()
    response = olga.post(address, body)
    page = Page(response.content)
    assert response.status_code == status, page.text
    assert word in page.text
    assert (AuditEvent.objects.count(), Operation.objects.count()) == before
    assert page.problems == []


TWICE = ["evict", "scrub", "retry", "suspend", "priority", "cancel", "recheck"]


@pytest.mark.parametrize("button", TWICE)
def test_it_survives_the_same_button_twice(button: str, stage: Stage, olga: Client) -> None:
    address, body = BUTTONS[button](stage)
    assert olga.post(address, body).status_code == 302
    again = olga.post(address, body)
    assert again.status_code in (302, 409), Page(again.content).text
    assert Operation.objects.filter(kind="EntryEvict").count() <= 1
    assert Operation.objects.filter(kind="ModelRecheck").count() <= 1


FORMS_WITH_KEY = ["evict", "unpin", "pin", "retry-operation"]


@pytest.mark.parametrize("button", FORMS_WITH_KEY)
def test_it_does_a_keyed_form_once_and_leads_both_times_to_the_same_place(
    button: str, stage: Stage, olga: Client
) -> None:
    if button == "retry-operation":
        Operation.objects.update(state="Failed")
    address, body = BUTTONS[button](stage)
    body = body | {"form_key": fresh_key()}
    before = Operation.objects.count()
    first, second, third = (olga.post(address, body) for _ in range(3))
    assert first.status_code == 302
    assert first["Location"] == second["Location"] == third["Location"]
    assert Operation.objects.count() == before + 1


def test_it_takes_a_corrected_form_under_the_same_key(stage: Stage, olga: Client) -> None:
    address, key = f"/entries/{stage.loose.id}/evict", fresh_key()
    assert olga.post(address, {"confirm": "wrong", "form_key": key}).status_code == 400
    assert not IdempotencyKey.objects.filter(key=key).exists()
    assert olga.post(address, {"confirm": "qwen v1", "form_key": key}).status_code == 302


@pytest.mark.parametrize("key", ["x" * 5000, "🔥", "' OR 1=1", " "])
def test_it_takes_any_form_key(key: str, stage: Stage, olga: Client) -> None:
    address, body = BUTTONS["evict"](stage)
    assert olga.post(address, body | {"form_key": key}).status_code == 302
    assert olga.post(address, body | {"form_key": key}).status_code == 302
    assert Operation.objects.filter(kind="EntryEvict").count() == 1


def test_it_tells_the_second_of_two_windows_to_wait(stage: Stage, olga: Client) -> None:
    address, body = BUTTONS["evict"](stage)
    user = User.objects.get(username="olga")
    IdempotencyKey.objects.create(owner=f"{user.pk}/form", key="k", fingerprint="x",
                                  expires_at=timezone.now() + timedelta(hours=1))  # fmt: skip
    response = olga.post(address, body | {"form_key": "k"})
    assert response.status_code == 409
    assert "sent twice" in Page(response.content).text


def test_it_revokes_a_token_once(stage: Stage, olga: Client) -> None:
    olga.post("/tokens", {"name": "ci", "scopes": ["read"], "days": "7"})
    token = Token.objects.get()
    assert olga.post(f"/tokens/{token.id}/revoke").status_code == 302
    revoked_at = Token.objects.get().revoked_at
    events = AuditEvent.objects.count()
    olga.post(f"/tokens/{token.id}/revoke")
    assert Token.objects.get().revoked_at == revoked_at
    assert AuditEvent.objects.count() == events
    page = Page(olga.get("/tokens").content)
    assert page.table("tokens")[0][1] == "Revoked"
    assert not [post for post in page.posts() if post.endswith("/revoke")]


def test_it_shows_what_an_operation_worked_on_only_while_it_is_there(stage: Stage, victor: Client) -> None:
    def opens(operation: Operation) -> list[str]:
        page = Page(victor.get(f"/operations/{operation.pk}").content)
        return [one.attrs["href"] for one in page.page.all("a") if one.text.startswith("Open ")]

    assert opens(stage.operation) == [f"/pins/{stage.pin.id}"]
    pin_is_gone(stage)
    assert opens(stage.operation) == []
    registered = Operation.objects.create(
        kind="ModelRegister", state="Succeeded", subject_type="version",
        subject_id=str(stage.qwen.pk), subject_name="qwen v1",
    )  # fmt: skip
    assert opens(registered) == ["/models/qwen/versions/v1"]
    version_is_gone(stage)
    assert opens(registered) == []


@pytest.mark.django_db(transaction=True)
def test_it_makes_one_pin_of_two_windows_that_send_at_the_same_moment(transactional_db: None, operator: object) -> None:
    version, pool = factories.version(), factories.pool()
    factories.node(of=pool)
    body = {"version": str(version.pk), "pools": str(pool.pk), "priority": "500"}
    gate, codes = threading.Barrier(2, timeout=60), []

    def send() -> None:
        client = Client()
        client.force_login(operator)  # type: ignore[arg-type]
        gate.wait()
        try:
            codes.append(client.post("/pins/new", body).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(codes) in ([302, 302], [302, 409])
    assert Pin.objects.filter(version=version, removed_at__isnull=True).count() == 1
