"""When a pin's gate opens, stays closed, or can no longer open."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.gating import Gate, GateState, GateType, Target, gate
from controlplane.clusters.documents import EntryState
from tests.domain.world import NOW

READY, COMING = Target("r", EntryState.READY), Target("c", EntryState.DOWNLOADING)
LOST = Target("l", EntryState.LOST)
REFUSED = Target("x", EntryState.ABSENT, refused=True)
DENIED = Target("d", EntryState.FAILED, reason="AccessDenied")
FLAKY = Target("f", EntryState.FAILED, reason="SourceUnavailable")
UNHEARD = Target("u", EntryState.READY, unknown=True)


def _gate(kind: GateType, value: int, *targets: Target, after: float = 0) -> Gate:
    return gate(kind, value, targets, started_at=NOW, now=NOW + timedelta(seconds=after))


@pytest.mark.parametrize(
    ("kind", "value", "targets", "state"),
    [
        (GateType.ALL, 0, [READY, READY], GateState.OPEN),
        (GateType.ALL, 0, [READY, COMING], GateState.CLOSED),
        (GateType.ALL, 0, [READY, UNHEARD], GateState.CLOSED),
        (GateType.ALL, 0, [READY, FLAKY], GateState.CLOSED),
        (GateType.ALL, 0, [READY, DENIED], GateState.FAILED),
        (GateType.ALL, 0, [READY, REFUSED], GateState.FAILED),
        (GateType.ALL, 0, [READY, LOST], GateState.OPEN),
        (GateType.ALL, 0, [LOST, LOST], GateState.FAILED),
        (GateType.ALL, 0, [], GateState.CLOSED),
        (GateType.COUNT, 1, [READY, DENIED, REFUSED], GateState.OPEN),
        (GateType.COUNT, 2, [READY, COMING, DENIED], GateState.CLOSED),
        (GateType.COUNT, 2, [READY, DENIED, REFUSED], GateState.FAILED),
        (GateType.COUNT, 4, [READY, COMING], GateState.FAILED),
        (GateType.PERCENT, 50, [READY, COMING, COMING], GateState.CLOSED),
        (GateType.PERCENT, 50, [READY, READY, COMING], GateState.OPEN),
        (GateType.PERCENT, 50, [READY, COMING, LOST, LOST], GateState.OPEN),
        (GateType.PERCENT, 67, [READY, REFUSED, REFUSED], GateState.FAILED),
    ],
)
def test_it_decides(kind: GateType, value: int, targets: list[Target], state: GateState) -> None:
    made = _gate(kind, value, *targets)
    assert made.state is state
    assert made.reason


def test_it_opens_after_its_time_whatever_happened_and_earlier_when_all_are_ready() -> None:
    assert _gate(GateType.TIMEOUT, 60, READY, DENIED, after=59).state is GateState.CLOSED
    late = _gate(GateType.TIMEOUT, 60, READY, DENIED, after=60)
    assert (late.state, late.ready, late.failed) == (GateState.OPEN, 1, 1)
    assert "1 of 2" in late.reason
    assert _gate(GateType.TIMEOUT, 60, READY, READY, after=1).state is GateState.OPEN


def test_an_open_gate_says_how_many_are_ready_and_how_many_had_to_be() -> None:
    assert _gate(GateType.COUNT, 2, READY, READY, READY, READY).reason == "4 nodes ready, 2 required"


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        ([READY, COMING], "1 of 2 ready"),
        ([READY, UNHEARD], "1 of 2 ready; not yet: u (not heard of)"),
        ([FLAKY, COMING, UNHEARD], "0 of 3 ready; not yet: f (SourceUnavailable), u (not heard of)"),
    ],
)
def test_while_it_is_closed_it_names_the_nodes_that_more_than_time_keeps_cold(
    targets: list[Target], reason: str
) -> None:
    assert _gate(GateType.ALL, 0, *targets).reason == reason
    late = _gate(GateType.TIMEOUT, 60, *targets).reason
    assert late.endswith(reason.partition("ready")[2]) and "at the latest" in late


def test_it_counts_the_unknown_apart_and_names_the_commonest_cause() -> None:
    made = _gate(GateType.ALL, 0, READY, UNHEARD, DENIED, Target("e", EntryState.FAILED, "AccessDenied"), REFUSED)
    assert (made.state, made.ready, made.required, made.failed, made.unknown) == (GateState.FAILED, 1, 5, 3, 1)
    assert "AccessDenied on d, e" in made.reason


targets = st.lists(st.sampled_from([READY, COMING, LOST, REFUSED, DENIED, FLAKY, UNHEARD]), min_size=1, max_size=12)


@given(targets, st.integers(1, 100), st.sampled_from([GateType.ALL, GateType.COUNT, GateType.PERCENT]))
def test_it_stays_open_when_more_becomes_ready(start: list[Target], value: int, kind: GateType) -> None:
    if _gate(kind, value, *start).state is GateState.OPEN:
        better = [READY if target.state is not EntryState.LOST else target for target in start]
        assert _gate(kind, value, *better).state is GateState.OPEN


@given(targets, st.integers(1, 100), st.sampled_from([GateType.ALL, GateType.COUNT, GateType.PERCENT]))
def test_it_fails_only_when_even_the_best_ending_would_not_open_it(
    start: list[Target], value: int, kind: GateType
) -> None:
    hopeful = {COMING, FLAKY, UNHEARD}
    best = [READY if target in hopeful else target for target in start]
    if _gate(kind, value, *start).state is GateState.FAILED:
        assert _gate(kind, value, *best).state is not GateState.OPEN
