"""When another share of the requests takes effect, and for whom it waits."""

from __future__ import annotations

import pytest

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
