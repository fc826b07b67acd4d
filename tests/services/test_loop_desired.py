"""What a plan desires is stored in bulk, and exactly as row by row; what a round costs does not grow with its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.plans import DesiredItem, Plan
from caches.models import CacheEntry, ModelVersion, Pin
from caches.selectors.entry_rows import Entries, entry_rows
from caches.services.loop.desired import desired_write
from caches.services.loop.rounds import pool_reconcile
from controlplane.clusters.documents import Action
from controlplane.clusters.models import Node
from tests import factories
from tests.services.willing import all_ready, willing_pool

pytestmark = pytest.mark.django_db
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def write(node: Node, rows: Entries | None = None, **actions: Action) -> Entries:
    """Wants these of the artifacts with these digests."""
    items = tuple(DesiredItem(digest, action, order, "") for order, (digest, action) in enumerate(actions.items()))
    plan = Plan("gpu", desired={node.uid: items})
    return desired_write(nodes=[node], rows=rows or entry_rows([node]), plan=plan, now=NOW)


def stored(node: Node) -> dict[str, str]:
    return dict(CacheEntry.objects.filter(node=node).values_list("artifact__digest", "desired"))


def test_a_new_row_is_what_a_model_would_have_stored() -> None:
    node, artifact = factories.node(), factories.artifact(digest="new", size_bytes=2**40, witness="seen")
    rows = write(node, new=Action.ENSURE)
    [made] = CacheEntry.objects.all()
    other = CacheEntry(node=node, artifact=artifact, bytes_total=2**40, desired=Action.ENSURE, wanted_at=NOW)
    differ = {"id", "created_at", "updated_at"}
    for field in CacheEntry._meta.concrete_fields:
        if field.name not in differ:
            assert getattr(made, field.attname) == getattr(other, field.attname), field.name
    assert made.created_at == made.updated_at == NOW
    assert rows == entry_rows([node]) and rows[node.pk]["new"].witness == "seen"


def test_every_row_is_told_what_is_wanted_of_it_now() -> None:
    node = factories.node()
    for digest, desired in (("stays", "Ensure"), ("goes", "Ensure"), ("forgotten", "Evict"), ("again", "Evict")):
        factories.entry(on=node, of=factories.artifact(digest=digest), desired=desired, updated_at=None)
    before = CacheEntry.objects.get(artifact__digest="stays").updated_at
    rows = write(node, goes=Action.EVICT, stays=Action.ENSURE, again=Action.ENSURE)
    assert stored(node) == {"stays": "Ensure", "goes": "Evict", "forgotten": "", "again": "Ensure"}
    assert {digest: row.desired for digest, row in rows[node.pk].items()} == stored(node)
    wanted = dict(CacheEntry.objects.values_list("artifact__digest", "wanted_at"))
    assert wanted == {"again": NOW, "stays": None, "goes": None, "forgotten": None}
    assert CacheEntry.objects.get(artifact__digest="stays").updated_at == before, "what is right is not written"


def test_a_row_that_the_mirror_made_meanwhile_is_taken_over() -> None:
    node, there = factories.node(), factories.artifact(digest="there")
    factories.artifact(digest="new")
    stale = entry_rows([node])
    factories.entry(on=node, of=there, desired="")
    rows = write(node, stale, there=Action.ENSURE, new=Action.ENSURE)
    assert stored(node) == {"there": "Ensure", "new": "Ensure"}
    assert rows[node.pk]["there"].state == "Ready" and rows == entry_rows([node])


def test_an_entry_whose_node_is_lost_meanwhile_is_not_wanted_again() -> None:
    node = factories.node()
    entry = factories.entry(on=node, of=factories.artifact(digest="d"), desired="")
    stale = entry_rows([node])
    CacheEntry.objects.filter(pk=entry.pk).update(state="Lost")
    write(node, stale, d=Action.ENSURE)
    assert stored(node) == {"d": ""}


def test_an_artifact_that_was_deleted_meanwhile_gets_no_row() -> None:
    node = factories.node()
    assert write(node, gone=Action.ENSURE) == {node.pk: {}} and stored(node) == {}


def test_an_eviction_of_what_has_no_row_makes_none() -> None:
    node = factories.node()
    factories.artifact(digest="partial")
    write(node, partial=Action.EVICT)
    assert stored(node) == {}


def test_a_round_costs_the_same_statements_for_any_number_of_nodes(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENT_IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
    monkeypatch.setattr("caches.services.loop.rounds.publish", lambda *call, **options: True)

    def costs(nodes: int) -> list[int]:
        found = []
        with willing_pool(nodes, 3) as (pool, _):
            for before in (lambda pool: None, lambda pool: None, all_ready, lambda pool: None):
                before(pool)
                with CaptureQueriesContext(connection) as captured:
                    assert pool_reconcile(pool_id=pool.pk) is not None
                found.append(len(captured))
        Pin.objects.all().delete()
        ModelVersion.objects.all().delete()  # every available version is published in every cluster
        return found

    assert costs(2) == costs(40)


def test_the_wait_for_the_scheduler_begins_when_the_label_is_gone(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the round began: in a large pool that is long before."""
    settings.AGENT_IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
    monkeypatch.setattr("caches.services.loop.rounds.publish", lambda *call, **options: True)
    with willing_pool(1, 1) as (pool, gateway):
        pool_reconcile(pool_id=pool.pk)
        all_ready(pool)
        pool_reconcile(pool_id=pool.pk)
        CacheEntry.objects.update(evict_requested_at=timezone.now())
        pool.pins.all().delete()
        gone: list[datetime] = []
        monkeypatch.setattr(gateway, "set_node_labels", lambda *call: gone.append(timezone.now()), raising=False)
        assert pool_reconcile(pool_id=pool.pk) is not None
        since = CacheEntry.objects.get().unlabeled_at
        assert gone and since is not None and gone[0] <= since <= gone[0] + timedelta(minutes=5)
