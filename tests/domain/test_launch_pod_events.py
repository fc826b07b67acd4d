"""Kubelets' events: pulls with their durations, images that were there, and why it does not go on."""

from __future__ import annotations

import pytest

from caches.domain.launches.labels import image_label
from caches.domain.launches.observations import Observation
from caches.domain.launches.pod_events import pod_event_observations, pull_seconds
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Cached, Clock, LaunchState, Mark, Phase, PhaseState
from tests.domain.launches import after, mark

SERVER = {"container": "server", "reporter": "kubelet"}
ENSURE = {"container": "ensure", "reporter": "kubelet", "init": True}
PRESENT = 'Container image "vllm:1" already present on machine'


def said(
    reason: str, message: str, at: float, first: float | None = None, *, container: str = "server",
    init: bool = False, reporter: str = "kubelet",
) -> list[Observation]:  # fmt: skip
    return list(
        pod_event_observations(
            reason=reason,
            message=message,
            at=after(at),
            first_at=None if first is None else after(first),
            container=container,
            init=init,
            reporter=reporter,
        )
    )


@pytest.mark.parametrize(
    ("message", "whole", "pull"),
    [
        ('Successfully pulled image "vllm:1" in 4.2s (5s including waiting). Image size: 9663676416 bytes.', 5, 4.2),
        ('Successfully pulled image "vllm:1" in 81ms (81ms including waiting)', 0.081, 0.081),
        ('Successfully pulled image "vllm:1" in 1m2.5s (1h0m3.25s including waiting). Image size: 1', 3603.25, 62.5),
        ('Successfully pulled image "vllm:1" in 4.034285s', 4.034285, 4.034285),
        ('Successfully pulled image "vllm:1" in 350µs (1ms including waiting)', 0.001, 0.00035),
        ('Successfully pulled image "in 5s" in 3s', 3, 3),
        ('Successfully pulled image "vllm:1"', None, None),
        ("", None, None),
        ("in 99999999h", None, None),
    ],
)
def test_a_pull_took_what_its_kubelet_says(message: str, whole: float | None, pull: float | None) -> None:
    assert pull_seconds(message) == (whole, pull)


def test_a_pull_ends_when_it_is_told_of_and_began_before() -> None:
    message = 'Successfully pulled image "vllm:1" in 4.2s (5s including waiting). Image size: 1 bytes.'
    seen = [
        mark(Mark.CREATED, 0),
        *said("Pulling", "Pulling image", 3),
        *said("Pulled", message, 8),
        mark(Mark.READY, 9),
    ]
    made = assemble(seen)
    assert made.seconds(Phase.IMAGE_PULL) == 5 and image_label(seen, "server") is Cached.MISS
    [pulled] = [one for one in seen if one.mark is Mark.PULLED]
    assert (pulled.seconds, pulled.fact("pull_seconds"), pulled.clock) == (5, "4.2", Clock.NODE)


def test_an_image_that_was_there_took_no_time() -> None:
    seen = [mark(Mark.CREATED, 0), *said("Pulled", PRESENT, 3), mark(Mark.READY, 9)]
    assert assemble(seen).seconds(Phase.IMAGE_PULL) == 0 and image_label(seen, "server") is Cached.HIT


def test_what_is_known_of_the_ensure_steps_image_says_nothing_of_the_servers() -> None:
    """The event of the server's pull never came."""
    seen = [mark(Mark.CREATED, 0), *said("Pulled", PRESENT, 2, container="ensure", init=True), mark(Mark.READY, 9)]
    made = assemble(seen)
    assert made.phases[1].state is PhaseState.UNKNOWN and image_label(seen, "server") is Cached.UNKNOWN


def test_an_image_that_another_pod_pulled_meanwhile_was_not_there_all_the_same() -> None:
    """It was waited for: the pull itself found it done."""
    message = 'Successfully pulled image "vllm:1" in 40ms (12.3s including waiting). Image size: 1 bytes.'
    seen = [mark(Mark.CREATED, 0), *said("Pulling", "", 1), *said("Pulled", message, 14), mark(Mark.READY, 20)]
    assert assemble(seen).seconds(Phase.IMAGE_PULL) == 12.3 and image_label(seen, "server") is Cached.MISS
    # Or the next attempt finds it there: how long that took nobody said.
    seen = [mark(Mark.CREATED, 0), *said("Pulling", "", 1), *said("Pulled", PRESENT, 14), mark(Mark.READY, 20)]
    assert assemble(seen).seconds(Phase.IMAGE_PULL) is None and image_label(seen, "server") is Cached.MISS


def test_a_repeated_event_says_it_of_its_first_and_of_its_last_time() -> None:
    assert [one.at for one in said("Pulled", PRESENT, 90, 3)] == [after(3), after(90)]
    assert [one.at for one in said("Pulling", "", 90, 3)] == [after(3), after(90)]
    assert [one.at for one in said("Pulling", "", 3, 3)] == [after(3)]


def test_that_it_backs_off_is_one_note_however_often() -> None:
    first = said("BackOff", "Back-off pulling image", 10, 10)
    assert said("BackOff", "Back-off pulling image", 500, 10) == first
    [note] = first
    assert (note.mark, note.fact("reason"), note.fact("message")) == (Mark.NOTED, "BackOff", "Back-off pulling image")
    made = assemble([mark(Mark.CREATED, 0), *first])
    assert (made.state, made.reached, made.unknown_seconds) == (LaunchState.STARTING, Phase.WAITING, None)


def test_a_note_is_short_and_can_be_shown() -> None:
    [note] = said("FailedScheduling", "0/3 nodes\x00 are\n available: " + "x" * 900, 5, reporter="default-scheduler")
    assert len(note.fact("message")) == 200 and note.fact("message").isprintable()
    assert (note.clock, note.fact("message")[:24]) == (Clock.SERVER, "0/3 nodes are available:")


def test_an_eviction_from_a_lost_node_ends_a_launch_and_one_that_is_called_off_does_not() -> None:
    [seen] = said("TaintManagerEviction", "Marking for deletion Pod default/chat-0", 60, reporter="taint-eviction")
    assert (seen.mark, seen.fact("reason"), seen.clock) == (Mark.ENDED, "TaintManagerEviction", Clock.SERVER)
    assert said("TaintManagerEviction", "Cancelling deletion of Pod default/chat-0", 60) == []


def test_a_pull_without_a_readable_duration_lies_between_its_events() -> None:
    seen = [
        mark(Mark.CREATED, 0),
        *said("Pulling", "", 3),
        *said("Pulled", "Successfully pulled", 9),
        mark(Mark.READY, 12),
    ]
    assert assemble(seen).seconds(Phase.IMAGE_PULL) == 6
