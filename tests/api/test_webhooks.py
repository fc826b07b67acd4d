"""Webhooks over REST: what cannot work is refused at once, and how the last delivery went is shown."""

from __future__ import annotations

from typing import Any

import pytest

from caches.models import Webhook, WebhookDelivery
from caches.sources.secrets import write_secret
from controlplane.accounts.models import Scope, User
from tests import factories
from tests.api.conftest import Api, api_for

BODY = {"name": "ops", "url": "https://192.0.2.1/x", "secret_name": "hooks"}


@pytest.fixture
def private_allowed(settings: Any) -> None:
    settings.SOURCE_PRIVATE_ADDRESSES = True


@pytest.mark.usefixtures("private_allowed")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://[fe80::1]/"}, "url"),
        ({"url": "http://[fd00:ec2::254]/"}, "url"),
        ({"url": "http://100.100.100.200/"}, "url"),
        ({"url": "http://[::ffff:169.254.169.254]/"}, "url"),
        ({"url": "https://user:pass@hooks.test/"}, "url"),
        ({"secret_name": "none"}, "secret_name"),
        ({"secret_name": "keyless"}, "secret_name"),
        ({"secret_name": "../hooks"}, "secret_name"),
    ],
)
def test_it_refuses_what_could_never_be_delivered(
    admin_api: Api, settings: Any, change: dict[str, str], field: str
) -> None:
    write_secret("keyless", {"access_key": "x"}, settings.SECRETS_DIR)
    Webhook.objects.create(**BODY | {"name": "old"})

    answers = [admin_api.post("webhooks", BODY | change), admin_api.patch("webhooks/old", change)]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert [[error["field"] for error in answer.json()["errors"]] for answer in answers] == [[field], [field]]
    assert Webhook.objects.get().name == "old"


def test_it_refuses_private_addresses_only_where_they_are_switched_off(admin_api: Api, settings: Any) -> None:
    settings.SOURCE_PRIVATE_ADDRESSES = False
    off = admin_api.post("webhooks", BODY | {"url": "http://10.0.0.1/"})
    settings.SOURCE_PRIVATE_ADDRESSES = True
    on = admin_api.post("webhooks", BODY | {"url": "http://10.0.0.1/"})

    assert (off.status_code, off.json()["errors"][0]["field"], on.status_code) == (400, "url", 201)


def test_it_shows_a_whole_address_only_to_those_who_may_change_it(
    admin: User, admin_api: Api, operator_api: Api, viewer_api: Api
) -> None:
    url = "https://192.0.2.1/services/T0AAAAAAA/B0BBBBBBB/hunter2"
    Webhook.objects.create(**BODY | {"url": url})
    limited = api_for(admin, Scope.FLEET_WRITE, Scope.READ, targets=["lab"])
    reading, writing = api_for(admin, Scope.READ), api_for(admin, Scope.READ, Scope.FLEET_WRITE)

    for api in (viewer_api, operator_api, reading, limited):
        assert api.get("webhooks/ops").json()["url"] == "https://192.0.2.1/…ter2"
        texts = [api.get(path).content.decode() for path in ("webhooks", "webhooks?format=csv")]
        assert not [text for text in texts if "hunter" in text or "services" in text]
    for api in (admin_api, writing):
        assert api.get("webhooks/ops").json()["url"] == api.get("webhooks").json()["items"][0]["url"] == url


@pytest.mark.usefixtures("private_allowed")
def test_it_shows_how_the_last_delivery_went(admin_api: Api) -> None:
    for name in ("idle", "ops"):
        assert admin_api.post("webhooks", BODY | {"name": name}).json()["last_delivery"] is None
    hook = Webhook.objects.get(name="ops")
    WebhookDelivery.objects.create(webhook=hook, event="a", dedup_key="1", payload={}, state="Delivered", attempts=1)
    failed = {"state": "GivenUp", "attempts": 9, "last_status": 500, "last_error": "No."}
    WebhookDelivery.objects.create(webhook=hook, event="b", dedup_key="2", payload={}, **failed)

    idle, ops = admin_api.get("webhooks").json()["items"]

    assert idle["last_delivery"] is None
    shown = ops["last_delivery"]
    assert (shown["event"], shown["state"], shown["attempts"], shown["status"], shown["error"]) == (
        "b",
        "GivenUp",
        9,
        500,
        "No.",
    )
    assert admin_api.get("webhooks/ops").json()["last_delivery"] == shown
    assert admin_api.patch("webhooks/ops", {"enabled": False}).json()["last_delivery"] == shown


def test_it_refuses_a_number_as_a_name(admin_api: Api) -> None:
    pool = factories.pool()
    made = {"cluster": pool.cluster.name, "selector": {"kind": "gpu"}}

    for path, body in (("webhooks", BODY), ("node-pools", made)):
        answer = admin_api.post(path, body | {"name": 5})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "name"), path
