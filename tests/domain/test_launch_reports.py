"""Reports over REST, read strictly: every wrong field is named, and nothing wrong gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.reports import ReportError, report_of
from caches.domain.launches.words import Clock, Mark, Observer, Phase
from tests.domain.launches import T0, after

NAMES: dict[str, Any] = {"cluster": "local", "pod_uid": "u-1", "container": "engine", "restart_count": 2}
READY: dict[str, Any] = {**NAMES, "mark": "Ready", "at": "2030-03-31T00:30:05Z"}


def test_a_mark_is_a_moment() -> None:
    report = report_of({**READY, "observer": "Readiness", "facts": {"node": "n1", "empty": ""}}, T0)
    assert (report.cluster, report.pod_uid, report.container, report.restart_count) == ("local", "u-1", "engine", 2)
    seen = report.observation
    assert (seen.mark, seen.at, seen.observer, seen.clock) == (Mark.READY, after(5), Observer.READINESS, Clock.NODE)
    assert seen.facts == (("node", "n1"),)


def test_a_phase_alone_is_a_span_that_its_runtime_pushed() -> None:
    seen = report_of({**NAMES, "phase": "WeightsLoad", "seconds": 12}, T0).observation
    assert (seen.mark, seen.phase, seen.seconds, seen.at) == (Mark.SPAN, Phase.WEIGHTS_LOAD, 12, None)
    assert seen.observer is Observer.PUSHED


def test_a_time_with_another_offset_is_the_same_time() -> None:
    assert report_of({**READY, "at": "2030-03-31T02:30:05+02:00"}, T0).observation.at == after(5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cluster": ""}, "cluster"),
        ({"cluster": None}, "cluster"),
        ({"cluster": "x" * 64}, "cluster"),
        ({"pod_uid": 7}, "pod_uid"),
        ({"pod_uid": "a\x00b"}, "pod_uid"),
        ({"container": "two\nlines"}, "container"),
        ({"restart_count": -1}, "restart_count"),
        ({"restart_count": True}, "restart_count"),
        ({"restart_count": 1.5}, "restart_count"),
        ({"restart_count": 10**9}, "restart_count"),
        ({"mark": "Steady"}, "mark"),
        ({"mark": None}, "mark"),
        ({"mark": ["Ready"]}, "mark"),
        ({"observer": "Oracle"}, "observer"),
        ({"clock": "Sundial"}, "clock"),
        ({"phase": "Nap"}, "phase"),
        ({"phase": "WeightsLoad"}, "at"),  # a mark is of no phase
        ({"mark": "Span"}, "seconds"),
        ({"mark": None, "phase": "WeightsLoad"}, "seconds"),
        ({"at": "yesterday"}, "at"),
        ({"at": "2030-03-31T00:30:05"}, "at"),
        ({"at": 1900000000}, "at"),
        ({"at": "2029-01-01T00:00:00Z"}, "at"),
        ({"at": "2031-01-01T00:00:00Z"}, "at"),
        ({"at": "0001-01-01T00:00:00+23:59"}, "at"),
        ({"at": None}, "at"),
        ({"seconds": "12"}, "seconds"),
        ({"seconds": True}, "seconds"),
        ({"seconds": -1}, "at"),
        ({"seconds": 10**400}, "seconds"),
        ({"facts": ["a"]}, "facts"),
        ({"facts": {str(number): "x" for number in range(21)}}, "facts"),
        ({"facts": {"node": 7}}, "facts.node"),
        ({"facts": {"node": "a\x00"}}, "facts.node"),
        ({"facts": {"node": "x" * 400}}, "facts.node"),
        ({"prompt": "hello"}, "prompt"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ReportError) as refused:
        report_of({**READY, **change}, T0)
    assert refused.value.field == field
    assert refused.value.detail.endswith(".")


@pytest.mark.parametrize("item", [None, 7, "text", [], [READY]])
def test_what_is_no_object_is_refused(item: object) -> None:
    with pytest.raises(ReportError):
        report_of(item, T0)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*sorted(READY), "phase", "seconds", "clock", "facts", "observer"]), _VALUES))
def test_any_json_is_read_or_refused(change: dict[str, Any]) -> None:
    item = json.loads(json.dumps({**READY, **change}))
    try:
        report_of(item, T0)
    except ReportError as error:
        assert error.detail
