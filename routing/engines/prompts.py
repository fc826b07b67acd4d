"""What an OpenAI request asks of an engine: its prompt as blocks, and how much to write. Four characters are a token.

The prompt is laid out as chat templates do it, tools first and then each message with its role, so that equal
beginnings of requests are equal beginnings of prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing.engines.wire import Refused

CHARACTERS = 4  # of one token
OUTPUT_TOKENS = 16  # where the request does not say, as OpenAI's completions do


@dataclass(frozen=True, slots=True)
class Prompt:
    """``text`` of ``tokens`` tokens; ``output_tokens`` to be written; ``usage`` asks for it at a stream's end."""

    text: str
    salt: str
    output_tokens: int
    stream: bool
    usage: bool
    chat: bool
    model: str

    @property
    def tokens(self) -> int:
        return max(1, -(-len(self.text) // CHARACTERS))

    def blocks(self, block_tokens: int) -> list[int]:
        """One id for each full block; it stands for everything from the beginning to its end."""
        size, chain, found = block_tokens * CHARACTERS, self.salt.encode("utf-8", "surrogatepass"), []
        for start in range(0, len(self.text) - size + 1, size):
            part = self.text[start : start + size].encode("utf-8", "surrogatepass")
            chain = hashlib.blake2b(chain + part, digest_size=8).digest()
            found.append(int.from_bytes(chain))
        return found


def read_prompt(body: bytes, *, chat: bool, limit_tokens: int) -> Prompt:
    """Raises Refused (400) for what is no request of the API, or longer than ``limit_tokens`` with its answer."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is no JSON.") from None
    if not isinstance(data, dict):
        raise Refused(400, "The body is no JSON object.")
    options = data.get("stream_options")
    prompt = Prompt(
        text=_chat(data) if chat else _completion(data),
        salt=str(data.get("cache_salt") or ""),
        output_tokens=_output(data),
        stream=data.get("stream") is True,
        usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        chat=chat,
        model=str(data.get("model") or ""),
    )
    if prompt.tokens + prompt.output_tokens > limit_tokens:
        asked = f"{prompt.tokens} tokens and {prompt.output_tokens} to write"
        raise Refused(400, f"{asked} are more than the {limit_tokens} of this model.", "context_length_exceeded")
    return prompt


def _output(data: Mapping[str, Any]) -> int:
    asked = data.get("max_completion_tokens", data.get("max_tokens"))
    if asked is None:
        return OUTPUT_TOKENS
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise Refused(400, "max_tokens is a whole number from 1.")
    return asked


def _completion(data: Mapping[str, Any]) -> str:
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise Refused(400, "prompt is one text.")
    return prompt


def _chat(data: Mapping[str, Any]) -> str:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise Refused(400, "messages is a list of at least one message.")
    parts = [json.dumps(data["tools"])] if data.get("tools") else []
    parts += [f"<|{one.get('role')}|>{_content(one.get('content'))}" for one in messages]
    return "".join(parts) + "<|assistant|>"


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "" if content is None else json.dumps(content)
