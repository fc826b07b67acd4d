"""What became of requests that got no whole answer, out of what routers count."""

from __future__ import annotations

import re
from pathlib import Path

import routing.dataplane
from routing.domain.failing import REFUSALS, failed_of
from routing.domain.figures import Figures


def test_every_kind_is_told_and_the_lost_are_told_first() -> None:
    figures = Figures(requests=466, truncated=2, disconnected=7)
    figures.refusals.update({"routing:instances:none": 3, "routing:queue:full": 5, "routing:request:bad-tenant": 9})
    figures.answers.update({"2xx": 440, "4xx": 8, "5xx": 1})
    figures.failures.update(Connect=4, Answer=0)
    found = failed_of(figures)
    assert [(one.kind, one.count) for one in found if one.lost] == [
        ("routing:queue:full", 5), ("routing:instances:none", 3), ("truncated", 2), ("answers:5xx", 1),
    ]  # fmt: skip
    assert {one.kind: one.count for one in found if not one.lost} == {
        "routing:request:bad-tenant": 9, "answers:4xx": 8, "disconnected": 7, "attempts:Connect": 4,
    }  # fmt: skip
    assert [one.words for one in found][:2] == [
        "refused with 429: too many waited for an instance already", "refused with 503: no instance was ready",
    ]  # fmt: skip
    assert failed_of(Figures(requests=9)) == ()


def test_an_attempt_says_that_it_is_no_request() -> None:
    figures = Figures(requests=9, disconnected=1)
    figures.failures.update(Connect=4, Answer=2)
    found = failed_of(figures)
    assert [(one.kind, one.is_attempt, one.lost) for one in found] == [
        ("attempts:Connect", True, False), ("attempts:Answer", True, False), ("disconnected", False, False),
    ]  # fmt: skip
    assert all(one.words.startswith("attempts, not requests, that ") for one in found if one.is_attempt)


def test_the_status_of_every_refusal_is_the_one_that_routers_give() -> None:
    source = "".join(path.read_text() for path in Path(routing.dataplane.__path__[0]).glob("*.py"))
    given = {code: status for status, code in re.findall(r'(\d{3}), "(routing:[a-z]+:[a-z-]+)"', source)}
    assert len(given) > 10 and {code: words[:3] for code, words in REFUSALS.items()} == {
        code: given[code] for code in REFUSALS
    }
    assert {code for code in given if not code.startswith(("routing:request:", "routing:config:"))} <= REFUSALS.keys()
