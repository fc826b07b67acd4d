"""The texts of a request, in the order in which an engine's template renders them.

Nothing here raises: what a client sent wrongly is for the engine to refuse, with its own words. Nothing folds case,
spaces or Unicode forms: engines do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from routing.domain.keys import CHUNK, Mark, Part, picture


class RequestKind(StrEnum):
    CHAT = "Chat"
    COMPLETION = "Completion"
    RESPONSE = "Response"
    EMBEDDING = "Embedding"
    RAW = "Raw"  # bytes as they are


KINDS: Mapping[str, RequestKind] = {
    "/v1/chat/completions": RequestKind.CHAT,
    "/v1/completions": RequestKind.COMPLETION,
    "/v1/responses": RequestKind.RESPONSE,
    "/v1/embeddings": RequestKind.EMBEDDING,
}
_TEXT_PARTS = {"text", "input_text", "output_text", "refusal"}
_OF_MESSAGES = ("name", "tool_calls", "tool_call_id", "arguments", "output")
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_ROLES: Mapping[str, Mark] = {
    role: Mark("role", _encoded(role).encode()) for role in ("system", "developer", "user", "assistant", "tool")
}


def parts(kind: RequestKind, body: Mapping[str, Any] | bytes, *, strict: bool = False) -> Iterator[Part]:
    """The stream of ``routing.domain.keys`` for one request. ``strict``: message text and nothing else, as the managed
    feature counts it; else roles, tools and other parts stand between as marks."""
    found = _parts(kind, body)
    return (part for part in found if not isinstance(part, Mark)) if strict else found


def opening(body: Mapping[str, Any]) -> tuple[Mark, str] | None:
    """What ``parts`` gives first of a chat, where it begins with a long text and nothing else: most do, and nothing
    behind it says where they belong. None for any other."""
    if body.get("tools") or body.get("functions"):
        return None
    messages = body.get("messages")
    if type(messages) is not list or not messages or type(message := messages[0]) is not dict:
        return None
    role, content = message.get("role"), message.get("content")
    if type(role) is not str or type(content) is not str or len(content) < CHUNK:
        return None
    mark = _ROLES.get(role)
    return (mark, content) if mark is not None else None


def _parts(kind: RequestKind, body: Mapping[str, Any] | bytes) -> Iterator[Part]:
    if isinstance(body, bytes):
        yield body
    elif kind is RequestKind.CHAT:
        yield from _tools(body)
        yield from _messages(body.get("messages"))
    elif kind is RequestKind.RESPONSE:
        yield from _tools(body)
        if isinstance(instructions := body.get("instructions"), str):
            yield Mark("role", b"system")
            yield instructions
        given = body.get("input")
        if isinstance(given, str):
            yield Mark("role", b"user")
            yield given
        else:
            yield from _messages(given)
    elif kind is RequestKind.COMPLETION:
        yield from _prompt(body.get("prompt"))
    elif kind is RequestKind.EMBEDDING:
        yield from _prompt(body.get("input"))
    else:
        yield _canonical(body)


def _tools(body: Mapping[str, Any]) -> Iterator[Part]:
    # Most templates render tools before any text, so they are part of what engines cache.
    for name in ("tools", "functions"):
        if body.get(name):
            yield Mark(name, _canonical(body[name]))


def _messages(messages: object) -> Iterator[Part]:
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, Mapping):
            yield Mark("other", picture(_canonical(message)))
            continue
        role = message.get("role", message.get("type", ""))
        yield (_ROLES.get(role) if type(role) is str else None) or Mark("role", _canonical(role))
        content = message.get("content")
        if type(content) is str:
            yield content
        else:
            yield from _content(content)
        for name in _OF_MESSAGES:
            if message.get(name):
                yield Mark(name, picture(_canonical(message[name])))


def _content(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for item in content:
            text = item.get("text") if isinstance(item, Mapping) and item.get("type") in _TEXT_PARTS else item
            if isinstance(text, str):
                yield text
            else:
                yield Mark("part", picture(_canonical(item)))
    elif content is not None:
        yield Mark("part", picture(_canonical(content)))


def _prompt(prompt: object) -> Iterator[Part]:
    """A text, several, or the same as numbers of tokens: four bytes for each."""
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        yield b"".join((one & 0xFFFFFFFF).to_bytes(4, "little") for one in prompt)
    elif isinstance(prompt, list):
        for one in prompt:
            yield Mark("prompt")
            yield from _prompt(one) if _is_prompt(one) else [Mark("other", picture(_canonical(one)))]


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(one) is int for one in value))


def _canonical(value: object) -> bytes:
    """JSON without spaces, keys in the order in which they came: engines render them in that order."""
    try:
        return _encoded(value).encode()
    except (RecursionError, TypeError, ValueError):
        return b"?"
