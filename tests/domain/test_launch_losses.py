"""Who takes the place of whom: at most one launch for each pod that was lost, whatever the order."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

import pytest

from caches.domain.launches.losses import HEARD_WITHIN, HORIZON, REPLACES_WITHIN, Begun, Loss, replacing
from tests.domain.launches import after

GONE, HERE = UUID(int=1), UUID(int=2)
HEARD, WITHIN = HEARD_WITHIN.total_seconds(), REPLACES_WITHIN.total_seconds()


def loss(*at: float, pod: str = "", node: UUID = GONE) -> Loss:
    return Loss(pod or f"lost-{at}", node, tuple(after(moment) for moment in at))


def said(at: float, *heard: float) -> Loss:
    """The cluster said at ``at`` that it gave the pod up."""
    return Loss(f"said-{at}", GONE, tuple(after(moment) for moment in sorted([at, *heard])), after(at))


def begun(at: float, number: int = 0, *, pod: str = "", node: UUID | None = HERE) -> Begun:
    key = UUID(int=round(at * 1000) + 10_000_000 + number)
    return Begun(key, pod or f"pod-{key}", node, after(at))


def taken(losses: list[Loss], launches: list[Begun]) -> list[float]:
    found = replacing(losses, launches)
    return [(one.began - after(0)).total_seconds() for one in launches if one.key in found]


@pytest.mark.parametrize(
    ("losses", "begins", "replaced"),
    [
        ([], [0, 1], []),
        ([loss(0)], [], []),
        ([loss(0)], [1, 2, 3], [1]),
        ([loss(0, pod="a"), loss(0, pod="b")], [1, 2, 3], [1, 2]),
        ([loss(0, pod="a", node=GONE), loss(5, pod="b", node=UUID(int=7))], [1, 2, 6, 7], [1, 2]),
        ([loss(0)], [-HEARD - 1, -HEARD], [-HEARD]),
        ([loss(0)], [WITHIN, WITHIN + 1], [WITHIN]),
        ([loss(0)], [WITHIN + 1], []),
        # A second one is lost after the first was replaced: what came between was more than there was.
        ([loss(0), loss(300)], [10, 20, 310, 320], [10, 310]),
        # The taint manager ends pods minutes after the node was lost: one loss, told twice.
        ([loss(0, 300)], [301, 302], [301]),
        ([loss(0, 300)], [300 + WITHIN], [300 + WITHIN]),
        # A scale-up just before the cluster gave the pod up is none; the same where that was only heard of may be.
        ([said(0)], [-5, 1], [1]),
        ([said(0)], [-1, 1], [-1]),  # whole seconds
        ([said(0, 4)], [-5, -2, 0], [0]),
        ([said(300, 0)], [-5, 10, 301], [301]),  # its node was lost long before
        ([loss(0)], [-5, 1], [-5]),
        ([said(0), loss(2)], [-5, 1, 3], [-5, 1]),
        # Two losses, of which the older one can no longer be replaced by the second launch.
        ([loss(0), loss(600)], [WITHIN + 1, WITHIN + 2], [WITHIN + 1]),
        ([loss(0), loss(600)], [700, WITHIN + 1], [700, WITHIN + 1]),
    ],
)
def test_a_loss_is_made_good_once(losses: list[Loss], begins: list[float], replaced: list[float]) -> None:
    assert taken(losses, [begun(at, number) for number, at in enumerate(begins)]) == replaced


def test_nobody_replaces_himself_or_begins_where_it_was_lost() -> None:
    assert taken([loss(0, pod="a")], [begun(1, pod="a"), begun(2, node=GONE), begun(3, node=None), begun(4)]) == [3]


def test_of_two_that_began_at_once_always_the_same_one_replaces() -> None:
    both = [begun(1, 0), begun(1, 1)]
    assert replacing([loss(0)], both) == replacing([loss(0)], both[::-1]) == {both[0].key}


def storm(seed: int) -> tuple[list[Loss], list[Begun]]:
    """Hours of losses that follow each other closely, and many more launches than those."""
    chance = random.Random(seed)
    nodes = [UUID(int=number) for number in range(1, 6)]
    losses = [loss(chance.randrange(0, 14400), pod=f"lost-{n}", node=chance.choice(nodes)) for n in range(40)]
    return losses, [begun(chance.randrange(0, 16000), n, node=chance.choice(nodes)) for n in range(90)]


@pytest.mark.parametrize("seed", range(4))
def test_the_order_in_which_it_is_told_changes_nothing_and_no_loss_counts_twice(seed: int) -> None:
    losses, launches = storm(seed)
    found = replacing(losses, launches)
    assert 0 < len(found) <= len(losses)
    random.Random(seed + 100).shuffle(losses)
    assert replacing(losses, launches[::-1]) == found


@pytest.mark.parametrize("seed", range(4))
def test_what_is_within_the_horizon_decides(seed: int) -> None:
    """So that whoever reads from there on says the same as who reads everything."""
    losses, launches = storm(seed)
    found = replacing(losses, launches)
    for one in launches:
        since = one.began - HORIZON
        some = [each for each in losses if since <= each.until and each.since <= one.began]
        near = [each for each in launches if since <= each.began <= one.began + timedelta(seconds=1)]
        assert (one.key in replacing(some, near)) == (one.key in found)
