"""Idempotency-Key on every POST there is, and through crashes, time and other people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import OperationalError
from django.utils import timezone

from caches.models import CacheEntry, Pin, Webhook
from controlplane.accounts.models import Scope, Token, User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import EntryState
from controlplane.operations.models import Operation, OperationKind
from controlplane.rest import idempotency
from controlplane.rest.models import IdempotencyKey
from routing.services.publishing import configuration_publish
from tests import factories
from tests.api.conftest import Api, api_for
from tests.api.rows import description, filled

KEY = {"Idempotency-Key": "job-7/step.1"}
HOOK = {"name": "new", "url": "https://192.0.2.1/", "secret_name": "hooks"}
POD = {"cluster": "bb", "pod_uid": "u", "container": "c"}
# These need a cluster that answers, an endpoint that is served, or requests that were recorded: test_clusters.py,
# test_endpoints.py, test_routing_trials.py.
ELSEWHERE = (
    "clusters/{name}/adopt", "endpoints", "rollouts/{rollout_id}/hold", "rollouts/{rollout_id}/release",
    "rollouts/{rollout_id}/rollback",
    "endpoints/{endpoint_id}/variants/{variant}/replays",
)  # fmt: skip
POSTS = sorted(path for path in description() if "post" in description()[path] and path not in ELSEWHERE)
BODIES: Mapping[str, Any] = {
    "node-pools": {"cluster": "bb", "name": "new", "selector": {"kind": "gpu"}},
    "endpoints/{endpoint_id}/cache": {"image": False},
    "endpoints/{endpoint_id}/variants/{variant}/explain": {"body": "{}"},
    "images": {"reference": "registry.example/new:v1"},
    "launches/observations": {"items": [{**POD, "phase": "ImagePull", "seconds": 3}]},
    "launches/trials": {"model": "opt", "version": "opt-2", "cluster": "bb"},
    "launches/{launch_id}/phases": {"phases": [{"phase": "ImagePull", "seconds": 3}]},
    "models/{model}/versions/{version}/image": {"image_id": None},
    "images/{image_id}/revoke": {"reason": "CVE"},
    "images/{image_id}/withdraw": {"reason": "CVE"},
    "pins": {"model": "opt", "version": "opt-2", "pools": ["cc.ww"]},
    "source-connections": {"name": "new", "type": "S3", "allowed": ["models"]},
    "static-endpoints": {"cluster": "bb", "name": "new", "addresses": [{"name": "a", "url": "http://10.0.0.7:80"}]},
    "tokens": {"name": "new", "scopes": ["read"]},
    "webhooks": HOOK,
}


def ready_for(path: str, known: dict[str, str]) -> str:
    """Rows on which the call does something, and the address to call."""
    factories.of_files(factories.version(model="opt", version="opt-2"), "opt.gguf")
    if path.endswith("/explain"):
        configuration_publish()
    if path.endswith("/evict"):
        Pin.objects.all().delete()
        CacheEntry.objects.update(ready_at=timezone.now() - timedelta(days=1), last_used_at=None)
    if path.startswith("cache-entries") and path.endswith("/retry"):
        known["entry_id"] = str(CacheEntry.objects.get(state=EntryState.FAILED).pk)
    if path.endswith("/cancel"):
        known["operation_id"] = str(Operation.objects.get(kind=OperationKind.MODEL_REGISTER).pk)
    return filled(path, known)


@pytest.mark.parametrize("path", POSTS)
def test_it_does_each_kind_of_work_once(
    admin_api: Api, path: str, populated: dict[str, str], tmp_path: Path, kubeconfig: Path, settings: Any
) -> None:
    place, body = ready_for(path, populated), BODIES.get(path)
    if path == "clusters":
        body = {"name": "new", "address": str(kubeconfig)}
    if path in ("models", "models/{model}/versions"):
        (tmp_path / "llama.bin").write_bytes(b"w")
        settings.SOURCE_ROOTS = [str(tmp_path)]
        factories.connection(name="disk", allowed=[str(tmp_path)])
        body = {"version": "w1", "source": {"connection": "disk", "uri": tmp_path.as_uri()}}
        body |= {"name": "new"} if path == "models" else {}

    first = admin_api.post(place, body, headers=KEY)
    assert first.status_code in (200, 201, 202), first.content
    trail, work = AuditEvent.objects.count(), Operation.objects.count()
    # What the work changed would be refused, or done again, without the key.
    again = admin_api.post(place, body, headers=KEY)

    assert again["Idempotency-Replayed"] == "true" and not first.has_header("Idempotency-Replayed")
    assert again.status_code == first.status_code
    assert {name: again.get(name) for name in idempotency.KEPT_HEADERS} == {
        name: first.get(name) for name in idempotency.KEPT_HEADERS
    }
    told = {**first.json(), "secret": None} if path == "tokens" else first.json()
    assert again.json() == told
    assert (AuditEvent.objects.count(), Operation.objects.count()) == (trail, work)


def test_it_takes_another_spelling_of_the_body_for_other_work(admin_api: Api) -> None:
    assert admin_api.post("webhooks", HOOK, headers=KEY).status_code == 201

    answer = admin_api.post("webhooks", json.dumps(HOOK).encode() + b" ", headers=KEY)

    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency:key:reused")


def test_it_keeps_one_persons_key_from_another(admin: User) -> None:
    other = factories.user(username="root", role="Admin")

    assert api_for(admin, Scope.ADMIN).post("webhooks", HOOK, headers=KEY).status_code == 201
    answer = api_for(other, Scope.ADMIN).post("webhooks", HOOK, headers=KEY)

    # Not the first one's answer, which might be none of the other's business.
    assert (answer.status_code, answer.json()["code"]) == (409, "webhook:user:exists")
    assert IdempotencyKey.objects.count() == 2


def killed(*args: Any, **kwargs: Any) -> None:
    """What a process that dies leaves: everything as it was, and no answer stored."""


@pytest.mark.parametrize("path", ["webhooks", "pins", "node-pools", "source-connections"])
def test_it_repeats_no_work_whose_answer_was_lost_in_a_crash(
    admin_api: Api, path: str, populated: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_for(path, populated)
    with monkeypatch.context() as patched:
        patched.setattr("controlplane.rest.idempotency.settle", killed)
        assert admin_api.post(path, BODIES[path], headers=KEY).status_code in (201, 202)

    at_once = admin_api.post(path, BODIES[path], headers=KEY)
    with time_machine.travel(timezone.now() + idempotency.DEAD_AFTER + timedelta(seconds=1), tick=False):
        later = admin_api.post(path, BODIES[path], headers=KEY)
        replayed = admin_api.client.post(
            f"/api/v1/{path}", BODIES[path], content_type="application/json", headers={**admin_api.headers, **KEY}
        )

    assert (at_once.status_code, at_once.json()["code"]) == (409, "idempotency:key:running")
    # The work is there, so the takeover finds it, says so, and says so again.
    assert later.status_code == 409 and later.json()["code"].endswith((":exists", ":name-taken"))
    assert (replayed.status_code, replayed["Idempotency-Replayed"]) == (409, "true")


def test_it_does_work_that_died_before_it_was_done(admin_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Passes every handler, as a signal does."""

    def die(**kwargs: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("caches.api.webhooks.webhook_create", die)
        with pytest.raises(Killed):
            admin_api.post("webhooks", HOOK, headers=KEY)
    assert IdempotencyKey.objects.get().status is None

    with time_machine.travel(timezone.now() + idempotency.DEAD_AFTER + timedelta(seconds=1), tick=False):
        assert admin_api.post("webhooks", HOOK, headers=KEY).status_code == 201
    assert Webhook.objects.count() == 1


@pytest.mark.parametrize(
    ("after", "status", "replayed"),
    [(timedelta(hours=23, minutes=59), 201, True), (timedelta(hours=24, seconds=1), 409, False)],
)
def test_it_remembers_for_a_day(admin_api: Api, after: timedelta, status: int, replayed: bool) -> None:
    admin_api.post("webhooks", HOOK, headers=KEY)

    with time_machine.travel(timezone.now() + after, tick=False):
        answer = admin_api.post("webhooks", HOOK, headers=KEY)

    assert (answer.status_code, answer.has_header("Idempotency-Replayed")) == (status, replayed)


def unavailable(**kwargs: Any) -> None:
    raise OperationalError("connection refused")


def broken(**kwargs: Any) -> None:
    raise RuntimeError


@pytest.mark.parametrize(("happens", "status"), [(unavailable, 503), (broken, 500)])
def test_it_tries_again_what_ended_in_a_fault_of_its_own(
    admin_api: Api, monkeypatch: pytest.MonkeyPatch, happens: Callable[..., None], status: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("caches.api.webhooks.webhook_create", happens)
        assert admin_api.post("webhooks", HOOK, headers=KEY).status_code == status
    assert not IdempotencyKey.objects.exists()

    assert admin_api.post("webhooks", HOOK, headers=KEY).status_code == 201


def test_it_remembers_nothing_for_those_it_does_not_let_in(viewer: User, anonymous_api: Api) -> None:
    assert api_for(viewer, Scope.READ).post("webhooks", HOOK, headers=KEY).status_code == 403
    assert anonymous_api.post("webhooks", HOOK, headers=KEY).status_code == 401
    assert not IdempotencyKey.objects.exists()


def test_it_replays_nothing_to_a_token_that_was_revoked(admin: User) -> None:
    api = api_for(admin, Scope.ADMIN)
    assert api.post("webhooks", HOOK, headers=KEY).status_code == 201
    Token.objects.update(revoked_at=timezone.now())

    assert api.post("webhooks", HOOK, headers=KEY).status_code == 401


def test_it_ignores_the_key_where_nothing_is_made(admin_api: Api) -> None:
    admin_api.post("webhooks", HOOK)

    for method, body in (("PATCH", {"enabled": False}), ("GET", None), ("DELETE", None)):
        answer = admin_api.call(method, "webhooks/new", body, headers=KEY)
        assert answer.status_code in (200, 204) and not answer.has_header("Idempotency-Replayed")
    assert not IdempotencyKey.objects.exists()


def test_it_throws_away_old_keys_a_few_at_a_time(admin_api: Api) -> None:
    old = timezone.now() - timedelta(days=2)
    rows = [IdempotencyKey(owner="x", key=str(n), fingerprint="f", expires_at=old) for n in range(103)]
    IdempotencyKey.objects.bulk_create(rows)

    admin_api.post("webhooks", HOOK, headers=KEY)
    assert IdempotencyKey.objects.filter(owner="x").count() == 103 - idempotency.PURGE_BATCH
    admin_api.post("webhooks", HOOK, headers=KEY)
    assert not IdempotencyKey.objects.filter(owner="x").exists()


@pytest.mark.parametrize("key", ["a" * 255, "!", "~", "0", "a/b:c=d&e?f#g"])
def test_it_takes_any_plain_text_for_a_key(admin_api: Api, key: str) -> None:
    for replayed in (False, True):
        answer = admin_api.post("webhooks", HOOK, headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.has_header("Idempotency-Replayed")) == (201, replayed)
