"""Requests as they may be recorded, at their edges: replays of them end, are the same again, and lose nobody."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from routing.domain.keys import CHUNK, Boundary
from routing.domain.placement import Member
from routing.domain.policies import read_policy
from routing.domain.recordings import DEEPEST, Kept, Recording, joined, overlap, shares_by_depth, universal
from routing.domain.trying import Column, measured_hit_rate, measured_shape, members_of, try_out

POLICIES: dict[str, Any] = {
    "random": {"RoutingStrategy": "RANDOM"},
    "least": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    "prefix": {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": 65536, "ConcurrencyThreshold": 1},
    },
    "exact": {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 1024},
        "RoutingExtensions": {"adaptive_depth": False},
    },
}


def of(at: float, *digests: int, depth: int = 0, **fields: Any) -> Kept:
    """``digests`` at every CHUNK; ``depth`` where the last of them stands."""
    found = tuple(Boundary((number + 1) * CHUNK, digest) for number, digest in enumerate(digests))
    if depth and found:
        found = (*found[:-1], Boundary(depth, digests[-1]))
    return Kept(at, found, **{"own": 0, "outcome": "Random", "instance": "a", **fields})


ODD: dict[str, Sequence[Kept]] = {
    "all at one moment": [of(100.0, 1, 2) for _ in range(300)],
    "an hour apart": [of(3600.0 * number, 1, 2) for number in range(2)],
    "no text": [of(float(number)) for number in range(50)],
    "the deepest": [of(float(number), *range(64)) for number in range(50)],
    "one character": [of(float(number), number, depth=1) for number in range(50)],
    "no tokens": [of(float(number), 1, prompt_tokens=0, cached_tokens=0, output_tokens=0) for number in range(50)],
    "endless answers": [of(number / 100, number, output_tokens=10**9, prompt_tokens=10) for number in range(50)],
    "a prompt that lasts for ever": [of(float(number), number, prompt_tokens=2**53 - 1) for number in range(50)],
    "in no time": [of(float(n), 1, prompt_tokens=9, output_tokens=9, ttft=1e-6, seconds=2e-6) for n in range(50)],
    "longer than there is time": [of(float(n), 1, prompt_tokens=9, ttft=2.0**39, seconds=2.0**39) for n in range(50)],
    "an end before its beginning": [
        of(float(n), 1, prompt_tokens=9, output_tokens=9, ttft=2.0, seconds=1.0) for n in range(50)
    ],
    "keys of their own": [of(float(n), 1, own=n % 3 + 1, outcome="Primary") for n in range(50)],
    "everywhere": [of(float(n), 1, instance=f"pod-{n}") for n in range(300)],
}


def is_sound(column: Column) -> bool:
    known = [one for one in column.ttft if one is not None]
    return (
        0 <= (column.hit_rate or 0) <= 1
        and all(math.isfinite(one) and one >= 0 for one in known)
        and known == sorted(known)
        and math.isclose(sum(column.shares.values()), 1.0)
        and all(part is None or 0 <= part <= 1 for part in (column.spill, column.saturated))
        and 0 <= (column.outside or 0) <= len(column.shares)
        and column.fair.keys() == column.shares.keys()
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ODD)
def test_whatever_was_recorded_both_columns_are_sound(name: str, policy: str) -> None:
    recording = Recording(tuple(ODD[name]), passed=1)
    for count, routers in ((1, 1), (3, 4)):
        trial = try_out(recording, read_policy(POLICIES[policy]), members_of([], count), routers)
        assert trial.requests == len(ODD[name]) and is_sound(trial.happened) and is_sound(trial.tried), trial
        assert len(trial.tried.shares) == count and all(one.endswith((".", ":")) for one in trial.assumptions)


def test_members_get_their_part_by_weight_in_a_replay_too() -> None:
    members = [Member("a", 1.0), Member("b", 3.0)]
    some = Recording(tuple(of(number * 10.0, number) for number in range(800)))
    shares = try_out(some, read_policy(POLICIES["random"]), members, 1).tried.shares
    assert 0.68 < shares["b"] < 0.82
    one = try_out(some, read_policy(POLICIES["random"]), members_of(members, 1), 1).tried
    assert one.shares == {"a": 1.0} and one.outside == 0


@pytest.mark.parametrize(("count", "kept", "new"), [(1, 1, 0), (3, 3, 0), (4, 3, 1), (256, 3, 253)])
def test_so_many_instances_as_are_asked_for(count: int, kept: int, new: int) -> None:
    current = [Member(f"pod-{number}", home="machine") for number in range(3)]
    found = members_of(current, count)
    assert list(found[:kept]) == current[:kept] and len(found) == count == len({one.id for one in found})
    assert sum(one.id.startswith("new-") for one in found) == new


@pytest.mark.parametrize(
    ("told", "rate"),
    [
        ([], None),
        ([(None, None)], None),
        ([(0, 0)], None),
        ([(100, None)], None),
        ([(None, 50)], None),
        ([(100, 0)], 0.0),
        ([(100, 50), (100, None)], 0.5),  # who says nothing counts for nothing
        ([(300, 0), (100, 100)], 0.25),  # by tokens, not by requests
        ([(100, 1000), (100, 0)], 0.5),
    ],
)
def test_the_measured_rate_is_of_those_that_said_it(told: list[tuple[Any, Any]], rate: float | None) -> None:
    assert measured_hit_rate([of(0, 1, prompt_tokens=prompt, cached_tokens=hit) for prompt, hit in told]) == rate


@pytest.mark.parametrize(
    ("prompt", "depth", "tokens"),
    [(256, 1024, 256), (1024, 1024, 1024), (1, 1024, 1), (2048, 1024, 2048), (0, 1024, 256)],
)
def test_a_block_has_as_many_tokens_as_its_text_was_found_to_have(prompt: int, depth: int, tokens: int) -> None:
    shape, *_ = measured_shape([of(0, 1, depth=depth, prompt_tokens=prompt) for _ in range(30)])
    assert shape.block_tokens == tokens


def test_a_text_that_was_cut_says_nothing_of_tokens_for_each_character() -> None:
    whole = [of(0, *range(64), prompt_tokens=10**6) for _ in range(30)]
    assert whole[0].depth == DEEPEST and measured_shape(whole)[0].block_tokens == 256


def test_routers_and_messages_are_joined_in_any_order() -> None:
    draws = random.Random(5)
    some = [Recording((of(float(number), number),), number) for number in range(40)]
    turned = some[:]
    draws.shuffle(turned)
    assert joined(turned) == joined(some) and joined(some).passed == sum(range(40)) and joined(some).seconds == 39


@pytest.mark.parametrize(
    ("chains", "part"),
    [
        ([[1], [1]], 0.5),
        ([[1, 2], [1, 3]], 0.25),
        ([[1, 2], [3, 2]], 0.0),  # what follows another beginning
        ([[1, 2, 3], [1], [1, 2, 3]], 4 / 7),
        ([[], [1]], 0.0),
    ],
)
def test_what_was_sent_before_is_counted_from_the_beginning_on(chains: list[list[int]], part: float) -> None:
    assert overlap([of(0, *chain) for chain in chains]) == pytest.approx(part)


def test_how_many_begin_alike_falls_with_the_depth_and_ends_with_the_longest() -> None:
    draws = random.Random(9)
    some = [of(0, *[draws.randrange(2)] * draws.randrange(1, 9)) for _ in range(200)]
    shares = shares_by_depth(some)
    assert [depth for depth, _ in shares] == [CHUNK * (level + 1) for level in range(8)]
    assert all(one >= other for (_, one), (_, other) in itertools.pairwise(shares))
    assert universal(some, 1.1) == 0 and universal(some, 0.0) == 8 * CHUNK
    assert universal([of(0, *range(64))] * 3, 1.0) == DEEPEST
