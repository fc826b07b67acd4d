"""What routers tell one another: read strictly, added exactly, and forgotten with whoever said it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.together import (
    MOST_ROUTERS,
    NOTHING,
    Heard,
    Part,
    Word,
    exchange,
    own,
    read_word,
    summed,
)
from routing.domain.told import NotTold

CHAT = ("chat", "default")
COUNTS = st.dictionaries(st.sampled_from(["pod-0", "pod-1", "pod-2", "é"]), st.integers(1, 9))
PARTS = st.builds(Part, COUNTS, COUNTS, COUNTS)
PLACES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from(["pod-0", "pod-9"]), st.just("pod-1")))


def name(number: int) -> str:
    return f"{number:032x}"


def word(number: int = 1, **in_flight: int) -> Word:
    return Word(name(number), {CHAT: Part(in_flight, {}, {})})


def document(**fields: Any) -> dict[str, Any]:
    one = {"names": ["chat", "default"], "instances": [["pod-0", 1, 1, 90]], "went": [[f"{7:016x}", 0, 0]]}
    return {"router": name(1), "variants": [{**one, **fields}]}


@given(st.dictionaries(st.tuples(st.sampled_from(["chat", "a"]), st.just("v")), st.tuples(PARTS, PLACES), max_size=2))
def test_it_is_read_as_it_was_said(variants: dict[tuple[str, str], tuple[Part, list[tuple[int, str, str]]]]) -> None:
    said = Word(name(7), {of: part for of, (part, _) in variants.items()}, {of: w for of, (_, w) in variants.items()})
    assert read_word(json.loads(json.dumps(said.to_json()))) == said


def test_places_are_said_of_a_variant_that_has_nothing_on_its_way() -> None:
    said = Word(name(1), {}, {CHAT: [(7, "pod-0", "pod-1")]})
    read = read_word(said.to_json())
    assert read.went == said.went and not any(read.parts[CHAT])


WRONG: dict[str, dict[str, Any]] = {
    "no router": {"variants": []},
    "another kind of name": {**document(), "router": "r1"},
    "no list": {**document(), "variants": {}},
    "no names": document(names=["chat"]),
    "a number for a name": document(names=["chat", 5]),
    "a name that is too long": document(names=["chat", "v" * 64]),
    "too few counts": document(instances=[["pod-0", 1, 1]]),
    "too many counts": document(instances=[["pod-0", 1, 1, 1, 1]]),
    "less than none": document(instances=[["pod-0", -1, 1, 1]]),
    "half a request": document(instances=[["pod-0", 0.5, 1, 1]]),
    "true for one": document(instances=[["pod-0", True, 1, 1]]),
    "more than can be counted": document(instances=[["pod-0", 2**53, 1, 1]]),
    "an endless instance": document(instances=[["p" * 65, 1, 1, 1]]),
    "too many instances": document(instances=[["pod-0", 1, 1, 1]] * 5001, went=[]),
    "a digest that is short": document(went=[["7", 0, 0]]),
    "a place that is not named": document(went=[[f"{7:016x}", 0, 1]]),
    "a place before the first": document(went=[[f"{7:016x}", -1, 0]]),
    "too many places": document(went=[[f"{7:016x}", 0, 0]] * 257),
    "something else": {"router": name(1), "variants": [7]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_router_says_is_no_word(wrong: str) -> None:
    read_word(document())
    with pytest.raises(NotTold):
        read_word(WRONG[wrong])


@given(COUNTS, st.lists(COUNTS, max_size=5))
def test_what_others_have_comes_and_goes_and_leaves_ones_own(mine: dict[str, int], heard: list[dict[str, int]]) -> None:
    counts, before = dict(mine), dict[str, int]()
    for now in [*heard, {}]:
        less = exchange(counts, before, now)
        assert counts == {uid: n for uid in {*mine, *now} if (n := mine.get(uid, 0) + now.get(uid, 0))}
        assert own(counts, now) == mine, "and nobody counts a part twice"
        assert less == any(now.get(uid, 0) < count for uid, count in before.items())
        before = now
    assert counts == mine


def test_what_several_have_is_added_up_by_instance() -> None:
    one, other = Part({"a": 1}, {"a": 1}, {"a": 50}), Part({"a": 2, "b": 1}, {}, {"b": 7})
    assert summed([{CHAT: one}, {CHAT: other, ("x", "v"): one}, {}]) == {
        CHAT: Part({"a": 3, "b": 1}, {"a": 1}, {"a": 50, "b": 7}), ("x", "v"): one
    }  # fmt: skip
    assert one == Part({"a": 1}, {"a": 1}, {"a": 50}), "what was said stays as it was"


def test_the_last_word_of_each_counts_while_it_is_fresh() -> None:
    heard = Heard(fresh_seconds=2.0)
    heard.take(word(1, a=1), 10.0)
    heard.take(word(2, a=5), 10.5)
    heard.take(word(1, a=3), 11.5)
    assert heard.others(12.5) == (2, {CHAT: Part({"a": 8}, {}, {})})
    assert heard.others(12.6) == (1, {CHAT: Part({"a": 3}, {}, {})}), "one that was killed leaves nothing behind"
    heard.take(word(2, a=1), 12.7)
    assert heard.others(12.7)[1][CHAT].in_flight == {"a": 4}, "and one that comes back is there at once"
    assert heard.others(99.0) == (0, {})


def test_one_that_only_says_that_it_is_there_changes_nothing() -> None:
    heard = Heard()
    heard.take(word(1, a=1), 1.0)
    _, before = heard.others(1.0)
    heard.take(word(1, a=1), 2.0)
    assert heard.others(2.6) == (1, before) and heard.others(2.6)[1] is before


def test_names_that_somebody_makes_up_take_no_memory() -> None:
    heard = Heard()
    for number in range(MOST_ROUTERS + 50):
        heard.take(word(number, a=1), 1.0)
    assert heard.others(1.0)[0] == MOST_ROUTERS
    heard.take(word(0, a=2), 1.1)
    assert heard.others(1.1)[1][CHAT].in_flight == {"a": MOST_ROUTERS + 1}, "those that are known go on"


def test_nothing_is_nothing() -> None:
    assert not any(NOTHING) and Word(name(1)).to_json()["variants"] == []
