"""What each runtime says in its start-up log, as tables. What is looked for may stand anywhere in a line: prefixes and
progress bars vary.

``serving`` is always the last thing that is read: what follows may hold prompts. Where a format does not tell the two
ends of a phase apart, its table has no line for it, and the phase stays unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SECONDS = r"(?P<seconds>\d{1,7}(?:\.\d{1,12})?)"


@dataclass(frozen=True, slots=True)
class RuntimeTable:
    """``known_by`` tells the runtime; the others are its moments, ``loaded`` with its ``seconds`` where it says them.

    ``unclear`` is a line after which the load's end cannot be told; ``stamps_from_start``: the log's own stamps count
    from the start of the process.
    """

    name: str
    known_by: re.Pattern[str]
    serving: re.Pattern[str]
    load_started: tuple[re.Pattern[str], ...] = ()
    loaded: tuple[re.Pattern[str], ...] = ()
    unclear: re.Pattern[str] | None = None
    first_loaded_only: bool = False
    stamps_from_start: bool = False


def _any(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_VLLM_STARTED = _any(r"\bStarting to load model ")
_VLLM_LOADED = _any(
    rf"\bLoading weights took {_SECONDS} seconds",
    rf"\bModel loading took [\d.]+ Gi?B(?: memory)? and {_SECONDS} seconds",
    r"\bLoading model weights took [\d.]+ Gi?B",
)

LMI = RuntimeTable(
    name="LMI",
    known_by=re.compile(r"\] (?:PyProcess|ModelServer|LmiUtils|ModelInfo|WorkerPool) - "),
    load_started=_VLLM_STARTED,
    loaded=_VLLM_LOADED,
    serving=re.compile(r"\] ModelServer - (?:BOTH|INFERENCE) API bind to: "),
)

SGLANG = RuntimeTable(
    name="SGLang",
    known_by=re.compile(r"\bserver_args=ServerArgs\(|\bLoad weight begin\.|\bsglang\b"),
    load_started=_any(r"\bLoad weight begin\."),
    loaded=_any(rf"\bLoad weight end\. elapsed={_SECONDS} s\b", r"\bLoad weight end\."),
    serving=re.compile(r"\bThe server is fired up and ready to roll"),
)

# The launcher starts a shard and says when it is ready: importing, loading and sharding in one.
TGI = RuntimeTable(
    name="TGI",
    known_by=re.compile(r"\btext_generation_(?:launcher|router)\b"),
    loaded=_any(rf"\bShard ready in {_SECONDS}s\b"),
    serving=re.compile(r'\btext_generation_router\S*(?: \S+:\d+)?: Connected\s*$|"message":"Connected"'),
)

TENSORRT_LLM = RuntimeTable(
    name="TensorRT-LLM",
    known_by=re.compile(r"\[(?:TRT-LLM|TensorRT-LLM)\]"),
    load_started=_any(r"\[TensorRT-LLM\]\[INFO\] Engine version \S+ found in the config file"),
    loaded=_any(rf"\bModel init total -- {_SECONDS}s\b", r"\[TensorRT-LLM\]\[INFO\] Loaded engine size: \d+ MiB"),
    serving=re.compile(r"\bApplication startup complete\.|\bUvicorn running on |\bStarted HTTPService at "),
)

LLAMA_CPP = RuntimeTable(
    name="llama.cpp",
    known_by=re.compile(
        r"\bllama_model_loader: |\bload_model: loading model |\bllama server|\] loading model \||llama_server"
    ),
    load_started=_any(
        r"\bload_model: loading model ", r"\] loading model \|", r"\bllama_model_loader: loaded meta data"
    ),
    loaded=_any(
        r"\bconstructing llama_context\b",
        r"\bllama_new_context_with_model: n_ctx\b",
        r"\bwarming up the model with an empty run\b",
    ),
    serving=re.compile(r"(?<!HTTP )server is listening on http|\binit: listening on http|\ball slots are idle"),
    unclear=re.compile(r"\bloading (?:draft|speculative) model\b"),
    first_loaded_only=True,
    stamps_from_start=True,
)

VLLM = RuntimeTable(
    name="vLLM",
    known_by=re.compile(r"\bvLLM API server\b|\bInitializing an? (?:V[01] )?LLM engine\b|\bVllmWorker|\bvllm\b"),
    load_started=_VLLM_STARTED,
    loaded=_VLLM_LOADED,
    serving=re.compile(r"\bApplication startup complete\.|\bUvicorn running on "),
)

# The one that wraps another comes first.
TABLES = (LMI, SGLANG, TGI, TENSORRT_LLM, LLAMA_CPP, VLLM)
