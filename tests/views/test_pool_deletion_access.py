"""The operation that empties a pool is an administrator's: an operator may follow it, not steer it."""

from __future__ import annotations

import pytest
from django.test import Client

from caches.services.pool_deletion import pool_delete
from controlplane.accounts.models import User
from controlplane.audit.services import SYSTEM
from controlplane.operations.models import Operation
from tests import factories


@pytest.fixture
def operation() -> Operation:
    return pool_delete(actor=SYSTEM, pool_id=factories.pool().pk)


def sign_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.django_db
def test_an_operator_sees_it_without_buttons(operation: Operation, operator: User) -> None:
    page = sign_in(operator).get(f"/operations/{operation.pk}")
    assert page.status_code == 200
    assert "Delete pool" in page.text and "/cancel" not in page.text


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_an_operators_request_is_refused(operation: Operation, operator: User, verb: str) -> None:
    answer = sign_in(operator).post(f"/operations/{operation.pk}/{verb}")
    assert answer.status_code == 403
    operation.refresh_from_db()
    assert operation.state == "Pending"


@pytest.mark.django_db
def test_an_administrator_may_cancel_it(operation: Operation, admin: User) -> None:
    answer = sign_in(admin).post(f"/operations/{operation.pk}/cancel")
    assert answer.status_code == 302
    operation.refresh_from_db()
    assert operation.state == "Canceling"
