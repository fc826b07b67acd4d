"""The stand-in's /metrics, under vLLM's names, and one more that says that it is none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from routing.engines.keeping_time import TTFT_BUCKETS, KeepingTime


def exposition(engine: KeepingTime, model: str) -> str:
    return "\n".join(_lines(engine, model.replace("\\", "\\\\").replace('"', '\\"'))) + "\n"


def _lines(engine: KeepingTime, model: str) -> Iterator[str]:
    counted, shape, label = engine.counted, engine.shape, f'model_name="{model}"'
    yield "# TYPE hearth_standin_info gauge"
    yield f'hearth_standin_info{{compress="{engine.clock.compress:g}"}} 1'
    yield "# TYPE vllm:cache_config_info gauge"
    config = f'block_size="{shape.block_tokens}",enable_prefix_caching="True",num_gpu_blocks="{shape.cache_blocks}"'
    yield f"vllm:cache_config_info{{{config}}} 1"
    for name, value in (
        ("num_requests_running", engine.running),
        ("num_requests_waiting", engine.waiting),
        ("kv_cache_usage_perc", engine.usage),
    ):
        yield f"# TYPE vllm:{name} gauge"
        yield f"vllm:{name}{{{label}}} {value:g}"
    for name, count in (
        ("prefix_cache_queries", counted.queries),
        ("prefix_cache_hits", counted.hits),
        ("prompt_tokens", counted.prompt_tokens),
        ("generation_tokens", counted.generation_tokens),
    ):
        yield f"# TYPE vllm:{name} counter"
        yield f"vllm:{name}_total{{{label}}} {count}"
    yield "# TYPE vllm:request_success counter"
    yield f'vllm:request_success_total{{finished_reason="length",{label}}} {counted.finished}'
    yield f'vllm:request_success_total{{finished_reason="abort",{label}}} {counted.aborted}'
    yield "# TYPE vllm:time_to_first_token_seconds histogram"
    bounds = [*(f"{limit:g}" for limit in TTFT_BUCKETS), "+Inf"]
    for bound, count in zip(bounds, accumulate(counted.ttft), strict=True):
        yield f'vllm:time_to_first_token_seconds_bucket{{le="{bound}",{label}}} {count}'
    yield f"vllm:time_to_first_token_seconds_sum{{{label}}} {counted.ttft_sum:g}"
    yield f"vllm:time_to_first_token_seconds_count{{{label}}} {sum(counted.ttft)}"
