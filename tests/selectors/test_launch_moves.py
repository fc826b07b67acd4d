"""Comparisons and moves from rows: what is drawn, who may see it, and what was changed before."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from caches.domain.launches.period import period_of
from caches.domain.launches.resampling import Verdict
from caches.domain.launches.words import Cached, EventClass, Phase
from caches.models import Launch
from caches.selectors.launches.attribution import launch_moves
from caches.selectors.launches.comparison import launches_compared
from caches.selectors.launches.lists import Selection
from caches.selectors.launches.samples import drawn
from caches.services.launches.assembly import hours_mark_dirty
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.models import NodePool
from tests import factories

pytestmark = pytest.mark.django_db
ACTOR = Actor(name="ada", via=Via.BROWSER, request_id="r")


class Night:
    """Launches of one pool, half a minute apart, the first ten hours ago."""

    def __init__(self, pool: NodePool | None = None) -> None:
        self.pool: NodePool = pool or factories.pool(of=factories.cluster(name="lab"), name="gpu")
        self.began = timezone.now() - timedelta(hours=10)
        self.made = 0

    def launches(
        self, count: int, *, fetch: float, load: float = 30.0, pool: NodePool | None = None, **fields: Any
    ) -> None:
        pool = pool or self.pool
        rows = []
        for _ in range(count):
            at, jitter = self.at(self.made), self.made % 7 / 10
            seconds = fetch + load + 2 + jitter
            rows.append(
                Launch(
                    id=UUID(int=(self.made * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128), cluster=pool.cluster,
                    pod_uid=f"pod-{self.made}", container="engine", restart_count=0, began_at=at, started_at=at,
                    state="Ready", ready_seconds=seconds, total_seconds=seconds, unknown_seconds=2 + jitter,
                    phase_seconds=[None, None, fetch, None, load, None, None], pool_name=pool.name,
                    **{"event_class": EventClass.COLD_POD, **fields},
                )
            )  # fmt: skip
            self.made += 1
        Launch.objects.bulk_create(rows)
        hours_mark_dirty(cluster_id=pool.cluster.pk, moments=[row.began_at for row in rows])

    def at(self, place: float) -> datetime:
        return self.began + place * timedelta(seconds=30)

    def change(self, place: float, action: str = "pin.delete", object_type: str = "pin", **fields: Any) -> AuditEvent:
        audit_write(
            actor=ACTOR, action=action, object_type=object_type, object_id="1", object_name="llama v1", **fields
        )
        event = AuditEvent.objects.latest("id")
        AuditEvent.objects.filter(pk=event.pk).update(at=self.at(place))
        return AuditEvent.objects.get(pk=event.pk)

    @property
    def selection(self) -> Selection:
        return Selection(period_of("now-24h", "now", timezone.now()))


@pytest.fixture
def night() -> Night:
    return Night()


def test_it_names_the_phase_and_what_was_changed_before(night: Night) -> None:
    night.launches(60, fetch=1, weights=Cached.HIT)
    unpinned = night.change(59.5)
    night.change(59.6, "token.create", "Token")
    night.change(61)
    earlier = night.change(3, "rollout.begin", "rollout")
    for number in range(12):
        killed = night.change(20 + number, "fleet.kill", "fleet")
    night.launches(60, fetch=200, weights=Cached.MISS)
    (found,) = launch_moves(night.selection)
    assert (found.event_class, found.move.phase, found.move.slower) == (EventClass.COLD_POD, Phase.WEIGHTS_FETCH, True)
    assert found.move.first_after == night.at(60)
    assert (found.move.missed_before, found.move.missed_after) == ((0, 60), (60, 60))
    assert found.changes == ((unpinned, 1), (killed, 12), (earlier, 1))


def test_every_class_is_looked_at_for_itself(night: Night) -> None:
    """The mix of classes changes, and no class does: nothing moved."""
    night.launches(60, fetch=1, event_class=EventClass.WARM_RESTART)
    night.launches(60, fetch=200, event_class=EventClass.NEW_NODE)
    assert launch_moves(night.selection) == []
    night.launches(30, fetch=90, load=400, event_class=EventClass.NEW_NODE)
    (found,) = launch_moves(night.selection)
    assert (found.event_class, found.move.phase) == (EventClass.NEW_NODE, Phase.WEIGHTS_LOAD)
    only = Selection(night.selection.period, event_class=EventClass.WARM_RESTART.value)
    assert launch_moves(only) == []


def test_a_reader_learns_nothing_of_other_pools(night: Night) -> None:
    other = factories.pool(of=factories.cluster(name="far"), name="gpu")
    night.launches(40, fetch=1, pool=other)
    night.launches(40, fetch=200, pool=other)
    night.launches(30, fetch=200)
    assert len(launch_moves(night.selection)) == 1
    mine = frozenset({"lab.gpu"})
    assert launch_moves(night.selection, targets=mine) == []
    assert drawn(night.selection, targets=mine).launches == 30
    compared = launches_compared(night.selection, night.selection, targets=mine)
    assert (compared.first.ready, compared.comparison.whole.median.verdict) == (30, Verdict.SAME)


def test_of_many_it_draws_some_by_chance_and_the_same_again(night: Night) -> None:
    night.launches(400, fetch=1)
    night.launches(400, fetch=200)
    part = drawn(night.selection, most=200)
    assert (part.launches, part.ready, part.partial) == (800, 800, True)
    assert 150 <= len(part.points) <= 250
    assert part == drawn(night.selection, most=200)
    slow = sum(one.sample.ready_seconds > 100 for one in part.points)
    assert 0.35 <= slow / len(part.points) <= 0.65
    assert [one.at for one in part.points] == sorted(one.at for one in part.points)
    (found,) = launch_moves(night.selection, most=200)
    assert abs(found.move.first_after - night.at(400)) < timedelta(minutes=10)


def test_what_never_became_ready_is_counted_and_not_compared(night: Night) -> None:
    night.launches(25, fetch=1)
    night.launches(5, fetch=1)
    Launch.objects.filter(pod_uid__in=[f"pod-{number}" for number in range(25, 30)]).update(
        state="Ended", ready_seconds=None
    )
    found = drawn(night.selection)
    assert (found.launches, found.ready, found.ended, len(found.samples)) == (30, 25, 5, 25)
    assert not found.partial


def test_two_selections_are_compared_by_phase(night: Night) -> None:
    night.launches(30, fetch=1, weights=Cached.HIT, version_name="llama v1")
    night.launches(30, fetch=50, weights=Cached.MISS, version_name="llama v2")
    period = night.selection.period
    found = launches_compared(Selection(period, version="llama v1"), Selection(period, version="llama v2"))
    assert found.comparison.whole.p95.verdict is Verdict.SLOWER
    assert found.comparison.moved is not None and found.comparison.moved.phase is Phase.WEIGHTS_FETCH
    nothing = launches_compared(Selection(period, version="llama v3"), Selection(period, weights="Hit"))
    assert nothing.comparison.whole.median.verdict is Verdict.NOT_ENOUGH
    assert (nothing.first.launches, nothing.second.launches) == (0, 30)
