"""Tokens: what may be asked for, what a child may have, and who counts as the caller."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from django.http import HttpRequest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as some

from controlplane.accounts.authentication import address_allowed, client_address
from controlplane.accounts.models import Scope, Token, User
from controlplane.accounts.services import DEFAULT_LIFE, LONGEST_LIFE, token_create, token_revoke
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.errors import Invalid, Missing
from tests import factories


def make(actor: Actor, user: User, **fields: Any) -> Token:
    fields = {"name": "ci", "scopes": [Scope.READ]} | fields
    return token_create(actor=actor, user=user, **fields)[0]


def refused(actor: Actor, user: User, **fields: Any) -> list[tuple[str, str]]:
    """(field, code) of each problem; nothing was written."""
    before = Token.objects.count(), AuditEvent.objects.count()
    with pytest.raises(Invalid) as error:
        make(actor, user, **fields)
    assert (Token.objects.count(), AuditEvent.objects.count()) == before
    return [(one.field, one.code) for one in error.value.errors]


def test_it_lives_for_thirty_days_unless_somebody_says_otherwise(actor: Actor, operator: User) -> None:
    with time_machine.travel(timezone.now(), tick=False):
        assert make(actor, operator).expiry == timezone.now() + DEFAULT_LIFE
        longest = timezone.now() + LONGEST_LIFE
        assert make(actor, operator, expires_at=longest).expiry == longest
        late = longest + timedelta(microseconds=1)
        assert refused(actor, operator, expires_at=late) == [("expires_at", "too-far")]
        assert refused(actor, operator, expires_at=timezone.now()) == [("expires_at", "past")]
        soon = timezone.now() + timedelta(microseconds=1)
        assert make(actor, operator, expires_at=soon).expiry == soon


def test_it_gives_a_child_at_most_the_rest_of_its_parents_life(actor: Actor, admin: User) -> None:
    with time_machine.travel(timezone.now(), tick=False):
        ends = timezone.now() + timedelta(days=2)
        parent = make(actor, admin, scopes=[Scope.ADMIN], expires_at=ends)
        assert make(actor, admin, parent=parent).expiry == ends
        assert make(actor, admin, parent=parent, expires_at=ends).expiry == ends
        late = ends + timedelta(seconds=1)
        assert refused(actor, admin, parent=parent, expires_at=late) == [("expires_at", "above-token")]
        long = make(actor, admin, scopes=[Scope.ADMIN], expires_at=timezone.now() + timedelta(days=300))
        # A long parent does not make a careless child live long.
        assert make(actor, admin, parent=long).expiry == timezone.now() + DEFAULT_LIFE


@pytest.mark.parametrize(
    ("parent", "child", "problems"),
    [
        ({"scopes": ["admin"]}, {"scopes": ["fleet:write", "read"]}, []),
        ({"scopes": ["read"]}, {"scopes": ["read"]}, []),
        ({"scopes": ["read"]}, {"scopes": ["evict"]}, [("scopes", "above-token")]),
        ({"targets": ["a"]}, {"targets": ["a"]}, []),
        ({"targets": ["a"]}, {"targets": ["a.x"]}, []),
        ({"targets": ["a.x", "b"]}, {"targets": ["b.y", "a.x"]}, []),
        ({"targets": ["a.x"]}, {"targets": ["a"]}, [("targets", "above-token")]),
        ({"targets": ["a"]}, {"targets": ["ab"]}, [("targets", "above-token")]),
        ({"targets": ["a"]}, {"targets": []}, [("targets", "required")]),
        ({"addresses": ["10.0.0.0/8"]}, {"addresses": ["10.1.0.0/16", "10.0.0.1"]}, []),
        ({"addresses": ["10.1.0.0/16"]}, {"addresses": ["10.0.0.0/8"]}, [("addresses", "above-token")]),
        ({"addresses": ["10.0.0.0/8"]}, {"addresses": []}, [("addresses", "required")]),
        ({"addresses": ["10.0.0.0/8"]}, {"addresses": ["::1"]}, [("addresses", "above-token")]),
        ({"addresses": ["fd00::/8"]}, {"addresses": ["fd00:1::/32"]}, []),
        ({"addresses": ["0.0.0.0/0"]}, {"addresses": ["::/0"]}, [("addresses", "above-token")]),
        (
            {"targets": ["a"], "addresses": ["10.0.0.0/8"], "scopes": ["read"]},
            {"scopes": ["evict"]},
            [("scopes", "above-token"), ("targets", "required"), ("addresses", "required")],
        ),
    ],
)
def test_it_gives_a_child_nothing_that_its_parent_lacks(
    actor: Actor,
    admin: User,
    parent: Mapping[str, Any],
    child: Mapping[str, Any],
    problems: Sequence[tuple[str, str]],
) -> None:
    from_ = make(actor, admin, **parent)

    if problems:
        assert refused(actor, admin, parent=from_, **child) == list(problems)
    else:
        made = make(actor, admin, parent=from_, **child)
        assert set(made.targets) == set(child.get("targets", ()))


@pytest.mark.parametrize(
    ("grants", "fields", "problems"),
    [
        ({"": "Viewer"}, {"scopes": ["pins:write"]}, [("scopes", "above-role")]),
        ({"": "Operator"}, {"scopes": ["read", "fleet:write", "admin"]}, [("scopes", "above-role")] * 2),
        ({"a": "Operator"}, {"scopes": ["pins:write"]}, []),  # it works there alone
        ({"a": "Operator"}, {"targets": ["a.x"]}, []),
        ({"a": "Operator"}, {"targets": ["b"]}, [("targets", "above-role")]),
        ({"a.x": "Operator"}, {"targets": ["a"]}, [("targets", "above-role")]),
        ({}, {}, [("scopes", "above-role")]),
        ({"": "Viewer"}, {"scopes": []}, [("scopes", "required")]),
        ({"": "Viewer"}, {"scopes": ["root"]}, [("scopes", "unknown")]),
        ({"": "Viewer"}, {"targets": ["a.b.c"]}, [("targets", "invalid")]),
        ({"": "Viewer"}, {"targets": ["x" * 201]}, [("targets", "invalid")]),
        ({"": "Viewer"}, {"addresses": ["10.0.0.0/33", "::1/129", "", "x"]}, [("addresses", "invalid")] * 4),
        ({"": "Viewer"}, {"addresses": ["10.0.0.7/8", "::1"]}, []),
    ],
)
def test_it_gives_a_token_nothing_that_its_owner_lacks(
    db: None, actor: Actor, grants: Mapping[str, str], fields: Mapping[str, Any], problems: Sequence[tuple[str, str]]
) -> None:
    person = factories.user()
    for target, role in grants.items():
        person.role_grants.create(role=role, target=target)

    if problems:
        assert refused(actor, person, **fields) == list(problems)
    else:
        assert make(actor, person, **fields).user == person


def test_it_stores_each_limit_once_and_in_order(actor: Actor, operator: User) -> None:
    made = make(actor, operator, scopes=["read", "evict", "read"], targets=["b", "a", "b"], addresses=["::1", "::1"])

    assert (made.scopes, made.targets, made.addresses) == (["evict", "read"], ["a", "b"], ["::1"])


def test_it_revokes_once_and_for_good(actor: Actor, operator: User) -> None:
    made = make(actor, operator)

    first = token_revoke(actor=actor, token_id=made.id).revoked_at
    again = token_revoke(actor=actor, token_id=made.id).revoked_at

    assert first is not None and again == first
    [event] = AuditEvent.objects.filter(action="token.revoke")
    assert event.before is not None and event.after is not None
    assert (event.before["revoked_at"], event.after["revoked_at"]) == (None, first.isoformat())
    with pytest.raises(Missing):
        token_revoke(actor=actor, token_id=uuid4())


@pytest.mark.parametrize(
    ("address", "networks", "allowed"),
    [
        ("10.1.2.3", [], True),
        ("", [], True),
        ("10.1.2.3", ["10.1.0.0/16"], True),
        ("10.2.2.3", ["10.1.0.0/16", "10.2.2.3"], True),
        ("10.2.2.4", ["10.1.0.0/16", "10.2.2.3"], False),
        ("10.1.255.255", ["10.1.0.0/16"], True),
        ("10.1.2.3", ["10.1.9.9/16"], True),  # the bits of a host in a network say nothing
        ("::ffff:10.1.2.3", ["10.1.0.0/16"], True),
        ("::1", ["127.0.0.0/8"], False),
        ("fe80::1%eth0", ["fe80::/10"], True),
        ("", ["0.0.0.0/0"], False),
        ("unix:", ["0.0.0.0/0", "::/0"], False),
        ("10.1.2.3:80", ["10.1.0.0/16"], False),
        ("010.001.002.003", ["10.1.0.0/16"], False),
    ],
)
def test_it_believes_an_address_only_when_it_can_read_it(address: str, networks: list[str], allowed: bool) -> None:
    assert address_allowed(address, networks) is allowed


@given(some.ip_addresses(v=4), some.integers(min_value=0, max_value=32))
def test_it_lets_every_host_of_a_network_in(address: ipaddress.IPv4Address, bits: int) -> None:
    network = ipaddress.ip_network((address, bits), strict=False)

    assert address_allowed(str(address), [str(network)])
    assert address_allowed(f"::ffff:{address}", [str(network)])


@pytest.mark.parametrize(
    ("hops", "forwarded", "address"),
    [
        (0, "", "192.0.2.1"),
        (0, "10.0.0.1", "192.0.2.1"),
        (1, "", "192.0.2.1"),
        (1, "10.0.0.1", "10.0.0.1"),
        (1, "6.6.6.6, 10.0.0.1", "10.0.0.1"),
        (2, "10.0.0.1", "192.0.2.1"),  # it did not come through both proxies
        (2, "6.6.6.6, 10.0.0.1, 10.0.0.2", "10.0.0.1"),
        (1, " , ,10.0.0.1 ,", "10.0.0.1"),
        (1, "nonsense", "nonsense"),
    ],
)
def test_it_believes_as_many_proxies_as_it_has(settings: Any, hops: int, forwarded: str, address: str) -> None:
    settings.TRUSTED_PROXIES = hops
    request = HttpRequest()
    request.META = {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_FORWARDED_FOR": forwarded}

    assert client_address(request) == address
