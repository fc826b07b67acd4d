"""Webhooks made, changed and removed: what could never work is refused, nobody's edit is lost, no key is ever shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import LazySettings

from caches.models import Webhook, WebhookDelivery
from caches.services.webhooks import rows as webhook_rows
from caches.services.webhooks.announcing import webhook_announce
from caches.services.webhooks.posts import url_shown
from caches.services.webhooks.rows import webhook_create, webhook_delete, webhook_update
from caches.sources.secrets import write_secret
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.errors import Clash, Invalid, Missing, Stale

pytestmark = pytest.mark.django_db
ADA = Actor("ada", Via.API, "request-1")
KEY = "the key of the pager"
URL = "http://127.0.0.1:9/hook?team=ml"


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, settings: LazySettings) -> Path:
    settings.SECRETS_DIR = tmp_path
    write_secret("pager", {"signing_key": KEY}, tmp_path)
    write_secret("other", {"signing_key": KEY}, tmp_path)
    write_secret("empty", {"signing_key": ""}, tmp_path)
    write_secret("store", {"access_key_id": "a"}, tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "broken.json").chmod(0o600)
    write_secret("open", {"signing_key": KEY}, tmp_path).chmod(0o644)
    return tmp_path


def made(**fields: Any) -> Webhook:
    return webhook_create(actor=ADA, **{"name": "pager", "url": URL, "secret_name": "pager", **fields})


def test_it_makes_one_and_the_trail_of_it_without_the_key() -> None:
    hook = made(events=["entry.failed"])
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.object_name) == ("webhook.create", "ada", "pager")
    facts = {"url": "http://127.0.0.1:9/…", "secret_name": "pager", "events": ["entry.failed"], "enabled": True}
    assert (event.before, event.after) == (None, facts)
    assert KEY not in str(event.after) and KEY not in str(Webhook.objects.values().get(pk=hook.pk))


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"url": "ftp://127.0.0.1/"}, "url", "http"),
        ({"url": "http://169.254.169.254/"}, "url", "metadata"),
        ({"url": "http://100.100.100.200/"}, "url", "metadata"),
        ({"url": "http://[64:ff9b::a9fe:a9fe]/"}, "url", "metadata"),
        ({"url": "http://2852039166/"}, "url", "metadata"),
        ({"url": "http://0.0.0.0/"}, "url", "not an address of a host"),
        ({"url": "http://user:hunter2@127.0.0.1/"}, "url", "credentials"),
        ({"url": "http://a..b/"}, "url", "name of a host"),
        ({"secret_name": "absent"}, "secret_name", "does not exist"),
        ({"secret_name": "empty"}, "secret_name", "no signing_key"),
        ({"secret_name": "store"}, "secret_name", "no signing_key"),
        ({"secret_name": "broken"}, "secret_name", "cannot be read"),
        ({"secret_name": "open"}, "secret_name", "0600"),
        ({"secret_name": "../../etc/passwd"}, "secret_name", "cannot be the name"),
        ({"secret_name": ""}, "secret_name", "no signing_key"),
    ],
)
@pytest.mark.parametrize("way", ["create", "update"])
def test_what_could_never_work_is_refused(fields: dict[str, Any], field: str, text: str, way: str) -> None:
    hook = made(name="there")
    with pytest.raises(Invalid) as refused:
        if way == "create":
            made(**fields)
        else:
            webhook_update(actor=ADA, webhook_id=hook.pk, changes=fields)
    (error,) = refused.value.errors
    assert error.field == field and text in error.detail
    assert "hunter2" not in str(refused.value) and KEY not in str(refused.value)
    assert Webhook.objects.get().updated_at == hook.updated_at and AuditEvent.objects.count() == 1


def test_both_fields_are_named_when_both_are_wrong() -> None:
    with pytest.raises(Invalid) as refused:
        made(url="nonsense", secret_name="absent")
    assert [error.field for error in refused.value.errors] == ["url", "secret_name"]


def test_a_name_that_does_not_resolve_now_may_do_so_later() -> None:
    assert made(url="https://no-such-host.invalid/").enabled


def test_private_addresses_are_as_configured(settings: LazySettings) -> None:
    hook = made()
    settings.SOURCE_PRIVATE_ADDRESSES = False
    for url in (URL, "http://10.1.2.3/", "http://[::1]/", "http://100.64.0.1/"):
        with pytest.raises(Invalid, match="private address"):
            webhook_update(actor=ADA, webhook_id=hook.pk, changes={"url": url})
    webhook_update(actor=ADA, webhook_id=hook.pk, changes={"enabled": False})  # its address is not looked at again


def test_a_taken_name_is_a_clash_also_when_it_was_taken_just_now(monkeypatch: pytest.MonkeyPatch) -> None:
    real = webhook_rows._check

    def meanwhile(given: Any) -> None:
        monkeypatch.setattr(webhook_rows, "_check", real)
        made()

    monkeypatch.setattr(webhook_rows, "_check", meanwhile)
    for _ in range(2):
        with pytest.raises(Clash) as refused:
            made()
        assert refused.value.code == "webhook:user:exists"
    assert Webhook.objects.count() == AuditEvent.objects.count() == 1


def test_it_changes_what_is_given_and_nothing_else() -> None:
    hook = made(events=["entry.failed"])
    changed = webhook_update(
        actor=ADA, webhook_id=hook.pk, changes={"secret_name": "other", "name": "x", "created_at": None}
    )
    assert (changed.name, changed.secret_name, changed.events) == ("pager", "other", ["entry.failed"])
    assert changed.created_at == hook.created_at and changed.updated_at > hook.updated_at
    event = AuditEvent.objects.get(action="webhook.update")
    assert ((event.before or {})["secret_name"], (event.after or {})["secret_name"]) == ("pager", "other")


def test_the_same_again_leaves_no_trace() -> None:
    hook = made()
    same = webhook_update(actor=ADA, webhook_id=hook.pk, changes={"url": URL, "enabled": True, "events": []})
    assert same.updated_at == hook.updated_at and AuditEvent.objects.count() == 1


def test_a_secret_in_an_address_is_not_in_the_trail() -> None:
    secret = "T0AAAAAAA/B0BBBBBBB/hunter2hunter2hunter2"
    hook = made(url=f"http://127.0.0.1:9/services/{secret}")
    webhook_update(actor=ADA, webhook_id=hook.pk, changes={"url": f"http://127.0.0.1:9/hook?token={secret}x"})
    webhook_update(actor=ADA, webhook_id=hook.pk, changes={"url": f"http://127.0.0.1:9/hook?token=-{secret}x"})
    webhook_delete(actor=ADA, webhook_id=hook.pk)

    events = list(AuditEvent.objects.order_by("id"))
    # A change that the shown part does not tell is an event all the same.
    assert [event.action.partition(".")[2] for event in events] == ["create", "update", "update", "delete"]
    assert "hunter" not in str([(event.before, event.after) for event in events])
    assert (events[1].before, events[1].after) != (None, None)
    assert [(facts or {}).get("url") for facts in (events[1].before, events[1].after)] == [
        "http://127.0.0.1:9/…ter2",
        "http://127.0.0.1:9/…er2x",
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.test/services/T0AAAAAAA/B0BBBBBBB/hunter2", "https://hooks.test/…ter2"),
        ("https://hooks.test:8443/short-secret", "https://hooks.test:8443/…"),
        ("https://hooks.test", "https://hooks.test/…"),
        ("https://hooks.test?token=hunter2hunter2hunter2hunter2", "https://hooks.test/…"),
        ("https://[2001:db8::1]:9/?token=hunter2hunter2hunter2", "https://[2001:db8::1]:9/…ter2"),
        ("https://user:hunter2@hooks.test/", "https://hooks.test/…"),
        ("http://[", "…"),
        ("nonsense", "…"),
    ],
)
def test_it_shows_of_an_address_no_more_than_the_host(url: str, shown: str) -> None:
    assert url_shown(url) == shown


@pytest.mark.parametrize("verb", [webhook_delete, lambda **given: webhook_update(changes={"enabled": False}, **given)])
def test_nobodys_edit_is_lost(verb: Any) -> None:
    hook = made()
    webhook_update(actor=ADA, webhook_id=hook.pk, changes={"events": ["pin.refused"]})
    with pytest.raises(Stale):
        verb(actor=ADA, webhook_id=hook.pk, if_updated_at=hook.updated_at)
    assert (Webhook.objects.get().events, Webhook.objects.get().enabled) == (["pin.refused"], True)
    verb(actor=ADA, webhook_id=hook.pk, if_updated_at=Webhook.objects.get().updated_at)
    with pytest.raises(Missing):
        verb(actor=ADA, webhook_id=uuid4())


def test_a_deleted_webhook_takes_its_deliveries_along_and_its_name_is_free() -> None:
    hook = made()
    webhook_announce(event="entry.failed", dedup_key="k", payload={})
    assert WebhookDelivery.objects.count() == 1
    webhook_delete(actor=ADA, webhook_id=hook.pk)
    assert not WebhookDelivery.objects.exists()
    event = AuditEvent.objects.get(action="webhook.delete")
    assert (event.object_id, event.after) == (str(hook.pk), None) and (event.before or {})[
        "url"
    ] == "http://127.0.0.1:9/…"
    assert made().pk != hook.pk
