"""Timelines case by case: late, doubled, missing, skewed, restarted, never ready."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from caches.domain.launches.observations import Observation, facts_of
from caches.domain.launches.timeline import Timeline, Waited, assemble, seconds_waited
from caches.domain.launches.words import LaunchState, Mark, Observer, Phase, PhaseState, launch_id
from tests.domain.launches import after, mark, span, whole


def seconds(timeline: Timeline) -> list[float | None]:
    return [one.seconds for one in timeline.phases]


def test_it_divides_a_launch_that_everybody_saw() -> None:
    timeline = assemble(whole())
    assert seconds(timeline) == [2, 30, 20, 13, 25, 6, 4]
    assert (timeline.state, timeline.ready_seconds, timeline.total_seconds) == (LaunchState.READY, 96, 100)
    assert timeline.unknown_seconds == 0


def test_nothing_was_seen_of_it() -> None:
    timeline = assemble([])
    assert timeline.state is LaunchState.STARTING
    assert timeline.reached is Phase.WAITING
    assert timeline.total_seconds is None
    assert seconds(timeline) == [None] * 7


@pytest.mark.parametrize("skew", [3600.0, -3600.0, 7.25, -86400.0])
def test_a_clock_that_puts_effects_before_causes_is_moved(skew: float) -> None:
    timeline = assemble(whole(skew))
    assert timeline.total_seconds == 100
    assert seconds(timeline)[1:6] == [30, 20, 13, 25, 6]
    assert abs(timeline.clock_shift_seconds + skew) <= 4  # no further than cause and effect ask for


def test_a_clock_that_no_shift_can_repair_leaves_what_is_between_the_two_unknown() -> None:
    seen = [mark(Mark.CREATED, 99), mark(Mark.SCHEDULED, 100), mark(Mark.STARTED, 0), mark(Mark.READY, 300)]
    timeline = assemble([*seen, mark(Mark.FIRST_SUCCESS, 110)])
    assert timeline.clock_shift_seconds == 0
    assert timeline.seconds(Phase.FIRST_REQUEST) is None


def test_an_image_that_was_present_took_no_time() -> None:
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.IMAGE_PRESENT, 2), mark(Mark.READY, 9)]
    timeline = assemble(seen)
    assert timeline.seconds(Phase.IMAGE_PULL) == 0
    assert timeline.unknown_seconds == 8


def test_an_image_that_another_pod_pulled_meanwhile_is_what_the_kubelet_says_of_this_one() -> None:
    """This pod waited for another's pull: its own message says how long, waiting included."""
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 0), mark(Mark.PULLING, 1), mark(Mark.READY, 60)]
    assert assemble([*seen, mark(Mark.PULLED, 40, seconds=39.5)]).seconds(Phase.IMAGE_PULL) == 39.5
    assert assemble([*seen, mark(Mark.PULLED, 40)]).seconds(Phase.IMAGE_PULL) == 39
    assert assemble([*seen, mark(Mark.IMAGE_PRESENT, 40)]).seconds(Phase.IMAGE_PULL) is None  # began, never ended


def test_two_containers_pulls_that_overlap_count_once() -> None:
    seen = [mark(Mark.CREATED, 0), mark(Mark.READY, 100)]
    seen += [mark(Mark.PULLED, 30, seconds=20), mark(Mark.PULLED, 40, seconds=20)]
    assert assemble(seen).seconds(Phase.IMAGE_PULL) == 30


def test_a_second_that_two_phases_claim_belongs_to_the_later_one() -> None:
    """A runtime that streams its weights while they arrive."""
    seen = [mark(Mark.CREATED, 0), mark(Mark.READY, 100)]
    seen += [span(Phase.WEIGHTS_FETCH, 50, 60), span(Phase.WEIGHTS_LOAD, 50, 90)]
    timeline = assemble(seen)
    assert timeline.seconds(Phase.WEIGHTS_FETCH) == 30
    assert timeline.seconds(Phase.WEIGHTS_LOAD) == 50
    assert timeline.unknown_seconds == 20


def test_what_a_runtime_pushes_is_believed_over_what_is_inferred() -> None:
    timeline = assemble([*whole(), span(Phase.INITIALISATION, 11, 63)])
    assert timeline.seconds(Phase.INITIALISATION) == 5  # until the load began; the rest overlaps it
    assert timeline.phases[3].observer is Observer.PUSHED


def test_a_length_without_a_place_counts_what_the_others_leave() -> None:
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 10), mark(Mark.READY, 30)]
    assert assemble([*seen, span(Phase.WEIGHTS_LOAD, 15)]).seconds(Phase.WEIGHTS_LOAD) == 15
    assert assemble([*seen, span(Phase.WEIGHTS_LOAD, 500)]).seconds(Phase.WEIGHTS_LOAD) == 20


def test_half_of_the_initialisation_is_not_the_initialisation() -> None:
    for missing in (Mark.STARTED, Mark.LOAD_STARTED, Mark.LOADED, Mark.SERVING):
        left = [one for one in whole() if one.mark is not missing]
        assert assemble(left).seconds(Phase.INITIALISATION) is None, missing


def test_workers_that_load_side_by_side_load_from_the_first_to_the_last() -> None:
    workers = [mark(Mark.LOAD_STARTED, 58), mark(Mark.LOADED, 84), mark(Mark.LOADED, 83, seconds=20)]
    timeline = assemble([*whole(), *workers])
    assert timeline.seconds(Phase.WEIGHTS_LOAD) == 27
    assert timeline.seconds(Phase.INITIALISATION) == 5 + 6


def test_a_restart_begins_where_the_run_before_it_ended() -> None:
    seen = [mark(Mark.RESTARTED, 1000), mark(Mark.IMAGE_PRESENT, 1010), mark(Mark.STARTED, 1010)]
    seen += [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 2), mark(Mark.READY, 1030)]
    timeline = assemble(seen)
    assert timeline.ready_seconds == 30
    assert seconds(timeline)[:3] == [0, 0, 0]
    assert timeline.unknown_seconds == 30


def test_readiness_of_the_run_before_is_not_this_run_s() -> None:
    seen = [mark(Mark.RESTARTED, 1000), mark(Mark.STARTED, 1010), mark(Mark.READY, 90)]
    assert assemble(seen).state is LaunchState.STARTING
    assert assemble([*seen, mark(Mark.ENDED, 1020, reason="OOMKilled")]).state is LaunchState.ENDED


@pytest.mark.parametrize(
    ("seen", "reached"),
    [
        ([mark(Mark.CREATED, 0)], Phase.WAITING),
        ([mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.PULLING, 2)], Phase.IMAGE_PULL),
        ([mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.ENSURE_STARTED, 2)], Phase.WEIGHTS_FETCH),
        ([mark(Mark.CREATED, 0), mark(Mark.STARTED, 3)], Phase.INITIALISATION),
        ([mark(Mark.CREATED, 0), mark(Mark.STARTED, 3), mark(Mark.LOAD_STARTED, 4)], Phase.WEIGHTS_LOAD),
        ([mark(Mark.CREATED, 0), mark(Mark.STARTED, 3), mark(Mark.SERVING, 4)], Phase.HEALTH_CHECKS),
    ],
)
def test_a_launch_that_never_became_ready_is_kept_with_how_far_it_got(seen: list[Observation], reached: Phase) -> None:
    timeline = assemble([*seen, mark(Mark.ENDED, 60, reason="Deleted")])
    assert (timeline.state, timeline.reached, timeline.end_reason) == (LaunchState.ENDED, reached, "Deleted")
    assert timeline.total_seconds == 60
    assert timeline.ready_seconds is None
    late = timeline.phases[[one.phase for one in timeline.phases].index(reached) + 1 :]
    assert {one.state for one in late} <= {PhaseState.NOT_REACHED}


S, E = Mark.ENSURE_STARTED, Mark.ENSURE_ENDED


@pytest.mark.parametrize(
    ("more", "reached", "first"),
    [
        ([mark(Mark.READY, 12)], Phase.HEALTH_CHECKS, PhaseState.UNKNOWN),
        ([mark(Mark.READY, 12), mark(Mark.FIRST_SUCCESS, 15)], Phase.FIRST_REQUEST, PhaseState.MEASURED),
        ([mark(Mark.FIRST_SUCCESS, 15)], Phase.FIRST_REQUEST, PhaseState.UNKNOWN),
        ([mark(Mark.READY, 12), mark(Mark.FIRST_SUCCESS, -9)], Phase.HEALTH_CHECKS, PhaseState.UNKNOWN),
        ([mark(Mark.READY, 12), mark(Mark.ENDED, 15)], Phase.HEALTH_CHECKS, PhaseState.UNKNOWN),
        ([mark(Mark.SERVING, 12)], Phase.HEALTH_CHECKS, PhaseState.NOT_REACHED),
    ],
)
def test_it_got_to_its_first_request_once_one_succeeded_and_not_by_being_ready(
    more: list[Observation], reached: Phase, first: PhaseState
) -> None:
    timeline = assemble([mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.STARTED, 3), *more])
    assert (timeline.reached, timeline.phases[-1].state) == (reached, first)


@pytest.mark.parametrize(
    ("ended", "observer", "beside"),
    [
        (mark(E, 25, found="hit", seconds=0.5), Observer.ENSURE, 4.5),
        (mark(E, 25, found="miss", seconds=5.4), Observer.ENSURE, 0),
        (mark(E, 25, found="hit"), Observer.CLUSTER, 0),  # it says nothing: as long as it was seen to run
        (mark(E, 25, found="miss", seconds=900.0), Observer.CLUSTER, 0),
        (mark(E, 25, found="waiting", seconds=0.5), None, 0),  # all of it was waited
    ],
)
def test_a_fetch_took_what_its_observer_says_and_what_the_step_ran_beside_it_is_told_of_what_is_in_no_phase(
    ended: Observation, observer: Observer | None, beside: float
) -> None:
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 2), mark(S, 20), ended, mark(Mark.STARTED, 26)]
    timeline = assemble([*seen, mark(Mark.READY, 70)])
    assert timeline.phases[2].observer is observer
    assert seconds_waited([*seen, mark(Mark.READY, 70)]).for_step == beside
    known = sum(one.seconds or 0.0 for one in timeline.phases)
    assert timeline.total_seconds is not None and timeline.unknown_seconds == timeline.total_seconds - known


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        ([mark(S, 20), mark(E, 25), mark(S, 30), mark(E, 42)], 17),  # the back-off between them was no fetch
        ([mark(S, 20), mark(E, 25, found="failed"), mark(S, 30), mark(E, 42, found="hit")], 17),
        ([mark(S, 20), mark(E, 25, found="waiting"), mark(S, 30), mark(E, 42, found="hit")], 12),
        ([mark(S, 20), mark(E, 25, found="waiting"), mark(S, 30), mark(E, 31, found="waiting")], None),
        ([mark(S, 20), mark(E, 25, found="waiting", seconds=5.0)], None),
        ([mark(S, 20), mark(S, 30), mark(E, 42)], 12),  # the first one was killed, nobody knows when
        ([mark(S, 20), mark(E, 25), mark(S, 30)], 5),  # the second goes on
        ([mark(E, 25, seconds=5.0), mark(E, 42, seconds=2.0)], 7),  # nobody saw them begin
        ([mark(S, 20), mark(E, 25), mark(E, 42, seconds=2.0)], 7),
        ([mark(S, 20), mark(E, 25), mark(E, 42)], 5),
        ([mark(S, 21), mark(E, 20)], 0),  # whole seconds
        ([mark(S, 20), mark(E, 25), mark(E, 25, found="hit", seconds=4.0)], 5),  # told twice
        ([mark(S, 20), mark(E, 25, found="hit", seconds=0.02)], 0.02),  # its process took long to start
        ([mark(S, 20), mark(E, 25, found="miss", seconds=5.4)], 5.4),  # whole seconds
        ([mark(S, 20), mark(E, 25, found="miss", seconds=900.0)], 5),  # it says more than it ran
        ([mark(S, 20), mark(E, 25, found="failed"), mark(S, 30), mark(E, 42, found="hit", seconds=3.0)], 8),
    ],
)
def test_only_attempts_of_the_ensure_step_are_fetch(attempts: list[Observation], seconds: float | None) -> None:
    early = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 2)]
    timeline = assemble([*early, *attempts, mark(Mark.STARTED, 60), mark(Mark.READY, 70)])
    assert timeline.seconds(Phase.WEIGHTS_FETCH) == seconds
    assert timeline.unknown_seconds == 68 - (seconds or 0), "what was waited between is in no phase"


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        ([mark(S, 20), mark(E, 25, found="waiting"), mark(S, 30), mark(E, 42, found="hit")], 10),
        ([mark(S, 20), mark(E, 25, found="waiting"), mark(S, 30), mark(E, 31, found="waiting")], 11),
        ([mark(S, 20), mark(E, 25, found="failed"), mark(S, 30), mark(E, 42, found="hit")], 0),
        ([mark(E, 25, found="waiting", seconds=5.0)], 5),
        ([mark(E, 25, found="waiting")], 0),
        ([mark(S, 20), mark(E, 25, found="waiting"), mark(S, 80), mark(E, 90, found="hit")], 50),  # ready before
        ([mark(S, 20), mark(E, 25, found="waiting"), mark(S, 30), mark(E, 42), mark(Mark.PULLED, 24, seconds=3.0)], 7),
        ([], 0),
    ],
)
def test_what_it_waited_until_weights_could_be_fetched_is_told_of_what_is_in_no_phase(
    attempts: list[Observation], seconds: float
) -> None:
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 2), *attempts, mark(Mark.READY, 70)]
    assert seconds_waited(seen) == Waited(for_weights=seconds)


@pytest.mark.parametrize(
    ("began", "seconds"),
    [
        ([], 70),  # the pod went while it waited
        ([mark(Mark.STARTED, 40)], 40),
        ([mark(Mark.STARTED, 40), mark(Mark.LOADED, 60, seconds=10.0)], 40),
        ([mark(S, 30), mark(E, 42, found="hit"), mark(Mark.STARTED, 50)], 30),  # the whole pod began anew
        ([mark(Mark.STARTED, 0)], 0),
    ],
)
def test_what_a_crashed_container_waited_to_be_started_again_is_told_of_what_is_in_no_phase(
    began: list[Observation], seconds: float
) -> None:
    seen = [mark(Mark.RESTARTED, 0), *began, mark(Mark.ENDED, 70)]
    assert seconds_waited(seen) == Waited(to_restart=seconds)
    assert seconds_waited([mark(Mark.RESTARTED, 0), *began]) == Waited(), "it goes on"


@pytest.mark.parametrize(
    ("seen", "state", "ready", "ended"),
    [
        # The status of a pod whose container restarts says for a moment what the run before it was.
        ([mark(Mark.READY, 50), mark(Mark.READY, 140)], LaunchState.READY, 40, None),
        ([mark(Mark.READY, 99), mark(Mark.READY, 140)], LaunchState.READY, 40, None),
        ([mark(Mark.READY, 99)], LaunchState.STARTING, None, None),
        ([mark(Mark.READY, 100)], LaunchState.READY, 0, None),  # whole seconds, and nothing to wait for
        ([mark(Mark.ENDED, 50)], LaunchState.STARTING, None, None),
        ([mark(Mark.ENDED, 50), mark(Mark.ENDED, 140)], LaunchState.ENDED, None, 140),
        ([mark(Mark.READY, 99), mark(Mark.ENDED, 99), mark(Mark.ENDED, 140)], LaunchState.ENDED, None, 140),
    ],
)
def test_a_restart_s_launch_knows_nothing_of_the_run_before(
    seen: list[Observation], state: LaunchState, ready: float | None, ended: float | None
) -> None:
    timeline = assemble([mark(Mark.RESTARTED, 100), *seen])
    assert (timeline.state, timeline.ready_seconds) == (state, ready)
    assert timeline.ended_at == (after(ended) if ended is not None else None)


def test_a_launch_that_served_and_ended_stays_ready() -> None:
    timeline = assemble([*whole(), mark(Mark.ENDED, 5000, reason="Completed")])
    assert timeline.state is LaunchState.READY
    assert timeline.total_seconds == 100


def test_a_first_success_before_readiness_was_seen_is_no_time_at_all() -> None:
    seen = [one for one in whole() if one.mark is not Mark.FIRST_SUCCESS]
    timeline = assemble([*seen, mark(Mark.FIRST_SUCCESS, 94.5)])
    assert timeline.seconds(Phase.FIRST_REQUEST) == 0
    assert timeline.total_seconds == timeline.ready_seconds


@pytest.mark.parametrize(
    "fields",
    [
        {"mark": Mark.READY},
        {"mark": Mark.SPAN, "seconds": 1.0},
        {"mark": Mark.SPAN, "at": after(0), "phase": Phase.WAITING},
        {"mark": Mark.READY, "at": after(0), "phase": Phase.WAITING},
        {"mark": Mark.READY, "at": after(0).replace(tzinfo=None)},
        {"mark": Mark.LOADED, "seconds": -1.0},
        {"mark": Mark.LOADED, "seconds": float("nan")},
        {"mark": Mark.LOADED, "seconds": 1e12},
    ],
)
def test_what_cannot_be_is_no_observation(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Observation(Observer.PUSHED, **fields)  # type: ignore[arg-type]


def test_every_observer_computes_the_same_id() -> None:
    first = launch_id(cluster="local", pod_uid="u-1", container="engine", restart_count=0)
    assert first == launch_id(cluster="local", pod_uid="u-1", container="engine", restart_count=0)
    assert str(first) == EXPECTED_ID
    others: Sequence[tuple[str, str, str, int]] = [
        ("other", "u-1", "engine", 0),
        ("local", "u-2", "engine", 0),
        ("local", "u-1", "ensure", 0),
        ("local", "u-1", "engine", 1),
    ]
    made = {launch_id(cluster=c, pod_uid=p, container=n, restart_count=r) for c, p, n, r in others}
    assert len(made | {first}) == 5


EXPECTED_ID = "96bcbf5c-2077-5f37-97a8-271bd79a0c61"


def test_facts_leave_out_what_is_empty() -> None:
    assert facts_of({"found": "miss", "bytes": 0, "source": "", "image": None}) == (("bytes", "0"), ("found", "miss"))
