"""What engines say under /metrics: each dialect is read from a file as it is documented; the rest is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from routing.domain.dialects import Dialect, EngineReading, read_metrics
from routing.domain.expositions import Sample, read_samples

SAID = Path(__file__).parent / "engines_say"
READINGS = {
    "vllm": EngineReading(Dialect.VLLM, False, 7, 2, 0.5, 2_000_000, 1_000_000, None, True),
    "vllm_v0": EngineReading(Dialect.VLLM, False, 1, 0, 0.125, None, None, None, False),
    "sglang": EngineReading(Dialect.SGLANG, False, 8, 2, 0.28, 8_128_902, 4_001_000, 0.75),
    "tgi": EngineReading(Dialect.TGI, False, 4, 7),
    "lmi": EngineReading(Dialect.LMI),
    "lmi_vllm": EngineReading(Dialect.LMI, False, 2, 1),
    "tensorrt_llm": EngineReading(Dialect.TENSORRT_LLM, False, 5, 1, 0.4, 1000, 600, 0.6),
    "tensorrt_llm_triton": EngineReading(Dialect.TENSORRT_LLM, False, 6, 3, 0.25),
    "tensorrt_llm_iterations": EngineReading(Dialect.TENSORRT_LLM, False, 4, 2, 0.25, None, None, 0.5),
    "llama_cpp": EngineReading(Dialect.LLAMA_CPP, False, 2, 1, None, 2000, 1600),
    "llama_cpp_old": EngineReading(Dialect.LLAMA_CPP, False, 0, 0, 0.75),
}


@pytest.mark.parametrize("name", READINGS)
def test_each_dialect_is_read(name: str) -> None:
    assert read_metrics((SAID / f"{name}.txt").read_text()) == READINGS[name]


def test_every_dialect_has_a_file_and_every_file_is_read() -> None:
    assert {path.stem for path in SAID.iterdir()} == set(READINGS)
    assert {reading.dialect for reading in READINGS.values()} == set(Dialect)


@pytest.mark.parametrize("name", READINGS)
def test_a_text_that_was_cut_off_or_damaged_is_never_more_than_what_it_says(name: str) -> None:
    text = (SAID / f"{name}.txt").read_text()
    whole = READINGS[name]
    for end in range(0, len(text), 37):
        found = read_metrics(text[:end])
        assert found.dialect in (None, Dialect.VLLM, whole.dialect)
        assert (found.kv_usage or 0) <= 1 and (found.hit_tokens or 0) <= (found.queried_tokens or 0)
    assert read_metrics(text.replace("\n", "\r\n")) == whole


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n\n",
        "<html><body>404</body></html>",
        "python_gc_objects_collected_total 5",
        "[]",
        "{}",
        "[1]",
        "[null]",
        '{"detail": "Not Found"}',
        "[" * 100_000,
        '[{"kvCacheStats": null, "numActiveRequests": 1}',
        "\x00\ufffd" * 100,
        "vllm",
        "xvllm:num_requests_running 1",
    ],
)
def test_who_speaks_no_known_words_is_unknown(body: str) -> None:
    assert read_metrics(body) == EngineReading()


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ("vllm:num_requests_running NaN", "running", None),
        ("vllm:num_requests_running +Inf", "running", None),
        ("vllm:num_requests_running -1", "running", None),
        ("vllm:num_requests_running{a=\"b\"} 1\nvllm:num_requests_running{a=\"c\"} -1", "running", None),
        ("vllm:num_requests_running one", "running", None),
        ("vllm:num_requests_running 0", "running", 0),
        ("vllm:num_requests_running 2 1700000000000", "running", 2),
        ("vllm:num_requests_running{} 2", "running", 2),
        ('vllm:num_requests_running{model_name="a{b}\\"c\\\\,d"} 2', "running", 2),
        ("vllm:kv_cache_usage_perc 1.5", "kv_usage", None),
        ("vllm:kv_cache_usage_perc 62.5", "kv_usage", None),
        ("vllm:kv_cache_usage_perc 0.2\nvllm:gpu_cache_usage_perc 0.9", "kv_usage", 0.2),
        ("vllm:prefix_cache_hits_total 5", "hit_tokens", None),
        ("vllm:prefix_cache_queries_total 5", "queried_tokens", None),
        ("vllm:prefix_cache_queries_total 5\nvllm:prefix_cache_hits_total 6", "hit_tokens", None),
        ("vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0", "hit_tokens", 0),
        ("vllm:prefix_cache_queries 5\nvllm:prefix_cache_hits 4", "hit_tokens", 4),
        ("vllm:gpu_prefix_cache_queries_total 5\nvllm:gpu_prefix_cache_hits_total 4", "hit_tokens", 4),
        ('vllm:gpu_prefix_cache_hit_rate{m="a"} 0.5\nvllm:gpu_prefix_cache_hit_rate{m="b"} 0.7', "hit_rate", None),
        ('vllm:cache_config_info{enable_prefix_caching="None"} 1', "prefix_caching", None),
        ('vllm:cache_config_info{enable_prefix_caching="True"} 1\n'
         'vllm:cache_config_info{enable_prefix_caching="False"} 1', "prefix_caching", None),
        ('sglang:num_running_reqs{tp_rank="1"} 3', "running", None),
        ('sglang:num_running_reqs{dp_rank="0"} 3\nsglang:num_running_reqs{dp_rank="1"} 4', "running", 7),
        ("trtllm_num_active_requests 3", "running", 3),
        ("llamacpp:prompt_tokens_total 400", "queried_tokens", None),
        ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} 1\n'
         'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 0', "kv_usage", None),
        ('[{"kvCacheStats": {"usedNumBlocks": true, "maxNumBlocks": 4}, "numActiveRequests": "1"}]', "kv_usage", None),
        ('[{"kvCacheStats": {"usedNumBlocks": 1, "maxNumBlocks": 0}, "numActiveRequests": 1}]', "running", 1),
        ("hearth_standin_info 1\nvllm:num_requests_running 1", "stand_in", True),
        ("tgi_queue_size 1", "kv_usage", None),
        ("vllm:num_requests_running " + "9" * 400, "running", None),
    ],
)  # fmt: skip
def test_what_cannot_be_is_unknown_and_what_is_there_counts(said: str, field: str, value: object) -> None:
    assert getattr(read_metrics(said + "\n"), field) == value


def test_a_stand_in_is_known_as_one() -> None:
    assert read_metrics("hearth_standin_info 1\nvllm:num_requests_running 3\n") == EngineReading(Dialect.VLLM, True, 3)


def test_samples_of_odd_lines() -> None:
    text = 'a 1\nb{x="1",} 2\nc{x="1" y} 3\nd {x = "q\\nr"} 4 # {t="9"} 1\n  e 5\n1f 6\n# g 7\nh{x="1"}7\ni  8 9\nj 10'
    assert list(read_samples(text)) == [
        Sample("a", 1.0),
        Sample("b", 2.0, {"x": "1"}),
        Sample("d", 4.0, {"x": "q\nr"}),
        Sample("e", 5.0),
        Sample("i", 8.0),
    ]


def test_a_huge_line_costs_nothing() -> None:
    long = 'a{x="' + '\\"' * 500_000 + "\n"
    assert [one.name for one in read_samples(long + "b 1\n")] == ["b"]
