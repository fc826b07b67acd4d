"""Callers limited to a pool, by role or by token, read nothing about other pools."""

from __future__ import annotations

import json

import pytest

from controlplane.accounts.models import Scope, User
from controlplane.operations.models import Operation
from tests import factories
from tests.api.conftest import Api, api_for
from tests.selectors.reach_world import Reach, reach_world

HIDDEN = ("far", "secret", "n-other", "other pin", "other entry", "other node", "other Token")


@pytest.fixture
def world(db: None) -> Reach:
    return reach_world()


@pytest.fixture(params=["role", "token"])
def local(request: pytest.FixtureRequest, world: Reach, admin: User) -> Api:
    """Sees near.gpu alone, because of their role or because of their token."""
    if request.param == "token":
        return api_for(admin, Scope.ADMIN, targets=["near.gpu"])
    return api_for(factories.user(role="Admin", target="near.gpu"), Scope.ADMIN)


@pytest.mark.parametrize("form", ["", ".csv"])
@pytest.mark.parametrize("path", ["operations", "audit-events", "pins", "nodes", "node-pools", "clusters"])
def test_it_names_nothing_of_other_pools(local: Api, path: str, form: str) -> None:
    answer = local.get(f"{path}{'?format=csv' if form else ''}")

    assert answer.status_code == 200
    text = answer.content.decode()
    assert "near" in text or "mine" in text
    assert not [word for word in HIDDEN if word in text]


def test_it_hides_one_operation_and_what_can_be_done_to_it(local: Api, world: Reach) -> None:
    hidden = Operation.objects.get(subject_name=world.other.full_name)
    mine = Operation.objects.get(subject_name=world.mine.full_name)

    assert local.get(f"operations/{mine.pk}").status_code == 202
    for answer in (
        local.get(f"operations/{hidden.pk}"),
        local.post(f"operations/{hidden.pk}/cancel"),
        local.post(f"operations/{hidden.pk}/retry?dry_run=true"),
    ):
        assert answer.status_code == 404
        assert world.other.full_name not in json.dumps(answer.json())


def test_it_hides_one_event(local: Api, admin_api: Api) -> None:
    events = admin_api.get("audit-events?object_type=node").json()["items"]
    hidden = next(row["id"] for row in events if row["object"]["name"] == "other node")

    assert local.get(f"audit-events/{hidden}").status_code == 404
    assert admin_api.get(f"audit-events/{hidden}").status_code == 200
