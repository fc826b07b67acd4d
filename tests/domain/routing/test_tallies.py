"""Counts that are added to on every request."""

from __future__ import annotations

from collections import Counter

import pytest

from routing.domain.tallies import Tally


def test_a_tally_counts_as_a_counter_does() -> None:
    tally, counter = Tally[str](), Counter[str]()
    for word in ("a", "stone", "a", "lamp", "a", "river"):
        tally[word] += 1
        counter[word] += 1
    assert tally == counter and tally.total() == 6 and tally["nothing"] == 0
    assert "nothing" not in tally, "to look is not to count"
    tally.update({"a": 2})
    assert tally["a"] == 5
    del tally["a"]
    assert sorted(tally) == ["lamp", "river", "stone"]


def test_a_tally_stores_as_a_dict_does() -> None:
    """What it is for: with a method in Python every store is looked up."""
    assert Tally.__delitem__ is dict.__delitem__ and Tally.__setitem__ is dict.__setitem__
    with pytest.raises(KeyError):
        del Tally[str]()["nothing"]
