"""What engines say of themselves under /metrics, each in its own words, as one reading.

What an engine does not say is unknown, never 0. Names are the documented ones; of several the first that is there
counts, so that older versions are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from routing.domain.expositions import Sample, read_samples

MOST = 2**53  # what nobody counts to; also what rows can hold
STAND_IN = "hearth_standin_info"


class Dialect(StrEnum):
    VLLM = "vLLM"
    SGLANG = "SGLang"
    TGI = "TGI"
    LMI = "LMI"
    TENSORRT_LLM = "TensorRT-LLM"
    LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True, slots=True)
class EngineReading:
    """``running`` and ``waiting`` requests now; ``kv_usage`` 0 to 1, of the fullest where one address has several
    engines. ``hit_tokens`` of ``queried_tokens`` prompt tokens came from the prefix cache since the engine's start.
    ``hit_rate`` 0 to 1 is the engine's own word over a time that it does not say. None is unknown."""

    dialect: Dialect | None = None
    stand_in: bool = False
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    queried_tokens: int | None = None
    hit_tokens: int | None = None
    hit_rate: float | None = None
    prefix_caching: bool | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """All samples of a name with these labels."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def values(self, samples: Mapping[str, Sequence[Sample]]) -> list[float]:
        wanted = set(self.labels)
        return [one.value for one in samples.get(self.name, ()) if wanted <= set(one.labels.items())]


@dataclass(frozen=True, slots=True)
class Words:
    """One dialect: any name that begins with ``mark`` is its own. ``queried`` that leave ``hit`` tokens out say so.
    Of samples with a rank in ``one_rank`` only rank 0 counts: the ranks of one engine say the same thing."""

    dialect: Dialect
    mark: str
    running: tuple[Series, ...] = ()
    waiting: tuple[Series, ...] = ()
    kv_usage: tuple[Series, ...] = ()
    queried: tuple[Series, ...] = ()
    hit: tuple[Series, ...] = ()
    hit_rate: tuple[Series, ...] = ()
    queried_without_hits: bool = False
    one_rank: tuple[str, ...] = ()


def _named(*names: str) -> tuple[Series, ...]:
    return tuple(Series(name) for name in names)


def _counter(*names: str) -> tuple[Series, ...]:
    """With the suffix that counters have had since OpenMetrics, and without."""
    return _named(*(f"{name}{suffix}" for name in names for suffix in ("_total", "")))


def _triton(family: str, label: str, value: str) -> tuple[Series, ...]:
    return (Series(f"nv_trt_llm_{family}", ((label, value),)),)


WORDS = (
    Words(
        Dialect.VLLM,
        "vllm:",
        running=_named("vllm:num_requests_running"),
        waiting=_named("vllm:num_requests_waiting"),
        kv_usage=_named("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        queried=_counter("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        hit=_counter("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        hit_rate=_named("vllm:gpu_prefix_cache_hit_rate"),
    ),
    Words(
        Dialect.SGLANG,
        "sglang:",
        running=_named("sglang:num_running_reqs"),
        waiting=_named("sglang:num_queue_reqs"),
        kv_usage=_named("sglang:token_usage"),
        queried=_counter("sglang:prompt_tokens"),
        hit=_counter("sglang:cached_tokens"),
        hit_rate=_named("sglang:cache_hit_rate"),
        one_rank=("tp_rank", "pp_rank"),
    ),
    Words(
        Dialect.TGI,
        "tgi_",
        running=_named("tgi_batch_current_size"),
        waiting=_named("tgi_queue_size"),
    ),
    Words(
        Dialect.TENSORRT_LLM,
        "trtllm_",
        running=_named("trtllm_num_requests_running", "trtllm_num_active_requests"),
        waiting=_named("trtllm_num_requests_waiting", "trtllm_num_queued_requests"),
        kv_usage=_named("trtllm_kv_cache_utilization"),
        queried=_counter("trtllm_prompt_tokens"),
        hit=_counter("trtllm_prompt_cached_tokens"),
        hit_rate=_named("trtllm_kv_cache_hit_rate"),
    ),
    Words(
        Dialect.TENSORRT_LLM,
        "nv_trt_llm_",
        running=_triton("request_metrics", "request_type", "scheduled"),
        waiting=_triton("request_metrics", "request_type", "waiting"),
        kv_usage=_triton("kv_cache_block_metrics", "kv_cache_block_type", "fraction"),
    ),
    Words(
        Dialect.LLAMA_CPP,
        "llamacpp:",
        running=_named("llamacpp:requests_processing"),
        waiting=_named("llamacpp:requests_deferred"),
        kv_usage=_named("llamacpp:kv_cache_usage_ratio"),
        queried=_counter("llamacpp:prompt_tokens"),
        hit=_counter("llamacpp:prompt_tokens_cached"),
        queried_without_hits=True,
    ),
)
# What DJL Serving says of itself. It says nothing about the engine inside, whose own words stand beside these or not.
_LMI_NAMES = frozenset({"DJLServingStart", "StartupLatency", "Response_2XX", "WlmError"})
_TRITON_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


def read_metrics(body: str) -> EngineReading:
    """``body`` of GET /metrics. An empty reading when nobody here knows who is speaking."""
    if body.lstrip()[:1] in ("[", "{"):
        return _iterations(body)
    samples: dict[str, list[Sample]] = {}
    for sample in read_samples(body):
        samples.setdefault(sample.name, []).append(sample)
    words = next((one for one in WORDS if any(name.startswith(one.mark) for name in samples)), None)
    reading = _read(words, samples) if words else EngineReading()
    if any(name.removesuffix("_total") in _LMI_NAMES for name in samples):
        reading = replace(reading, dialect=Dialect.LMI)
    return replace(reading, stand_in=STAND_IN in samples)


def _read(words: Words, samples: Mapping[str, Sequence[Sample]]) -> EngineReading:
    if words.one_rank:
        samples = {name: [one for one in of if _is_first(one, words.one_rank)] for name, of in samples.items()}
    hit, queried = _count(words.hit, samples), _count(words.queried, samples)
    if words.queried_without_hits:
        queried = None if hit is None or queried is None else queried + hit
    return _sane(
        EngineReading(
            dialect=words.dialect,
            running=_count(words.running, samples),
            waiting=_count(words.waiting, samples),
            kv_usage=max(_values(words.kv_usage, samples), default=_triton_usage(samples)),
            queried_tokens=queried,
            hit_tokens=hit,
            hit_rate=_single(_values(words.hit_rate, samples)),
            prefix_caching=_caching(samples.get("vllm:cache_config_info", ())),
        )
    )


def _values(of: Iterable[Series], samples: Mapping[str, Sequence[Sample]]) -> list[float]:
    return next((values for series in of if (values := series.values(samples))), [])


def _count(of: Iterable[Series], samples: Mapping[str, Sequence[Sample]]) -> int | None:
    values = _values(of, samples)
    return round(total) if values and min(values) >= 0 and (total := sum(values)) < MOST else None


def _single(values: Sequence[float]) -> float | None:
    """Rates of several engines cannot be put together without their weights."""
    return values[0] if len(values) == 1 else None


def _is_first(sample: Sample, ranks: Iterable[str]) -> bool:
    return all(sample.labels.get(rank, "0") in ("0", "") for rank in ranks)


def _caching(samples: Sequence[Sample]) -> bool | None:
    said = {sample.labels.get("enable_prefix_caching", "").lower() for sample in samples}
    return {"true": True, "false": False}.get(said.pop()) if len(said) == 1 else None


def _triton_usage(samples: Mapping[str, Sequence[Sample]]) -> float | None:
    """Versions that do not say the fraction say what it is made of."""
    used, most = (
        Series(_TRITON_BLOCKS, (("kv_cache_block_type", of),)).values(samples) for of in ("used", "max")
    )  # fmt: skip
    return sum(used) / sum(most) if used and sum(most) > 0 else None


def _iterations(body: str) -> EngineReading:
    """TensorRT-LLM's own server: a list of what each iteration was like since somebody last asked."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return EngineReading()
    last = said[-1] if isinstance(said, list) and said else said
    if not isinstance(last, dict) or "kvCacheStats" not in last:
        return EngineReading()
    cache = last["kvCacheStats"] if isinstance(last["kvCacheStats"], dict) else {}
    used, most = _number(cache, "usedNumBlocks"), _number(cache, "maxNumBlocks")
    running, waiting = _number(last, "numActiveRequests"), _number(last, "numQueuedRequests")
    return _sane(
        EngineReading(
            dialect=Dialect.TENSORRT_LLM,
            running=None if running is None else round(running),
            waiting=None if waiting is None else round(waiting),
            kv_usage=used / most if used is not None and most else None,
            hit_rate=_number(cache, "cacheHitRate"),
        )
    )


def _number(of: Mapping[str, Any], name: str) -> float | None:
    value = of.get(name)
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MOST else None
    )


def _sane(reading: EngineReading) -> EngineReading:
    """What cannot be is unknown."""
    if reading.kv_usage is not None and not 0 <= reading.kv_usage <= 1:
        reading = replace(reading, kv_usage=None)
    if reading.hit_rate is not None and not 0 <= reading.hit_rate <= 1:
        reading = replace(reading, hit_rate=None)  # some say -1 for "not counted"
    queried, hit = reading.queried_tokens, reading.hit_tokens
    if queried is None or hit is None or hit > queried:
        reading = replace(reading, queried_tokens=None, hit_tokens=None)
    return reading
