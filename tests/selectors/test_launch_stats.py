"""What pages say of launches: few and many, a tail that an average hides, and only what a reader may see."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.launches.period import Period, period_of
from caches.domain.launches.sketch import ACCURACY
from caches.domain.launches.words import Cached, EventClass
from caches.selectors.launches.lists import Selection, choices, launch_rows, launches_list
from caches.selectors.launches.stats import ENOUGH, ClassStats, class_stats, examples, heat
from tests import factories
from tests.services.launches import put_launches

pytestmark = pytest.mark.django_db


class Lab:
    """One pool with a node that is a day old, and the last whole day."""

    def __init__(self) -> None:
        self.noon = timezone.now().astimezone(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(
            days=1
        )
        self.pool = factories.pool(of=factories.cluster(name="lab"), name="gpu")

    def starts(self, lengths: Sequence[float | None], *, pool: Any = None, **fields: Any) -> None:
        pool = pool or self.pool
        put_launches(pool.cluster, lengths, at=fields.pop("at", self.noon), pool_name=pool.name, **fields)

    @property
    def day(self) -> Period:
        return period_of(
            self.noon.replace(hour=0).isoformat(), (self.noon + timedelta(hours=12)).isoformat(), timezone.now()
        )

    def stats(self, **fields: Any) -> dict[EventClass, ClassStats]:
        return {one.event_class: one for one in class_stats(Selection(self.day, **fields))}


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_there_are_none(lab: Lab) -> None:
    assert class_stats(Selection(lab.day)) == []
    assert heat(Selection(lab.day)) == []
    assert choices(Selection(lab.day), None) == {"pools": [], "endpoints": [], "namesakes": [], "versions": []}


@pytest.mark.parametrize("count", [1, ENOUGH - 1])
def test_few_launches_are_dots_and_no_percentile(lab: Lab, count: int) -> None:
    lab.starts([10.0 + number for number in range(count)], weights="Hit")
    whole = lab.stats()[EventClass.COLD_POD].whole
    assert (whole.launches, whole.enough, whole.quantiles) == (count, False, [None, None, None])
    assert [seconds for seconds, _ in whole.dots] == [10.0 + number for number in range(count)]
    assert {key for _, key in whole.dots} == set(launches_list().values_list("pk", flat=True))


def test_twenty_are_enough(lab: Lab) -> None:
    lab.starts([10.0 + number for number in range(ENOUGH)], weights="Hit")
    whole = lab.stats()[EventClass.COLD_POD].whole
    assert (whole.enough, whole.dots) == (True, [])
    assert whole.quantiles == [pytest.approx(value, rel=ACCURACY) for value in (19, 28, 29)]


def test_an_average_that_hides_misses_is_shown(lab: Lab) -> None:
    """95 launches of 20 s and 5 of 900 s: nobody ever waited the 64 s that they have on average."""
    lab.starts([20.0] * 95, weights="Hit")
    lab.starts([900.0] * 5, weights="Miss")
    stats = lab.stats()[EventClass.COLD_POD]
    assert stats.whole.quantiles == [pytest.approx(value, rel=ACCURACY) for value in (20, 20, 900)]
    assert (stats.missed, stats.known, stats.whole.launches) == (5, 100, 100)
    assert stats.by_weights[Cached.HIT].quantiles[2] == pytest.approx(20, rel=ACCURACY)
    assert [seconds for seconds, _ in stats.by_weights[Cached.MISS].dots] == [900.0] * 5
    rows = {cell.low: cell.count for cell in heat(Selection(lab.day))}
    assert sum(rows.values()) == 100
    assert sum(count for low, count in rows.items() if low >= 600) == 5


@pytest.mark.parametrize("fields", [{}, {"endpoint": "lab/chat"}])
@pytest.mark.parametrize("count", [1, ENOUGH - 1, ENOUGH])
def test_what_trials_provoke_changes_no_figure_unless_it_is_asked_for(
    lab: Lab, fields: dict[str, str], count: int
) -> None:
    lab.starts([10.0 + number for number in range(count)], weights="Hit", endpoint_name="lab/chat")
    before = lab.stats(**fields)[EventClass.COLD_POD].whole
    lab.starts([900.0] * 30, weights="Miss", endpoint_name="local/trial-1a2b3c4d")
    lab.starts([5.0], weights="Hit", endpoint_name="local/trial-chat")  # somebody's own
    after = lab.stats(**fields)[EventClass.COLD_POD]
    mine = 0 if fields else 1
    assert (after.whole.launches, after.missed) == (before.launches + mine, 0)
    if fields:
        assert (after.whole.dots, after.whole.quantiles) == (before.dots, before.quantiles)
    alone = lab.stats(trial="Only")[EventClass.COLD_POD]
    assert (alone.whole.launches, alone.missed) == (30, 30)
    assert alone.whole.quantiles[0] == pytest.approx(900, rel=ACCURACY)
    both = lab.stats(trial="With")[EventClass.COLD_POD]
    assert (both.whole.launches, both.missed) == (count + 31, 30)
    named = lab.stats(endpoint="local/trial-1a2b3c4d")[EventClass.COLD_POD]
    assert named.whole.launches == 30, "whoever names it means it"
    assert choices(Selection(lab.day), None)["endpoints"] == ["lab/chat", "local/trial-chat"]


def test_an_average_that_hides_misses_is_shown_of_one_endpoint(lab: Lab) -> None:
    lab.starts([20.0] * 95, weights="Hit", endpoint_name="lab/chat")
    lab.starts([900.0] * 5, weights="Miss", endpoint_name="lab/chat")
    lab.starts([3.0] * 500, weights="Hit", endpoint_name="lab/code")
    stats = lab.stats(endpoint="lab/chat")[EventClass.COLD_POD]
    assert stats.whole.quantiles == [pytest.approx(value, rel=ACCURACY) for value in (20, 20, 900)]
    assert (stats.missed, stats.known, [seconds for seconds, _ in stats.by_weights[Cached.MISS].dots]) == (
        5, 100, [900.0] * 5,
    )  # fmt: skip


def test_launches_that_never_became_ready_are_counted(lab: Lab) -> None:
    lab.starts([10.0, None])
    whole = lab.stats()[EventClass.COLD_POD].whole
    assert (whole.launches, whole.ready, whole.ended) == (2, 1, 1)
    assert [seconds for seconds, _ in whole.dots] == [10.0]


def test_it_counts_what_is_selected_and_nothing_else(lab: Lab) -> None:
    other = factories.pool(of=lab.pool.cluster, name="cpu")
    lab.starts([10.0] * 3, weights="Hit")
    lab.starts([50.0] * 2, weights="Miss", pool=other)
    lab.starts([70.0], at=lab.noon - timedelta(days=1))
    kind = EventClass.COLD_POD

    def count(**fields: Any) -> int:
        found = lab.stats(**fields)
        return found[kind].whole.launches if kind in found else 0

    assert count() == 5
    assert (count(pool="lab.gpu"), count(pool="lab.cpu"), count(pool="far.gpu")) == (3, 2, 0)
    assert (count(weights="Hit"), count(weights="Miss"), count(weights="Partial")) == (3, 2, 0)
    assert (count(event_class="ColdPodOnWarmNode"), count(event_class="PodOnNewNode")) == (5, 0)
    assert launch_rows(Selection(lab.day, pool="lab.cpu"), None).count() == 2
    assert choices(Selection(lab.day), None)["pools"] == ["lab.cpu", "lab.gpu"]


def test_a_reader_sees_their_pools(lab: Lab) -> None:
    other = factories.pool(of=lab.pool.cluster, name="cpu")
    lab.starts([10.0])
    lab.starts([50.0], pool=other)
    put_launches(lab.pool.cluster, [20.0], at=lab.noon)
    seen = {
        "pool": frozenset({"lab.gpu"}),
        "cluster": frozenset({"lab"}),
        "elsewhere": frozenset({"far"}),
        "nothing": frozenset(),
    }
    counts = {name: launches_list(targets=targets).count() for name, targets in seen.items()}
    assert counts == {"pool": 1, "cluster": 3, "elsewhere": 0, "nothing": 0}
    whole = class_stats(Selection(lab.day), targets=seen["pool"])
    assert sum(one.whole.launches for one in whole) == 1
    assert choices(Selection(lab.day), seen["pool"])["pools"] == ["lab.gpu"]


def test_the_median_and_the_p95_launch_are_launches(lab: Lab) -> None:
    lab.starts([100.0 + number for number in range(40)], weights="Hit")
    found = examples(lab.stats().values(), Selection(lab.day))
    assert [one.quantile for one in found] == [0.5, 0.95]
    for one, exact in zip(found, (119, 137), strict=True):
        assert one.launch.ready_seconds == pytest.approx(exact, rel=3 * ACCURACY)
        assert len(one.launch.phase_seconds) == 7


def test_few_launches_have_no_median_launch(lab: Lab) -> None:
    lab.starts([100.0] * (ENOUGH - 1))
    assert examples(lab.stats().values(), Selection(lab.day)) == []


def test_a_month_is_counted_by_days_and_agrees_with_its_hours(lab: Lab) -> None:
    lab.starts([10.0] * 25, weights="Hit")
    month = period_of(
        (lab.noon - timedelta(days=20)).isoformat(), (lab.noon + timedelta(days=1)).isoformat(), timezone.now()
    )
    assert month.step_name == "Day"
    (by_day,), (by_hour,) = class_stats(Selection(month)), class_stats(Selection(lab.day))
    assert by_day.whole.sketch == by_hour.whole.sketch
    assert {cell.start for cell in heat(Selection(month))} == {lab.noon.replace(hour=0)}
