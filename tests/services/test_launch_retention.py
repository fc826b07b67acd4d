"""How long launches and their counts are kept, and that what is kept is not spoilt by what goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.utils import timezone

from caches import tasks
from caches.domain.launches.period import LONGEST, period_of
from caches.models import Launch, LaunchCount, LaunchHour
from caches.selectors.launches.lists import Selection
from caches.selectors.launches.stats import class_stats
from caches.services.launches import counts as launch_counts
from caches.services.launches.assembly import KEPT, SPARE, hours_mark_dirty, launches_purge
from caches.services.launches.counts import counts_purge, hours_count
from controlplane.clusters.models import Cluster
from tests import factories
from tests.services.launches import put_launches, settle

pytestmark = pytest.mark.django_db
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


@pytest.fixture
def noon() -> datetime:
    return timezone.now().astimezone(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


def counted() -> dict[str, int]:
    """Launches by the step, as counted without telling anything apart."""
    rows = LaunchCount.objects.filter(by="Nothing").values_list("step", "launches")
    return {step: sum(count for one, count in rows if one == step) for step in ("Hour", "Day")}


def test_counts_outlive_their_launches(cluster: Cluster, noon: datetime) -> None:
    put_launches(cluster, [10, 20, 30], at=noon - 2 * DAY)
    with time_machine.travel(noon + KEPT + SPARE):
        assert launches_purge(now=timezone.now()) == 3
        settle()
        assert not Launch.objects.exists() and counted() == {"Hour": 3, "Day": 3}
        period = period_of("now-120d", "now", timezone.now())
        assert sum(one.whole.ready for one in class_stats(Selection(period))) == 3


@pytest.mark.parametrize("half", [10, 50])
def test_an_hour_that_is_asked_for_again_while_its_launches_go_keeps_all_of_them(
    cluster: Cluster, noon: datetime, half: int
) -> None:
    """A version gets its name late: whatever is assembled again has its hour counted again."""
    began = noon - DAY
    put_launches(cluster, [10], at=began + 5 * MINUTE)
    put_launches(cluster, [20], at=began + 55 * MINUTE)
    with time_machine.travel(began + KEPT + timedelta(minutes=half)):
        launches_purge(now=timezone.now())
        hours_mark_dirty(cluster_id=cluster.pk, moments=[began + 5 * MINUTE, began + 55 * MINUTE])
        settle()
    assert counted() == {"Hour": 2, "Day": 2}


def test_an_hour_that_was_asked_for_just_in_time_is_whole_when_it_is_counted(cluster: Cluster, noon: datetime) -> None:
    """The mark waits: a broker that was away, or a backlog."""
    put_launches(cluster, [10, 20], at=noon - DAY)
    with time_machine.travel(noon - DAY + KEPT - MINUTE):
        hours_mark_dirty(cluster_id=cluster.pk, moments=[noon - DAY])
    with time_machine.travel(noon - DAY + KEPT + SPARE - MINUTE):
        assert launches_purge(now=timezone.now()) == 0
        settle()
    assert counted() == {"Hour": 2, "Day": 2}


@pytest.mark.parametrize(
    ("age", "left"),
    [
        (timedelta(), True),
        (KEPT + SPARE, True),
        (2 * LONGEST, True),  # the first day of the period before the longest one
        (2 * LONGEST + 3 * DAY, False),
    ],
)
def test_counts_go_once_no_page_can_ask_for_them(cluster: Cluster, noon: datetime, age: timedelta, left: bool) -> None:
    put_launches(cluster, [10], at=noon - 2 * DAY)
    rows = LaunchCount.objects.count()
    assert rows > 2 and counts_purge(now=noon - 2 * DAY + age) == (0 if left else rows)
    assert LaunchCount.objects.exists() is left
    assert counts_purge(now=noon - 2 * DAY + age) == 0, "a repeat costs nothing"


def test_the_longest_period_and_the_one_before_it_have_their_counts(cluster: Cluster, noon: datetime) -> None:
    put_launches(cluster, [10], at=noon - 2 * DAY)
    with time_machine.travel(noon - 2 * DAY + 2 * LONGEST):
        counts_purge(now=timezone.now())
        before = period_of(f"now-{LONGEST.days}d", "now", timezone.now()).before()
        assert sum(one.whole.launches for one in class_stats(Selection(before))) == 1


def test_of_many_counts_a_batch_goes_and_the_next_call_goes_on(
    cluster: Cluster, noon: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_launches(cluster, [10], at=noon - 2 * DAY)
    rows, late = LaunchCount.objects.count(), noon + 3 * LONGEST
    monkeypatch.setattr(launch_counts, "PURGED", rows - 1)
    assert [counts_purge(now=late) for _ in range(3)] == [rows - 1, 1, 0]


def test_the_same_task_sees_to_launches_and_to_counts(cluster: Cluster, noon: datetime) -> None:
    put_launches(cluster, [10], at=noon - 2 * DAY)
    with time_machine.travel(noon + KEPT + SPARE):
        tasks.launches_purge()
        assert not Launch.objects.exists() and LaunchCount.objects.exists()
    with time_machine.travel(noon + 3 * LONGEST):
        tasks.launches_purge()
        assert not LaunchCount.objects.exists()


def test_a_cluster_that_is_removed_takes_its_counts_and_marks_along(cluster: Cluster, noon: datetime) -> None:
    other = factories.cluster()
    put_launches(cluster, [10], at=noon - 2 * DAY)
    put_launches(other, [20, 30], at=noon - 2 * DAY)
    hours_mark_dirty(cluster_id=cluster.pk, moments=[noon - 2 * DAY])
    cluster.delete()
    assert counted() == {"Hour": 2, "Day": 2} and not LaunchHour.objects.exists()
    assert hours_count() == 0
