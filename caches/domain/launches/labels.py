"""What a launch is called: hits and misses as they were measured, and the one event that brought it about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import WAITING, Cached, EventClass, LaunchState, Mark, MissReason

# A node that was there for less than this when the pod was placed is new: it came for this load.
NEW_NODE_SECONDS = 900.0

# What the ensure step says it found. Into the pod's own folder means that the node's cache could not help; an attempt
# that failed or waited did not find them either, however quick the next one was.
_FOUND = {
    "hit": Cached.HIT,
    "partial": Cached.PARTIAL,
    "miss": Cached.MISS,
    "local": Cached.MISS,
    "failed": Cached.MISS,
    WAITING: Cached.MISS,
}
_WORST = (Cached.MISS, Cached.PARTIAL, Cached.HIT)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known about a launch beside its timeline; None is not known, and never read as no.

    ``node_age_seconds`` when the pod was placed (0 for a node that joined afterwards); ``new_version``: its endpoint
    served no ready instance of this version before; ``lost_predecessor``: it takes the place of a pod of its endpoint
    whose node was lost; ``node_served``: something became ready on its node before it began.
    """

    restart_count: int = 0
    node_age_seconds: float | None = None
    first_of_version_on_node: bool | None = None
    new_version: bool | None = None
    lost_predecessor: bool | None = None
    node_served: bool | None = None

    @property
    def on_new_node(self) -> bool | None:
        """A node that served already is not new, however short it is there."""
        if self.node_age_seconds is None:
            return None
        return self.node_age_seconds < NEW_NODE_SECONDS and not self.node_served


def classify(circumstances: Circumstances) -> EventClass:
    """The event, from the most specific to the most general; Unknown where what would decide is not known.

    The class never says whether the cache was hit: that is measured and stands beside it.
    """
    if circumstances.restart_count > 0:
        return EventClass.WARM_RESTART
    if circumstances.lost_predecessor:
        return EventClass.NODE_LOSS
    if circumstances.new_version:
        return EventClass.NEW_VERSION
    if circumstances.on_new_node is None:
        return EventClass.UNKNOWN
    return EventClass.NEW_NODE if circumstances.on_new_node else EventClass.COLD_POD


def weights_label(observations: Iterable[Observation]) -> Cached:
    """What the ensure step found. Of several runs the worst counts: the first one made the others hits."""
    found = {_FOUND.get(one.fact("found"), Cached.UNKNOWN) for one in observations if one.mark is Mark.ENSURE_ENDED}
    return next((label for label in _WORST if label in found), Cached.UNKNOWN)


def miss_reason(
    observations: Iterable[Observation], weights: Cached, circumstances: Circumstances
) -> MissReason | None:
    """Why the weights were not on the node; None for a launch that did not miss them, or of which nobody knows."""
    if weights not in (Cached.MISS, Cached.PARTIAL):
        return None
    said = {one.fact("found") for one in observations if one.mark is Mark.ENSURE_ENDED}
    if "failed" in said or "local" in said:
        return MissReason.FAILED if "failed" in said else MissReason.UNUSABLE
    if circumstances.on_new_node:
        return MissReason.NEW_NODE
    if weights is Cached.PARTIAL:
        return MissReason.INCOMPLETE
    why = {True: MissReason.FIRST, False: MissReason.GONE, None: MissReason.UNKNOWN}
    return why[circumstances.first_of_version_on_node]


def image_label(observations: Iterable[Observation], container: str) -> Cached:
    """Whether the served container's image was on the node. Observations that name another container do not count."""
    mine = {one.mark for one in observations if one.fact("container") in ("", container)}
    if mine & {Mark.PULLED, Mark.PULLING}:
        return Cached.MISS
    return Cached.HIT if Mark.IMAGE_PRESENT in mine else Cached.UNKNOWN


def was_unprepared(weights: Cached, image: Cached) -> bool | None:
    """Whether the node lacked something that the launch needed; None where nothing was measured."""
    known = {weights, image} - {Cached.UNKNOWN}
    return bool(known - {Cached.HIT}) if known else None


def unmeasured(state: LaunchState, started_at: datetime | None, ready_at: datetime | None) -> str:
    """Why nobody can say how long a launch took that was ready; "" where somebody can, or where it was not."""
    if state is not LaunchState.READY:
        return ""
    if started_at is None:
        return "Its request was not seen: what began it came while nobody watched, or its first events were lost."
    if ready_at is None:
        return "Nobody saw it become ready: it is known by the request that it answered."
    return ""
