"""Webhooks: signed, deduplicated, retried with backoff, never sent to a forbidden address."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.models import DriftState, ModelVersion, Webhook, WebhookDelivery
from caches.services.webhooks import announcing as webhooks
from caches.services.webhooks.announcing import drift_announce, webhook_announce, webhook_deliver, webhooks_due
from caches.services.webhooks.posts import address_problem, url_problem
from caches.sources.secrets import write_secret
from tests import factories

pytestmark = pytest.mark.django_db
KEY = "a signing key for tests"


class Receiver:
    """A real HTTP server that answers with the next status of a list (200 when it is empty)."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.seen.append((dict(self.headers), body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("Location", "http://169.254.169.254/")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?team=ml"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def hook(receiver: Receiver, settings: LazySettings, tmp_path: Path) -> Webhook:
    settings.SECRETS_DIR = tmp_path
    write_secret("pager", {"signing_key": KEY}, tmp_path)
    return Webhook.objects.create(name="pager", url=receiver.url, secret_name="pager")


def announce(key: str = "k1", event: str = "entry.failed") -> WebhookDelivery | None:
    webhook_announce(event=event, dedup_key=key, payload={"node": "n1"})
    return WebhookDelivery.objects.filter(dedup_key=key).first()


def attempt(delivery: WebhookDelivery | None) -> WebhookDelivery:
    assert delivery is not None
    WebhookDelivery.objects.filter(pk=delivery.pk).update(next_attempt_at=timezone.now())
    webhook_deliver(delivery_id=delivery.pk)
    return WebhookDelivery.objects.get(pk=delivery.pk)


def test_it_signs_the_body_with_the_time(hook: Webhook, receiver: Receiver) -> None:
    delivery = attempt(announce())
    assert (delivery.state, delivery.last_status, delivery.attempts) == ("Delivered", 200, 1)
    ((headers, body),) = receiver.seen
    assert json.loads(body)["event"] == "entry.failed" and json.loads(body)["node"] == "n1"
    assert headers["Hearth-Delivery"] == str(delivery.pk) and headers["Hearth-Event"] == "entry.failed"
    stamp, signed = (part.split("=", 1)[1] for part in headers["Hearth-Signature"].split(","))
    expected = hmac.new(KEY.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(signed, expected)
    assert KEY not in str(headers) and KEY not in delivery.last_error


def test_a_repeated_key_is_announced_once(hook: Webhook) -> None:
    announce()
    announce()
    assert WebhookDelivery.objects.count() == 1


def test_only_wanted_events_of_enabled_webhooks_are_queued(hook: Webhook) -> None:
    Webhook.objects.filter(pk=hook.pk).update(events=["pin.refused"])
    assert announce("a", "entry.failed") is None
    assert announce("b", "pin.refused") is not None
    Webhook.objects.filter(pk=hook.pk).update(enabled=False)
    assert announce("c", "pin.refused") is None


def test_it_tries_again_with_backoff_and_gives_up(
    hook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_ATTEMPTS", 3)
    receiver.answers = [500, 302, 503]
    before = timezone.now()
    first = attempt(announce())
    assert (first.state, first.last_status) == ("Pending", 500)
    assert first.next_attempt_at is not None and first.next_attempt_at > before + timedelta(seconds=8)
    second = attempt(first)
    assert (second.state, second.last_status) == ("Pending", 302)  # a redirect is not followed
    third = attempt(second)
    assert (third.state, third.attempts) == ("GivenUp", 3)
    assert len(receiver.seen) == 3
    assert not webhook_deliver(delivery_id=third.pk)


def test_it_is_not_sent_before_its_time_nor_twice(hook: Webhook, receiver: Receiver) -> None:
    delivery = announce()
    assert delivery is not None and webhooks_due(now=timezone.now()) == [delivery.pk]
    assert webhook_deliver(delivery_id=delivery.pk)
    assert not webhook_deliver(delivery_id=delivery.pk)
    assert webhooks_due(now=timezone.now() + timedelta(days=1)) == []
    assert len(receiver.seen) == 1


def test_a_missing_secret_and_a_dead_receiver_are_said_and_retried(hook: Webhook, tmp_path: Path) -> None:
    Webhook.objects.filter(pk=hook.pk).update(secret_name="absent")
    unsigned = attempt(announce("a"))
    assert unsigned.state == "Pending" and "absent" in unsigned.last_error
    Webhook.objects.filter(pk=hook.pk).update(secret_name="pager", url="http://127.0.0.1:9/")
    unheard = attempt(announce("b"))
    assert unheard.state == "Pending" and "No answer" in unheard.last_error


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://169.254.169.254/latest", "link-local or metadata"),
        ("http://[fe80::1]/", "link-local or metadata"),
        ("http://[::ffff:169.254.169.254]/", "link-local or metadata"),
        ("http://0.0.0.0/", "not an address of a host"),
        ("http://224.0.0.1/", "not an address of a host"),
        ("http://no-such-host.invalid/", "has no address"),
        ("ftp://127.0.0.1/", "must start with http"),
        ("http://user:pass@127.0.0.1/", "credentials"),
    ],
)
def test_it_calls_no_forbidden_address(hook: Webhook, receiver: Receiver, url: str, problem: str) -> None:
    Webhook.objects.filter(pk=hook.pk).update(url=url)
    delivery = attempt(announce())
    assert delivery.state == "Pending" and problem in delivery.last_error
    assert receiver.seen == []


def test_an_attempt_that_is_impossible_counts_like_any_other(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be tried for ever, and its task would fail each time."""

    def impossible(*args: Any, **kwargs: Any) -> int:
        raise UnicodeEncodeError("latin-1", KEY, 0, 1, "no")

    monkeypatch.setattr(webhooks, "post", impossible)
    monkeypatch.setattr(webhooks, "MAX_ATTEMPTS", 2)
    first = attempt(announce())
    assert (first.state, first.attempts) == ("Pending", 1) and "UnicodeEncodeError" in first.last_error
    assert KEY not in first.last_error
    assert attempt(first).state == "GivenUp"


def test_a_worker_killed_in_every_attempt_ends_as_given_up(hook: Webhook, receiver: Receiver) -> None:
    delivery = announce()
    WebhookDelivery.objects.update(attempts=webhooks.MAX_ATTEMPTS)
    given_up = attempt(delivery)
    assert (given_up.state, given_up.attempts) == ("GivenUp", webhooks.MAX_ATTEMPTS)
    assert receiver.seen == [] and webhooks_due(now=timezone.now() + timedelta(days=1)) == []


def test_a_disabled_webhook_is_sent_nothing_until_it_is_enabled(hook: Webhook, receiver: Receiver) -> None:
    delivery = announce()
    assert delivery is not None
    Webhook.objects.update(enabled=False)
    assert webhooks_due(now=timezone.now()) == []
    assert not webhook_deliver(delivery_id=delivery.pk) and receiver.seen == []
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts) == ("Pending", 0)
    Webhook.objects.update(enabled=True)
    assert attempt(delivery).state == "Delivered"


def test_a_claim_that_another_worker_won_is_not_sent(
    hook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = announce()
    assert delivery is not None

    def won_elsewhere(attempts: int) -> timedelta:
        WebhookDelivery.objects.filter(pk=delivery.pk).update(attempts=attempts + 1)
        return timedelta(seconds=10)

    monkeypatch.setattr(webhooks, "backoff", won_elsewhere)
    assert not webhook_deliver(delivery_id=delivery.pk)
    assert receiver.seen == []


def test_a_rotated_key_signs_the_next_attempt(hook: Webhook, receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [500]
    delivery = attempt(announce())
    write_secret("pager", {"signing_key": "another key"}, tmp_path)
    attempt(delivery)
    stamps, bodies = zip(*((h["Hearth-Signature"], body) for h, body in receiver.seen), strict=True)
    assert bodies[0] == bodies[1]  # a receiver may compare repeats
    for key, stamp in zip((KEY, "another key"), stamps, strict=True):
        moment = int(stamp.split(",")[0].removeprefix("t="))
        assert stamp == webhooks.signature(key=key, timestamp=moment, body=bodies[0])


def test_a_webhook_that_is_deleted_takes_what_waits_with_it(hook: Webhook, receiver: Receiver) -> None:
    delivery = announce()
    assert delivery is not None
    hook.delete()
    assert not webhook_deliver(delivery_id=delivery.pk) and receiver.seen == []


def test_only_what_is_new_is_queued_and_counted(
    hook: Webhook, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(webhooks, "publish_on_commit", lambda task, key: sent.append(key))
    given: dict[str, Any] = {"event": "entry.failed", "dedup_key": "k", "payload": {}}
    assert webhook_announce(**given) == 1 and len(sent) == 1
    assert webhook_announce(**given) == 0 and len(sent) == 1
    Webhook.objects.create(name="second", url=hook.url, secret_name="pager")
    assert webhook_announce(**given) == 1  # the one that has not heard of it
    assert set(sent) == {str(pk) for pk in WebhookDelivery.objects.values_list("pk", flat=True)}


def test_long_keys_are_told_apart(hook: Webhook) -> None:
    for key in ("k" * 500 + "a", "k" * 500 + "b", "k" * 200, "k" * 500 + "a"):
        webhook_announce(event="entry.failed", dedup_key=key, payload={})
    assert WebhookDelivery.objects.count() == 3


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 10), (1, 20), (2, 40), (8, 2560), (9, 3600), (11, 3600), (10_000, 3600)]
)
def test_the_pause_doubles_up_to_an_hour(attempts: int, seconds: int) -> None:
    assert webhooks.backoff(attempts).total_seconds() == seconds


def test_the_oldest_due_go_first_and_not_all_at_once(hook: Webhook) -> None:
    made = [announce(f"k{number}") for number in range(4)]
    now = timezone.now()
    for number, delivery in enumerate(made):
        assert delivery is not None
        WebhookDelivery.objects.filter(pk=delivery.pk).update(next_attempt_at=now - timedelta(seconds=number))
    assert webhooks_due(now=now, limit=2) == [made[3].pk, made[2].pk]  # type: ignore[union-attr]
    assert len(webhooks_due(now=now - timedelta(seconds=2))) == 2


def test_private_addresses_can_be_forbidden(hook: Webhook, receiver: Receiver, settings: LazySettings) -> None:
    settings.SOURCE_PRIVATE_ADDRESSES = False
    assert "private address" in attempt(announce()).last_error
    assert receiver.seen == []
    assert address_problem(ipaddress.ip_address("8.8.8.8"), private=False) is None
    assert url_problem("https://example.org/hook") is None


def test_a_drifted_version_is_announced_once_for_each_set_of_changes(hook: Webhook) -> None:
    version = factories.version(drift=DriftState.DRIFTED, drift_changed=[{"path": "a", "change": "Changed"}])
    drift_announce()
    drift_announce()
    assert WebhookDelivery.objects.filter(event="version.drifted").count() == 1
    ModelVersion.objects.filter(pk=version.pk).update(drift_changed=[{"path": "b", "change": "Added"}])
    drift_announce()
    assert WebhookDelivery.objects.filter(event="version.drifted").count() == 2
