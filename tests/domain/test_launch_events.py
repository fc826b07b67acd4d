"""An engine's events, run by run."""

from __future__ import annotations

from collections import defaultdict

import pytest

from caches.domain.launches.events import event_observations
from caches.domain.launches.labels import Circumstances, miss_reason, weights_label
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import Timeline, assemble
from caches.domain.launches.words import Cached, LaunchState, Mark, MissReason, Phase
from tests.domain.launches import after

OUTCOME = '{"found": "miss", "bytes": 1048576, "source": "store", "seconds": 7.5, "message": ""}'


def runs(*events: tuple[str, float, str, int]) -> dict[int, list[Observation]]:
    found: dict[int, list[Observation]] = defaultdict(list)
    for reason, at, message, run in events:
        for number, seen in event_observations(reason, after(at), message, run):
            found[number].append(seen)
    return found


def timelines(*events: tuple[str, float, str, int]) -> dict[int, Timeline]:
    return {run: assemble(seen) for run, seen in runs(*events).items()}


FIRST = (("Scheduled", 0.0, "", 0), ("Ensured", 8.0, OUTCOME, 0), ("Started", 8.5, "", 0), ("Ready", 12.0, "", 0))


def test_a_cold_start_is_ready_after_what_it_fetched() -> None:
    (timeline,) = timelines(*FIRST).values()
    assert (timeline.state, timeline.ready_seconds) == (LaunchState.READY, 12)
    assert (timeline.seconds(Phase.WAITING), timeline.seconds(Phase.WEIGHTS_FETCH)) == (0, 7.5)
    assert timeline.seconds(Phase.IMAGE_PULL) is None  # an engine has no image
    assert weights_label(runs(*FIRST)[0]) is Cached.MISS


@pytest.mark.parametrize(
    ("said", "fetch", "reason"),
    [
        ("exit 1", 0.54, MissReason.FAILED),
        ('{"found": "failed", "seconds": 0.5}', 0.54, MissReason.FAILED),
        ('{"found": "waiting", "seconds": 0.5}', 0.04, MissReason.FIRST),
    ],
)
def test_what_was_waited_for_before_the_weights_were_there_is_no_fetch_and_no_hit(
    said: str, fetch: float, reason: MissReason
) -> None:
    """The step finds nothing, ends, and is quick once somebody else has fetched them: they were missed."""
    hit = '{"found": "hit", "bytes": 0, "source": "", "seconds": 0.04, "message": ""}'
    events = (
        ("Scheduled", 0.0, "", 0), ("Ensuring", 0.5, "", 0), ("EnsureFailed", 1.0, said, 0),
        ("Ensuring", 9.0, "", 0), ("Ensured", 9.5, hit, 0), ("Started", 9.6, "", 0), ("Ready", 10.4, "", 0),
    )  # fmt: skip
    (timeline,) = timelines(*events).values()
    assert timeline.seconds(Phase.WEIGHTS_FETCH) == pytest.approx(fetch)
    assert weights_label(runs(*events)[0]) is Cached.MISS
    first = Circumstances(node_age_seconds=1e6, first_of_version_on_node=True)
    assert miss_reason(runs(*events)[0], Cached.MISS, first) is reason
    warm = tuple(event for event in events if event[0] != "EnsureFailed")
    assert weights_label(runs(*warm)[0]) is Cached.HIT


def test_a_run_that_ends_begins_the_next_one_s_launch() -> None:
    again = (("BackOff", 100.0, "exit 1", 0), ("Started", 103.0, "", 1), ("Ready", 104.0, "", 1))
    found = timelines(*FIRST, *again)
    assert (found[0].state, found[0].ready_seconds) == (LaunchState.READY, 12)
    assert (found[1].state, found[1].ready_seconds, found[1].seconds(Phase.WEIGHTS_FETCH)) == (LaunchState.READY, 4, 0)


def test_a_run_that_never_answers_ends_without_having_been_ready() -> None:
    found = timelines(("Scheduled", 0.0, "", 0), ("Started", 1.0, "", 0), ("BackOff", 2.0, "exit 1", 0))
    assert (found[0].state, found[0].end_reason) == (LaunchState.ENDED, "exit 1")
    assert found[1].state is LaunchState.STARTING


@pytest.mark.parametrize(
    "message",
    ["", "{", "[]", "null", '{"seconds": "7"}', '{"seconds": true}', '{"seconds": -1}', '{"seconds": 1e99}',
     '{"found": ["hit"]}'],
)  # fmt: skip
def test_a_report_that_cannot_be_read_says_when_it_ended_and_nothing_else(message: str) -> None:
    ((run, seen),) = event_observations("Ensured", after(3), message, 0)
    assert (run, seen.mark, seen.at, seen.seconds, seen.facts) == (0, Mark.ENSURE_ENDED, after(3), None, ())


@pytest.mark.parametrize("reason", ["Killing", "", "ready"])
def test_other_events_say_nothing_of_launches(reason: str) -> None:
    assert event_observations(reason, after(0), "", 0) == []
