"""Whatever an engine says of itself, what is made of it can be told, stored and read back: one odd engine must not keep
a router's other figures from being believed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from routing.domain.dialects import Dialect, EngineReading, read_metrics
from routing.domain.engine_figures import MOST, EngineFigures, Gauge
from routing.domain.figures import Figures

VLLM = "vllm:num_requests_running {}\nvllm:num_requests_waiting {}\nvllm:kv_cache_usage_perc {}\n"
ITERATION = (
    '[{{"numActiveRequests": {0}, "numQueuedRequests": {0}, "kvCacheStats": '
    '{{"usedNumBlocks": {0}, "maxNumBlocks": 7, "cacheHitRate": {0}}}}}]'
)


def told(*readings: EngineReading) -> Figures:
    """As it arrives at the control plane."""
    figures, before = Figures(requests=7), None
    for one in readings:
        figures.engine("pod-0").read(one, before)
        before = one
    sent = json.dumps(figures.to_json(), allow_nan=False)
    return Figures.from_json(json.loads(sent))


@pytest.mark.parametrize(
    "value", ["-1", "NaN", "+Inf", "-Inf", "1e300", "1e15", "0.5", "-0", "9007199254740993", "x", ""]
)
def test_an_odd_number_of_one_engine_costs_the_others_nothing(value: str) -> None:
    back = told(read_metrics(VLLM.format(value, value, value)), read_metrics(VLLM.format(1, 2, 0.5)))
    said = back.engines["pod-0"]
    assert back.requests == 7 and said.asked == 2 and said.waiting.count in (1, 2)
    assert said.usage.greatest is not None and 0 <= said.usage.greatest <= 1


@pytest.mark.parametrize("value", ["-1", "1e18", "1e300", "true", "null", '"7"', "[]", "NaN", "Infinity", "1" * 400])
def test_the_same_where_an_engine_speaks_json(value: str) -> None:
    back = told(read_metrics(ITERATION.format(value)))
    assert back.requests == 7 and back.engines["pod-0"].asked == 1


@pytest.mark.parametrize(
    "body", ["", "\n", "{", "[", "[]", "{}", "null", "[1]", "[[]]", "\x00", "# HELP\n", "vllm:", "[" * 100_000]
)
def test_a_page_of_nothing_is_the_page_of_an_unknown_engine(body: str) -> None:
    said = told(read_metrics(body)).engines["pod-0"]
    assert (said.kind, said.asked, said.running.mean, said.hit_rate) == ("", 1, None, None)


def reading(queried: int | None = None, hit: int | None = None, **fields: Any) -> EngineReading:
    return EngineReading(dialect=Dialect.VLLM, queried_tokens=queried, hit_tokens=hit, **fields)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(10, 5), (20, 10), (30, 15)], (20, 10)),
        ([(10, 5), (4, 1), (14, 6)], (10, 5)),  # begun anew: from then on it counts again
        ([(10, 5), (None, None), (30, 15)], (0, 0)),  # for a while it said nothing: what came meanwhile is not known
        ([(10, None), (20, 10)], (10, 10)),  # the first hit is what brings the counter
        ([(10, 5), (11, 9)], (0, 0)),  # more hits than questions: nothing follows from that
        ([(0, 0), (MOST, MOST)], (MOST, MOST)),
        ([(0, 0), (MOST, 1), (0, 0), (MOST, 1)], (MOST, 2)),
    ],
)
def test_counters_become_what_was_counted_meanwhile(readings: Any, expected: tuple[int, int]) -> None:
    figures = EngineFigures()
    before = None
    for queried, hit in readings:
        now = reading(queried, hit)
        figures.read(now, before)
        before = now
    total = EngineFigures()
    total.merge(EngineFigures.from_json(json.loads(json.dumps(figures.to_json()))))
    assert (total.queried, total.hit) == expected
    assert total.hit_rate is None or 0 <= total.hit_rate <= 1


def test_in_whatever_parts_it_is_told_the_sum_is_the_same() -> None:
    draws = random.Random(11)
    readings = [
        reading(
            running=draws.choice([None, 0, 3]), waiting=draws.randrange(9), kv_usage=draws.choice([None, 0.25, 1.0])
        )
        for _ in range(60)
    ]
    whole = told(*readings).engines["pod-0"]
    for size in (1, 7, 59):
        parts = EngineFigures()
        for start in range(0, len(readings), size):
            parts.merge(told(*readings[start : start + size]).engines["pod-0"])
        assert parts.to_json() == whole.to_json(), size


def test_the_newest_that_said_anything_names_it_and_says_whether_its_cache_is_on() -> None:
    old, new, silent = (EngineFigures() for _ in range(3))
    old.read(EngineReading(dialect=Dialect.LLAMA_CPP, stand_in=True, prefix_caching=True), None)
    new.read(reading(prefix_caching=False), None)
    silent.unheard()
    for one in (new, silent):
        old.merge(one)
    assert (old.kind, old.stand_in, old.caching, old.asked, old.silent) == ("vLLM", False, False, 3, 1)


def test_sums_stay_within_what_is_read_back() -> None:
    gauge = Gauge(MOST, float(MOST), float(MOST))
    gauge.merge(Gauge(MOST, float(MOST), 3.0))
    gauge.add(float(MOST))
    assert Gauge.from_json(json.loads(json.dumps(gauge.to_json()))) == gauge


@pytest.mark.parametrize("engines", [[], "x", {"": []}, {"x" * 5000: {"asked": -1}}, {"pod": {"queried": MOST + 1}}])
def test_engines_that_no_router_told_of_are_refused(engines: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Figures.from_json({"requests": 1, "engines": engines})
