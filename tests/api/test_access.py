"""Roles and limits: what a grant reaches, and that a token only ever narrows it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser
from django.test import RequestFactory

from controlplane import errors
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role, Scope, User
from controlplane.audit.models import Via
from controlplane.clusters.models import NodePool
from tests import factories
from tests.api.conftest import OPERATOR_SCOPES, Api, api_for


def person(**grants: str) -> User:
    """A user with one grant for each keyword: ``everywhere``, ``a`` or ``a__x`` for a.x."""
    user = factories.user()
    for name, role in grants.items():
        target = "" if name == "everywhere" else name.replace("__", ".")
        user.role_grants.create(role=role, target=target)
    return user


@pytest.mark.parametrize(
    ("grants", "target", "role"),
    [
        ({}, "", None),
        ({}, "a.x", None),
        ({"everywhere": "Viewer"}, "", "Viewer"),
        ({"everywhere": "Viewer"}, "a.x", "Viewer"),
        ({"a": "Operator"}, "", None),
        ({"a": "Operator"}, "a", "Operator"),
        ({"a": "Operator"}, "a.x", "Operator"),
        ({"a": "Operator"}, "ab.x", None),
        ({"a__x": "Admin"}, "a.x", "Admin"),
        ({"a__x": "Admin"}, "a", None),
        ({"a__x": "Admin"}, "a.xy", None),
        ({"everywhere": "Viewer", "a": "Operator", "a__x": "Admin"}, "a.x", "Admin"),
        ({"everywhere": "Admin", "a__x": "Viewer"}, "a.x", "Admin"),
    ],
)
def test_it_takes_the_highest_grant_that_reaches_the_target(
    db: None, grants: dict[str, str], target: str, role: str | None
) -> None:
    assert access.role_of(person(**grants), target) == role


def test_it_gives_superusers_everything_and_the_inactive_nothing(db: None) -> None:
    root = factories.user(is_superuser=True)
    gone = factories.user(role="Admin", is_active=False)

    assert access.role_of(root, "a.x") == Role.ADMIN and access.readable_targets(root) is None
    assert access.role_of(gone) is None and access.readable_targets(gone) == frozenset()
    assert access.role_anywhere(gone) is None and access.grants_of(gone) == []


def test_it_says_which_role_is_missing_where(db: None) -> None:
    user = person(a__x="Operator")

    access.require(user, Role.VIEWER, "a.x")
    access.require_anywhere(user, Role.OPERATOR)
    with pytest.raises(errors.Denied, match=r"role Admin on a\.x") as refused:
        access.require(user, Role.ADMIN, "a.x")
    assert refused.value.code == "access:user:role-missing" and refused.value.next_step
    with pytest.raises(errors.Denied, match="on the whole fleet"):
        access.require(user, Role.OPERATOR)


@pytest.mark.parametrize(
    ("grants", "limits", "seen"),
    [
        ({"everywhere": "Viewer"}, (), None),
        ({"everywhere": "Viewer"}, ("a", "b.y"), {"a", "b.y"}),
        ({"a": "Viewer"}, (), {"a"}),
        ({"a": "Viewer"}, ("a.x",), {"a.x"}),
        ({"a__x": "Viewer"}, ("a",), {"a.x"}),
        ({"a__x": "Viewer"}, ("b",), set()),
        ({}, (), set()),
    ],
)
def test_it_shows_what_both_the_grants_and_the_token_reach(
    db: None, grants: dict[str, str], limits: tuple[str, ...], seen: set[str] | None
) -> None:
    assert access.readable_targets(person(**grants), limits) == seen


def test_it_filters_rows_by_what_may_be_seen(db: None) -> None:
    one = factories.pool(of=factories.cluster(name="a"), name="x")
    two = factories.pool(of=one.cluster, name="y")
    three = factories.pool(of=factories.cluster(name="b"), name="x")

    def seen(*targets: str) -> set[NodePool]:
        limit = access.targets_filter(frozenset(targets), cluster="cluster__name", pool="name")
        return set(NodePool.objects.filter(limit))

    assert seen("a") == {one, two}
    assert seen("a.x", "b") == {one, three}
    assert seen() == set()


def test_it_knows_on_whose_behalf_a_request_acts(operator: User) -> None:
    request = RequestFactory().get("/")
    request.user = operator
    request.request_id = "r-1"  # type: ignore[attr-defined]

    actor = actor_of(request)

    assert (actor.name, actor.via, actor.request_id) == ("olga", Via.BROWSER, "r-1")
    assert not AnonymousUser().is_authenticated


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "pins", "read"),
        ("GET", "operations", "read"),
        ("GET", "tokens", "read"),
        ("POST", "pins", "pins:write"),
        ("POST", "models/m/versions", "models:write"),
        ("DELETE", "models/m/versions/1", "models:write"),
        ("POST", "models/m/versions/1/recheck", "models:write"),
        ("POST", "source-connections", "fleet:write"),
        ("POST", "node-pools", "fleet:write"),
        ("POST", "webhooks", "fleet:write"),
        ("POST", "tokens", "admin"),
    ],
)
def test_it_asks_each_call_for_its_own_scope(admin: User, method: str, path: str, scope: str) -> None:
    every = [one for one in Scope if one not in (Scope.ADMIN, scope)]

    answer = api_for(admin, *every).call(method, path, {} if method == "POST" else None)

    assert answer.status_code == 403
    assert answer.json()["code"] == "token:user:scope-missing"
    assert answer.json()["detail"].endswith(f"{scope}.")


WRITES = (
    ("POST", "pins"),
    ("POST", "models"),
    ("POST", "models/m/versions"),
    ("DELETE", "models/m"),
    ("POST", "source-connections"),
    ("DELETE", "source-connections/s"),
    ("POST", "node-pools"),
    ("PATCH", "node-pools/a.x"),
    ("POST", "webhooks"),
)


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_it_lets_a_viewer_change_nothing_whatever_the_token_claims(viewer: User, method: str, path: str) -> None:
    # Such a token cannot be asked for; it is what remains when a person loses a role.
    viewer.role_grants.update(role="Admin")
    api = api_for(User.objects.get(pk=viewer.pk), Scope.ADMIN)
    viewer.role_grants.update(role="Viewer")

    answer = api.call(method, path, {})

    assert (answer.status_code, answer.json()["code"]) == (403, "access:user:role-missing")


def test_it_lets_an_operator_of_one_pool_work_there_alone(db: None) -> None:
    mine, other = factories.pool(), factories.pool()
    entries = {pool: factories.entry(on=factories.node(of=pool), state="Failed") for pool in (mine, other)}
    local = person(everywhere="Viewer", **{mine.full_name.replace(".", "__"): "Operator"})
    api: Api = api_for(local, *OPERATOR_SCOPES)

    assert api.post(f"cache-entries/{entries[mine].id}/retry").status_code == 200
    refused = api.post(f"cache-entries/{entries[other].id}/retry")
    assert refused.status_code == 403 and other.full_name in refused.json()["detail"]
    assert len(api.get("cache-entries").json()["items"]) == 2
