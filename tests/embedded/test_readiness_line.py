"""The word ready: said once, when /readyz and this start's first observations allow it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.embedded.readiness import Readiness, readiness_of

SINCE = datetime(2026, 9, 1, 12, tzinfo=UTC)
SOON, YESTERDAY = (SINCE + timedelta(seconds=3)).isoformat(), (SINCE - timedelta(days=1)).isoformat()
FRESH = {"clusters": 1, "contacted_at": SOON, "nodes": 3, "reporting": 3, "unheard": 0}
READY = "Everything runs: ready after 9 s."


def answer(*, ready: bool = True, causes: tuple[str, ...] = (), **news: Any) -> dict[str, Any]:
    return {"ready": ready, "causes": list(causes), "news": FRESH | news}


def said(*answers: dict[str, Any], at: float = 9) -> list[str]:
    """What is said when these are the answers, one a second until second ``at``."""
    left = list(answers)
    readiness = Readiness(lambda: left.pop(0), began=100.0, since=SINCE)
    first = 100 + at - len(answers) + 1
    return [line for n in range(len(answers)) for line in readiness.check(first + n)]


@pytest.mark.parametrize(
    "before",
    [
        {},
        answer(ready=False, causes=("local was last seen 90 seconds ago.",)),
        answer(contacted_at=YESTERDAY),
        answer(contacted_at=None),
        answer(reporting=2),
    ],
    ids=["nobody answers", "not ready", "seen by the start before", "never seen", "a node is silent"],
)
def test_it_waits_until_everything_is_there(before: dict[str, Any]) -> None:
    assert said(before) == []
    assert said(before, answer()) == [READY]


def test_it_needs_no_cluster_where_there_is_none() -> None:
    assert said(answer(clusters=0, contacted_at=None, nodes=0, reporting=0)) == [READY]


def test_it_says_it_once() -> None:
    left = [answer()]
    readiness = Readiness(left.pop, began=100.0, since=SINCE)
    assert readiness.check(109) == [READY]
    assert (readiness.check(110), left) == ([], []), "nobody is asked any more"


def test_it_does_not_wait_for_a_node_that_somebody_stopped() -> None:
    readiness = Readiness(lambda: answer(reporting=2), began=100.0, since=SINCE)
    assert [readiness.check(second) for second in (101, 120.9)] == [[], []]
    assert readiness.check(121.1) == ["Everything runs but 1 of 3 nodes, which does not report: ready after 21 s."]


def test_it_waits_for_nodes_that_were_never_heard_of() -> None:
    """Their agents' pods are still being made: nothing runs on them yet, however long that takes."""
    news: dict[str, Any] = {"reporting": 0, "unheard": 3}
    readiness = Readiness(lambda: answer(**news), began=100.0, since=SINCE)
    late = "Not everything works yet, and it goes on trying: 0 of 3 nodes report."
    assert [readiness.check(second) for second in (101, 130, 161, 500)] == [[], [], [late], []]
    news |= {"reporting": 3, "unheard": 0}
    assert readiness.check(522) == ["Everything runs: ready after 422 s."]


def test_it_says_once_what_is_missing_and_goes_on() -> None:
    down = answer(ready=False, causes=("Valkey does not answer: ConnectionError.",))
    lines = said(*[down] * 3, answer(), at=63)
    assert lines == [
        "Not everything works yet, and it goes on trying: Valkey does not answer: ConnectionError.",
        "Everything runs: ready after 63 s.",
    ]


def test_it_is_not_ready_where_nobody_listens() -> None:
    assert readiness_of("http://127.0.0.1:9/", 0.0).check(1.0) == []
