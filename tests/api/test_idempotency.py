"""Idempotency-Key: asked twice, done once, and told the truth about it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from caches.models import Webhook
from controlplane.accounts.models import Scope, User
from controlplane.rest.models import IdempotencyKey
from tests import factories
from tests.api.conftest import Api, api_for

KEY = {"Idempotency-Key": "01a228ac-bd6d-7055-847c-9529d6e50fbf"}


def hook(name: str = "ops") -> dict[str, Any]:
    return {"name": name, "url": "https://hooks.test/x", "secret_name": "hooks"}


def test_it_replays_the_answer_of_a_repeat(admin_api: Api) -> None:
    first = admin_api.post("webhooks", hook(), headers=KEY)
    again = admin_api.post("webhooks", hook(), headers=KEY)

    assert (first.status_code, again.status_code) == (201, 201)
    assert again["Idempotency-Replayed"] == "true" and not first.has_header("Idempotency-Replayed")
    assert again.content == first.content
    assert (again["Location"], again["ETag"]) == (first["Location"], first["ETag"])
    assert again["X-Request-Id"] != first["X-Request-Id"]
    assert Webhook.objects.count() == 1


def test_it_replays_a_refusal_as_well(admin_api: Api) -> None:
    admin_api.post("webhooks", hook())
    first = admin_api.post("webhooks", hook(), headers=KEY)
    Webhook.objects.all().delete()

    # The same request again gets the same answer: a fresh try needs a fresh key.
    again = IdempotencyKey.objects.get()
    assert first.status_code == again.status == 409
    response = admin_api.post("webhooks", hook(), headers=KEY)
    assert response.status_code == 409 and response["Idempotency-Replayed"] == "true"
    # But it is this request that is looked for in logs, under one id in header and body.
    assert response.json() == first.json() | {"request_id": response["X-Request-Id"]}
    assert response["X-Request-Id"] != first["X-Request-Id"]


@pytest.mark.parametrize("change", [{"name": "other"}, {"url": "https://hooks.test/y"}])
def test_it_refuses_the_key_for_other_work(admin_api: Api, change: dict[str, str]) -> None:
    admin_api.post("webhooks", hook(), headers=KEY)

    answer = admin_api.post("webhooks", hook() | change, headers=KEY)

    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency:key:reused")


def test_it_counts_path_and_query_as_part_of_the_request_but_not_the_wait(operator_api: Api) -> None:
    entry = factories.entry()
    first = operator_api.post(f"cache-entries/{entry.id}/scrub?dry_run=true", headers=KEY)

    other = operator_api.post(f"cache-entries/{entry.id}/scrub", headers=KEY)
    patient = operator_api.post(f"cache-entries/{entry.id}/scrub?dry_run=true&wait=5", headers=KEY)

    assert (first.status_code, other.status_code, patient.status_code) == (200, 422, 200)
    assert patient["Idempotency-Replayed"] == "true"


def test_it_keeps_the_keys_of_people_and_tokens_apart(admin: User) -> None:
    one, two = api_for(admin, Scope.ADMIN), api_for(admin, Scope.ADMIN)

    assert one.post("webhooks", hook("one"), headers=KEY).status_code == 201
    assert two.post("webhooks", hook("two"), headers=KEY).status_code == 201


@pytest.mark.parametrize("key", ["", "two words", "é", "x" * 256])
def test_it_refuses_a_key_that_is_none(admin_api: Api, key: str) -> None:
    answer = admin_api.post("webhooks", hook(), headers={"Idempotency-Key": key})

    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency:key:invalid")
    assert not Webhook.objects.exists()


def test_it_sends_a_twin_away_while_the_first_is_at_work(admin_api: Api) -> None:
    admin_api.post("webhooks", hook(), headers=KEY)
    IdempotencyKey.objects.update(status=None)

    answer = admin_api.post("webhooks", hook(), headers=KEY)

    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency:key:running")
    assert int(answer["Retry-After"]) > 0


def test_it_takes_over_from_a_process_that_died(admin_api: Api) -> None:
    admin_api.post("webhooks", hook(), headers=KEY)
    Webhook.objects.all().delete()
    IdempotencyKey.objects.update(status=None, updated_at=timezone.now() - timedelta(seconds=61))
    dead = IdempotencyKey.objects.get().pk

    assert admin_api.post("webhooks", hook(), headers=KEY).status_code == 201
    assert IdempotencyKey.objects.get().pk != dead


def test_it_forgets_a_key_after_a_day(admin_api: Api) -> None:
    admin_api.post("webhooks", hook(), headers=KEY)
    stored = IdempotencyKey.objects.get()
    assert stored.expires_at - stored.created_at == pytest.approx(timedelta(hours=24), abs=timedelta(seconds=5))
    IdempotencyKey.objects.update(expires_at=timezone.now())

    answer = admin_api.post("webhooks", hook("other"), headers=KEY)

    assert answer.status_code == 201
    assert IdempotencyKey.objects.count() == 1


def test_it_stores_no_answer_that_may_be_another_one_next_time(admin_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**kwargs: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr("caches.api.webhooks.webhook_create", broken)
        assert admin_api.post("webhooks", hook(), headers=KEY).status_code == 500

    assert admin_api.post("webhooks", hook(), headers=KEY).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_it_does_the_work_of_concurrent_twins_once(admin: User) -> None:
    apis = [api_for(admin, Scope.ADMIN)] * 6
    gate = threading.Barrier(len(apis))

    def ask(api: Api) -> Any:
        try:
            gate.wait(60)
            return Api.post(Api(None), "webhooks", hook(), headers={**api.headers, **KEY})
        finally:
            connection.close()

    with ThreadPoolExecutor(len(apis)) as pool:
        answers = list(pool.map(ask, apis))

    done = [answer for answer in answers if answer.status_code == 201]
    turned_away = [answer for answer in answers if answer.status_code == 409]
    assert len(done) + len(turned_away) == len(apis)
    assert [answer.has_header("Idempotency-Replayed") for answer in done].count(False) == 1
    assert {answer.json()["code"] for answer in turned_away} <= {"idempotency:key:running"}
    assert Webhook.objects.count() == 1
