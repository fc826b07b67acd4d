"""The texts of every kind of request, in template order; wrong shapes give other keys, never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.keys import CHUNK, Audience, Boundary, Mark, begun, boundaries, first_digest, marked
from routing.domain.requests import KINDS, RequestKind, opening, parts


def texts(kind: RequestKind, body: dict[str, Any] | bytes) -> list[str | bytes]:
    return [part for part in parts(kind, body) if not isinstance(part, Mark)]


def kinds_of_marks(kind: RequestKind, body: dict[str, Any]) -> list[str]:
    return [part.kind for part in parts(kind, body) if isinstance(part, Mark)]


def key(kind: RequestKind, body: dict[str, Any], *, strict: bool = False) -> int | None:
    found = list(boundaries(b"secret", Audience("e", "v"), parts(kind, body, strict=strict), 4096))
    return found[-1].digest if found else None


USER = {"role": "user", "content": "hello"}
TEXTS: dict[str, tuple[RequestKind, dict[str, Any] | bytes, list[str | bytes]]] = {
    "chat": (RequestKind.CHAT, {"messages": [{"role": "system", "content": "be kind"}, USER]}, ["be kind", "hello"]),
    "chat in parts": (
        RequestKind.CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "image_url"}]}]},
        ["a", "b"],
    ),
    "an answer that called a tool": (
        RequestKind.CHAT,
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, USER]},
        ["hello"],
    ),
    "a prompt": (RequestKind.COMPLETION, {"prompt": "once"}, ["once"]),
    "several prompts": (RequestKind.COMPLETION, {"prompt": ["once", "twice"]}, ["once", "twice"]),
    "tokens": (RequestKind.COMPLETION, {"prompt": [1, 2**31]}, [b"\1\0\0\0\0\0\0\x80"]),
    "several in tokens": (RequestKind.COMPLETION, {"prompt": [[1], [2]]}, [b"\1\0\0\0", b"\2\0\0\0"]),
    "a response": (RequestKind.RESPONSE, {"instructions": "be kind", "input": "hello"}, ["be kind", "hello"]),
    "a response to a talk": (
        RequestKind.RESPONSE,
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        ["hi"],
    ),
    "an embedding": (RequestKind.EMBEDDING, {"input": ["a", "b"]}, ["a", "b"]),
    "bytes": (RequestKind.RAW, b'{"inputs": 1}', [b'{"inputs": 1}']),
    "another JSON": (RequestKind.RAW, {"inputs": "x"}, [b'{"inputs":"x"}']),
    "bytes that should be a talk": (RequestKind.CHAT, b"\xff{", [b"\xff{"]),
    "no messages": (RequestKind.CHAT, {}, []),
    "messages that are none": (RequestKind.CHAT, {"messages": "hello"}, []),
    "a message that is none": (RequestKind.CHAT, {"messages": [7, USER]}, ["hello"]),
    "content that is none": (RequestKind.CHAT, {"messages": [{"role": "user", "content": 7}]}, []),
    "an empty talk": (RequestKind.CHAT, {"messages": [{"role": "user", "content": ""}]}, [""]),
    "true is no token": (RequestKind.COMPLETION, {"prompt": [True, 1]}, []),
}


@pytest.mark.parametrize("case", TEXTS)
def test_it_finds_the_texts(case: str) -> None:
    kind, body, expected = TEXTS[case]
    assert texts(kind, body) == expected


def test_it_knows_what_stands_between() -> None:
    body = {"tools": [{"name": "f"}], "messages": [USER, {"role": "tool", "tool_call_id": "1", "content": "4"}]}
    assert kinds_of_marks(RequestKind.CHAT, body) == ["tools", "role", "role", "tool_call_id"]
    assert not [part for part in parts(RequestKind.CHAT, body, strict=True) if isinstance(part, Mark)]


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another role": ({"messages": [USER]}, {"messages": [USER | {"role": "system"}]}),
    "tools": ({"messages": [USER]}, {"messages": [USER], "tools": [{"name": "f"}]}),
    "tools in another order": (
        {"messages": [USER], "tools": [{"name": "f"}, {"name": "g"}]},
        {"messages": [USER], "tools": [{"name": "g"}, {"name": "f"}]},
    ),
    "one message or two": ({"messages": [USER, USER]}, {"messages": [USER | {"content": "hellohello"}]}),
    "another picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}, "x"]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}, "x"]}]},
    ),
    "case": ({"messages": [USER]}, {"messages": [USER | {"content": "Hello"}]}),
    "spaces": ({"messages": [USER]}, {"messages": [USER | {"content": "hello "}]}),
    "another form of Unicode": (
        {"messages": [USER | {"content": "\u00e9"}]}, {"messages": [USER | {"content": "e\u0301"}]},
    ),
    "what a tool said": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, USER]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "2"}]}, USER]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_an_engine_renders_differently_is_another_key(case: str) -> None:
    left, right = DIFFERENT[case]
    assert key(RequestKind.CHAT, left) != key(RequestKind.CHAT, right)


@pytest.mark.parametrize("field", ["temperature", "max_tokens", "stream", "user", "metadata", "seed"])
def test_what_no_template_renders_is_the_same_key(field: str) -> None:
    body = {"messages": [USER]}
    assert key(RequestKind.CHAT, body) == key(RequestKind.CHAT, body | {field: 1})


def test_strictly_nothing_but_text_counts() -> None:
    left = {"messages": [USER], "tools": [1]}
    right = {"messages": [USER | {"role": "system"}]}
    assert key(RequestKind.CHAT, left, strict=True) == key(RequestKind.CHAT, right, strict=True)


def test_a_talk_that_goes_on_keeps_its_beginning() -> None:
    """What the first answer was cached under is what the second question finds."""
    first = {"messages": [{"role": "system", "content": "s" * 3000}, USER]}
    second = {"messages": [*first["messages"], {"role": "assistant", "content": "hi"}, USER]}
    of = [
        [one.digest for one in boundaries(b"secret", Audience("e", "v"), parts(RequestKind.CHAT, body), 65536)]
        for body in (first, second)
    ]
    assert of[0][:2] == of[1][:2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(["messages", "input", "prompt", "tools", "functions", "instructions", "role", "content"])


@given(st.sampled_from(list(RequestKind)), st.dictionaries(FIELDS, JSON, max_size=6))
def test_it_never_raises(kind: RequestKind, body: dict[str, Any]) -> None:
    list(boundaries(b"secret", Audience("e", "v"), parts(kind, body), 2048))


def test_depth_and_surrogates_are_no_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for body in ({"messages": [{"role": "user", "content": [deep]}]}, json.loads('{"prompt": "\\ud83d\\ud83d"}')):
        for kind in RequestKind:
            list(boundaries(b"secret", Audience("e", "v"), parts(kind, body), 2048))


def test_every_path_has_a_kind() -> None:
    assert set(KINDS.values()) == set(RequestKind) - {RequestKind.RAW}


SAID = st.text(max_size=30) | st.text(min_size=1, max_size=9).map(lambda text: text * CHUNK)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "Robot", "", 7, None])
CONTENTS = SAID | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SAID}), max_size=2) | st.none()
MESSAGES = st.lists(st.fixed_dictionaries({"content": CONTENTS}, optional={"role": ROLES}) | st.none(), max_size=3)


@given(st.fixed_dictionaries({"messages": MESSAGES | st.just("x" * 2000)}, optional={"tools": st.just([{"a": 1}])}))
def test_what_is_known_to_come_first_is_what_comes_first(body: dict[str, Any]) -> None:
    begins, audience = opening(body), Audience("chat", "default", "m")
    if begins is not None:
        first = next(iter(boundaries(b"secret", audience, parts(RequestKind.CHAT, body), 65536)))
        state = marked(begun(b"secret", audience), begins[0])
        assert [Boundary(CHUNK, first_digest(state, begins[1])) for _ in range(2)] == [first, first]


def test_what_comes_first_is_known_of_most_chats() -> None:
    long = {"role": "system", "content": "be kind " * 200}
    assert opening({"messages": [long, USER]}) == (Mark("role", b'"system"'), long["content"])
    assert opening({"messages": [long], "tools": [{"a": 1}]}) is None, "they come before it"
    assert opening({"messages": [USER]}) is None, "what follows is part of it"
