"""What a router remembers of where keys went: bounded, and never against who a key belongs to by now."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.domain.places import Places

NAMES = st.sampled_from(["p", "pod-0", "pod-1", "pod-2"])  # one is how another begins


def test_it_says_where_a_key_went_last() -> None:
    places = Places()
    assert places.of(7, "pod-0") == ""
    places.put(7, "pod-0", "pod-0")
    assert places.of(7, "pod-0") == "pod-0"
    places.put(7, "pod-0", "pod-2")
    assert places.of(7, "pod-0") == "pod-2"


@given(NAMES, NAMES, NAMES)
def test_what_was_known_under_another_owner_is_forgotten(home: str, went: str, now: str) -> None:
    places = Places()
    places.put(7, home, went)
    assert places.of(7, now) == (went if now == home else "")


@given(st.lists(st.integers(0, 40), max_size=200))
def test_memory_is_bounded_and_the_latest_are_in_it(keys: list[int]) -> None:
    places = Places(8)
    for key in keys:
        places.put(key, "pod-0", "pod-1")
    assert len(places) <= 15
    assert all(places.of(key, "pod-0") == "pod-1" for key in list(dict.fromkeys(reversed(keys)))[:7])
    assert places.of(99, "pod-0") == ""


def test_a_key_that_comes_again_and_again_is_never_forgotten() -> None:
    places = Places(8)
    for key in range(1000):
        places.put(-1, "pod-0", "pod-1")
        places.put(key, "pod-0", "pod-0")
    assert places.of(-1, "pod-0") == "pod-1"
