"""From what several observers saw to seven phases: a pure function of the set of observations.

A second that two phases claim belongs to the later of them: it is what the launch had got to. What nobody claims is
unknown and stays so. Lengths without a place on the clock count at most what the others leave. What is said to lie
outside the launch measures nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from caches.domain.launches.observations import Observation
from caches.domain.launches.spans import Measure, Seen, cuts, measures_of, step_starts_of, union, waits_of
from caches.domain.launches.words import PHASES, LaunchState, Mark, Observer, Phase, PhaseState

# Raised whenever the same observations give other phases: services.launches.retiming makes those of stored rows again.
RULE = 2
Pieces = Mapping[Phase, list[tuple[datetime, datetime]]]

_REACHES: Mapping[Mark, Phase] = {
    Mark.CREATED: Phase.WAITING,
    Mark.SCHEDULED: Phase.IMAGE_PULL,
    Mark.PULLING: Phase.IMAGE_PULL,
    Mark.PULLED: Phase.IMAGE_PULL,
    Mark.IMAGE_PRESENT: Phase.IMAGE_PULL,
    Mark.ENSURE_STARTED: Phase.WEIGHTS_FETCH,
    Mark.ENSURE_ENDED: Phase.WEIGHTS_FETCH,
    Mark.RESTARTED: Phase.WEIGHTS_FETCH,
    Mark.STARTED: Phase.INITIALISATION,
    Mark.LOAD_STARTED: Phase.WEIGHTS_LOAD,
    Mark.LOADED: Phase.WEIGHTS_LOAD,
    Mark.SERVING: Phase.HEALTH_CHECKS,
}


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """``seconds`` is None unless measured; ``pieces`` are where on the clock they lie, if that is known."""

    phase: Phase
    state: PhaseState
    seconds: float | None = None
    observer: Observer | None = None
    pieces: tuple[tuple[datetime, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """``total_seconds`` is from the beginning to the first success, else to being ready, else to the end; None while
    it goes on or where the beginning is not known. Where nobody says when it was created it begins when it was placed.
    ``reached`` is how far it got: the latest phase that it was seen in, the last one once a request succeeded."""

    state: LaunchState
    phases: tuple[PhaseTime, ...]
    reached: Phase
    started_at: datetime | None = None
    ready_at: datetime | None = None
    served_at: datetime | None = None
    ended_at: datetime | None = None
    ready_seconds: float | None = None
    total_seconds: float | None = None
    unknown_seconds: float | None = None
    end_reason: str = ""
    clock_shift_seconds: float = 0.0

    def seconds(self, phase: Phase) -> float | None:
        """How long the phase took; None where that was not measured."""
        return self.phases[PHASES.index(phase)].seconds


def assemble(observations: Iterable[Observation]) -> Timeline:
    """The timeline of one launch, whatever the order and however often each observation came."""
    seen = Seen(observations)
    bounds = seen.bounds
    started, ready, served, ended = bounds.started, bounds.ready, bounds.served, bounds.ended
    state = LaunchState.READY if ready or served else LaunchState.ENDED if seen.of(Mark.ENDED) else LaunchState.STARTING
    until = bounds.until
    measured = {phase: found[0] for phase in PHASES if (found := measures_of(seen, phase))}
    reached = _reached(seen, measured, ready=ready is not None, served=served is not None or _answered(seen))
    pieces = _exclusive(measured, started, until if state is not LaunchState.STARTING else None)
    total = _seconds(started, until) if state is not LaunchState.STARTING else None
    lengths = _lengths(measured, pieces, total)
    # Requests may come to what is ready past those who would tell of them.
    late = () if state is LaunchState.READY else PHASES[PHASES.index(reached) + 1 :]
    phases = tuple(_phase(phase, phase in late, measured.get(phase), lengths, pieces) for phase in PHASES)
    return Timeline(
        state=state,
        phases=phases,
        reached=reached,
        started_at=started,
        ready_at=ready,
        served_at=served,
        ended_at=ended,
        ready_seconds=_seconds(started, ready),
        total_seconds=total,
        unknown_seconds=max(0.0, total - sum(lengths.values())) if total is not None else None,
        end_reason=next((reason for one in seen.of(Mark.ENDED) if (reason := one.fact("reason"))), ""),
        clock_shift_seconds=seen.shift.total_seconds(),
    )


@dataclass(frozen=True, slots=True)
class Waited:
    """Seconds of what is in no phase. ``for_weights``: the ensure step waited until they could be fetched.
    ``to_restart``: the run before had ended, and nobody had begun this one yet. ``for_step``: the ensure step was
    started, and beside its fetch until it was seen to have ended."""

    for_weights: float = 0.0
    to_restart: float = 0.0
    for_step: float = 0.0


def seconds_waited(observations: Iterable[Observation]) -> Waited:
    """What can be said of the seconds in no phase."""
    seen = Seen(observations)
    timeline = assemble(seen.all)
    start, until = timeline.started_at, seen.bounds.until
    if start is None or until is None or not timeline.unknown_seconds:
        return Waited()
    claimed = [piece for one in timeline.phases for piece in one.pieces]
    least, most = start, until

    def free(waits: Iterable[tuple[datetime, datetime]]) -> float:
        clipped = [(max(a, least), min(b, most)) for a, b in waits]
        waited = [(a, b) for a, b in clipped if a < b]
        pieces = (
            (b - a).total_seconds()
            for a, b in cuts([*waited, *claimed])
            if any(c <= a and b <= d for c, d in waited) and not any(c <= a and b <= d for c, d in claimed)
        )
        return min(sum(pieces), timeline.unknown_seconds or 0.0)

    return Waited(free(waits_of(seen)), free(_backed_off(seen, until)), free(step_starts_of(seen)))


def _backed_off(seen: Seen, until: datetime) -> list[tuple[datetime, datetime]]:
    """From the end of the run before until anything of this one began."""
    restarted = seen.first(Mark.RESTARTED)
    if restarted is None:
        return []
    began = [seen.first(mark) for mark in (Mark.ENSURE_STARTED, Mark.STARTED)]
    return [(restarted, min((at for at in began if at is not None), default=until))]


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return max(0.0, (end - start).total_seconds()) if start is not None and end is not None else None


def _reached(seen: Seen, measured: Iterable[Phase], *, ready: bool, served: bool) -> Phase:
    got_to = [_REACHES[one.mark] for one in seen.all if one.mark in _REACHES]
    checked = [*([Phase.HEALTH_CHECKS] if ready else []), *([Phase.FIRST_REQUEST] if served else [])]
    return max([Phase.WAITING, *got_to, *measured, *checked], key=PHASES.index)


def _answered(seen: Seen) -> bool:
    """Whether somebody measured a first request after it was ready, although the first success was not seen."""
    if (ready := seen.bounds.ready) is None:
        return False
    ends = (seen.time(one) for one in seen.of(Mark.SPAN) if one.phase is Phase.FIRST_REQUEST)
    return any(at is not None and at >= ready for at in ends)


def _exclusive(measured: Mapping[Phase, Measure], start: datetime | None, end: datetime | None) -> Pieces:
    """Where each phase lies within the launch, every instant in one phase at most."""
    claimed = {}
    for phase, measure in measured.items():
        placed = [(one.start, one.end) for one in measure.stretches if one.start is not None and one.end is not None]
        clipped = [(max(a, start or a), min(b, end or b)) for a, b in placed]
        claimed[phase] = union((a, b) for a, b in clipped if a < b)
    owned: dict[Phase, list[tuple[datetime, datetime]]] = {phase: [] for phase in claimed}
    for begin, finish in cuts(piece for pieces in claimed.values() for piece in pieces):
        owners = [phase for phase in PHASES if any(a <= begin and finish <= b for a, b in claimed.get(phase, ()))]
        if owners:
            owned[owners[-1]].append((begin, finish))
    return {phase: union(pieces) for phase, pieces in owned.items()}


def _lengths(measured: Mapping[Phase, Measure], pieces: Pieces, total: float | None) -> dict[Phase, float]:
    lengths = {phase: sum((b - a).total_seconds() for a, b in pieces[phase]) for phase in measured}
    left = total - sum(lengths.values()) if total is not None else None
    for phase in PHASES:
        loose = sum(one.seconds for one in measured[phase].stretches if one.end is None) if phase in measured else 0.0
        if left is not None:
            loose = max(0.0, min(loose, left))
            left -= loose
        if loose:
            lengths[phase] += loose
    return lengths


def _phase(
    phase: Phase, late: bool, measure: Measure | None, lengths: Mapping[Phase, float], pieces: Pieces
) -> PhaseTime:
    if measure is not None:
        return PhaseTime(phase, PhaseState.MEASURED, lengths[phase], measure.observer, tuple(pieces[phase]))
    return PhaseTime(phase, PhaseState.NOT_REACHED if late else PhaseState.UNKNOWN)
