"""Counts at eight grains, by hours and by days: whatever is asked for, they say what the launches themselves say."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.utils import timezone

from caches.domain.launches.period import Period, period_of
from caches.domain.launches.sketch import ACCURACY, SMALLEST, Sketch, bucket_sql, exact_quantile
from caches.domain.launches.words import EventClass
from caches.models import Launch, LaunchCount, LaunchHour
from caches.selectors.launches.lists import Selection, count_rows, launch_rows, step_rows
from caches.selectors.launches.stats import EDGES, Part, class_stats, heat
from caches.selectors.launches.totals import totals, totals_by
from caches.selectors.nodes import Targets
from caches.services.launches.assembly import hours_mark_dirty
from caches.services.launches.counts import hours_count
from controlplane.clusters.models import Cluster
from tests import factories

pytestmark = pytest.mark.django_db
DAYS, LAUNCHES = 5, 250
TRIAL = "local/trial-1a2b3c4d"


@pytest.fixture
def lab() -> Cluster:
    """Launches of five days in two clusters, of which the last is not over."""
    chance, now = random.Random(11), timezone.now()
    clusters = [factories.cluster(name="lab"), factories.cluster(name="far")]
    made = [_launch(chance, chance.choice(clusters), now) for _ in range(LAUNCHES)]
    Launch.objects.bulk_create(made)
    for cluster in clusters:
        hours_mark_dirty(cluster_id=cluster.pk, moments=[one.began_at for one in made if one.cluster == cluster])
    while hours_count():
        pass
    return clusters[0]


def _launch(chance: random.Random, cluster: Cluster, now: datetime) -> Launch:
    ready, label = chance.random() < 0.9, chance.choice(["Hit", "Hit", "Miss", "Partial", "Unknown"])
    missed = label in ("Miss", "Partial")
    return Launch(
        id=uuid4(), cluster=cluster, pod_uid="u", container="c", restart_count=0,
        began_at=now - timedelta(days=DAYS) * chance.random(), pool_name=chance.choice(["gpu", "cpu", ""]),
        endpoint_name=chance.choice(["lab/chat", "lab/code", "lab/code", TRIAL, ""]),
        version_name=chance.choice(["llama v1", "qwen v2", ""]), digest=chance.choice(["sha256:a", "sha256:b"]),
        event_class=chance.choice(list(EventClass)),
        weights=label, image=chance.choice(["Hit", "Miss"]), state="Ready" if ready else "Ended",
        miss_reason=chance.choice(["NewNode", "Gone"]) if missed else "",
        ready_seconds=chance.lognormvariate(4, 1.5) if ready else None,
    )  # fmt: skip


def days(zone: str = "UTC") -> Period:
    return period_of("now-4d", "now", timezone.now(), ZoneInfo(zone))


SELECTIONS: list[tuple[dict[str, str], Targets]] = [
    ({}, None),
    ({"event_class": "PodOnNewNode"}, None),
    ({"weights": "Miss"}, None),
    ({"image": "Hit"}, None),
    ({"pool": "lab.gpu"}, None),
    ({"version": "qwen v2"}, None),
    ({"version": "llama v1", "pool": "far.cpu", "weights": "Hit"}, None),
    ({}, frozenset({"lab"})),
    ({}, frozenset({"lab.gpu", "far.cpu"})),
    ({"version": "llama v1"}, frozenset({"far"})),
    ({"event_class": "Unknown", "image": "Miss"}, frozenset({"far.gpu"})),
    ({"endpoint": "lab/code"}, None),
    ({"endpoint": "lab/chat", "pool": "lab.gpu", "weights": "Hit"}, None),
    ({"endpoint": "lab/code"}, frozenset({"far.cpu", "lab"})),
    ({"endpoint": TRIAL}, None),
    ({"trial": "With"}, None),
    ({"trial": "Only"}, None),
    ({"trial": "Only", "weights": "Miss"}, frozenset({"lab"})),
]


def test_counts_are_exact_and_percentiles_within_one_percent(lab: Cluster) -> None:
    for fields, targets in SELECTIONS:
        selection = Selection(days(), **fields)
        by_class: dict[str, list[Launch]] = defaultdict(list)
        for row in launch_rows(selection, targets):
            by_class[row.event_class].append(row)
        found = {one.event_class.value: one.whole for one in class_stats(selection, targets=targets)}
        assert by_class and set(found) == set(by_class), fields
        for name, launches in by_class.items():
            _compare(found[name], launches)


def _compare(whole: Part, launches: list[Launch]) -> None:
    seconds = [one.ready_seconds for one in launches if one.ready_seconds is not None]
    counts = [sum(one.state == state for one in launches) for state in ("Ready", "Ended")]
    assert [whole.launches, whole.ready, whole.ended] == [len(launches), *counts]
    assert whole.reasons.total() == sum(one.miss_reason != "" for one in launches)
    for quantile in (0.5, 0.95, 0.99):
        exact = exact_quantile(seconds, quantile)
        assert whole.sketch.quantile(quantile) == (pytest.approx(exact, rel=ACCURACY) if seconds else None)


def test_totals_of_any_moments_are_exact_whatever_waits_to_be_counted(lab: Cluster) -> None:
    now = timezone.now()
    between = replace(days(), since=now - timedelta(days=3, minutes=37), until=now - timedelta(hours=20, minutes=11))
    short = replace(days(), since=now - timedelta(hours=20, minutes=50), until=now - timedelta(hours=20, minutes=11))
    open_ended = replace(days(), since=now - timedelta(days=4, minutes=1), until=now)

    def compare() -> None:
        for fields, targets in SELECTIONS:
            for period in (between, short, open_ended):
                selection = Selection(period, **fields)
                rows = launch_rows(selection, targets)
                found = totals(selection, targets)
                assert (found.launches, found.ready, found.ended) == (
                    rows.count(), rows.filter(ready_seconds__isnull=False).count(), rows.filter(state="Ended").count()
                ), (fields, period)  # fmt: skip
        names = ("version_name", "digest", "weights")
        for cell, told in totals_by(Selection(between), None, names).items():
            rows = launch_rows(Selection(between), None).filter(**dict(zip(names, cell, strict=True)))
            assert (told.launches, told.ready) == (rows.count(), rows.filter(state="Ready").count()), cell

    compare()
    # Assembled since, and not counted yet: one of them in an hour that counts do not know at all.
    for at in (now - timedelta(days=2), now - timedelta(days=1, hours=5)):
        Launch.objects.bulk_create(_launch(random.Random(5), lab, at) for _ in range(3))
    Launch.objects.filter(began_at__lt=now - timedelta(days=3)).update(state="Ended", ready_seconds=None)
    for cluster in Cluster.objects.all():
        moments = list(Launch.objects.filter(cluster=cluster).values_list("began_at", flat=True))
        hours_mark_dirty(cluster_id=cluster.pk, moments=moments)
    compare()
    hours_count(limit=30)
    compare()


def test_the_heatmap_has_every_launch_in_its_own_day(lab: Cluster) -> None:
    only: list[dict[str, str]] = [{}, {"endpoint": "lab/code"}, {"trial": "Only"}, {"trial": "With"}]
    for zone, fields in zip(("UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata"), only, strict=True):
        period = days(zone)
        cells = heat(Selection(period, **fields))
        ready = launch_rows(Selection(period, **fields), None).filter(ready_seconds__isnull=False)
        for start, end in pairwise([*period.steps, period.until]):
            column = [cell for cell in cells if cell.start == start]
            assert sum(cell.count for cell in column) == ready.filter(began_at__gte=start, began_at__lt=end).count()
            assert {cell.low for cell in column} <= set(EDGES)


def test_a_page_reads_the_coarsest_rows_that_answer_it(lab: Cluster) -> None:
    every = Selection(days())
    by_class = ("event_class", "weights")
    read = {
        "all": count_rows(every, None, told_apart=by_class),
        "steps": step_rows(every, None),
        "pool": count_rows(replace(every, pool="lab.gpu"), None, told_apart=by_class),
        "reader": count_rows(every, frozenset({"lab.gpu"}), told_apart=by_class),
        "version": count_rows(replace(every, version="qwen v2"), None, told_apart=by_class),
        "endpoint": count_rows(replace(every, endpoint="lab/code"), None, told_apart=by_class),
        "report": count_rows(every, None, told_apart=("version_name", "digest", "weights")),
        "trials": step_rows(replace(every, trial="Only"), None),
    }
    grains = {name: set(rows.values_list("by", flat=True)) for name, rows in read.items()}
    assert grains == {
        "all": {"Class"}, "steps": {"Nothing"}, "pool": {"Pool"}, "reader": {"Pool"}, "version": {"Version"},
        "endpoint": {"Endpoint"}, "report": {"Digest"}, "trials": {"Nothing"},
    }  # fmt: skip
    assert 3 <= read["steps"].filter(step="Day", cluster=lab).count() <= 4
    assert set(read["steps"].values_list("step", flat=True)) == {"Day", "Hour"}


def test_today_waits_for_its_end_and_is_read_by_hours(lab: Cluster) -> None:
    today = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert not LaunchCount.objects.filter(step="Day", start=today).exists()
    assert set(LaunchHour.objects.values_list("step", "start")) <= {("Day", today)}


def test_a_day_whose_hours_changed_is_read_by_hours_until_it_is_counted(lab: Cluster) -> None:
    changed = Launch.objects.filter(began_at__lt=timezone.now() - timedelta(days=3)).order_by("-began_at")[0]
    selection = Selection(days(), event_class=changed.event_class)
    (before,) = class_stats(selection)
    day = changed.began_at.replace(hour=0, minute=0, second=0, microsecond=0)
    # As it is between an hour's count and its day's.
    LaunchCount.objects.filter(step="Day", start=day, cluster=changed.cluster).delete()
    LaunchHour.objects.create(cluster=changed.cluster, step="Day", start=day, dirty_at=timezone.now())
    (meanwhile,) = class_stats(selection)
    assert (meanwhile.whole.launches, meanwhile.whole.sketch) == (before.whole.launches, before.whole.sketch)
    hours_count()
    assert LaunchCount.objects.filter(step="Day", start=day, cluster=changed.cluster).exists()
    assert class_stats(selection)[0].whole.sketch == before.whole.sketch


def test_postgresql_and_python_choose_the_same_bucket() -> None:
    chance = random.Random(3)
    values = [0.0, SMALLEST / 2, SMALLEST, 1.0, 20.0, 900.0, 2_592_000.0]
    values += [chance.lognormvariate(3, 4) for _ in range(500)]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {bucket_sql('seconds')} FROM unnest(%s::float8[]) AS seconds", [values])
        chosen = [bucket for (bucket,) in cursor.fetchall()]
    assert chosen == [next(iter(Sketch.of([value]).buckets)) for value in values]
