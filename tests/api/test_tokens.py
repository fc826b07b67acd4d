"""Who gets in, with what, and what a refusal says."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import Role, RoleGrant, Scope, Token, User
from controlplane.audit.models import AuditEvent
from tests import factories
from tests.api.conftest import Api, api_for


def test_it_refuses_a_caller_without_credentials(anonymous_api: Api) -> None:
    answer = anonymous_api.get("pins")

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["code"] == "session:user:missing"


@pytest.mark.parametrize("secret", ["hearth_" + "0" * 64, "x", "hearth_é", "two words"])
def test_it_refuses_a_token_that_it_never_gave_out(db: None, secret: str) -> None:
    answer = Api(secret).get("pins")

    assert answer.status_code == 401
    assert answer.json()["code"] in ("token:user:unknown", "token:user:malformed")


def test_it_tells_an_expired_token_by_how_much_and_what_the_server_time_is(viewer: User) -> None:
    api = api_for(viewer, expires_at=timezone.now() + timedelta(hours=1))

    with time_machine.travel(timezone.now() + timedelta(hours=2), tick=False):
        answer = api.get("pins")

    assert answer.status_code == 401
    assert answer.json()["code"] == "token:user:expired"
    assert "server time is" in answer.json()["detail"]
    assert Token.objects.exists()  # an expired token is evidence, not litter


def test_it_refuses_a_revoked_token_and_one_whose_owner_left(viewer: User) -> None:
    api = api_for(viewer)
    Token.objects.update(revoked_at=timezone.now())
    assert api.get("pins").json()["code"] == "token:user:revoked"

    Token.objects.update(revoked_at=None)
    User.objects.update(is_active=False)
    assert api.get("pins").json()["code"] == "token:user:owner-inactive"


def test_it_names_the_scope_that_is_missing(operator: User) -> None:
    answer = api_for(operator, Scope.READ).post("pins", {})

    assert answer.status_code == 403
    assert answer.json()["code"] == "token:user:scope-missing"
    assert "pins:write" in answer.json()["detail"]


def test_it_never_lets_a_token_exceed_the_role_its_owner_has_now(operator: User) -> None:
    api = api_for(operator, Scope.PINS_WRITE)
    RoleGrant.objects.filter(user=operator).update(role=Role.VIEWER)

    answer = api.post("pins", {})

    assert answer.status_code == 403
    assert answer.json()["code"] == "access:user:role-missing"


def test_it_gives_nothing_to_a_person_without_any_role(db: None) -> None:
    nobody = factories.user()
    client = Client()
    client.force_login(nobody)

    assert Api(None, client).get("pins").status_code == 403


def test_it_believes_only_allowed_addresses_and_no_header_that_claims_one(viewer: User) -> None:
    api = api_for(viewer, addresses=["10.1.0.0/16"])

    assert api.get("pins", REMOTE_ADDR="10.1.2.3").status_code == 200
    assert api.get("pins", REMOTE_ADDR="::ffff:10.1.2.3").status_code == 200
    refused = api.get("pins", REMOTE_ADDR="192.0.2.1", HTTP_X_FORWARDED_FOR="10.1.2.3")
    assert refused.status_code == 403
    assert refused.json()["code"] == "token:user:address"


def test_it_reads_the_address_behind_as_many_proxies_as_it_trusts(viewer: User, settings: Any) -> None:
    settings.TRUSTED_PROXIES = 1
    api = api_for(viewer, addresses=["10.1.0.0/16"])

    assert api.get("pins", REMOTE_ADDR="192.0.2.1", HTTP_X_FORWARDED_FOR="10.1.2.3").status_code == 200
    # A caller may put anything in front of what the trusted proxy appended.
    assert api.get("pins", REMOTE_ADDR="192.0.2.1", HTTP_X_FORWARDED_FOR="10.1.2.3, 203.0.113.9").status_code == 403


def test_it_writes_the_last_use_at_most_once_a_minute(viewer: User) -> None:
    api = api_for(viewer)
    start = timezone.now()
    for seconds in (0, 10, 50):
        with time_machine.travel(start + timedelta(seconds=seconds), tick=False):
            api.get("pins")
    assert Token.objects.get().last_used_at == start

    with time_machine.travel(start + timedelta(seconds=70), tick=False):
        api.get("pins")
    assert Token.objects.get().last_used_at == start + timedelta(seconds=70)


def test_it_keeps_a_limited_token_inside_its_targets(operator: User) -> None:
    inside, outside = factories.pool(), factories.pool()
    entry = factories.entry(on=factories.node(of=outside))
    api = api_for(operator, Scope.READ, Scope.EVICT, targets=[inside.full_name])

    assert [pool["name"] for pool in api.get("node-pools").json()["items"]] == [inside.full_name]
    assert api.get(f"cache-entries/{entry.id}").status_code == 404
    assert api.post(f"cache-entries/{entry.id}/evict").status_code == 404


def test_it_shows_a_secret_once_and_stores_no_trace_of_it(operator: User, client: Client) -> None:
    client.force_login(operator)
    api = Api(None, client)
    body = {"name": "ci", "scopes": ["read"], "addresses": ["127.0.0.0/8"]}

    made = api.post("tokens", body, headers={"Idempotency-Key": "one"})
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert made["Cache-Control"] == "no-store"
    assert Api(secret).get("me").json()["token"] == "ci"

    again = api.post("tokens", body, headers={"Idempotency-Key": "one"})
    assert again["Idempotency-Replayed"] == "true"
    assert again.json() == {**made.json(), "secret": None}
    stored = json.dumps([*AuditEvent.objects.values("after"), *Token.objects.values("digest", "token_key")])
    assert secret not in stored and Token.objects.count() == 1
    assert "secret" not in api.get("tokens").json()["items"][0]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"scopes": ["fleet:write"]}, "scopes"),
        ({"scopes": ["read"], "addresses": ["10.0.0.0/40"]}, "addresses"),
        ({"scopes": ["read"], "targets": ["a.b.c"]}, "targets"),
        ({"scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"scopes": ["read"], "expires_at": "2999-01-01T00:00:00Z"}, "expires_at"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["read"], "scope": "read"}, "scope"),
    ],
)
def test_it_refuses_a_wrong_token_by_field(operator: User, client: Client, body: dict[str, Any], field: str) -> None:
    client.force_login(operator)

    answer = Api(None, client).post("tokens", {"name": "ci", **body})

    assert answer.status_code == 400
    assert field in {error["field"].split(".")[0] for error in answer.json()["errors"]}
    assert not Token.objects.exists()


def test_it_gives_a_child_token_no_more_than_its_parent(admin: User) -> None:
    soon = timezone.now() + timedelta(hours=1)
    pool = factories.pool()
    parent = api_for(admin, Scope.ADMIN, targets=[pool.cluster.name], addresses=["127.0.0.0/8"], expires_at=soon)
    wide = {"name": "child", "scopes": ["read"], "expires_at": (soon + timedelta(days=1)).isoformat()}

    refused = parent.post("tokens", wide).json()
    assert {error["field"] for error in refused["errors"]} == {"targets", "addresses", "expires_at"}

    narrow = {"name": "child", "scopes": ["read"], "targets": [pool.full_name], "addresses": ["127.0.0.1"]}
    made = parent.post("tokens", narrow)
    assert made.status_code == 201
    assert Token.objects.get(name="child").expiry == soon


def test_it_lets_no_ordinary_token_make_or_revoke_tokens(operator_api: Api) -> None:
    token = Token.objects.get()

    assert operator_api.post("tokens", {"name": "x", "scopes": ["read"]}).status_code == 403
    assert operator_api.delete(f"tokens/{token.id}").status_code == 403


def test_it_revokes_and_shows_only_ones_own_tokens(operator: User, viewer_api: Api, client: Client) -> None:
    api_for(operator, Scope.READ)
    mine = Token.objects.get(user=operator)
    theirs = Token.objects.exclude(user=operator).get()
    client.force_login(operator)
    api = Api(None, client)

    assert [row["id"] for row in api.get("tokens").json()["items"]] == [str(mine.id)]
    assert api.delete(f"tokens/{theirs.id}").status_code == 404
    assert api.delete(f"tokens/{mine.id}").json()["revoked_at"]
    event = AuditEvent.objects.get(action="token.revoke")
    assert event.before is not None and event.before["revoked_at"] is None


def test_it_says_who_is_calling(operator_api: Api, admin: User, client: Client) -> None:
    me = operator_api.get("me").json()
    assert me["user"] == "olga" and me["roles"] == [{"role": "Operator", "target": ""}]
    assert me["scopes"] == ["read", "models:write", "pins:write", "evict"]
    assert me["expires_at"]

    client.force_login(admin)
    assert Api(None, client).get("me").json()["scopes"] == [scope.value for scope in Scope]


def test_it_demands_the_csrf_token_of_a_session(operator: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)

    answer = Api(None, client).post("tokens", {"name": "x", "scopes": ["read"]})

    assert answer.status_code == 403
    assert answer.json()["code"] == "session:user:csrf"


def test_it_refuses_a_token_for_a_target_that_does_not_exist(admin_api: Api) -> None:
    pool = factories.pool()
    body = {"name": "ci", "scopes": ["read"], "targets": [pool.cluster.name, pool.full_name]}
    wrong = ["nowhere", f"{pool.cluster.name}.nothing"]

    answer = admin_api.post("tokens", body | {"targets": [*body["targets"], *wrong]})

    assert answer.status_code == 400
    assert [(error["field"], error["code"]) for error in answer.json()["errors"]] == [
        ("targets.2", "unknown"),
        ("targets.3", "unknown"),
    ]
    assert admin_api.post("tokens", body).status_code == 201
