"""Signing in and out: a way in, a way back, and a door that closes on guessing."""

from __future__ import annotations

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from controlplane.web import lockout
from tests.factories import PASSWORD


def attempt(client: Client, name: str, password: str, *, address: str = "192.0.2.1", **extra: str) -> int:
    body = {"username": name, "password": password} | extra
    return client.post("/login", body, REMOTE_ADDR=address).status_code


def test_it_lets_a_person_in_and_back_to_where_they_were_going(viewer: User, client: Client) -> None:
    response = client.post("/login", {"username": "victor", "password": PASSWORD, "next": "/pins?pool=lab.gpu"})
    assert response.status_code == 302
    assert response["Location"] == "/pins?pool=lab.gpu"
    assert client.get("/").status_code == 200
    assert AuditEvent.objects.get(action="account.sign-in").actor == "victor"


@pytest.mark.parametrize("away", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "http:///x"])
def test_it_never_sends_anybody_to_another_site(away: str, viewer: User, client: Client) -> None:
    response = client.post("/login", {"username": "victor", "password": PASSWORD, "next": away})
    assert response["Location"] == "/"
    assert client.post("/theme", {"theme": "dark", "next": away})["Location"] == "/"


def test_it_keeps_the_name_and_not_the_password(viewer: User, client: Client) -> None:
    response = client.post("/login", {"username": "victor", "password": "wrong-one"})
    page = response.content.decode()
    assert response.status_code == 400
    assert 'value="victor"' in page and "do not match" in page and "wrong-one" not in page
    assert "no-store" in response["Cache-Control"]


def test_it_answers_a_wrong_name_like_a_wrong_password(viewer: User, client: Client) -> None:
    wrong_password = client.post("/login", {"username": "victor", "password": "x"}).content.decode()
    wrong_name = client.post("/login", {"username": "nobody", "password": "x"}).content.decode()
    assert "That name and password do not match." in wrong_password
    assert "That name and password do not match." in wrong_name


def test_it_closes_after_five_wrong_passwords_even_for_the_right_one(viewer: User, client: Client) -> None:
    assert [attempt(client, "victor", "wrong") for _ in range(5)] == [400] * 5
    assert attempt(client, "victor", PASSWORD) == 429
    assert attempt(client, "victor", PASSWORD, address="192.0.2.2") == 302


def test_it_opens_again_after_a_while(viewer: User, client: Client) -> None:
    for _ in range(lockout.PER_NAME):
        attempt(client, "victor", "wrong")
    with time_machine.travel(timezone.now() + lockout.WINDOW, tick=False):
        assert attempt(client, "victor", PASSWORD) == 302


def test_it_starts_counting_over_after_a_success(viewer: User, client: Client) -> None:
    for _ in range(lockout.PER_NAME - 1):
        attempt(client, "victor", "wrong")
    assert attempt(client, "victor", PASSWORD) == 302
    client.logout()
    for _ in range(lockout.PER_NAME - 1):
        attempt(client, "victor", "wrong")
    assert attempt(client, "victor", PASSWORD) == 302


def test_it_closes_an_address_that_tries_many_names(
    viewer: User, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockout, "PER_ADDRESS", 8)
    codes = [attempt(client, f"guess-{number}", "wrong") for number in range(9)]
    assert codes == [400] * 8 + [429]
    assert attempt(client, "victor", PASSWORD) == 429


def test_it_does_not_believe_a_forwarded_address_without_a_trusted_proxy(
    viewer: User, client: Client, settings: object
) -> None:
    for number in range(lockout.PER_NAME):
        client.post("/login", {"username": "victor", "password": "x"}, headers={"X-Forwarded-For": f"10.0.0.{number}"})
    assert client.post("/login", {"username": "victor", "password": PASSWORD}).status_code == 429
    settings.TRUSTED_PROXIES = 1  # type: ignore[attr-defined]
    forwarded = {"X-Forwarded-For": "6.6.6.6, 10.0.0.9"}
    assert client.post("/login", {"username": "victor", "password": PASSWORD}, headers=forwarded).status_code == 302
    assert AuditEvent.objects.filter(object_id="10.0.0.9").exists()


def test_it_writes_no_password_into_the_audit_trail(viewer: User, client: Client) -> None:
    attempt(client, "victor", "hunter2-hunter2")
    assert "hunter2" not in str(list(AuditEvent.objects.values()))


def test_it_signs_out_only_on_purpose(victor: Client) -> None:
    assert victor.get("/logout").status_code == 405
    assert victor.post("/logout").status_code == 302
    assert victor.get("/").status_code == 302


def test_it_stores_the_theme_and_ignores_nonsense(victor: Client) -> None:
    victor.post("/theme", {"theme": "dark", "next": "/fleet"})
    assert 'data-theme="dark"' in victor.get("/").content.decode()
    victor.post("/theme", {"theme": "plaid"})
    assert 'data-theme="dark"' in victor.get("/").content.decode()
    victor.post("/theme", {"theme": "auto"})
    assert "data-theme" not in victor.get("/").content.decode()
