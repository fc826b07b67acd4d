"""A strategy on recorded requests beside what happened: the same model, and what it assumes is said."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from routing.domain.keys import Audience, boundaries
from routing.domain.placement import Member
from routing.domain.policies import read_policy
from routing.domain.recordings import Kept, Recording
from routing.domain.trying import (
    as_it_happened,
    measured_hit_rate,
    measured_shape,
    members_of,
    ready_for,
    try_out,
)

FOUR = [Member(f"pod-{number}") for number in range(4)]
PREFIX = {
    "RoutingStrategy": "PREFIX_AWARE",
    "PrefixAwareRoutingConfig": {"PrefixLength": 8192, "ConcurrencyThreshold": 64},
}
RANDOM = read_policy({"RoutingStrategy": "RANDOM"})


def kept(at: float, text: str, instance: str, **fields: Any) -> Kept:
    found = tuple(boundaries(b"a secret of 16 b", Audience("e", "v"), [text], 65536))
    return Kept(at, found, **{"own": 0, "outcome": "Random", "instance": instance, **fields})


def traffic(count: int = 400, groups: int = 40, **fields: Any) -> Recording:
    """Chats over documents of four kilobytes, spread at random over four instances."""
    draws = random.Random(3)
    return Recording(
        tuple(
            kept(number * 0.5, f"{draws.randrange(groups):<4096}{number:<512}", f"pod-{draws.randrange(4)}", **fields)
            for number in range(count)
        )
    )


TALKS = traffic()


def test_prefix_aware_beats_the_random_that_happened() -> None:
    trial = try_out(TALKS, read_policy(PREFIX), FOUR, 1)
    assert trial.happened.hit_rate is not None and trial.tried.hit_rate is not None
    assert trial.requests == 400 and trial.tried.hit_rate > trial.happened.hit_rate + 0.1
    tried, happened = trial.tried.ttft[0], trial.happened.ttft[0]
    assert tried is not None and happened is not None and tried <= happened
    assert trial.happened.spill is None and trial.tried.spill == 0
    assert set(trial.happened.shares) == set(trial.tried.shares) == {one.id for one in FOUR}
    assert sum(trial.tried.shares.values()) == pytest.approx(1) and trial.tried.band[0] < 0.25 < trial.tried.band[1]


def test_what_happened_is_where_each_request_went() -> None:
    one = Recording((kept(0, "x" * 2048, "a"), kept(9, "x" * 2048, "b"), kept(18, "x" * 2048, "b")))
    trial = try_out(one, RANDOM, FOUR, 1)
    assert trial.happened.shares == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3)}
    assert trial.happened.hit_rate == pytest.approx(511 / 1536), "an engine computes the last token anyway"


def test_the_same_recording_gives_the_same_answer() -> None:
    assert try_out(TALKS, read_policy(PREFIX), FOUR, 3) == try_out(TALKS, read_policy(PREFIX), FOUR, 3)


def test_more_instances_take_their_share_and_fewer_give_theirs_away() -> None:
    for count in (1, 3, 4, 6):
        trial = try_out(TALKS, read_policy(PREFIX), members_of(FOUR, count), 1)
        assert len(trial.tried.shares) == count
    assert [one.id for one in members_of(FOUR, 6)][4:] == ["new-1", "new-2"]
    assert members_of([], 2) == (Member("new-1"), Member("new-2"))


def test_the_model_is_measured_where_answers_say_enough() -> None:
    told: dict[str, Any] = {
        "prompt_tokens": 1152,
        "cached_tokens": 128,
        "output_tokens": 21,
        "ttft": 0.5,
        "seconds": 2.5,
    }
    shape, measured, _ = measured_shape(traffic(60, **told).requests)
    assert measured and shape.block_tokens == 256
    assert shape.prefill_rate == pytest.approx(2048) and shape.decode_rate == pytest.approx(10)
    shape, measured, _ = measured_shape(traffic(10, **told).requests)
    assert not measured and shape.prefill_rate == 15_000
    assert not measured_shape(TALKS.requests)[1] and not measured_shape(())[1]
    odd: dict[str, Any] = {"prompt_tokens": 5, "cached_tokens": 5, "output_tokens": 1, "ttft": 0.0, "seconds": 0.0}
    assert not measured_shape(traffic(60, **odd).requests)[1], "times of nothing divide nothing"


def test_the_cache_is_the_one_whose_hits_come_nearest() -> None:
    shape, *_ = measured_shape(TALKS.requests)
    for blocks in (8, 128, 2048):
        wanted = as_it_happened(TALKS.requests, ready_for(TALKS.requests, shape), replace(shape, cache_blocks=blocks))
        hits = round(1152 * (wanted.hit_rate or 0.0))
        told = traffic(prompt_tokens=1152, cached_tokens=hits)
        found, *_ = measured_shape(told.requests)
        again = as_it_happened(told.requests, ready_for(told.requests, found), found)
        assert again.hit_rate == pytest.approx(wanted.hit_rate, abs=0.02), blocks


def test_a_key_that_a_client_named_counts_where_the_policy_takes_it() -> None:
    named = Recording(tuple(kept(number, f"{number:<3000}", "a", own=77) for number in range(50)))
    policy = {**PREFIX, "RoutingExtensions": {"body_key": True}}
    assert max(try_out(named, read_policy(policy), FOUR, 1).tried.shares.values()) == 1
    policy = {**PREFIX, "RoutingExtensions": {"body_key": False}}
    assert max(try_out(named, read_policy(policy), FOUR, 1).tried.shares.values()) < 0.7


def test_requests_without_any_text_are_replayed_too() -> None:
    trial = try_out(Recording(tuple(kept(number, "", "a") for number in range(8))), read_policy(PREFIX), FOUR, 2)
    assert trial.requests == 8 and trial.tried.hit_rate == 0 and trial.tried.spill is None


@pytest.mark.parametrize(
    ("recording", "policy", "routers", "words"),
    [
        (TALKS, RANDOM, 1, "not measured: too few answers"),
        (TALKS, RANDOM, 1, "nobody said how many"),
        (Recording(TALKS.requests, 1200), RANDOM, 1, "400 of 1,600 requests were recorded"),
        (TALKS, RANDOM, 4, "4 router processes"),
        (TALKS, read_policy({**PREFIX, "PrefixAwareRoutingConfig": {"PrefixLength": 1500, "ConcurrencyThreshold": 9}}),
         1, "counts as the multiple below"),
        (TALKS, read_policy({**PREFIX, "RoutingExtensions": {"key_header": "x-session-id"}}), 1, "key in a header"),
    ],
)  # fmt: skip
def test_it_says_what_it_assumes(recording: Recording, policy: Any, routers: int, words: str) -> None:
    said = try_out(recording, policy, FOUR, routers).assumptions
    assert any(words in one for one in said), said


def test_nothing_recorded_gives_nothing() -> None:
    trial = try_out(Recording(), RANDOM, FOUR, 1)
    assert (trial.requests, trial.happened.hit_rate, trial.tried.ttft, trial.measured_hit_rate) == (
        0,
        0,
        (None, None, None),
        None,
    )


def short_chats(count: int = 120) -> Recording:
    """Eight beginnings of 1,400 characters, each with an engine of its own; an answer says what came from its cache:
    all but what is new of the prompt, or nothing the first time. What else an answer takes is 0.25 s."""
    made = []
    for number in range(count):
        group, first = number % 8, number < 8
        cached = 0 if first else 1430
        waited = 0.25 + (1470 - cached) / 500
        told = {"prompt_tokens": 1470, "cached_tokens": cached, "output_tokens": 21, "ttft": waited}
        text = f"{group:<1400}{number:<33}"
        made.append(kept(number * 9.0, text, f"pod-{group % 4}", **told, seconds=waited + 1))
    return Recording(tuple(made))


def test_beginnings_that_end_between_two_digests_are_hits_as_far_as_engines_said() -> None:
    recording = short_chats()
    trial = try_out(recording, RANDOM, FOUR, 1)
    assert trial.measured_hit_rate == pytest.approx(112 / 120 * 1430 / 1470)
    assert trial.happened.hit_rate == pytest.approx(trial.measured_hit_rate, abs=0.02), "and not 1024 of 1433"
    assert any("of what follows, too" in one for one in trial.assumptions)


def test_how_fast_prompts_are_read_is_told_by_those_of_which_much_was_read() -> None:
    shape, measured, _ = measured_shape(short_chats().requests)
    assert measured and 400 < shape.prefill_rate < 500, "a hit takes 0.33 s for 40 tokens, which says nothing of it"
    happened = try_out(short_chats(), RANDOM, FOUR, 1).happened
    assert happened.ttft[0] is not None and happened.ttft[0] < 0.33, "most were hits"


def test_nothing_is_said_of_what_follows_by_too_few_answers() -> None:
    few = Recording(short_chats(27).requests)
    assert measured_shape(few.requests)[0].tail == 0
    silent = tuple(replace(one, cached_tokens=None) for one in short_chats().requests)
    assert measured_shape(silent)[0].tail == 0


def test_a_size_of_the_cache_that_the_traffic_does_not_determine_is_a_range() -> None:
    trial = try_out(short_chats(), RANDOM, FOUR, 1)  # two beginnings for each engine: whatever holds both fits
    assert trial.describes is True and (trial.sizes[-1], len(trial.sizes) > 1) == (8192, True)
    assert trial.widest is not None and trial.widest[1].hit_rate is not None and trial.tried.hit_rate is not None
    assert trial.widest[1].hit_rate >= trial.tried.hit_rate
    assert any("not determined by this traffic: from 2 to 8,192" in one for one in trial.assumptions)
    shape, *_ = measured_shape(TALKS.requests)
    small = as_it_happened(TALKS.requests, ready_for(TALKS.requests, shape), replace(shape, cache_blocks=32)).hit_rate
    told = traffic(prompt_tokens=1152, cached_tokens=round(1152 * (small or 0)))
    trial = try_out(told, RANDOM, FOUR, 1)
    assert (trial.sizes, trial.widest) == ((32,), None)
    assert any("holds 32 beginnings" in one and "clearly more than any other" in one for one in trial.assumptions)


class FewSlots:
    """Engines that keep the last four prompts, as llama.cpp does; eight beginnings, each as frequent."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}
        self.draws, self.number = random.Random(5), 0

    def serve(self, count: int, place: Callable[[int], str]) -> tuple[Kept, ...]:
        return tuple(self._answer(place) for _ in range(count))

    def _answer(self, place: Callable[[int], str]) -> Kept:
        self.number += 1
        group = self.draws.randrange(8)
        uid = place(group)
        slots = self.held.setdefault(uid, [])
        cached = 1430 if group in slots else 0
        self.held[uid] = [*(one for one in slots if one != group), group][-4:]
        told = {"prompt_tokens": 1470, "cached_tokens": cached, "output_tokens": 21}
        waited = 0.25 + (1470 - cached) / 500
        text = f"{group:<1400}{self.number:<33}"
        return kept(self.number * 9.0, text, uid, **told, ttft=waited, seconds=waited + 1)


def test_engines_with_a_few_slots_are_described_and_what_random_costs_them_is_told() -> None:
    """Where each beginning had an engine of its own nobody can know how many fit; a range has the right one in it."""
    engines = FewSlots()
    kept_together = Recording(engines.serve(300, lambda group: f"pod-{group % 4}"))
    trial = try_out(kept_together, RANDOM, FOUR, 1)
    spread = Recording(engines.serve(300, lambda _: f"pod-{engines.draws.randrange(4)}"))
    really = measured_hit_rate(spread.requests)
    assert really is not None and trial.describes and trial.tried.hit_rate is not None and trial.widest is not None
    assert trial.sizes[0] <= 4 and trial.tried.hit_rate - 0.05 < really < (trial.widest[1].hit_rate or 0)

    back = try_out(spread, read_policy(PREFIX), FOUR, 1)
    assert (back.sizes, back.describes) == ((4,), True), "and these tell it"
    assert back.happened.hit_rate == pytest.approx(really, abs=0.05)
    assert back.tried.hit_rate == pytest.approx(measured_hit_rate(kept_together.requests), abs=0.05)


def test_where_computed_and_measured_differ_nothing_is_said_of_what_another_strategy_costs() -> None:
    """Engines that were killed and came back under their names had lost what they held."""
    some = [replace(one, cached_tokens=0) if number % 5 == 0 else one
            for number, one in enumerate(short_chats().requests)]  # fmt: skip
    trial = try_out(Recording(tuple(some)), read_policy(PREFIX), FOUR, 1)
    assert trial.describes is False and (trial.tried.hit_rate, trial.widest) == (None, None)
    assert trial.tried.ttft == (None, None, None) and sum(trial.tried.shares.values()) == pytest.approx(1)
    assert trial.happened.hit_rate is not None and trial.happened.hit_rate > (trial.measured_hit_rate or 0) + 0.05
    few = try_out(Recording(tuple(some[:15])), read_policy(PREFIX), FOUR, 1)
    assert (few.describes, few.sizes) == (None, ()) and few.tried.hit_rate is not None
    assert any("nobody said how many" in one for one in few.assumptions)
