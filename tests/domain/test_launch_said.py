"""What pods, kubelets and tenants write where launches are read from: anything, and nothing of it may break more."""

from __future__ import annotations

import json
import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.events import ensured, event_observations
from caches.domain.launches.labels import weights_label
from caches.domain.launches.observations import LONGEST_SECONDS, Observation, facts_of, order_of
from caches.domain.launches.pod_events import LONGEST_MESSAGE, pod_event_observations, pull_seconds
from caches.domain.launches.words import Cached, Clock, Mark, Observer
from tests.domain.launches import T0, after


def storable(seen: Observation) -> bool:
    """Whether a database takes every word of it."""
    text = "".join(name + value for name, value in seen.facts)
    return "\0" not in text and text == text.encode(errors="ignore").decode()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("a\0b", (("x", "ab"),)),
        ("\0", ()),
        ("\ud800", ()),
        ("half\udfff of one", (("x", "half of one"),)),
        ("模型🔥", (("x", "模型🔥"),)),
        (0, (("x", "0"),)),
        (False, (("x", "False"),)),
        ("", ()),
        (None, ()),
    ],
)
def test_facts_are_text_that_a_database_takes(value: object, kept: tuple[tuple[str, str], ...]) -> None:
    assert facts_of({"x": value}) == kept


@pytest.mark.parametrize(
    ("message", "seconds", "found"),
    [
        ('{"found": "hit\\u0000", "seconds": 1}', 1, Cached.HIT),
        ('{"found": "\\ud800", "seconds": 1}', 1, Cached.UNKNOWN),
        ('{"found": "HIT"}', None, Cached.UNKNOWN),
        ('{"found": true}', None, Cached.UNKNOWN),
        ('{"found": ["hit"]}', None, Cached.UNKNOWN),
        ('{"seconds": NaN}', None, Cached.UNKNOWN),
        ('{"seconds": Infinity}', None, Cached.UNKNOWN),
        ('{"seconds": -0.001}', None, Cached.UNKNOWN),
        ('{"seconds": 1e400}', None, Cached.UNKNOWN),
        ('{"seconds": true}', None, Cached.UNKNOWN),
        ('{"seconds": 0}', 0, Cached.UNKNOWN),
        (f'{{"seconds": {LONGEST_SECONDS}}}', LONGEST_SECONDS, Cached.UNKNOWN),
        (f'{{"seconds": {LONGEST_SECONDS + 1}}}', None, Cached.UNKNOWN),
        ("[" * 1000, None, Cached.UNKNOWN),
        ('{"found":' * 110, None, Cached.UNKNOWN),
        ("9" * 1000, None, Cached.UNKNOWN),
        ('{"found": "hit", "found": "miss"}', None, Cached.MISS),
    ],
)
def test_a_report_of_the_ensure_step_says_what_can_be_true(message: str, seconds: float | None, found: Cached) -> None:
    said = ensured(T0, message)
    assert storable(said) and (said.seconds, weights_label([said])) == (seconds, found)
    assert weights_label([ensured(T0, message, failed=True)]) is Cached.MISS, "a step that failed found nothing"


@given(
    st.text(max_size=40).flatmap(lambda text: st.sampled_from([text, json.dumps(text), json.dumps({"found": text})]))
)
def test_nothing_that_a_pod_writes_breaks_its_launch(message: str) -> None:
    for seen in (ensured(T0, message), *(one for _, one in event_observations("BackOff", T0, message, 3))):
        assert storable(seen) and len(dict(seen.facts).get("reason", "")) <= 200


@given(
    st.sampled_from(["Pulling", "Pulled", "Failed", "FailedScheduling", "TaintManagerEviction"]), st.text(max_size=40)
)
def test_nothing_that_an_event_says_breaks_its_launch(reason: str, message: str) -> None:
    seen = pod_event_observations(reason=reason, message=message, at=after(5), first_at=T0, container=message)
    assert all(storable(one) and len(one.fact("message")) <= LONGEST_MESSAGE for one in seen)


@pytest.mark.parametrize(
    ("message", "whole", "pull"),
    [
        ('Successfully pulled image "a" in 1.5s (4s including waiting). Image size: 9 bytes.', 4, 1.5),
        ('Successfully pulled image "a" in 1m0.25s', 60.25, 60.25),
        ('Successfully pulled image "a" in 81ms (81ms including waiting)', 0.081, 0.081),
        ('Successfully pulled image "a" in 250µs', 0.00025, 0.00025),
        ('Successfully pulled image "a" in 250μs', 0.00025, 0.00025),
        ('Successfully pulled image "a" in 12ns', 0.0, 0.0),
        ('Successfully pulled image "a" in 0s', 0, 0),
        # The name of an image is the tenant's.
        ('Successfully pulled image "x in 5s (9s including waiting)" in 2s', 2, 2),
        ('Successfully pulled image "x in 5s (9s including waiting)"', None, None),
        ('Successfully pulled image "a" in 900h', None, None),
        ('Successfully pulled image "a" in 2s (900h including waiting)', None, 2),
        ('Successfully pulled image "a" within 2s', None, None),
        ('Successfully pulled image "a" in -2s', None, None),
        ('Successfully pulled image "a" in 2 seconds', None, None),
        ("", None, None),
    ],
)
def test_durations_of_pulls_are_read_as_kubelets_write_them(
    message: str, whole: float | None, pull: float | None
) -> None:
    assert pull_seconds(message) == (whole, pull)


def test_an_event_that_was_repeated_is_noted_once_and_with_what_it_says_last() -> None:
    [one] = pod_event_observations(
        reason="FailedScheduling", message="0/3 nodes\n\tare  free", at=after(900), first_at=after(3), reporter="sched"
    )
    assert (one.mark, one.at, one.clock, one.fact("message")) == (
        Mark.NOTED, after(3), Clock.SERVER, "0/3 nodes are free",
    )  # fmt: skip
    both = pod_event_observations(reason="Pulling", message="", at=after(9), first_at=after(3), reporter="kubelet")
    assert [(seen.at, seen.clock) for seen in both] == [(after(3), Clock.NODE), (after(9), Clock.NODE)]


def test_an_eviction_that_was_called_off_ends_nothing() -> None:
    said = {"reason": "TaintManagerEviction", "at": after(60)}
    assert pod_event_observations(message="Cancelling deletion of Pod default/chat-0", **said) == []  # type: ignore[arg-type]  # as they are
    [one] = pod_event_observations(message="Marking for deletion Pod default/chat-0", **said)  # type: ignore[arg-type]  # as they are
    assert (one.mark, one.fact("reason")) == (Mark.ENDED, "TaintManagerEviction")


@pytest.mark.parametrize(
    "fields",
    [
        {"at": None},
        {"at": T0.replace(tzinfo=None)},
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"seconds": -1e-9},
        {"seconds": LONGEST_SECONDS * 1.0001},
    ],
)
def test_what_cannot_be_is_no_observation(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"says|has a"):
        Observation(Observer.CLUSTER, Mark.READY, **{"at": T0, **fields})  # type: ignore[arg-type]  # on purpose


def test_the_order_of_observations_is_that_of_their_durations_too() -> None:
    """Numbers that are written as text: 9 s come before 10 s, and neither is the other."""
    lengths = [0.0, 9.0, 10.0, 100.0, 99999.5, LONGEST_SECONDS]
    seen = [Observation(Observer.PUSHED, Mark.LOADED, T0, seconds) for seconds in lengths]
    assert sorted({*seen}, key=order_of) == seen
    assert len({order_of(one) for one in seen}) == len(seen)
    assert order_of(Observation(Observer.PUSHED, Mark.LOADED, T0 + timedelta(microseconds=1))) != order_of(
        Observation(Observer.PUSHED, Mark.LOADED, T0)
    )
