"""Was caching worth it: with and without, what it cost, and when nobody can say."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from caches.domain.launches.attribution import Point
from caches.domain.launches.comparison import Sample
from caches.domain.launches.words import Phase
from caches.domain.launches.worth import Basis, Cost, Judged, Worth, judge
from tests.domain.launches import T0

HOUR = timedelta(hours=1)
PINNED = T0
GIB = 2**30


def points(
    count: int, seconds: float, *, missed: bool | None, hours: float = 1, fetch: float | None = None, seed: int = 1
) -> list[Point]:
    """Launches ``hours`` after the pin (or before it, where negative), of about ``seconds`` each."""
    random = Random(seed)
    made = []
    for number in range(count):
        length = max(0.1, random.gauss(seconds, seconds / 20))
        phases = (None, None, fetch, None, None, None, None)
        made.append(Point(T0 + hours * HOUR + timedelta(seconds=number), Sample(length, phases), missed))
    return made


def cost(copies: int, seconds_each: float) -> Cost:
    return Cost(copies, copies * 10 * GIB, copies * 10 * GIB, copies * seconds_each, copies)


USUAL = cost(4, 100)


def judged(*groups: list[Point], pinned: bool = True, cost: Cost = USUAL) -> Judged:
    return judge([one for group in groups for one in group], pinned_at=PINNED if pinned else None, cost=cost)


def test_hits_that_are_faster_than_the_launches_before_were_worth_it() -> None:
    found = judged(points(30, 300, missed=None, hours=-9), points(40, 40, missed=False), points(4, 320, missed=True))
    assert (found.basis, found.worth, found.hits, found.known) == (Basis.BEFORE, Worth.YES, 40, 44)
    assert len(found.with_cache) == 44, "misses are among those with a cache"
    assert found.hit_saving_seconds == pytest.approx(260, abs=10)
    assert found.hit_seconds is not None and found.saving.second is not None
    assert found.hit_saving_seconds == found.saving.second - found.hit_seconds, "one basis in one row"
    assert found.saved_seconds == pytest.approx(260 * 40, rel=0.05)
    assert found.break_even == 1
    assert found.saving.change == pytest.approx(260, abs=15)
    assert found.hit_share is not None and found.hit_share[0] < 40 / 44 < found.hit_share[1]


def test_without_launches_before_those_that_missed_stand_for_them() -> None:
    found = judged(points(30, 40, missed=False), points(25, 300, missed=True))
    assert (found.basis, found.worth, len(found.without)) == (Basis.MISSES, Worth.YES, 25)


def test_a_hit_is_never_without_a_cache_whenever_it_was() -> None:
    """Copies that were there before anybody pinned them."""
    found = judged(
        points(28, 29, missed=False, hours=-9), points(2, 300, missed=True, hours=-9),
        points(29, 41, missed=False), points(8, 300, missed=True),
    )  # fmt: skip
    assert (found.basis, found.hits, found.known, len(found.without)) == (Basis.MISSES, 57, 67, 10)
    assert len(found.with_cache) == 65
    assert found.hit_saving_seconds is not None and found.saved_seconds == 57 * found.hit_saving_seconds
    before = judged(points(28, 29, missed=False, hours=-9), points(20, 300, missed=None, hours=-9))
    assert (before.basis, len(before.without), before.worth) == (Basis.BEFORE, 20, Worth.YES)


def loaded(count: int, fetch: float, load: float, *, missed: bool | None, hours: float = 1) -> list[Point]:
    """Launches that fetch and load for about so long, and do nothing else."""
    random = Random(count)
    made = []
    for number in range(count):
        phases = (None, None, fetch * random.gauss(1, 0.02), None, load * random.gauss(1, 0.02), None, None)
        length = sum(one or 0.0 for one in phases)
        made.append(Point(T0 + hours * HOUR + timedelta(seconds=number), Sample(length, phases), missed))
    return made


@pytest.mark.parametrize(
    ("fetch", "load", "worth"),
    [
        (1, 52, Worth.ELSEWHERE),  # it loads longer than before, which no cache does
        (1, 46, Worth.YES),  # a little longer, and sooner all the same
        (25, 40, Worth.NO),  # a cache that is slower than what it caches
        (10, 40, Worth.NO),  # and one that changes nothing
        (25, 46, Worth.NO),  # the fetch is most of it
    ],
)
def test_what_no_cache_spares_is_not_held_against_it(fetch: float, load: float, worth: Worth) -> None:
    groups = loaded(30, 10, 40, missed=None, hours=-9), loaded(40, fetch, load, missed=False)
    found = judged(*groups, cost=Cost())
    assert found.worth is worth
    phase, seconds = found.elsewhere or (None, 0.0)
    expected = (Phase.WEIGHTS_LOAD, 12) if worth is Worth.ELSEWHERE else (None, 0)
    assert (phase, round(seconds / 3) * 3) == expected


def test_all_hits_are_saved_on_although_a_part_is_looked_at() -> None:
    group = [*points(30, 300, missed=None, hours=-9), *points(40, 40, missed=False)]
    found = judge(group, pinned_at=PINNED, cost=cost(4, 5000), ready_hits=400)
    assert found.worth is Worth.YES
    assert found.hit_saving_seconds is not None and found.saved_seconds == 400 * found.hit_saving_seconds


def test_a_p95_that_did_not_move_is_not_said_to_have() -> None:
    """A tenth of the launches still misses: the median is saved, the p95 is what it was."""
    found = judged(points(100, 300, missed=None, hours=-9), points(90, 40, missed=False), points(10, 300, missed=True))
    assert found.worth is Worth.YES
    assert found.p95_saving.low is not None and found.p95_saving.low < 30


@pytest.mark.parametrize(
    ("hits", "before", "each", "worth"),
    [
        (40, 300.0, 100, Worth.YES),
        (40, 40.0, 100, Worth.NO),
        (40, 20.0, 100, Worth.NO),
        (20, 300.0, 5000, Worth.NOT_YET),
        (400, 300.0, 5000, Worth.YES),
        (19, 300.0, 100, Worth.UNKNOWN),
    ],
)
def test_it_is_judged_by_what_was_saved_and_what_it_took(hits: int, before: float, each: float, worth: Worth) -> None:
    found = judged(
        points(30, before, missed=None, hours=-9), points(hits, 40, missed=False, seed=3), cost=cost(4, each)
    )
    assert found.worth is worth


def test_a_model_that_nobody_pinned_would_save_its_fetch() -> None:
    found = judged(points(30, 300, missed=True, fetch=250.0), points(5, 50, missed=False, fetch=0.1), pinned=False)
    assert (found.basis, found.worth) == (Basis.PHASES, Worth.EXPECTED)
    assert found.fetch_seconds == 250.0
    assert (len(found.with_cache), len(found.without), found.hits) == (5, 30, 5), "a hit had a cache, pinned or not"
    unmeasured = judged(points(30, 300, missed=True), pinned=False)
    assert (unmeasured.worth, unmeasured.fetch_seconds) == (Worth.EXPECTED, None)


def test_nothing_is_known_of_a_model_without_launches() -> None:
    for pinned in (True, False):
        found = judged(pinned=pinned)
        assert (found.basis, found.hits, found.hit_share, found.saved_seconds) == (Basis.NONE, 0, None, None)
        assert found.worth is Worth.UNKNOWN


def test_few_launches_are_shown_and_not_judged() -> None:
    found = judged(points(3, 40, missed=False), points(2, 300, missed=True))
    assert (found.basis, found.worth) == (Basis.MISSES, Worth.UNKNOWN)
    assert found.hit_saving_seconds == pytest.approx(260, abs=40)


def test_what_nobody_measured_is_neither_a_hit_nor_a_miss() -> None:
    found = judged(points(30, 300, missed=None, hours=-9), points(30, 40, missed=None))
    assert (found.hits, found.known, found.hit_share) == (0, 0, None)
    assert (found.worth, found.saved_seconds) == (Worth.UNKNOWN, None)
    assert found.saving.change is not None and found.saving.change > 200, "before and after differ all the same"


def test_transfers_that_nobody_measured_have_no_break_even() -> None:
    found = judged(points(30, 300, missed=None, hours=-9), points(30, 40, missed=False), cost=Cost(4, 40 * GIB))
    assert (found.break_even, found.worth) == (None, Worth.YES)


def test_a_launch_at_the_very_moment_of_the_pin_is_after_it() -> None:
    found = judge([Point(PINNED, Sample(40.0), False)], pinned_at=PINNED, cost=Cost())
    assert len(found.with_cache) == 1
