"""What engines say is added up, over time and over routers, and unknown stays unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.domain.dialects import Dialect, EngineReading
from routing.domain.engine_figures import EngineFigures, Gauge
from routing.domain.figures import Figures

VLLM = EngineReading(dialect=Dialect.VLLM, running=2, waiting=4, kv_usage=0.5, queried_tokens=100, hit_tokens=20)


def test_readings_become_means_and_the_most() -> None:
    said = EngineFigures()
    said.read(VLLM, None)
    said.read(EngineReading(dialect=Dialect.VLLM, running=0, waiting=0, kv_usage=0.25), VLLM)
    assert (said.asked, said.busy, said.utilisation) == (2, 1, 0.5)
    assert (said.waiting.mean, said.waiting.greatest, said.usage.mean) == (2, 4, 0.375)
    said.unheard()
    assert (said.asked, said.silent, said.utilisation, said.kind) == (3, 1, 0.5, "vLLM")


@pytest.mark.parametrize(
    ("before", "after", "hit_rate"),
    [
        ((100, 20), (300, 120), 0.5),
        ((100, 20), (100, 20), None),
        ((100, 20), (50, 10), None),  # it began anew
        ((None, None), (300, 120), None),
        ((100, 20), (None, None), None),
    ],
)
def test_counters_of_an_engine_count_from_one_reading_to_the_next(before: Any, after: Any, hit_rate: Any) -> None:
    said = EngineFigures()
    first, second = (EngineReading(queried_tokens=queried, hit_tokens=hit) for queried, hit in (before, after))
    said.read(first, None)
    assert said.hit_rate is None, "what it had counted before anybody asked is of another time"
    said.read(second, first)
    assert said.hit_rate == hit_rate


def test_what_is_not_said_is_unknown() -> None:
    said = EngineFigures()
    said.read(EngineReading(), None)
    assert (said.utilisation, said.waiting.mean, said.usage.greatest, said.kind, said.caching) == (
        None, None, None, "", None,
    )  # fmt: skip


def test_it_is_the_same_after_json_and_sums_of_sums_are_sums() -> None:
    one, other = Figures(), Figures()
    one.engine("pod-1").read(VLLM, None)
    other.engine("pod-1").read(EngineReading(dialect=Dialect.LLAMA_CPP, stand_in=True, running=0), None)
    other.engine("pod-2").unheard()
    back = Figures.from_json(json.loads(json.dumps(one.to_json())))
    back.merge(Figures.from_json(other.to_json()))
    said = back.engines["pod-1"]
    assert (said.kind, said.stand_in, said.asked, said.running.mean, said.waiting.mean) == ("llama.cpp", True, 2, 1, 4)
    assert back.engines["pod-2"].silent == 1 and back.engines["pod-2"].kind == ""
    assert Figures.from_json(back.to_json()).to_json() == back.to_json()


def test_who_was_only_silent_does_not_take_the_name_away() -> None:
    said, silent = EngineFigures(), EngineFigures()
    said.read(VLLM, None)
    silent.unheard()
    said.merge(silent)
    assert said.kind == "vLLM"


@pytest.mark.parametrize(
    "stored",
    [
        [], "x", {"kind": 7}, {"kind": "x" * 41}, {"kind": "a\nb"}, {"asked": -1}, {"asked": True}, {"asked": 1.5},
        {"waiting": [1, 2]}, {"waiting": "x"}, {"waiting": [1, -1, 0]}, {"waiting": [1, float("inf"), 0]},
        {"waiting": [1.5, 1, 1]}, {"usage": [1, True, 1]}, {"usage": {}},
    ],
)  # fmt: skip
def test_it_refuses_what_it_never_wrote(stored: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        EngineFigures.from_json(stored)
    with pytest.raises((ValueError, TypeError)):
        Figures.from_json({"engines": {"pod-1": stored}})


def test_a_gauge_of_nothing_is_unknown_and_not_zero() -> None:
    gauge = Gauge()
    gauge.add(None)
    assert (gauge.mean, gauge.greatest) == (None, None)
    gauge.add(0)
    assert (gauge.mean, gauge.greatest) == (0, 0)
