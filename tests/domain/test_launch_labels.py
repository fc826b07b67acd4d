"""What launches are called, case by case."""

from __future__ import annotations

import pytest

from caches.domain.launches.labels import (
    NEW_NODE_SECONDS,
    Circumstances,
    classify,
    image_label,
    miss_reason,
    unmeasured,
    was_unprepared,
    weights_label,
)
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Cached, EventClass, LaunchState, Mark, MissReason
from tests.domain.launches import mark

OLD = NEW_NODE_SECONDS * 10


@pytest.mark.parametrize(
    ("circumstances", "expected"),
    [
        # A container that starts again in its pod, whatever else is true of the pod.
        (Circumstances(restart_count=1, node_age_seconds=OLD), EventClass.WARM_RESTART),
        (Circumstances(restart_count=7), EventClass.WARM_RESTART),
        (Circumstances(restart_count=1, new_version=True, lost_predecessor=True), EventClass.WARM_RESTART),
        # A pod whose predecessor's node is gone, also where it landed on a new machine.
        (Circumstances(lost_predecessor=True, node_age_seconds=OLD), EventClass.NODE_LOSS),
        (Circumstances(lost_predecessor=True, node_age_seconds=5), EventClass.NODE_LOSS),
        (Circumstances(lost_predecessor=True, new_version=True), EventClass.NODE_LOSS),
        # The first instances of a version, wherever they land.
        (Circumstances(new_version=True, node_age_seconds=OLD), EventClass.NEW_VERSION),
        (Circumstances(new_version=True, node_age_seconds=5), EventClass.NEW_VERSION),
        (Circumstances(new_version=True), EventClass.NEW_VERSION),
        # Scaling out onto a machine that came for it.
        (Circumstances(node_age_seconds=0), EventClass.NEW_NODE),
        (Circumstances(node_age_seconds=NEW_NODE_SECONDS - 1), EventClass.NEW_NODE),
        (Circumstances(node_age_seconds=5, first_of_version_on_node=True), EventClass.NEW_NODE),
        # Scaling out onto a machine that has been there, with or without the version.
        (Circumstances(node_age_seconds=NEW_NODE_SECONDS), EventClass.COLD_POD),
        (Circumstances(node_age_seconds=OLD, new_version=False, lost_predecessor=False), EventClass.COLD_POD),
        (Circumstances(node_age_seconds=OLD, first_of_version_on_node=True), EventClass.COLD_POD),
        # Not known is not guessed.
        (Circumstances(), EventClass.UNKNOWN),
        (Circumstances(new_version=False, lost_predecessor=False), EventClass.UNKNOWN),
    ],
)
def test_it_says_which_event_brought_the_launch_about(circumstances: Circumstances, expected: EventClass) -> None:
    assert classify(circumstances) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], Cached.UNKNOWN),
        (["hit"], Cached.HIT),
        (["miss"], Cached.MISS),
        (["partial"], Cached.PARTIAL),
        (["local"], Cached.MISS),
        (["a word of a later version"], Cached.UNKNOWN),
        ([""], Cached.UNKNOWN),
        (["hit", "miss"], Cached.MISS),  # the ensure step ran again after a miss, and hit what it had fetched
        (["partial", "hit"], Cached.PARTIAL),
        (["", "hit"], Cached.HIT),  # the first run failed and said nothing
    ],
)
def test_weights_are_what_the_ensure_step_found(found: list[str], expected: Cached) -> None:
    seen = [mark(Mark.ENSURE_ENDED, number, found=word) for number, word in enumerate(found)]
    assert weights_label(seen) is expected
    assert weights_label(reversed(seen)) is expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], Cached.UNKNOWN),
        ([mark(Mark.STARTED, 1)], Cached.UNKNOWN),
        ([mark(Mark.IMAGE_PRESENT, 1)], Cached.HIT),
        ([mark(Mark.PULLED, 1, seconds=4)], Cached.MISS),
        ([mark(Mark.PULLING, 1)], Cached.MISS),
        ([mark(Mark.PULLING, 1), mark(Mark.IMAGE_PRESENT, 2)], Cached.MISS),
        ([mark(Mark.PULLED, 1, container="ensure"), mark(Mark.IMAGE_PRESENT, 2, container="engine")], Cached.HIT),
        ([mark(Mark.IMAGE_PRESENT, 1, container="ensure"), mark(Mark.PULLED, 2, container="engine")], Cached.MISS),
        ([mark(Mark.IMAGE_PRESENT, 1, container="ensure")], Cached.UNKNOWN),
    ],
)
def test_the_image_is_that_of_the_served_container(seen: list[Observation], expected: Cached) -> None:
    assert image_label(seen, "engine") is expected


@pytest.mark.parametrize(
    ("weights", "image", "expected"),
    [
        (Cached.HIT, Cached.HIT, False),
        (Cached.HIT, Cached.UNKNOWN, False),
        (Cached.HIT, Cached.MISS, True),
        (Cached.PARTIAL, Cached.HIT, True),
        (Cached.MISS, Cached.UNKNOWN, True),
        (Cached.UNKNOWN, Cached.UNKNOWN, None),
    ],
)
def test_a_node_was_prepared_when_nothing_was_missing(weights: Cached, image: Cached, expected: bool | None) -> None:
    assert was_unprepared(weights, image) is expected


@pytest.mark.parametrize(
    ("found", "circumstances", "expected"),
    [
        ([], Circumstances(node_age_seconds=5), None),
        (["hit"], Circumstances(node_age_seconds=5, first_of_version_on_node=True), None),
        (["miss"], Circumstances(node_age_seconds=5, first_of_version_on_node=True), MissReason.NEW_NODE),
        (["partial"], Circumstances(node_age_seconds=5), MissReason.NEW_NODE),
        (["partial"], Circumstances(node_age_seconds=OLD), MissReason.INCOMPLETE),
        (["partial", "hit"], Circumstances(), MissReason.INCOMPLETE),
        (["miss"], Circumstances(node_age_seconds=OLD, first_of_version_on_node=True), MissReason.FIRST),
        (["miss"], Circumstances(node_age_seconds=OLD, first_of_version_on_node=False), MissReason.GONE),
        (["miss"], Circumstances(node_age_seconds=NEW_NODE_SECONDS), MissReason.UNKNOWN),
        (["miss"], Circumstances(), MissReason.UNKNOWN),
        # What the step itself says is believed before what is around it.
        (["local"], Circumstances(node_age_seconds=5), MissReason.UNUSABLE),
        (["failed", "hit"], Circumstances(node_age_seconds=5), MissReason.FAILED),
        (["waiting", "failed"], Circumstances(node_age_seconds=OLD), MissReason.FAILED),
        # Who only asked failed to fetch nothing.
        (["waiting", "hit"], Circumstances(node_age_seconds=OLD, first_of_version_on_node=True), MissReason.FIRST),
        (["waiting", "local"], Circumstances(node_age_seconds=OLD), MissReason.UNUSABLE),
    ],
)
def test_it_says_why_a_launch_missed(
    found: list[str], circumstances: Circumstances, expected: MissReason | None
) -> None:
    seen = [mark(Mark.ENSURE_ENDED, number, found=word) for number, word in enumerate(found)]
    assert miss_reason(seen, weights_label(seen), circumstances) is expected


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([mark(Mark.CREATED, 0), mark(Mark.READY, 9)], ""),
        ([mark(Mark.CREATED, 0), mark(Mark.STARTED, 1)], ""),
        ([mark(Mark.STARTED, 0), mark(Mark.ENDED, 9)], ""),
        ([mark(Mark.STARTED, 1), mark(Mark.READY, 9)], "Its request was not seen"),
        ([mark(Mark.ENSURE_STARTED, 1), mark(Mark.READY, 9), mark(Mark.FIRST_SUCCESS, 12)], "Its request was not seen"),
        ([mark(Mark.CREATED, 0), mark(Mark.FIRST_SUCCESS, 9)], "Nobody saw it become ready"),
    ],
)
def test_it_says_why_nobody_knows_how_long_it_took(seen: list[Observation], said: str) -> None:
    made = assemble(seen)
    why = unmeasured(made.state, made.started_at, made.ready_at)
    assert why.startswith(said) and bool(why) == bool(said)
    assert bool(why) == (made.state is LaunchState.READY and made.ready_seconds is None)
