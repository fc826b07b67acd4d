"""Launches of which not everything was said: where they begin, and what is called wrong in a report."""

from __future__ import annotations

from typing import Any

import pytest

from caches.domain.launches.reports import ReportError, observation_of
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import LaunchState, Mark, Phase, PhaseState
from tests.domain.launches import T0, after, mark


def test_a_launch_that_nobody_saw_created_begins_when_it_was_placed() -> None:
    made = assemble([mark(Mark.SCHEDULED, 5), mark(Mark.READY, 35)])
    assert (made.state, made.started_at, made.ready_seconds) == (LaunchState.READY, after(5), 30)
    assert made.phases[0].state is PhaseState.UNKNOWN, "how long it had waited for a node is not known"
    assert assemble([mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 5), mark(Mark.READY, 35)]).ready_seconds == 35


def test_without_either_nothing_is_known_of_its_beginning() -> None:
    assert assemble([mark(Mark.STARTED, 5), mark(Mark.READY, 35)]).ready_seconds is None


def test_a_restart_that_ensured_again_took_what_that_took() -> None:
    seen = [mark(Mark.RESTARTED, 0), mark(Mark.ENSURE_STARTED, 1), mark(Mark.ENSURE_ENDED, 9), mark(Mark.READY, 20)]
    assert assemble(seen).seconds(Phase.WEIGHTS_FETCH) == 8
    assert assemble([seen[0], seen[3]]).seconds(Phase.WEIGHTS_FETCH) == 0


@pytest.mark.parametrize(
    ("item", "field", "detail"),
    [
        ({"mark": "Span", "phase": "ImagePull", "seconds": -1}, "seconds",
         "It has a duration that is not between 0 and 2592000 seconds."),
        ({"mark": "Ready", "seconds": -1, "at": T0.isoformat()}, "at",
         "It has a duration that is not between 0 and 2592000 seconds."),
        ({"mark": "Ready"}, "at", "It says neither when nor how long."),
        ({"mark": "Span", "seconds": 5}, "seconds", "It is a Span and names no phase."),
        ({"mark": "Ready", "phase": "ImagePull", "at": T0.isoformat()}, "at",
         "It names a phase, which only a Span has."),
        ({"phase": "ImagePull", "at": T0.isoformat()}, "seconds", "It is a Span and says no seconds."),
    ],
)  # fmt: skip
def test_a_report_says_in_a_sentence_what_is_wrong_with_it(item: dict[str, Any], field: str, detail: str) -> None:
    with pytest.raises(ReportError) as caught:
        observation_of(item, T0)
    assert (caught.value.field, caught.value.detail) == (field, detail)
