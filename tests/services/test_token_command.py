"""A token from the command line: its secret alone on standard output, never more than its owner may."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import Token
from controlplane.audit.models import AuditEvent
from tests import factories

pytestmark = pytest.mark.django_db


def token(*arguments: str) -> tuple[str, str]:
    out, error = io.StringIO(), io.StringIO()
    call_command("token", *arguments, stdout=out, stderr=error)
    return out.getvalue(), error.getvalue()


def test_the_secret_alone_is_printed_and_works() -> None:
    factories.user(username="grace", role="Operator")
    secret, told = token("grace", "pipeline", "--scope", "read", "--scope", "pins:write", "--days", "2")
    assert secret.count("\n") == 1 and secret.strip() not in told and told.startswith("pipeline of grace ends at")
    made = Token.objects.get()
    assert (made.scopes, made.targets) == (["pins:write", "read"], [])
    assert timedelta(days=1.9) < (made.expiry or timezone.now()) - timezone.now() <= timedelta(days=2)
    answer = Client().get("/api/v1/me", headers={"Authorization": f"Bearer {secret.strip()}"})
    assert answer.status_code == 200 and answer.json()["user"] == "grace"
    event = AuditEvent.objects.get(action="token.create")
    assert event.actor.endswith("(manage.py)") and secret.strip() not in str(event.after)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody", "x", "--scope", "read"), "There is no user nobody"),
        (("gone", "x", "--scope", "read"), "There is no user gone"),
        (("grace", "x", "--scope", "fleet:write"), "fleet:write needs the role"),
        (("grace", "x", "--scope", "all"), "invalid choice"),
        (("grace", "x"), "--scope"),
        (("grace", "", "--scope", "read"), "1 to 100"),
        (("grace", "a\nb", "--scope", "read"), "1 to 100"),
        (("grace", "x" * 101, "--scope", "read"), "1 to 100"),
        (("grace", "x", "--scope", "read", "--days", "0"), "The time is past"),
        (("grace", "x", "--scope", "read", "--days", "99999999999"), "lives at most 366 days"),
        (("grace", "x", "--scope", "read", "--on", "a.b.c"), "A target is a cluster"),
    ],
)
def test_it_says_what_is_wrong_and_makes_nothing(arguments: tuple[str, ...], said: str) -> None:
    factories.user(username="grace", role="Operator")
    factories.user(username="gone", role="Admin", is_active=False)
    with pytest.raises(CommandError, match=said):
        token(*arguments)
    assert not Token.objects.exists()
