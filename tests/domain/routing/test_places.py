"""What a router remembers of where keys went: bounded, and never against who a key belongs to by now."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.domain.places import TOLD, Places

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


def test_it_says_what_changed_since_it_was_asked_and_only_once() -> None:
    places = Places()
    places.put(1, "pod-0", "pod-0")
    assert places.untold() == [], "nobody listened"
    places.put(1, "pod-0", "pod-0")
    places.put(2, "pod-0", "pod-1")
    places.put(1, "pod-0", "pod-2")
    assert places.untold() == [(2, "pod-0", "pod-1"), (1, "pod-0", "pod-2")], "a key that stays is no news"
    places.hear(3, "pod-0", "pod-1")
    places.put(3, "pod-0", "pod-1")
    assert places.untold() == [], "nor is what was heard"


def test_what_nobody_asks_for_is_not_kept_for_ever() -> None:
    places = Places()
    places.untold()
    for key in range(10_000):
        places.put(key, "pod-0", "pod-1")
    assert len(places.untold()) == TOLD


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), NAMES), max_size=40), st.lists(st.booleans()))
def test_routers_that_read_the_same_words_end_alike(puts: list[tuple[int, int, str]], says: list[bool]) -> None:
    """Whatever each did meanwhile: all read all words, their own too, in one order."""
    routers, words = [Places() for _ in range(3)], list[tuple[int, str, str]]()
    for one in routers:
        one.untold()
    for number, (router, key, went) in enumerate(puts):
        routers[router].put(key, "pod-0", went)
        if number < len(says) and says[number]:
            words += routers[router].untold()
    for one in routers:
        words += one.untold()
    for one in routers:
        for each in words:
            one.hear(*each)
    assert all(one.of(key, "pod-0") == routers[0].of(key, "pod-0") for one in routers for key in range(4))
