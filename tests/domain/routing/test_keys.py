"""Keys: equal beginnings are equal, different ones are not, whatever the text; and no release changes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.keys import CHUNK, Audience, Boundary, Mark, Part, boundaries, override, picture, tenant_salt

SECRET = b"a secret of an endpoint"
AUDIENCE = Audience("chat", "default", "llama", "", "")


def digests(*parts: Part, limit: int = 65536, secret: bytes = SECRET, audience: Audience = AUDIENCE) -> list[int]:
    return [one.digest for one in boundaries(secret, audience, parts, limit)]


# Computed once. A change here moves every key of every endpoint at the next release: say so in the CHANGELOG.
GOLDEN: dict[str, tuple[list[Part], list[tuple[int, str]]]] = {
    "short": (["hello"], [(5, "126c6636f2f0d3eb")]),
    "a chunk and a bit": (["x" * 1030], [(1024, "45c1b67347c329ee"), (1030, "ee455ffc63eb895b")]),
    "roles": ([Mark("role", b'"user"'), "hello"], [(5, "2031ff5a3c935a7c")]),
    "emoji": (["\U0001f525" * 3], [(3, "9b3ca8dcbda25011")]),
    "a lone surrogate": (["\ud83d"], [(1, "1c6d0ee691d3221f")]),
    "bytes": ([b"\x00\xff\xfe"], [(3, "55dcfd1323471048")]),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_it_is_the_same_key_as_ever(name: str) -> None:
    parts, expected = GOLDEN[name]
    assert [(one.depth, f"{one.digest:016x}") for one in boundaries(SECRET, AUDIENCE, parts, 65536)] == expected


def test_a_key_of_a_client_s_own_is_the_same_as_ever() -> None:
    assert f"{override(SECRET, AUDIENCE, 'conversation-7'):016x}" == "22c9ece393a54141"
    assert tenant_salt(SECRET, "acme") == "a2600fd98bea12fc" and tenant_salt(SECRET, "") == ""


@given(st.text(max_size=3000), st.text(max_size=50), st.text(max_size=50))
def test_it_agrees_exactly_as_far_as_the_texts_do(common: str, one: str, other: str) -> None:
    """Every full chunk of what is common; and no boundary behind the first difference."""
    left, right = list(marks(common + one)), list(marks(common + other))
    for mine, yours in zip(left, right, strict=False):
        if mine.depth != yours.depth:
            continue
        same = (common + one)[: mine.depth] == (common + other)[: yours.depth]
        assert (mine.digest == yours.digest) is same


def marks(text: str, limit: int = 65536) -> Iterator[Boundary]:
    return boundaries(SECRET, AUDIENCE, [text], limit)


@given(st.text(min_size=1, max_size=2 * CHUNK + 9), st.integers(1, 3 * CHUNK))
def test_it_stops_at_the_limit_or_at_the_end(text: str, limit: int) -> None:
    depths = [one.depth for one in marks(text, limit)]
    end = min(limit, len(text))
    assert depths == [*range(CHUNK, end, CHUNK), end]


def test_it_reads_no_text_behind_the_depth_that_is_asked_for() -> None:
    def endless() -> Iterator[Part]:
        while True:
            yield "x" * 100

    assert next(boundaries(SECRET, AUDIENCE, endless(), 65536)).depth == CHUNK
    assert [one.depth for one in boundaries(SECRET, AUDIENCE, endless(), 2000)] == [CHUNK, 2000]


def test_it_cuts_between_characters_however_many_bytes_they_have() -> None:
    fire = "\U0001f525"
    assert digests(fire * CHUNK + "a")[0] == digests(fire * CHUNK + "b")[0]
    assert digests(fire * (CHUNK - 1) + "a")[0] != digests(fire * (CHUNK - 1) + "b")[0]


@pytest.mark.parametrize("change", [field.name for field in dataclasses.fields(Audience)])
def test_it_keeps_audiences_apart(change: str) -> None:
    other = dataclasses.replace(AUDIENCE, **{change: "other"})
    assert not set(digests("x" * 3000)) & set(digests("x" * 3000, audience=other))
    assert override(SECRET, AUDIENCE, "k") != override(SECRET, other, "k")


def test_it_takes_no_field_of_an_audience_for_another() -> None:
    """Whatever stands where: names side by side are no other names."""
    ones = [Audience("ab", "c"), Audience("a", "bc"), Audience("abc", ""), Audience("", "abc"), Audience("a", "b", "c")]
    assert len({digests("x", audience=one)[0] for one in ones}) == len(ones)


def test_it_needs_the_secret() -> None:
    assert digests("hello") != digests("hello", secret=b"another secret of it")
    assert tenant_salt(SECRET, "acme") != tenant_salt(b"another secret of it", "acme")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["ab"], ["a", "b"]),
        (["a", ""], ["a"]),
        ([Mark("role", b"user"), "a"], [Mark("role", b"system"), "a"]),
        ([Mark("role", b"user"), "a"], ["a"]),
        ([Mark("role", b"user"), "a"], ["roleusera"]),
        ([Mark("a", b"b"), "x"], [Mark("ab", b""), "x"]),
        ([Mark("part", picture(b"1")), "x"], [Mark("part", picture(b"2")), "x"]),
    ],
)
def test_it_is_not_fooled_by_where_parts_end(left: list[Part], right: list[Part]) -> None:
    tail = "y" * CHUNK
    assert digests(*left, tail)[-1] != digests(*right, tail)[-1]


def test_it_counts_text_and_nothing_else() -> None:
    tools = Mark("tools", b"t" * 5000)
    assert [one.depth for one in boundaries(SECRET, AUDIENCE, [tools, "x" * 1500], 65536)] == [CHUNK, 1500]
    assert not digests(tools) and not digests("") and not digests()


def test_a_client_s_key_is_no_text() -> None:
    assert override(SECRET, AUDIENCE, "hello") not in digests("hello")


def test_it_says_nothing_of_the_text() -> None:
    """A digest has eight bytes, and the mark of a picture sixteen, however long what they stand for."""
    assert all(one < 1 << 64 for one in digests("x" * 5000)) and len(picture(b"x" * 5000)) == 16
