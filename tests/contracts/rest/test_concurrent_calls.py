"""Two hundred calls at once: none breaks, none is lost, each is audited, and the plan is at rest afterwards."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
from django.conf import LazySettings
from django.utils import timezone
from pytest_django.live_server_helper import LiveServer

from caches.domain.planning import plan
from caches.models import CacheEntry, Pin
from caches.selectors.pool_view import pool_view
from caches.services.loop.rounds import pool_reconcile
from controlplane.accounts.models import User
from controlplane.accounts.services import token_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Action
from controlplane.operations.models import Operation
from tests import factories
from tests.api.conftest import OPERATOR_SCOPES
from tests.services.world import MIB, World, version_of

CALLS = 200
AT_ONCE = 16
pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


@dataclass(frozen=True)
class Answer:
    method: str
    path: str
    status: int
    request_id: str
    body: Any


@dataclass
class Crowd:
    """Callers that share one token and one pool of connections."""

    http: urllib3.HTTPConnectionPool
    secret: str

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        answer = self.http.request(
            method,
            f"/api/v1/{path}",
            body=None if body is None else json.dumps(body),
            headers={"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json", **headers},
        )
        document = json.loads(answer.data) if answer.data else None
        return Answer(method, path, answer.status, answer.headers["X-Request-Id"], document)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: LazySettings) -> World:
    # No broker runs here, and each commit would wait for one.
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids: True)
    return World(tmp_path / "fleet", nodes=3)


@pytest.fixture
def crowd(live_server: LiveServer, operator: User) -> Iterator[Crowd]:
    _, secret = token_create(actor=SYSTEM, user=operator, name="ci", scopes=OPERATOR_SCOPES)
    address = urllib3.util.parse_url(live_server.url)
    with urllib3.HTTPConnectionPool(str(address.host), address.port, maxsize=AT_ONCE, timeout=60) as http:
        yield Crowd(http, secret)


def script(crowd: Crowd, world: World) -> Sequence[Any]:
    """Pins, unpins, changes on stale and fresh readings, and evictions, in a random order that repeats."""
    versions = [version_of((20 + n) * MIB, model=f"m{n}", version="1") for n in range(8)]
    old = [version_of(20 * MIB, model=f"old{n}", version="1") for n in range(4)]
    nodes = list(world.pool.nodes.all())
    entries = [factories.entry(on=node, of=version.artifact) for node in nodes for version in old]
    CacheEntry.objects.update(ready_at=timezone.now() - timedelta(days=1))
    # Everything is read here: a thread that asks the database itself would keep its connection.
    names, ids, pool = (
        [version.model.name for version in versions],
        [entry.id for entry in entries],
        world.pool.full_name,
    )
    dice = random.Random(7)

    def pin() -> Answer:
        return crowd.call("POST", "pins", {"model": dice.choice(names), "version": "1", "pools": [pool]})

    def some_pin() -> dict[str, Any] | None:
        items = crowd.call("GET", "pins").body["items"]
        return dice.choice(items) if items else None

    def unpin() -> Answer:
        found = some_pin()
        return crowd.call("DELETE", f"pins/{found['id']}") if found else pin()

    def change() -> Answer:
        found = some_pin()
        if found is None:
            return pin()
        # What GET of the pin would say; a later reading is a later base.
        etag = f'"{_microseconds(found["updated_at"]):x}"'
        body = {"priority": dice.randrange(1001)}
        return crowd.call("PATCH", f"pins/{found['id']}", body, **{"If-Match": etag})

    def evict() -> Answer:
        return crowd.call("POST", f"cache-entries/{dice.choice(ids)}/evict")

    return [dice.choice((pin, pin, unpin, change, evict)) for _ in range(CALLS)]


def test_it_survives_two_hundred_calls_at_once(crowd: Crowd, world: World) -> None:
    calls = script(crowd, world)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda call: call(), calls))

    statuses = Counter((answer.method, answer.status) for answer in answers)
    assert not [answer for answer in answers if answer.status >= 500], statuses
    assert {answer.status for answer in answers} <= {200, 202, 404, 409, 412}, statuses
    # Enough of each kind went through for the rest to mean something.
    assert min(statuses["POST", 202], statuses["DELETE", 202], statuses["PATCH", 200]) >= 3, statuses
    _no_update_is_lost()
    _everything_is_audited(answers)
    _the_plan_is_at_rest(world)


def _no_update_is_lost() -> None:
    """Every change was made on the result of the one before it, and the row is the result of the last."""
    for pin in Pin.objects.all():
        changes = list(AuditEvent.objects.filter(object_id=str(pin.pk), action="pin.update").order_by("id"))
        values = [500]
        for change in changes:
            assert change.before is not None and change.after is not None
            assert change.before["priority"] == values[-1]
            values.append(change.after["priority"])
        assert pin.priority == values[-1]
    live = Pin.objects.filter(removed_at__isnull=True)
    assert live.count() == live.values("version").distinct().count()


def _everything_is_audited(answers: Sequence[Answer]) -> None:
    trail = Counter(AuditEvent.objects.values_list("action", flat=True))
    pins = [answer for answer in answers if answer.path == "pins" and answer.status == 202]
    unpins = [answer for answer in answers if answer.method == "DELETE" and answer.status == 202]
    assert trail["pin.create"] == len(pins) == Pin.objects.count()
    assert trail["pin.remove"] == len(unpins) == Pin.objects.filter(removed_at__isnull=False).count()
    asked = CacheEntry.objects.filter(evict_requested_at__isnull=False).count()
    assert trail["entry.evict"] == asked == Operation.objects.filter(kind="EntryEvict").count()
    # Whoever reads an answer finds its event by the request id.
    named = set(AuditEvent.objects.values_list("request_id", flat=True))
    assert {answer.request_id for answer in (*pins, *unpins)} <= named


def _the_plan_is_at_rest(world: World) -> None:
    """Applying the plan and planning again changes nothing, and never promises more than there is."""
    pool_reconcile(pool_id=world.pool.pk)
    now = timezone.now()
    first = plan(pool_view(world.pool, now=now), now)
    pool_reconcile(pool_id=world.pool.pk)
    assert plan(pool_view(world.pool, now=now), now) == first
    pinned = set(Pin.objects.filter(removed_at__isnull=True).values_list("version__artifact__digest", flat=True))
    for node in world.pool.nodes.all():
        planned = {item.digest for item in first.desired[node.uid] if item.action == Action.ENSURE}
        waiting = {wait.digest for wait in first.waits if wait.node_uid == node.uid}
        assert pinned <= planned | waiting


def _microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
