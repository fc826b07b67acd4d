"""When another share of the requests takes effect, and for whom it waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.shifting import LARGEST, MOST_VARIANTS, WantedVariant, shifted, wrong_with

Weights = dict[str, float]


@pytest.mark.parametrize(
    ("now", "wanted", "ready", "weights", "waits_for"),
    [
        ({"a": 1, "b": 0}, {"a": 9, "b": 1}, {"a": 1, "b": 2}, {"a": 9, "b": 1}, ()),
        ({"a": 1, "b": 0}, {"a": 9, "b": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 0}, ("b",)),
        ({"a": 1, "b": 0}, {"a": 9, "b": 1}, {}, {"a": 1, "b": 0}, ("b",)),  # a gets less: it is not waited for
        ({"a": 1, "b": 1}, {"a": 1, "b": 0}, {"a": 1}, {"a": 1, "b": 0}, ()),  # away from one that is broken
        ({"a": 1, "b": 1}, {"a": 0, "b": 1}, {"a": 1}, {"a": 1, "b": 1}, ("b",)),
        ({"a": 1, "b": 1}, {"a": 2, "b": 2}, {}, {"a": 2, "b": 2}, ()),  # the same shares in other numbers
        ({"a": 0.1, "b": 0.2, "c": 0.3}, {"a": 1, "b": 2, "c": 3}, {}, {"a": 1, "b": 2, "c": 3}, ()),  # to the last bit
        ({"a": 1e6, "b": 0}, {"a": 1e6, "b": 1}, {}, {"a": 1e6, "b": 0}, ("b",)),  # little is more than nothing
        ({"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {"a": 1}, ()),  # who is taken away gives everything
        ({"a": 1}, {"a": 1, "b": 0}, {}, {"a": 1, "b": 0}, ()),  # a new one that gets nothing waits for nobody
        ({}, {"a": 1}, {}, {}, ("a",)),
        ({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 1}, {"a": 1, "b": 0}, ()),
        ({"a": 1}, {"a": 1}, {}, {"a": 1}, ()),
        ({"a": 1, "b": 0, "c": 0}, {"a": 1, "b": 1, "c": 1}, {"c": 1}, {"a": 1, "b": 0, "c": 0}, ("b",)),
    ],
)
def test_it_shifts_all_at_once_or_not_at_all(
    now: Weights, wanted: Weights, ready: dict[str, int], weights: Weights, waits_for: tuple[str, ...]
) -> None:
    found = shifted(now, wanted, ready)
    assert (dict(found.weights), found.waits_for) == (weights, waits_for)


WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.floats(0, LARGEST), min_size=1)


@given(WEIGHTS, WEIGHTS, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)))
def test_it_ends_and_nobody_gets_more_who_is_not_ready(now: Weights, wanted: Weights, ready: dict[str, int]) -> None:
    found = shifted(now, wanted, ready)
    if found.waits_for:
        assert dict(found.weights) == now and not any(ready.get(name) for name in found.waits_for)
        assert shifted(now, wanted, dict.fromkeys("abcd", 1)).waits_for == (), (
            "once all are ready nothing is in the way"
        )
        return
    assert dict(found.weights) == wanted
    assert shifted(found.weights, wanted, {}).waits_for == (), "what is so waits for nobody"


@given(WEIGHTS, st.floats(1e-3, 1e3))
def test_the_same_shares_in_other_numbers_wait_for_nobody(now: Weights, times: float) -> None:
    assert shifted(now, {name: weight * times for name, weight in now.items()}, {}).waits_for == ()


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        ([("default", 1)], set()),
        ([("default", 0), ("next", 1)], set()),
        ([("default", 0)], {"variants"}),
        ([], {"variants"}),
        ([("next", 1)], {"variants"}),
        ([("default", 1), ("default", 2)], {"variants"}),
        ([("default", 1), ("a b", 1)], {"variants.1.name"}),
        ([("default", 1), ("", 1)], {"variants.1.name"}),
        ([("default", 1), ("n" * 64, 1)], {"variants.1.name"}),
        ([("default", 1), ("next\n", 1)], {"variants.1.name"}),
        ([("default", 1), ("\u0661", 1)], {"variants.1.name"}),
        ([("default", 1), ("a/b", -1)], {"variants.1.name", "variants.1.weight"}),
        ([("Default", 1)], {"variants"}),
        ([("default", LARGEST), ("n" * 63, 5e-324)], set()),
        ([("default", 0), ("next", 0)], {"variants"}),
        ([("default", -1)], {"variants.0.weight"}),
        ([("default", float("nan"))], {"variants.0.weight"}),
        ([("default", float("inf"))], {"variants.0.weight"}),
        ([("default", LARGEST * 2)], {"variants.0.weight"}),
        ([("default", 1), *((f"v{number}", 0) for number in range(MOST_VARIANTS))], {"variants"}),
    ],
)
def test_it_says_what_is_wrong_and_where(wanted: list[tuple[str, float]], fields: set[str]) -> None:
    asked = [WantedVariant(name, weight) for name, weight in wanted]
    assert {field for field, _ in wrong_with(asked, "default")} == fields
