"""Which launches take the place of pods that were lost with their nodes: a pure function of both, in any order.

A lost pod is replaced by one launch, the earliest that may: what begins after as many as were lost is more than there
was. Losses that follow each other closely hang together, so who replaces whom is decided from where they began, but no
further back than HORIZON: that bounds what is read, and what an observation that comes late can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

# A pod that begins this long after a node of its endpoint was lost takes the place of one that ran there.
REPLACES_WITHIN = timedelta(minutes=15)
# The watcher hears of a loss after who replaces it has, and of what was lost with it a little earlier or later.
HEARD_WITHIN = timedelta(seconds=10)
# The cluster itself says on one clock when it gave a pod up and when it made another, in whole seconds.
SAID_WITHIN = timedelta(seconds=1)
HORIZON = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Loss:
    """A pod that was lost with its node: ``at`` are the moments at which somebody said so, one or more; ``said_at`` the
    first of them that the cluster itself said, which is when it gave the pod up.

    What began before that was made for another reason. Of a loss that was only heard of nobody knows by how much it was
    earlier: a launch of the seconds before, such as one of a scale-up, is taken for its recovery then.
    """

    pod_uid: str
    node_id: UUID | None
    at: tuple[datetime, ...]
    said_at: datetime | None = None

    @property
    def since(self) -> datetime:
        """From when on a launch may take its place."""
        return min(self.at) - HEARD_WITHIN if self.said_at is None else self.said_at - SAID_WITHIN

    @property
    def until(self) -> datetime:
        """Until when, inclusive."""
        return max(self.at) + REPLACES_WITHIN

    def may_be_replaced_by(self, one: Begun) -> bool:
        elsewhere = one.node_id is None or one.node_id != self.node_id
        return elsewhere and one.pod_uid != self.pod_uid and self.since <= one.began <= self.until


@dataclass(frozen=True, slots=True)
class Begun:
    """A launch that is no restart."""

    key: UUID
    pod_uid: str
    node_id: UUID | None
    began: datetime


def replacing(losses: Iterable[Loss], launches: Iterable[Begun]) -> set[UUID]:
    """The keys of those of ``launches`` that replace one of ``losses``, all of one endpoint and version.

    Whoever begins first takes the loss that could be replaced for the shortest time from then; no loss is taken twice.
    """
    ordered = sorted(launches, key=lambda one: (one.began, one.key.int))
    found: set[UUID] = set()
    for chain in _chains(losses):
        begin, end = chain[0].since, max(loss.until for loss in chain)
        mine = [one for one in ordered if begin <= one.began <= end]
        found |= _taken(chain, [one for one in mine if one.began - HORIZON <= begin])
        for late in (one for one in mine if one.began - HORIZON > begin):
            since = late.began - HORIZON
            lately = [one for one in mine if since <= one.began and _order(one) <= _order(late)]
            found |= {late.key} & _taken([loss for loss in chain if loss.since >= since], lately)
    return found


def _order(one: Begun) -> tuple[datetime, int]:
    return one.began, one.key.int


def _chains(losses: Iterable[Loss]) -> Iterable[Sequence[Loss]]:
    """Losses whose times to be replaced in overlap, each chain in its order."""
    chain: list[Loss] = []
    end: datetime | None = None
    for loss in sorted(losses, key=lambda one: (one.since, one.until, one.pod_uid)):
        if end is not None and loss.since > end:
            yield chain
            chain, end = [], None
        chain.append(loss)
        end = loss.until if end is None else max(end, loss.until)
    if chain:
        yield chain


def _taken(losses: Sequence[Loss], ordered: Iterable[Begun]) -> set[UUID]:
    left = sorted(losses, key=lambda one: (one.until, one.pod_uid))
    found = set()
    for one in ordered:
        mine = next((loss for loss in left if loss.may_be_replaced_by(one)), None)
        if mine is not None:
            left.remove(mine)
            found.add(one.key)
    return found
