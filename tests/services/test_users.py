"""People from the command line: made, changed and removed, in the trail each time, and never without an Admin."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from controlplane.accounts.access import role_of
from controlplane.accounts.models import Token, User
from controlplane.accounts.services import token_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from tests import factories

pytestmark = pytest.mark.django_db
GOOD = "correct horse battery"


def user(*arguments: str, given: str = "") -> str:
    out = io.StringIO()
    call_command("user", *arguments, stdin=io.StringIO(given), stdout=out)
    return out.getvalue()


def trail() -> list[tuple[str, Any, Any]]:
    events = AuditEvent.objects.filter(object_type="User").order_by("pk")
    return [(event.action, event.before, event.after) for event in events]


def test_somebody_who_was_added_signs_in_with_the_password_that_was_shown_once() -> None:
    said = user("add", "grace", "--role", "Operator")
    shown = said.strip().rpartition(" ")[2]
    assert said.startswith("grace may sign in as Operator everywhere.") and len(shown) >= 20
    assert Client().login(username="grace", password=shown)
    assert trail() == [("user.create", None, {"*": "Operator"})]
    assert AuditEvent.objects.get(object_type="User").actor.endswith("(manage.py)")
    assert shown not in str(list(AuditEvent.objects.values()))
    assert "grace  Operator everywhere\n" in user("list")


def test_a_given_password_comes_from_standard_input_and_is_not_said() -> None:
    assert GOOD not in user("add", "grace", "--role", "Viewer", "--password-stdin", given=f"{GOOD}\r\nmore\n")
    client = Client()
    assert client.login(username="grace", password=GOOD)
    user("password", "grace", "--password-stdin", given="another horse entirely")
    assert "_auth_user_id" in client.session
    assert client.get("/", follow=True).request["PATH_INFO"] != "/"  # signed out: the old session ended
    assert Client().login(username="grace", password="another horse entirely")
    assert [action for action, _, _ in trail()] == ["user.create", "user.password"]


def test_a_role_holds_where_it_was_given_and_can_be_taken_away() -> None:
    pool = factories.pool(name="gpu", of=factories.cluster(name="east"))
    user("add", "grace", "--role", "Viewer", "--on", "east")
    user("role", "grace", "Admin", "--on", pool.full_name)
    user("role", "grace", "Admin", "--on", pool.full_name)  # as it is already: nothing for the trail
    found = User.objects.get(username="grace")
    assert (role_of(found), role_of(found, "east"), role_of(found, "east.gpu")) == (None, "Viewer", "Admin")
    user("role", "grace", "None", "--on", "east")
    assert role_of(User.objects.get(username="grace"), "east") is None
    assert trail()[1:] == [
        ("user.role", {"east": "Viewer"}, {"east": "Viewer", "east.gpu": "Admin"}),
        ("user.role", {"east": "Viewer", "east.gpu": "Admin"}, {"east.gpu": "Admin"}),
    ]


def test_who_was_removed_has_no_session_and_no_token_and_comes_back_with_the_new_role_alone(actor: Actor) -> None:
    user("add", "grace", "--role", "Operator", "--password-stdin", given=GOOD)
    found = User.objects.get(username="grace")
    _, secret = token_create(actor=actor, user=found, name="ci", scopes=["read"])
    client, bearer = Client(), {"Authorization": f"Bearer {secret}"}
    assert client.login(username="grace", password=GOOD)
    assert client.get("/api/v1/me", headers=bearer).status_code == 200
    assert user("remove", "grace") == "grace may not sign in any more; 1 tokens ended.\n"
    assert Client().get("/api/v1/me", headers=bearer).status_code == client.get("/api/v1/me").status_code == 401
    assert not Client().login(username="grace", password=GOOD) and "grace  removed\n" in user("list")
    user("add", "grace", "--role", "Viewer", "--password-stdin", given=GOOD)
    back = User.objects.get(username="grace")
    assert back.pk == found.pk and role_of(back) == "Viewer"
    assert Token.objects.get().revoked_at and Client().get("/api/v1/me", headers=bearer).status_code == 401
    assert [action for action, _, _ in trail()] == ["user.create", "user.remove", "user.restore"]


def test_the_last_admin_stays() -> None:
    user("add", "ada", "--role", "Admin")
    user("add", "grace", "--role", "Viewer")
    for arguments in (("remove", "ada"), ("role", "ada", "Viewer"), ("role", "ada", "None")):
        with pytest.raises(CommandError, match="Nobody would be Admin everywhere"):
            user(*arguments)
    user("remove", "grace")
    user("add", "eve", "--role", "Admin")
    user("remove", "ada")
    assert [row.username for row in User.objects.filter(is_active=True)] == ["eve"]


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (("add", "GRACE", "--role", "Viewer"), "", "There is a user grace already"),
        (("add", "system", "--role", "Viewer"), "", "cannot be a user's name"),
        (("add", "", "--role", "Viewer"), "", "cannot be a user's name"),
        (("add", "a b", "--role", "Viewer"), "", "has letters, digits"),
        (("add", "x" * 151, "--role", "Viewer"), "", "at most 150"),
        (("add", "eve", "--role", "Viewer", "--on", "nope"), "", "There is no nope. There are east, east.gpu."),
        (("add", "eve", "--role", "Viewer", "--on", "east.nope"), "", "There is no east.nope"),
        (("add", "eve", "--role", "Viewer", "--password-stdin"), "short\n", "too short"),
        (("add", "eve", "--role", "Viewer", "--password-stdin"), "\n", "Nothing came from standard input"),
        (("role", "nobody", "Viewer"), "", "There is no user nobody. See them with: manage.py user list"),
        (("role", "grace", "None", "--on", "east"), "", "grace has no role on east"),
        (("role", "root", "Viewer"), "", "root is a superuser"),
        (("password", "nobody"), "", "There is no user nobody"),
        (("remove", "nobody"), "", "There is no user nobody"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(arguments: tuple[str, ...], given: str, said: str) -> None:
    factories.pool(name="gpu", of=factories.cluster(name="east"))
    User.objects.create_superuser(username="root")
    user("add", "grace", "--role", "Viewer")
    before = trail()
    with pytest.raises(CommandError) as refused:
        user(*arguments, given=given)
    assert said in str(refused.value) and trail() == before
