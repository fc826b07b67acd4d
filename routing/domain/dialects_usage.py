"""How many tokens of a prompt an engine took from its cache, as its answer says it. Unknown where it does not.

Nothing of an answer is kept but numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

TAIL_BYTES = 16 * 1024  # usage stands at the end of a stream, in one of the last events

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenUse:
    """``cached_tokens`` of ``prompt_tokens``; None is unknown."""

    prompt_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where an answer of one kind has its numbers; of several paths the first that is there counts."""

    prompt: Path
    completion: Path
    cached: tuple[Path, ...] = ()
    foreign: Path = ()  # an answer with this is of another kind, whose numbers mean something else


_SHAPES = (
    # OpenAI's chats and completions as vLLM, SGLang, TGI, LMI, TensorRT-LLM and llama.cpp answer them. Some say cached
    # tokens only when they were started so (vLLM --enable-prompt-tokens-details, SGLang --enable-cache-report).
    _Shape(
        ("usage", "prompt_tokens"),
        ("usage", "completion_tokens"),
        (("usage", "prompt_tokens_details", "cached_tokens"), ("timings", "cache_n")),
    ),
    # OpenAI's responses: whole, and in the event that completes a stream. Messages count what was cached apart.
    _Shape(
        ("usage", "input_tokens"),
        ("usage", "output_tokens"),
        (("usage", "input_tokens_details", "cached_tokens"),),
        foreign=("usage", "cache_read_input_tokens"),
    ),
    _Shape(
        ("response", "usage", "input_tokens"),
        ("response", "usage", "output_tokens"),
        (("response", "usage", "input_tokens_details", "cached_tokens"),),
    ),
    # SGLang's own /generate.
    _Shape(("meta_info", "prompt_tokens"), ("meta_info", "completion_tokens"), (("meta_info", "cached_tokens"),)),
    # llama.cpp's own /completion. Its tokens_cached is what is in the cache afterwards, and no hit.
    _Shape(("tokens_evaluated",), ("tokens_predicted",), (("timings", "cache_n"),)),
)


def use_of(document: object) -> TokenUse | None:
    """Of one answer, or one event of a stream; None when it says nothing about tokens."""
    for shape in _SHAPES:
        prompt = _whole(_at(document, shape.prompt))
        if prompt is None or (shape.foreign and _at(document, shape.foreign) is not None):
            continue
        found = (_whole(_at(document, path)) for path in shape.cached)
        cached = next((number for number in found if number is not None), None)
        if cached is not None and cached > prompt:
            cached = None
        return TokenUse(prompt, cached, _whole(_at(document, shape.completion)))
    return None


def use_of_body(body: bytes) -> TokenUse | None:
    """Of a whole answer."""
    return use_of(_json(body))


def use_of_stream(tail: bytes) -> TokenUse | None:
    """Of server-sent events, of which ``tail`` is the end (TAIL_BYTES are enough), cut anywhere."""
    for line in reversed(tail.splitlines()):
        if line.startswith(b"data:") and (found := use_of(_json(line[5:]))) is not None:
            return found
    return None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _at(document: object, path: Path) -> object:
    for name in path:
        if not isinstance(document, dict):  # as JSON has it; asked on every answer, so nothing slower
            return None
        document = document.get(name)
    return document


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
