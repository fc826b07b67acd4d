"""Start-up logs of every runtime, as its documents and users show them; what is not known stays unknown."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.log_lines import MOST_BYTES, lines_of
from caches.domain.launches.logs import log_observations, runtime_of
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Clock, Mark, Observer, Phase

LOGS = Path(__file__).parent / "logs"
ALL = sorted(path.stem for path in LOGS.glob("*.log"))


def read(name: str) -> bytes:
    return (LOGS / f"{name}.log").read_bytes()


def phases(name: str, started: str | None = None) -> tuple[float | None, float | None]:
    """Initialisation and load of a launch whose container started at ``started``."""
    seen = log_observations(read(name))
    if started is not None:
        at = datetime.fromisoformat(started).replace(tzinfo=UTC)
        seen.append(Observation(Observer.CLUSTER, Mark.STARTED, at, clock=Clock.NODE))
    timeline = assemble(seen)
    return timeline.seconds(Phase.INITIALISATION), timeline.seconds(Phase.WEIGHTS_LOAD)


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("vllm-v0", "vLLM"),
        ("vllm-v1", "vLLM"),
        ("sglang", "SGLang"),
        ("sglang-draft", "SGLang"),
        ("tgi", "TGI"),
        ("tgi-json", "TGI"),
        ("lmi", "LMI"),
        ("tensorrt-llm", "TensorRT-LLM"),
        ("triton-trtllm", "TensorRT-LLM"),
        ("llama-cpp", "llama.cpp"),
        ("llama-cpp-2025", "llama.cpp"),
        ("llama-cpp-draft", "llama.cpp"),
        ("llama-cpp-wheel", "llama.cpp"),
        ("unknown", None),
    ],
)
def test_it_knows_each_runtime(name: str, runtime: str | None) -> None:
    table = runtime_of(list(lines_of(read(name))))
    assert (table.name if table is not None else None) == runtime


@pytest.mark.parametrize(
    ("name", "started", "initialisation", "load"),
    [
        # Only the runtime's own stamps, without a zone: what lies between two of them, and nothing else.
        ("vllm-v0", None, None, 44),
        ("vllm-v0", "2026-02-07T19:23:20", None, 44),
        ("lmi", None, None, 30),
        ("sglang", "2026-03-12T08:51:30", None, 20),
        ("tensorrt-llm", None, None, 49.14),
        # Counted from the start of the process: both.
        ("llama-cpp", None, 0.198 + (5.583 - 4.071), 4.071 - 0.198),
        # Moments of the calendar, with the container's start: both.
        ("vllm-v1", "2026-06-02T00:50:30", 112.75 - 32, 32),
        ("vllm-v1", None, None, 32),
        ("sglang-draft", "2026-08-28T20:59:50", 160 - 70, 70),
        ("tgi", "2026-05-07T12:38:58", 26 - 12, 12),
        ("tgi-json", "2026-03-09T05:07:40", 40.5 - 24.5, 24.5),
        ("triton-trtllm", "2026-02-03T09:59:58", 62.5 - 40, 40),
        ("llama-cpp-2025", "2026-01-05T10:00:00", 12.25 - 9, 9),
        # A count that one line ties to the calendar: not from the process's start, but from a moment that is said.
        ("llama-cpp-wheel", "2026-11-30T10:00:01", 0.5 + 2.7 - 2.5, 2.5),
        ("llama-cpp-wheel", None, None, 2.5),
        # Where the load ends cannot be told.
        ("llama-cpp-draft", "2026-01-05T10:00:00", None, None),
        ("unknown", "2026-01-05T10:00:00", None, None),
    ],
)
def test_it_measures_what_the_log_says(
    name: str, started: str | None, initialisation: float | None, load: float | None
) -> None:
    found = phases(name, started)
    assert found[0] == (pytest.approx(initialisation) if initialisation is not None else None)
    assert found[1] == (pytest.approx(load) if load is not None else None)


@pytest.mark.parametrize("name", [name for name in ALL if name != "unknown"])
def test_every_observation_names_the_runtime_and_the_node_s_clock(name: str) -> None:
    seen = log_observations(read(name))
    assert seen
    assert {(one.observer, one.clock) for one in seen} == {(Observer.RUNTIME_LOG, Clock.NODE)}
    assert all(one.fact("runtime") for one in seen)


def test_nothing_is_read_after_the_runtime_serves() -> None:
    """What follows may hold prompts, and a prompt may say anything."""
    prompt = b"INFO 02-07 20:00:00 logger.py:39] prompt: 'Loading weights took 900 seconds'\n"
    for name in ("vllm-v0", "vllm-v1", "sglang"):
        assert log_observations(read(name) + prompt * 3) == log_observations(read(name))
        assert all((one.seconds or 0) < 900 for one in log_observations(read(name)))


@pytest.mark.parametrize("name", ALL)
def test_a_log_that_ends_early_says_less_and_nothing_else(name: str) -> None:
    whole, lines = log_observations(read(name)), read(name).splitlines(keepends=True)
    true = {one.phase: one.seconds for one in assemble(whole).phases}
    for count in range(len(lines)):
        for one in assemble(log_observations(b"".join(lines[:count]))).phases:
            assert one.seconds is None or one.phase is Phase.WEIGHTS_LOAD or one.seconds == true[one.phase]


@pytest.mark.parametrize("name", ALL)
def test_windows_line_ends_and_broken_bytes_change_nothing(name: str) -> None:
    noisy = read(name).replace(b"\n", b"\r\n")
    assert log_observations(b"\xff\xfe\x00 start\r\n" + noisy) == log_observations(read(name))


def test_a_load_over_new_year_without_a_year_is_not_negative() -> None:
    log = read("vllm-v0").replace(b"02-07 19:23", b"12-31 23:59").replace(b"02-07 19:24", b"01-01 00:00")
    assert assemble(log_observations(log)).seconds(Phase.WEIGHTS_LOAD) is None


def test_a_count_at_the_end_of_the_calendar_is_tied_to_nothing() -> None:
    log = read("llama-cpp-wheel").replace(b"2026-11-30", b"9999-12-31").replace(b"T10:00:01", b"T23:59:59")
    assert assemble(log_observations(log)).seconds(Phase.WEIGHTS_LOAD) == pytest.approx(2.5)


def test_it_reads_no_more_than_it_may_and_no_line_takes_long() -> None:
    begun = time.perf_counter()
    bars = b"Loading weights: " + "█".encode() * 400_000 + b"\r"
    assert log_observations(bars + read("vllm-v1")) == []  # past the bound
    assert log_observations(b"[2026-" * 300_000) == []
    assert log_observations(b"1" * MOST_BYTES) == []
    assert log_observations((b"Loading weights took " * 40 + b"\n") * 1_000) == []
    assert time.perf_counter() - begun < 20


@given(st.binary(max_size=400))
def test_any_bytes_are_read(noise: bytes) -> None:
    log_observations(noise)
    log_observations(noise.join((b"vllm\nLoading weights took ", b"9" * 30, b" seconds\n[2026-13-45 99:99:99]")))
