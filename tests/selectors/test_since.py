"""What an entry reads as, and since when: as it was observed, Unknown once that is old, Lost with its node."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client, RequestFactory

from caches.api.serializers.entries import EntrySerializer
from caches.filters import EntryFilter
from caches.models import CacheEntry
from caches.selectors.entries import artifact_name, entries_list
from caches.views.columns import entry_columns
from controlplane.accounts.models import User
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node
from tests import factories

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def copy(now: datetime, *, state: EntryState = EntryState.READY, freshness: float = 120, **node: Any) -> CacheEntry:
    """A copy whose state began two hours ago, on a node with these facts."""
    on = factories.node(of=factories.pool(freshness_seconds=freshness), **node)
    return factories.entry(on=on, state=state, state_since=now - 2 * HOUR)


def shown(now: datetime, entry: CacheEntry) -> tuple[str, datetime | None]:
    row: Any = entries_list(now=now).get(pk=entry.pk)
    return row.shown_state, row.shown_since


def in_rest(now: datetime, entry: CacheEntry) -> Any:
    request = RequestFactory().get("/")
    return EntrySerializer(entries_list(now=now).get(pk=entry.pk), context={"request": request}).data


def test_it_shows_what_was_observed_while_the_node_reports(now: datetime) -> None:
    assert shown(now, copy(now)) == ("Ready", now - 2 * HOUR)


@pytest.mark.parametrize("state", [state for state in EntryState if state is not EntryState.LOST])
def test_it_turns_every_state_unknown_when_the_last_report_ran_out(now: datetime, state: EntryState) -> None:
    entry = copy(now, state=state, reported_at=now - HOUR)
    assert shown(now, entry) == ("Unknown", now - HOUR + 120 * SECOND)


def test_it_is_known_to_the_very_end_of_the_limit(now: datetime) -> None:
    entry = copy(now, reported_at=now - 120 * SECOND)
    assert shown(now, entry)[0] == "Ready"
    later = now + timedelta(microseconds=1)
    assert shown(later, entry) == ("Unknown", now)


def test_it_counts_from_the_limit_of_its_own_pool(now: datetime) -> None:
    slow = copy(now, reported_at=now - HOUR, freshness=1800)
    fast = copy(now, reported_at=now - HOUR, freshness=0.5)
    assert shown(now, slow) == ("Unknown", now - HOUR / 2)
    assert shown(now, fast) == ("Unknown", now - HOUR + SECOND / 2)


def test_it_is_unknown_since_the_first_of_the_two_observations_ran_out(now: datetime) -> None:
    cluster_first = copy(now, observed_at=now - HOUR, reported_at=now - 10 * MINUTE)
    agent_first = copy(now, observed_at=now - 10 * MINUTE, reported_at=now - HOUR)
    assert shown(now, cluster_first) == shown(now, agent_first) == ("Unknown", now - HOUR + 2 * MINUTE)


def test_it_is_unknown_while_nobody_hears_of_the_node_from_its_cluster(now: datetime) -> None:
    entry = copy(now, observed_at=now - HOUR)
    assert shown(now, entry) == ("Unknown", now - HOUR + 2 * MINUTE)


def test_it_cannot_tell_since_when_a_cluster_does_not_know_its_node(now: datetime) -> None:
    assert shown(now, copy(now, ready=None)) == ("Unknown", None)


def test_it_was_unknown_from_the_beginning_on_a_node_that_never_reported(now: datetime) -> None:
    entry = copy(now, state=EntryState.ABSENT, reported_at=None)
    assert shown(now, entry) == ("Unknown", entry.created_at)


def test_it_knows_what_a_not_ready_node_reports(now: datetime) -> None:
    assert shown(now, copy(now, ready=False)) == ("Ready", now - 2 * HOUR)


def test_it_is_lost_with_its_node_even_before_its_row_says_so(now: datetime) -> None:
    entry = copy(now, lost_at=now - MINUTE, reported_at=now - HOUR)
    assert entry.state == EntryState.READY
    assert shown(now, entry) == ("Lost", now - MINUTE)


def test_it_stays_lost_when_its_row_says_so(now: datetime) -> None:
    entry = copy(now, state=EntryState.LOST, reported_at=now - HOUR)
    assert shown(now, entry) == ("Lost", now - 2 * HOUR)


def test_it_tells_two_incarnations_of_one_name_apart(now: datetime) -> None:
    pool, artifact = factories.pool(), factories.artifact()
    old = factories.node(of=pool, name="n1", uid="old", lost_at=now - MINUTE, ready=None)
    new = factories.node(of=pool, name="n1", uid="new")
    gone = factories.entry(on=old, of=artifact, state=EntryState.LOST, state_since=now)
    here = factories.entry(on=new, of=artifact, state=EntryState.QUEUED, state_since=now - SECOND)
    assert (shown(now, gone), shown(now, here)) == (("Lost", now - MINUTE), ("Queued", now - SECOND))


def test_it_uses_the_default_limit_for_a_node_of_no_pool(now: datetime) -> None:
    entry = copy(now, reported_at=now - HOUR, freshness=7200)
    assert shown(now, entry)[0] == "Ready"
    Node.objects.filter(pk=entry.node_id).update(pool=None)
    assert shown(now, entry) == ("Unknown", now - HOUR + 2 * MINUTE)


def test_it_filters_by_what_it_shows_not_by_what_is_stored(now: datetime) -> None:
    heard, silent = copy(now), copy(now, reported_at=now - HOUR)
    gone = copy(now, lost_at=now)

    def ids(**query: str) -> set[Any]:
        data = QueryDict(mutable=True)
        data.update(query)
        return {row.pk for row in EntryFilter(data, queryset=entries_list(now=now)).qs}

    assert ids(state="Ready") == {heard.pk}
    assert ids(state="Unknown") == {silent.pk}
    assert ids(state="Lost") == {gone.pk}
    assert ids() == {heard.pk, silent.pk}


def test_rest_says_since_when_it_is_unknown_and_what_was_last_known(now: datetime) -> None:
    entry = copy(now, reported_at=now - HOUR)
    body = in_rest(now, entry)
    assert (body["state"], body["last_known"]) == ("Unknown", "Ready")
    since = now - HOUR + 2 * MINUTE
    assert body["state_since"] == since.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_rest_gives_no_time_where_nobody_can_tell(now: datetime) -> None:
    entry = copy(now, ready=None)
    body = in_rest(now, entry)
    assert (body["state"], body["state_since"], body["last_known"]) == ("Unknown", None, "Ready")


def test_the_column_since_shows_and_sorts_by_the_same_time(now: datetime) -> None:
    silent, heard = copy(now, reported_at=now - HOUR), copy(now)
    [column] = [column for column in entry_columns() if column.name == "since"]
    rows = list(entries_list(now=now).order_by(column.order))
    assert [column.value(row) for row in rows] == [now - 2 * HOUR, now - HOUR + 2 * MINUTE]
    assert [row.pk for row in rows] == [heard.pk, silent.pk]


def test_the_page_of_a_copy_says_since_when_it_is_unknown(now: datetime, viewer: User) -> None:
    entry = copy(now, reported_at=now - HOUR)
    browser = Client()
    browser.force_login(viewer)
    page = browser.get(f"/entries/{entry.pk}").content.decode()
    since, ready = now - HOUR + 2 * MINUTE, now - 2 * HOUR
    head = page[page.index("<h1>") : page.index("</h1>") + 600]
    assert f"{since:%Y-%m-%d %H:%M:%S} UTC" in head
    assert f"{ready:%Y-%m-%d %H:%M:%S} UTC" not in head


def test_the_page_of_a_copy_leaves_out_a_time_that_nobody_knows(now: datetime, viewer: User) -> None:
    entry = copy(now, ready=None)
    browser = Client()
    browser.force_login(viewer)
    page = browser.get(f"/entries/{entry.pk}").content.decode()
    assert "since" not in page[page.index("<h1>") : page.index("</h1>") + 200]


def test_it_names_an_artifact_by_its_first_version_and_by_its_digest_without_one(now: datetime) -> None:
    shared = factories.artifact()
    factories.version(model="zeta", version="1", artifact=shared)
    factories.version(model="alpha", version="2", artifact=shared)
    entry, bare = factories.entry(of=shared), factories.entry()
    rows = {row.pk: row for row in entries_list(now=now)}
    assert artifact_name(rows[entry.pk]) == "alpha 2"
    assert artifact_name(rows[bare.pk]) == bare.artifact.digest[:19]


def test_it_lists_entries_with_what_pages_need_in_two_queries(now: datetime, django_assert_num_queries: Any) -> None:
    for _ in range(12):
        version = factories.version()
        factories.entry(on=factories.node(), of=version.artifact)
    with django_assert_num_queries(2):
        for row in entries_list(now=now):
            assert row.node.pool is not None
            assert row.node.pool.full_name and artifact_name(row) and row.node.cluster.name


@pytest.mark.parametrize(
    ("targets", "seen"),
    [
        (None, {"a", "b", "loose"}),
        (frozenset({"one"}), {"a", "b", "loose"}),
        (frozenset({"one.first"}), {"a"}),
        (frozenset({"one.first", "one.second"}), {"a", "b"}),
        (frozenset({"two.first"}), set()),
        (frozenset(), set()),
    ],
)
def test_it_shows_only_the_entries_of_the_readers_pools(now: datetime, targets: Any, seen: set[str]) -> None:
    one = factories.cluster(name="one")
    first, second = factories.pool(of=one, name="first"), factories.pool(of=one, name="second")
    factories.entry(on=factories.node(of=first, name="a"))
    factories.entry(on=factories.node(of=second, name="b"))
    factories.entry(on=factories.node(of=first, name="loose"))
    Node.objects.filter(name="loose").update(pool=None)
    assert {row.node.name for row in entries_list(targets=targets, now=now)} == seen
