"""Which stretches of time each phase took, as each observer says it. Times are seconds on the launch's own axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from caches.domain.launches.bounds import TOLERATED, Stretch, bounds_of
from caches.domain.launches.clocks import node_shift
from caches.domain.launches.observations import Observation, order_of
from caches.domain.launches.words import WAITING, Clock, Mark, Observer, Phase

_ENDS = (Mark.SERVING, Mark.READY, Mark.FIRST_SUCCESS, Mark.ENDED)


@dataclass(frozen=True, slots=True)
class Measure:
    """What one observer measured of a phase: stretches whose union it took."""

    observer: Observer
    stretches: tuple[Stretch, ...]


class Seen:
    """Observations without repeats, the node's times moved onto the control plane's clock."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self.all: Sequence[Observation] = _of_this_run(sorted(set(observations), key=order_of))
        moments: dict[tuple[Mark, Clock], datetime] = {}
        for one in self.all:
            if one.at is not None:
                moments.setdefault((one.mark, one.clock), one.at)
                if one.mark is Mark.LOADED and one.begins is not None:
                    moments.setdefault((Mark.LOAD_STARTED, one.clock), one.begins)
        self.shift = node_shift(moments)
        self._marked: dict[Mark, list[Observation]] = defaultdict(list)
        for one in self.all:
            self._marked[one.mark].append(one)
        self.bounds = bounds_of(self.first)

    def time(self, seen: Observation) -> datetime | None:
        """When, on the control plane's clock."""
        if seen.at is None:
            return None
        return seen.at + self.shift if seen.clock is Clock.NODE else seen.at

    def of(self, mark: Mark) -> Sequence[Observation]:
        return self._marked.get(mark, ())

    def first(self, mark: Mark) -> datetime | None:
        """The earliest moment of ``mark``."""
        return min((at for one in self.of(mark) if (at := self.time(one)) is not None), default=None)

    def last(self, mark: Mark) -> datetime | None:
        return max((at for one in self.of(mark) if (at := self.time(one)) is not None), default=None)


def _of_this_run(ordered: Sequence[Observation]) -> Sequence[Observation]:
    """Without what was before a restart by the same clock: a pod's status still says for a moment what the run before
    it was, and that it was ready would be no start."""
    begun: dict[Clock, datetime] = {}
    for one in ordered:
        if one.mark is Mark.RESTARTED and one.at is not None:
            begun.setdefault(one.clock, one.at)
    if not begun:
        return ordered
    return [one for one in ordered if one.mark not in _ENDS or one.at is None or one.at >= begun.get(one.clock, one.at)]


def measures_of(seen: Seen, phase: Phase) -> list[Measure]:
    """What can be said about the phase, best first: whoever measured it as a whole, then what two moments give."""
    if not seen.of(Mark.SPAN):
        return _INFERRED[phase](seen)
    spans = [_by(observer, _spans(seen, phase, observer)) for observer in Observer]
    return [*(one for one in spans if one is not None), *_INFERRED[phase](seen)]


def outside_of(observations: Iterable[Observation]) -> frozenset[Observation]:
    """Spans that lie outside the launch: nothing is measured by them."""
    seen = Seen(observations)
    return frozenset(one for one in seen.of(Mark.SPAN) if _span(seen, one) is None)


def _spans(seen: Seen, phase: Phase, observer: Observer) -> list[Stretch | None]:
    return [_span(seen, one) for one in seen.of(Mark.SPAN) if one.phase is phase and one.observer is observer]


def _span(seen: Seen, measured: Observation) -> Stretch | None:
    assert measured.phase is not None
    return seen.bounds.within(measured.phase, _stretch(seen, measured))


def _stretch(seen: Seen, measured: Observation) -> Stretch:
    end = seen.time(measured)
    seconds = measured.seconds or 0.0
    return Stretch(end - timedelta(seconds=seconds) if end is not None else None, end, seconds)


def _by(observer: Observer, stretches: Iterable[Stretch | None]) -> Measure | None:
    known = tuple(one for one in stretches if one is not None)
    return Measure(observer, known) if known else None


def _between(start: datetime | None, end: datetime | None) -> Stretch | None:
    """None where one of them is not known, or the effect is clearly before its cause."""
    if start is None or end is None or end < start - TOLERATED:
        return None
    end = max(start, end)
    return Stretch(start, end, (end - start).total_seconds())


def _listed(measure: Measure | None) -> list[Measure]:
    return [measure] if measure is not None else []


def _waiting(seen: Seen) -> list[Measure]:
    if (restarted := seen.first(Mark.RESTARTED)) is not None:  # it stays on its node
        return [Measure(Observer.CLUSTER, (Stretch(restarted, restarted, 0.0),))]
    return _listed(_by(Observer.CLUSTER, [_between(seen.first(Mark.CREATED), seen.first(Mark.SCHEDULED))]))


def _image_pull(seen: Seen) -> list[Measure]:
    """Every pull that was finished, of any container; nothing was pulled where the served one's image was present. What
    is known of an init container's says nothing of it."""
    pulled = seen.of(Mark.PULLED)
    timed = [_stretch(seen, one) for one in pulled if one.seconds is not None]
    if timed:
        return _listed(_by(Observer.CLUSTER, timed))
    if pulled:
        return _listed(_by(Observer.CLUSTER, [_between(seen.first(Mark.PULLING), seen.last(Mark.PULLED))]))
    present = [at for one in seen.of(Mark.IMAGE_PRESENT) if not one.fact("init") and (at := seen.time(one)) is not None]
    if present and not seen.of(Mark.PULLING):
        return [Measure(Observer.CLUSTER, (Stretch(min(present), min(present), 0.0),))]
    return []


def _weights_fetch(seen: Seen) -> list[Measure]:
    """Every attempt of the ensure step that ended, as long as it says that it took: its running time has in it what it
    takes to start a process and to notice its end. Between two attempts nobody fetched: the pod waited to be tried
    again. One that only asked (waiting) fetched nothing either."""
    ended = seen.of(Mark.ENSURE_ENDED)
    if not ended and not seen.of(Mark.ENSURE_STARTED) and (restarted := seen.first(Mark.RESTARTED)) is not None:
        return [Measure(Observer.CLUSTER, (Stretch(restarted, restarted, 0.0),))]  # the step is not run again
    fetched = [(one, ran) for one, ran in _attempts(seen, ended) if one.fact("found") != WAITING]
    own = [_fetch_of(seen, one, ran) for one, ran in fetched]
    said = {one.observer for (one, _), took in zip(fetched, own, strict=True) if took is not None}
    observer = said.pop() if len(said) == 1 and None not in own else Observer.CLUSTER
    return _listed(_by(observer, [took or ran for (_, ran), took in zip(fetched, own, strict=True)]))


def _fetch_of(seen: Seen, ended: Observation, ran: Stretch | None) -> Stretch | None:
    """What the step says that it took; None where it says nothing, or more than it ran."""
    if ended.seconds is None or (ran is not None and ended.seconds > ran.seconds + TOLERATED.total_seconds()):
        return None
    took = _stretch(seen, ended)
    if ran is None or ran.start is None or took.start is None or took.start >= ran.start:
        return took
    # Clusters say whole seconds: it did not begin before it was started, so it ended within the last one.
    return Stretch(ran.start, ran.start + timedelta(seconds=ended.seconds), ended.seconds)


def waits_of(seen: Seen) -> list[tuple[datetime, datetime]]:
    """When the ensure step waited until anybody could fetch: each attempt that only asked, and the back-off after it
    until the next one begins."""
    starts = [at for one in seen.of(Mark.ENSURE_STARTED) if (at := seen.time(one)) is not None]
    waits = []
    for one, ran in _attempts(seen, seen.of(Mark.ENSURE_ENDED)):
        if one.fact("found") == WAITING and ran is not None and ran.start is not None and ran.end is not None:
            end = ran.end
            waits.append((ran.start, min((at for at in starts if at >= end), default=end)))
    return union(waits)


def step_starts_of(seen: Seen) -> list[tuple[datetime, datetime]]:
    """When the ensure step ran and did not fetch yet: its container and its process started."""
    found = []
    for one, ran in _attempts(seen, seen.of(Mark.ENSURE_ENDED)):
        took = _fetch_of(seen, one, ran)
        if one.fact("found") == WAITING or took is None or ran is None or ran.start is None or took.start is None:
            continue
        if ran.start < took.start:
            found.append((ran.start, took.start))
    return union(found)


def _attempts(seen: Seen, ended: Sequence[Observation]) -> Iterable[tuple[Observation, Stretch | None]]:
    """When each ran: from the latest start before its end and after the end of the one before; where that is not known,
    as long as it says itself."""
    starts = [at for one in seen.of(Mark.ENSURE_STARTED) if (at := seen.time(one)) is not None]
    before: datetime | None = None
    for one in ended:  # in the order of their times, those that say none first
        end = seen.time(one)
        mine = [at for at in starts if end is not None and at <= end + TOLERATED and (before is None or at > before)]
        begun = max((at for at in mine if end is not None and at <= end), default=min(mine, default=None))
        yield one, _between(begun, end) or (_stretch(seen, one) if one.seconds is not None else None)
        before = end or before


def _initialisation(seen: Seen) -> list[Measure]:
    """From the start until the runtime answers; the load takes its own part out of it. Without knowing where the load
    lies it would be too much."""
    load = measures_of(seen, Phase.WEIGHTS_LOAD)
    if not load or any(one.start is None for one in load[0].stretches):
        return []
    return _listed(_by(Observer.RUNTIME_LOG, [_between(seen.first(Mark.STARTED), seen.first(Mark.SERVING))]))


def _weights_load(seen: Seen) -> list[Measure]:
    """Every load that says how long it took (workers side by side, a draft model later on); otherwise from the first
    worker that begins to the last one that is done."""
    loaded = seen.of(Mark.LOADED)
    timed = [_stretch(seen, one) for one in loaded if one.seconds is not None]
    if timed and len(timed) == len(loaded):
        placed = [one for one in timed if one.start is not None]
        return _listed(_by(Observer.RUNTIME_LOG, placed or [max(timed, key=lambda one: one.seconds)]))
    begun = [seen.first(Mark.LOAD_STARTED), *(one.start for one in timed)]
    first = min((at for at in begun if at is not None), default=None)
    return _listed(_by(Observer.RUNTIME_LOG, [_between(first, seen.last(Mark.LOADED))]))


def _health_checks(seen: Seen) -> list[Measure]:
    return _listed(_by(Observer.READINESS, [_between(seen.first(Mark.SERVING), seen.first(Mark.READY))]))


def _first_request(seen: Seen) -> list[Measure]:
    return _listed(_by(Observer.ROUTER, [_between(seen.first(Mark.READY), seen.first(Mark.FIRST_SUCCESS))]))


_INFERRED: dict[Phase, Callable[[Seen], list[Measure]]] = {
    Phase.WAITING: _waiting,
    Phase.IMAGE_PULL: _image_pull,
    Phase.WEIGHTS_FETCH: _weights_fetch,
    Phase.INITIALISATION: _initialisation,
    Phase.WEIGHTS_LOAD: _weights_load,
    Phase.HEALTH_CHECKS: _health_checks,
    Phase.FIRST_REQUEST: _first_request,
}


def union(stretches: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """The same time without overlaps, in order."""
    merged: list[tuple[datetime, datetime]] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def cuts(stretches: Iterable[tuple[datetime, datetime]]) -> Iterable[tuple[datetime, datetime]]:
    """The pieces between all ends, within which nothing begins or ends."""
    return pairwise(sorted({moment for stretch in stretches for moment in stretch}))
