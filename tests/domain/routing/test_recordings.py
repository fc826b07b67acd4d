"""What is kept of requests comes back as it was, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.domain.keys import Audience, Boundary, boundaries
from routing.domain.recordings import (
    Kept,
    Recording,
    joined,
    line_of,
    overlap,
    read_message,
    shares_by_depth,
    universal,
)


def of(text: str, at: float = 100.0, **fields: Any) -> Kept:
    found = tuple(boundaries(b"a secret of 16 b", Audience("e", "v"), [text], 65536))
    return Kept(at, found, **{"own": 0, "outcome": "Primary", "instance": "pod-1", **fields})


def through_json(*kept: Kept, **more: Any) -> Recording:
    return read_message(json.loads(json.dumps({"requests": [line_of(one) for one in kept], "passed": 0, **more})))


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 4096, 65536, 70000])
def test_it_comes_back_as_it_was(length: int) -> None:
    kept = of("x" * length, 1712.125, own=7, prompt_tokens=10, cached_tokens=0, ttft=0.25, seconds=1.5)
    assert through_json(kept).requests == (kept,)
    assert kept.depth == min(length, 65536)


def test_what_nobody_said_stays_unknown() -> None:
    [back] = through_json(of("x", prompt_tokens=None)).requests
    assert (back.prompt_tokens, back.cached_tokens, back.output_tokens, back.ttft, back.seconds) == (None,) * 5


GOOD = line_of(of("x" * 2000))


@pytest.mark.parametrize(
    "line",
    [
        [], None, "text", {}, GOOD[:-1], [*GOOD, 1], [*GOOD[:2], GOOD[2][:-1], *GOOD[3:]],
        ["1", *GOOD[1:]], [True, *GOOD[1:]], [-1, *GOOD[1:]], [float("inf"), *GOOD[1:]], [float("nan"), *GOOD[1:]],
        [GOOD[0], 3000, *GOOD[2:]], [GOOD[0], 1024, *GOOD[2:]], [GOOD[0], -5, *GOOD[2:]], [GOOD[0], True, *GOOD[2:]],
        [*GOOD[:2], "zz" * 16, *GOOD[3:]], [*GOOD[:2], "a" * 16 * 65, *GOOD[3:]], [*GOOD[:3], "a", *GOOD[4:]],
        [*GOOD[:4], "x\n", *GOOD[5:]], [*GOOD[:4], "x" * 65, *GOOD[5:]], [*GOOD[:5], None, *GOOD[6:]],
        [*GOOD[:6], -1, *GOOD[7:]], [*GOOD[:6], 1.5, *GOOD[7:]], [*GOOD[:9], "1", GOOD[10]],
        [*GOOD[:9], -1.0, GOOD[10]],
    ],
)  # fmt: skip
def test_what_no_router_wrote_is_passed_over(line: Any) -> None:
    found = read_message({"requests": [line, GOOD], "passed": 3})
    assert len(found.requests) == 1 and found.passed == 3


@pytest.mark.parametrize("document", [{}, {"requests": {}}, {"requests": None, "passed": -1}, {"passed": True}])
def test_a_message_without_anything_says_nothing(document: dict[str, Any]) -> None:
    assert read_message(document) == Recording()


def test_several_routers_are_put_in_the_order_of_time() -> None:
    whole = joined([Recording((of("a", 3), of("b", 5)), 1), Recording((of("c", 4),), 2), Recording()])
    assert [one.at for one in whole.requests] == [3, 4, 5] and whole.passed == 3 and whole.seconds == 2
    assert joined([]).seconds == 0


SYSTEM = "s" * 3000


def test_a_beginning_of_everybody_is_found_to_its_depth() -> None:
    some = [of(SYSTEM + f"{number:<2000}") for number in range(20)]
    assert universal(some, 0.9) == 2048, "the third kilobyte holds what is one's own"
    assert shares_by_depth(some)[:3] == [(1024, 1.0), (2048, 1.0), (3072, 0.05)]
    assert universal([*some, *(of(f"{number:<4000}") for number in range(5))], 0.9) == 0
    assert universal([], 0.9) == 0 and shares_by_depth([of("short")]) == []


def test_the_end_of_a_short_text_is_no_beginning_of_others() -> None:
    assert shares_by_depth([of("x" * 1500), of("x" * 1024)]) == [(1024, 1.0)]


def test_overlap_is_what_was_sent_before() -> None:
    assert overlap([]) is None and overlap([of("")]) is None
    assert overlap([of("a" * 2048)]) == 0.0
    assert overlap([of("a" * 2048), of("a" * 2048)]) == 0.5
    assert overlap([of("a" * 2048), of("b" * 1024 + "a" * 1024)]) == 0.0, "what follows another beginning is another"
    assert overlap([of("a" * 1500), of("a" * 1500)]) == pytest.approx(1024 / 3000)


def test_a_boundary_of_another_depth_is_kept() -> None:
    kept = Kept(1.0, (Boundary(1024, 5), Boundary(1500, 2**64 - 1)), 0, "Random", "")
    assert through_json(kept).requests == (kept,)
