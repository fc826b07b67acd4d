"""Each change made over REST is in the trail once: who, through what, on which object, from what to what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.models import CacheEntry, Pin, SourceConnection
from controlplane.accounts.models import Token, User
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import EntryState
from controlplane.operations.models import Operation, OperationKind
from tests import factories
from tests.api.conftest import Api, api_for
from tests.api.rows import filled

HOOK = {"name": "new", "url": "https://192.0.2.1/", "secret_name": "hooks"}
POOL = {"cluster": "bb", "name": "new", "selector": {"kind": "gpu"}}
# (method, path, body) → action, some of before, some of after (None: there was, or is, no such thing).
CHANGES: list[tuple[str, str, Any, str, Mapping[str, Any] | None, Mapping[str, Any] | None]] = [
    ("POST", "webhooks", HOOK, "webhook.create", None, {"enabled": True, "secret_name": "hooks"}),
    ("PATCH", "webhooks/hb", {"enabled": False}, "webhook.update", {"enabled": True}, {"enabled": False}),
    ("DELETE", "webhooks/hb", None, "webhook.delete", {"enabled": True}, None),
    ("POST", "node-pools", POOL, "pool.create", None, {"selector": {"kind": "gpu"}}),
    ("PATCH", "node-pools/bb.xx", {"priority": 5}, "pool.update", {"priority": 0}, {"priority": 5}),
    ("POST", "pins", {"model": "opt", "version": "w1", "pools": ["cc.ww"]}, "pin.create", None, {"pools": ["cc.ww"]}),
    ("PATCH", "pins/{pin_id}", {"priority": 5}, "pin.update", {"priority": 200}, {"priority": 5}),
    ("DELETE", "pins/{pin_id}", None, "pin.remove", {"priority": 200, "pools": ["bb.xx"]}, None),
    ("POST", "source-connections", {"name": "new", "type": "S3", "allowed": ["models"]}, "connection.create", None, {}),
    ("PATCH", "source-connections/spare", {"region": "x"}, "connection.update", {"region": ""}, {"region": "x"}),
    ("DELETE", "source-connections/spare", None, "connection.delete", {"allowed": ["models"]}, None),
    ("DELETE", "models/opt/versions/w1", None, "version.delete", {}, None),
    ("POST", "tokens", {"name": "new", "scopes": ["read"]}, "token.create", None, {"scopes": ["read"]}),
    ("DELETE", "tokens/{token_id}", None, "token.revoke", {"revoked_at": None}, {"name": "tb"}),
    ("POST", "cache-entries/{entry_id}/scrub", None, "entry.scrub", None, {"verify_round": 1}),
    ("POST", "cache-entries/{failed}/retry", None, "entry.retry", {"reason": "AccessDenied"}, {"retry_round": 1}),
    ("POST", "cache-entries/{spare}/evict", None, "entry.evict", {"state": "Ready"}, {"evict_requested": True}),
    ("POST", "operations/{pending}/cancel", None, "operation.cancel", None, {"state": "Canceling"}),
    ("POST", "operations/{operation_id}/retry", None, "operation.retry", None, {"state": "Pending"}),
]


@pytest.fixture
def known(populated: dict[str, str]) -> dict[str, str]:
    SourceConnection.objects.create(name="spare", type="S3", allowed=["models"])
    factories.version(model="opt", version="w1")
    long_ago = timezone.now() - timedelta(days=1)
    pool = Pin.objects.get(pk=populated["pin_id"]).pools.get()
    spare = factories.entry(on=factories.node(of=pool), ready_at=long_ago)
    return {
        **populated,
        "failed": str(CacheEntry.objects.get(state=EntryState.FAILED).pk),
        "pending": str(Operation.objects.get(kind=OperationKind.MODEL_REGISTER).pk),
        "spare": str(spare.pk),
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "action", "before", "after"),
    CHANGES,
    ids=[change[3] for change in CHANGES],
)
def test_it_says_what_was_before_and_what_is_now(
    admin_api: Api,
    method: str,
    path: str,
    body: Any,
    action: str,
    before: Any,
    after: Any,
    known: dict[str, str],
) -> None:
    name = path.split("/")[1] if "/" in path and "{" not in path else ""
    place = path.format_map({**known, "name": name})
    seen = set(AuditEvent.objects.values_list("pk", flat=True))

    answer = admin_api.call(method, place, body, headers={"X-Request-Id": "build-7"})

    assert answer.status_code < 300, answer.content
    [event] = [one for one in AuditEvent.objects.exclude(pk__in=seen) if one.action == action]
    assert (event.actor, event.via, event.request_id) == ("ada/ci", Via.API, "build-7")
    assert event.object_type and event.object_id and event.object_name
    for stored, wanted in ((event.before, before), (event.after, after)):
        assert (stored is None) == (wanted is None)
        assert {field: (stored or {})[field] for field in wanted or ()} == (wanted or {})
    # Nothing else that was written for this call hides under another name or id.
    assert {one.request_id for one in AuditEvent.objects.exclude(pk__in=seen)} == {"build-7"}
    shown = admin_api.get(f"audit-events/{event.pk}").json()
    assert (shown["action"], shown["before"], shown["after"]) == (action, event.before, event.after)
    assert shown["at"] == shown["created_at"] == shown["updated_at"]


def test_it_writes_nothing_of_what_was_refused(admin_api: Api, viewer_api: Api, known: dict[str, str]) -> None:
    before = AuditEvent.objects.count()

    for api, method, path, body in (
        (viewer_api, "POST", "pins", {"model": "opt", "version": "w1", "pools": ["cc.ww"]}),
        (admin_api, "POST", "webhooks", HOOK | {"name": "hb"}),
        (admin_api, "POST", "node-pools", POOL | {"name": "xx"}),
        (admin_api, "PATCH", "pins/{pin_id}", {"priority": 1001}),
        (admin_api, "DELETE", "source-connections/sb", None),
        (admin_api, "DELETE", "models/llama", None),
        (admin_api, "POST", "cache-entries/{entry_id}/evict", None),
    ):
        assert api.call(method, filled(path, known), body).status_code in (400, 403, 409), path
    assert AuditEvent.objects.count() == before


def test_it_asks_first_and_inserts_no_duplicate(admin_api: Api, known: dict[str, str]) -> None:
    SourceConnection.objects.filter(name="sb").update(type="S3", allowed=["models"])
    for path, body in (
        ("webhooks", HOOK | {"name": "hb"}),
        ("source-connections", {"name": "sb", "type": "S3", "allowed": ["models"]}),
        ("node-pools", POOL | {"name": "xx"}),
        ("pins", {"model": "llama", "version": "v3", "pools": ["cc.ww"]}),
    ):
        with CaptureQueriesContext(connection) as queries:
            answer = admin_api.post(path, body)
        assert answer.status_code == 409, path
        # An INSERT that fails is an ERROR in the log of PostgreSQL, which somebody is paged for.
        assert not [query["sql"] for query in queries if query["sql"].startswith("INSERT")], path


def test_it_tells_a_browser_from_a_token(admin: User, client: Client, admin_api: Api) -> None:
    client.force_login(admin)

    Api(None, client).post("webhooks", HOOK)
    admin_api.post("webhooks", HOOK | {"name": "other"})

    made = AuditEvent.objects.filter(action="webhook.create").order_by("at")
    assert [(event.actor, event.via) for event in made] == [("ada", Via.BROWSER), ("ada/ci", Via.API)]


def test_it_keeps_the_history_of_what_was_deleted(admin_api: Api) -> None:
    admin_api.post("webhooks", HOOK)
    admin_api.patch("webhooks/new", {"enabled": False})
    admin_api.delete("webhooks/new")
    admin_api.post("webhooks", HOOK)

    items = admin_api.get("audit-events?object_name=new&ordering=at").json()["items"]

    assert [item["action"] for item in items] == [
        f"webhook.{verb}" for verb in ("create", "update", "delete", "create")
    ]
    assert len({item["object"]["id"] for item in items}) == 2  # the second one is another webhook


def test_it_never_shows_a_secret_in_the_trail(admin_api: Api) -> None:
    secret = admin_api.post("tokens", {"name": "new", "scopes": ["read"]}).json()["secret"]

    whole = b"".join(
        admin_api.get(path).content for path in ("audit-events", "audit-events.csv", "tokens", "tokens.csv")
    )

    assert secret.encode() not in whole and Token.objects.get(name="new").digest.encode() not in whole
    assert secret[:15].encode() in whole  # how it begins, so that people recognise it


def test_it_shows_what_is_about_the_whole_fleet_only_to_those_who_may_see_it(viewer_api: Api) -> None:
    pool = factories.pool()
    local = api_for(factories.user(role="Admin", target=pool.cluster.name))
    event = str(AuditEvent.objects.latest("at").pk)

    for api, seen in ((viewer_api, True), (local, False)):
        assert (event in [item["id"] for item in api.get("audit-events").json()["items"]]) is seen
        assert (event in api.get("audit-events.csv").content.decode()) is seen
        assert api.get(f"audit-events/{event}").status_code == (200 if seen else 404)


@pytest.mark.django_db
def test_it_cuts_a_message_that_is_too_long_and_keeps_any_text() -> None:
    event = audit_write(
        actor=Actor("größe", Via.SYSTEM),
        action="x",
        object_type="x",
        object_id="x",
        object_name="日本" * 100,
        before={},
        after={"a": [1, None, "🔥"]},
        message="é" * 2000,
    )

    stored = AuditEvent.objects.get(pk=event.pk)
    assert (stored.message, stored.before, stored.after) == ("é" * 1000, {}, {"a": [1, None, "🔥"]})
    assert (stored.request_id, stored.operation_id) == ("", None)
