"""Every call with every kind of caller: what it needs is asked for, named when it is missing, and is enough."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import Role, RoleGrant, Scope, Token, User
from controlplane.operations.models import Operation, OperationKind
from tests import factories
from tests.api.conftest import Api, api_for
from tests.api.rows import NOWHERE, filled, operations

pytestmark = pytest.mark.thorough

READ, ADMIN = Scope.READ, Scope.ADMIN
MODELS, PINS, EVICT, FLEET = Scope.MODELS_WRITE, Scope.PINS_WRITE, Scope.EVICT, Scope.FLEET_WRITE
ROLLOUTS, ROUTING, INGEST = Scope.ROLLOUTS_WRITE, Scope.ROUTING_WRITE, Scope.LAUNCHES_INGEST
# What a token needs for each call. None: any token, whatever its scopes.
NEEDS: dict[tuple[str, str], Scope | None] = {
    ("GET", "audit-events"): READ,
    ("GET", "audit-events/{event_id}"): READ,
    ("GET", "cache-entries"): READ,
    ("GET", "cache-entries/{entry_id}"): READ,
    ("POST", "cache-entries/{entry_id}/evict"): EVICT,
    ("POST", "cache-entries/{entry_id}/retry"): PINS,
    ("POST", "cache-entries/{entry_id}/scrub"): PINS,
    ("GET", "clusters"): READ,
    ("POST", "clusters"): FLEET,
    ("GET", "clusters/{name}"): READ,
    ("POST", "clusters/{name}/adopt"): FLEET,
    ("GET", "endpoints"): READ,
    ("POST", "endpoints"): ROLLOUTS,
    ("GET", "endpoints/{endpoint_id}"): READ,
    ("POST", "endpoints/{endpoint_id}/cache"): ROLLOUTS,
    ("GET", "endpoints/{endpoint_id}/variants"): READ,
    ("PUT", "endpoints/{endpoint_id}/variants"): ROUTING,
    ("GET", "endpoints/{endpoint_id}/variants/{variant}/decisions"): READ,
    ("POST", "endpoints/{endpoint_id}/variants/{variant}/explain"): ROUTING,
    ("POST", "endpoints/{endpoint_id}/variants/{variant}/replays"): ROUTING,
    ("GET", "endpoints/{endpoint_id}/variants/{variant}/replays/{operation_id}"): READ,
    ("GET", "endpoints/{endpoint_id}/variants/{variant}/routing-advice"): READ,
    ("GET", "endpoints/{endpoint_id}/variants/{variant}/routing-policy"): READ,
    ("PUT", "endpoints/{endpoint_id}/variants/{variant}/routing-policy"): ROUTING,
    ("GET", "endpoints/{endpoint_id}/variants/{variant}/routing-telemetry"): READ,
    ("GET", "images"): READ,
    ("POST", "images"): MODELS,
    ("GET", "images/{image_id}"): READ,
    ("DELETE", "images/{image_id}"): MODELS,
    ("POST", "images/{image_id}/restore"): MODELS,
    ("POST", "images/{image_id}/revoke"): MODELS,
    ("POST", "images/{image_id}/withdraw"): EVICT,
    ("GET", "instances"): READ,
    ("GET", "instances/{instance_id}"): READ,
    ("GET", "launches"): READ,
    ("GET", "launches/comparison"): READ,
    ("GET", "launches/moves"): READ,
    ("GET", "launches/report"): READ,
    ("POST", "launches/observations"): INGEST,
    ("POST", "launches/trials"): FLEET,
    ("GET", "launches/statistics"): READ,
    ("GET", "launches/{launch_id}"): READ,
    ("POST", "launches/{launch_id}/phases"): INGEST,
    ("GET", "me"): None,
    ("GET", "models"): READ,
    ("POST", "models"): MODELS,
    ("GET", "models/{model}"): READ,
    ("DELETE", "models/{model}"): MODELS,
    ("GET", "models/{model}/versions"): READ,
    ("POST", "models/{model}/versions"): MODELS,
    ("GET", "models/{model}/versions/{version}"): READ,
    ("DELETE", "models/{model}/versions/{version}"): MODELS,
    ("POST", "models/{model}/versions/{version}/image"): MODELS,
    ("GET", "models/{model}/versions/{version}/manifest"): READ,
    ("POST", "models/{model}/versions/{version}/recheck"): MODELS,
    ("GET", "models/{model}/versions/{version}/why-not-warm"): READ,
    ("GET", "node-pools"): READ,
    ("POST", "node-pools"): FLEET,
    ("GET", "node-pools/{name}"): READ,
    ("PATCH", "node-pools/{name}"): FLEET,
    ("DELETE", "node-pools/{name}"): FLEET,
    ("GET", "nodes"): READ,
    ("GET", "nodes/{node_id}"): READ,
    ("GET", "nodes/{node_id}/cache-entries"): READ,
    ("GET", "nodes/{node_id}/eviction-forecast"): READ,
    ("GET", "operations"): READ,
    ("GET", "operations/{operation_id}"): READ,
    ("POST", "operations/{operation_id}/cancel"): PINS,  # that of its kind: there is a scrub
    ("POST", "operations/{operation_id}/retry"): PINS,
    ("GET", "pins"): READ,
    ("POST", "pins"): PINS,
    ("GET", "pins/{pin_id}"): READ,
    ("PATCH", "pins/{pin_id}"): PINS,
    ("DELETE", "pins/{pin_id}"): PINS,
    ("GET", "rollouts"): READ,
    ("GET", "rollouts/{rollout_id}"): READ,
    ("POST", "rollouts/{rollout_id}/hold"): ROLLOUTS,
    ("POST", "rollouts/{rollout_id}/release"): ROLLOUTS,
    ("POST", "rollouts/{rollout_id}/rollback"): ROLLOUTS,
    ("GET", "routers"): READ,
    ("GET", "routers/{router_id}"): READ,
    ("GET", "routing-policies"): READ,
    ("GET", "routing-policies/{policy_id}"): READ,
    ("GET", "source-connections"): READ,
    ("POST", "source-connections"): FLEET,
    ("GET", "source-connections/{name}"): READ,
    ("PATCH", "source-connections/{name}"): FLEET,
    ("DELETE", "source-connections/{name}"): FLEET,
    ("POST", "static-endpoints"): ROUTING,
    ("GET", "static-endpoints/{endpoint_id}"): READ,
    ("PUT", "static-endpoints/{endpoint_id}"): ROUTING,
    ("DELETE", "static-endpoints/{endpoint_id}"): ROUTING,
    ("GET", "tokens"): READ,
    ("POST", "tokens"): ADMIN,
    ("GET", "tokens/{token_id}"): READ,
    ("DELETE", "tokens/{token_id}"): ADMIN,
    ("GET", "webhooks"): READ,
    ("POST", "webhooks"): FLEET,
    ("GET", "webhooks/{name}"): READ,
    ("PATCH", "webhooks/{name}"): FLEET,
    ("DELETE", "webhooks/{name}"): FLEET,
}
CALLS = sorted(NEEDS)
CHANGES = [call for call in CALLS if call[0] != "GET"]


def call(api: Api, method: str, path: str, **kwargs: Any) -> Any:
    return api.call(
        method, path, {} if method in ("POST", "PUT", "PATCH") and not path.endswith(BODILESS) else None, **kwargs
    )


BODILESS = ("/evict", "/retry", "/scrub", "/cancel", "/recheck", "/restore", "/release", "/rollback")


def test_it_has_every_call_of_the_description_in_this_table() -> None:
    assert sorted(operations()) == CALLS


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_it_asks_for_its_own_scope_and_for_no_other(
    admin: User, method: str, path: str, populated: dict[str, str]
) -> None:
    place, needed = filled(path, populated), NEEDS[method, path]
    if needed is not None:
        every = [scope for scope in Scope if scope not in (needed, Scope.ADMIN)]
        refused = call(api_for(admin, *every), method, place)
        assert (refused.status_code, refused.json()["code"]) == (403, "token:user:scope-missing")
        assert refused.json()["detail"].endswith(f" {needed.value}.")
        assert refused.json()["next_step"].endswith(f" {needed.value}.")

    # Past the door: whatever the body is worth, it is not refused for who asks.
    assert call(api_for(admin, needed or Scope.READ), method, place).status_code not in (401, 403)


def test_it_tells_a_viewer_of_the_role_and_not_of_a_scope_nobody_would_give(
    viewer_api: Api, populated: dict[str, str]
) -> None:
    for method, path in CHANGES:
        answer = call(viewer_api, method, filled(path, populated))
        assert (answer.status_code, answer.json()["code"]) == (403, "access:user:role-missing"), (method, path)
        role = "Admin" if NEEDS[method, path] in (FLEET, ADMIN) else "Operator"
        assert role in answer.json()["detail"] and role in answer.json()["next_step"], (method, path)
        assert "scope" not in answer.json()["next_step"]


def test_it_answers_nobody_without_credentials(anonymous_api: Api) -> None:
    for method, path in CALLS:
        answer = call(anonymous_api, method, filled(path, dict.fromkeys(KEYS, NOWHERE)))
        assert (answer.status_code, answer.json()["code"]) == (401, "session:user:missing"), (method, path)
        assert answer["WWW-Authenticate"] == "Bearer"


KEYS = (
    "endpoint_id", "entry_id", "event_id", "image_id", "instance_id", "launch_id", "model", "node_id",
    "operation_id", "pin_id", "policy_id", "rollout_id", "router_id", "token_id", "variant", "version",
)  # fmt: skip


def expire(token: Token) -> None:
    Token.objects.filter(pk=token.pk).update(expiry=timezone.now())


def revoke(token: Token) -> None:
    Token.objects.filter(pk=token.pk).update(revoked_at=timezone.now())


def deactivate(token: Token) -> None:
    User.objects.filter(pk=token.user_id).update(is_active=False)


def disgrace(token: Token) -> None:
    RoleGrant.objects.filter(user=token.user_id).delete()


@pytest.mark.parametrize(
    ("happens", "status", "code"),
    [
        (expire, 401, "token:user:expired"),
        (revoke, 401, "token:user:revoked"),
        (deactivate, 401, "token:user:owner-inactive"),
        (disgrace, 403, "access:user:role-missing"),
    ],
)
def test_it_forgets_at_once_a_token_that_ended(admin: User, happens: Any, status: int, code: str) -> None:
    api = api_for(admin, Scope.ADMIN)
    assert api.get("pins").status_code == 200

    happens(Token.objects.get())

    for method, path in (("GET", "pins"), ("POST", "pins"), ("POST", "tokens"), ("DELETE", "models/x")):
        answer = call(api, method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (method, path)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (None, set()),
        (Role.VIEWER, {READ}),
        (Role.OPERATOR, {READ, MODELS, PINS, EVICT, ROLLOUTS, ROUTING, INGEST}),
        (Role.ADMIN, {READ, MODELS, PINS, EVICT, ROLLOUTS, ROUTING, INGEST, FLEET, ADMIN}),
    ],
)
def test_it_lets_an_old_token_do_what_its_owners_role_allows_now(
    admin: User, role: Role | None, allowed: set[Scope], populated: dict[str, str]
) -> None:
    api = api_for(admin, Scope.ADMIN)
    RoleGrant.objects.filter(user=admin).delete()
    if role is not None:
        RoleGrant.objects.create(user=admin, role=role)

    for method, path in CALLS:
        needed = NEEDS[method, path]
        if method == "DELETE" or needed is None:
            continue  # a real one would take away what the next calls need
        answer = call(api, method, filled(path, populated))
        assert (answer.status_code != 403) is (needed in allowed), (method, path, answer.content)


def test_it_says_what_a_token_is_worth_now(admin: User) -> None:
    api = api_for(admin, Scope.ADMIN)
    RoleGrant.objects.filter(user=admin).update(role=Role.VIEWER)
    assert api.get("me").json()["scopes"] == ["read"]

    RoleGrant.objects.filter(user=admin).delete()
    me = api.get("me").json()
    assert (me["scopes"], me["roles"]) == ([], [])


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("Bearer", "token:user:malformed"),
        ("Bearer a b", "token:user:malformed"),
        ("bearer nonsense", "token:user:unknown"),
        ("BEARER \x7f", "token:user:unknown"),
        ("Basic b2xnYTpwYXNz", "session:user:missing"),
        ("Token abc", "session:user:missing"),
        ("hearth_abc", "session:user:missing"),
        ("", "session:user:missing"),
    ],
)
def test_it_refuses_credentials_of_another_kind(anonymous_api: Api, header: str, code: str) -> None:
    answer = anonymous_api.get("pins", headers={"Authorization": header})

    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert answer["WWW-Authenticate"] == "Bearer"


def test_it_does_not_fall_back_to_the_session_when_the_token_is_wrong(admin: User) -> None:
    client = Client()
    client.force_login(admin)

    assert Api(None, client).get("pins").status_code == 200
    assert Api("hearth_" + "0" * 64, client).get("pins").status_code == 401


@pytest.mark.parametrize("path", ["pins", "cache-entries", "nodes", "node-pools", "clusters"])
def test_it_shows_a_person_of_one_pool_that_pool(path: str, populated: dict[str, str]) -> None:
    person = factories.user(role="Viewer", target="cc.ww")
    whole = factories.user(role="Viewer", target="cc")
    limited = factories.user(role="Viewer")

    seen = [
        {item["id"] for item in api.get(path).json()["items"]}
        for api in (api_for(person), api_for(whole), api_for(limited, targets=["cc.ww"]))
    ]
    everything = {item["id"] for item in api_for(limited).get(path).json()["items"]}

    assert seen[0] == seen[1] == seen[2] < everything
    assert len(seen[0]) == 1, populated


def test_it_lets_a_token_for_one_cluster_change_only_that_one(admin: User, populated: dict[str, str]) -> None:
    api = api_for(admin, Scope.ADMIN, targets=["cc"])

    assert api.patch("node-pools/cc.ww", {"priority": 5}).status_code == 200
    assert api.patch("node-pools/aa.yy", {"priority": 5}).status_code == 404  # it cannot even see it
    made = {"name": "new", "selector": {"kind": "gpu"}}
    assert api.post("node-pools", made | {"cluster": "aa"}).json()["code"] == "pool:user:no-such-cluster"
    assert api.post("node-pools", made | {"cluster": "cc"}).status_code == 201
    # What belongs to no cluster is everybody's, so a limit keeps it out of reach.
    for method, path, body in (
        ("POST", "webhooks", {"name": "x", "url": "https://192.0.2.1/", "secret_name": "hooks"}),
        ("DELETE", "webhooks/hb", None),
        ("PATCH", "source-connections/sb", {"max_downloads": 1}),
    ):
        answer = api.call(method, path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "token:user:target"), path
        assert "limited to cc" in answer.json()["detail"]


def test_it_lets_whoever_may_start_a_kind_of_work_stop_it(operator: User, admin: User) -> None:
    scopes = {
        OperationKind.MODEL_REGISTER: MODELS,
        OperationKind.MODEL_RECHECK: MODELS,
        OperationKind.IMAGE_REGISTER: MODELS,
        OperationKind.PIN_WARM: PINS,
        OperationKind.PIN_REMOVE: PINS,
        OperationKind.ENTRY_EVICT: EVICT,
        OperationKind.ENTRY_SCRUB: PINS,
    }
    for kind, scope in scopes.items():
        made = Operation.objects.create(kind=kind, subject_type="x", subject_id=NOWHERE, subject_name="x")
        others = [one for one in (MODELS, PINS, EVICT) if one != scope]
        refused = api_for(operator, *others).post(f"operations/{made.id}/cancel?dry_run=true")
        assert (refused.status_code, refused.json()["code"]) == (403, "token:user:scope-missing"), kind
        assert refused.json()["detail"].endswith(f" {scope.value}.")
        assert api_for(operator, scope).post(f"operations/{made.id}/cancel?dry_run=true").status_code == 200, kind
