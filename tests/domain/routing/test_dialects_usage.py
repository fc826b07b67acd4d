"""Cached tokens in answers: every dialect's own place for them, and unknown wherever that is empty."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.domain.dialects_usage import TAIL_BYTES, TokenUse, use_of, use_of_body, use_of_stream

OPENAI = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}


def details(cached: Any) -> dict[str, Any]:
    return {"usage": {**OPENAI, "prompt_tokens_details": {"cached_tokens": cached}}}


CASES: list[tuple[str, Any, TokenUse | None]] = [
    ("vLLM with details", details(64), TokenUse(100, 64, 7)),
    ("vLLM without", {"usage": {**OPENAI, "prompt_tokens_details": None}}, TokenUse(100, None, 7)),
    ("SGLang with its report", {**details(0), "metadata": {}}, TokenUse(100, 0, 7)),
    ("TGI", {"usage": OPENAI, "system_fingerprint": "3.3"}, TokenUse(100, None, 7)),
    ("LMI with vLLM inside", {"object": "chat.completion", **details(32)}, TokenUse(100, 32, 7)),
    ("LMI's own", {"generated_text": "…", "details": {"generated_tokens": 5}}, None),
    ("TensorRT-LLM", {"object": "chat.completion", **details(96)}, TokenUse(100, 96, 7)),
    ("Triton's generate", {"text_output": "…", "model_name": "ensemble"}, None),
    ("llama.cpp", {**details(50), "timings": {"cache_n": 50, "prompt_n": 50}}, TokenUse(100, 50, 7)),
    ("llama.cpp before details", {"usage": OPENAI, "timings": {"cache_n": 50}}, TokenUse(100, 50, 7)),
    (
        "llama.cpp's own",
        {"tokens_evaluated": 100, "tokens_predicted": 7, "tokens_cached": 107, "timings": {"cache_n": 40}},
        TokenUse(100, 40, 7),
    ),
    (
        "llama.cpp's own, which says only what is cached now",
        {"tokens_evaluated": 100, "tokens_predicted": 7, "tokens_cached": 107},
        TokenUse(100, None, 7),
    ),
    (
        "SGLang's generate",
        {"text": "…", "meta_info": {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 9}},
        TokenUse(10, 9, 2),
    ),
    (
        "responses",
        {"usage": {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}}},
        TokenUse(10, 8, 2),
    ),
    (
        "the event that completes a response",
        {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 8}}},
        },
        TokenUse(10, 8, None),
    ),
    ("messages, which count otherwise", {"usage": {"input_tokens": 2, "cache_read_input_tokens": 90}}, None),
    ("embeddings", {"usage": {"prompt_tokens": 4, "total_tokens": 4}}, TokenUse(4, None, None)),
    ("a chunk of a stream", {"choices": [{"delta": {"content": "a"}}], "usage": None}, None),
    ("more cached than there was", details(101), TokenUse(100, None, 7)),
    ("all of it", details(100), TokenUse(100, 100, 7)),
    ("a text", details("64"), TokenUse(100, None, 7)),
    ("a truth", details(True), TokenUse(100, None, 7)),
    ("a fraction", details(0.5), TokenUse(100, None, 7)),
    ("less than nothing", details(-1), TokenUse(100, None, 7)),
    ("a list of details", {"usage": {**OPENAI, "prompt_tokens_details": [1]}}, TokenUse(100, None, 7)),
    ("a list of usage", {"usage": [1]}, None),
    ("no prompt", {"usage": {"completion_tokens": 7}}, None),
    ("a huge prompt", {"usage": {"prompt_tokens": 10**30}}, None),
    ("an error", {"error": {"message": "no"}}, None),
    ("no object", [1], None),
]


@pytest.mark.parametrize(("document", "use"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_answer_is_read_as_it_is_meant(document: Any, use: TokenUse | None) -> None:
    assert use_of(document) == use
    assert use_of_body(json.dumps(document).encode()) == use
    assert use_of_stream(b"data: " + json.dumps(document).encode() + b"\n\ndata: [DONE]\n\n") == use


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"1" * 5000])
def test_what_is_no_json_says_nothing(body: bytes) -> None:
    assert use_of_body(body) is None
    assert use_of_stream(b"data:" + body + b"\n\n") is None


def test_the_last_word_of_a_stream_counts() -> None:
    events = [{**details(64), "usage": {**details(64)["usage"], "completion_tokens": n}} for n in range(1, 200)]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"
    assert use_of_stream(stream) == TokenUse(100, 64, 199)
    for cut in range(len(stream) - TAIL_BYTES, len(stream) - TAIL_BYTES + 300):
        assert use_of_stream(stream[cut:]) == TokenUse(100, 64, 199)
    assert use_of_stream(stream.replace(b"\n", b"\r\n")) == TokenUse(100, 64, 199)
    assert use_of_stream(stream[:-40]) == TokenUse(100, 64, 198), "an event that is not whole is no event"


def test_what_a_model_writes_is_not_taken_for_usage() -> None:
    content = json.dumps(details(99))
    event = {"choices": [{"delta": {"content": f"\ndata: {content}\n\n"}}]}
    assert use_of_stream(f"data: {json.dumps(event)}\n\n".encode()) is None
