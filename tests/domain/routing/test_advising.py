"""Which advice follows from which figures, and which does not."""

from __future__ import annotations

from typing import Any

import pytest

from routing.domain.advising import AdviceKind, Seen, advise
from routing.domain.policies import read_policy

RANDOM = read_policy({"RoutingStrategy": "RANDOM"})
LEAST = read_policy({"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"})
# By depth the share of the most frequent beginning: everybody's to 4,096 characters, a group's from there on.
PROMPT = [(1024, 1.0), (2048, 1.0), (3072, 0.99), (4096, 0.97), (5120, 0.2), (6144, 0.05)]


def prefix(length: int = 8192, threshold: int = 16, **extensions: Any) -> Any:
    config = {"PrefixLength": length, "ConcurrencyThreshold": threshold}
    return read_policy(
        {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": config, "RoutingExtensions": extensions}
    )


def seen(**fields: Any) -> Seen:
    """Enough traffic of a policy that does well."""
    usual: dict[str, Any] = {
        "policy": prefix(),
        "minutes": 15,
        "instances": 4,
        "requests": 1000,
        "outcomes": {"Primary": 1000},
        "told": 1000,
        "hit_rate": 0.6,
        "recorded": 500,
        "overlap": 0.7,
        "shares": PROMPT,
    }
    return Seen(**{"under": {**usual, **fields}["requests"], **usual, **fields})


def kinds(**fields: Any) -> list[str]:
    return [one.kind.value for one in advise(seen(**fields))]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"requests": 99}, [AdviceKind.TOO_LITTLE]),
        ({"requests": 0, "told": 0, "hit_rate": None}, [AdviceKind.TOO_LITTLE]),
        ({"requests": 100, "outcomes": {"Primary": 100}, "told": 100}, []),
        # the trap: the length ends inside what everybody sends
        ({"policy": prefix(2048)}, [AdviceKind.SYSTEM_PROMPT]),
        ({"policy": prefix(4096)}, [AdviceKind.SYSTEM_PROMPT]),
        ({"policy": prefix(4096, adaptive_depth=False)}, [AdviceKind.SYSTEM_PROMPT]),
        ({"policy": prefix(5120)}, []),
        ({"policy": prefix(2048), "instances": 1}, [AdviceKind.ONE_INSTANCE]),
        ({"policy": prefix(2048), "shares": [(1024, 0.89)]}, []),
        ({"policy": prefix(2048), "shares": (), "recorded": 0, "overlap": None}, []),
        # nothing is recorded, but most requests find no key that is their own
        ({"shares": (), "outcomes": {"AllHot": 400, "Primary": 600}}, [AdviceKind.ALL_HOT]),
        ({"shares": (), "outcomes": {"AllHot": 200, "Primary": 800}}, []),
        ({"outcomes": {"NoKey": 500, "Primary": 500}}, [AdviceKind.NO_KEY]),
        # overlap under strategies that do not look
        ({"policy": RANDOM, "hit_rate": 0.2}, [AdviceKind.OVERLAP]),
        ({"policy": LEAST, "hit_rate": None}, [AdviceKind.OVERLAP]),
        ({"policy": RANDOM, "hit_rate": 0.6}, []),
        ({"policy": RANDOM, "overlap": 0.1, "hit_rate": 0.0}, []),
        ({"policy": RANDOM, "hit_rate": 0.2, "instances": 1}, []),
        ({"policy": RANDOM, "overlap": None, "recorded": 0}, [AdviceKind.NOT_RECORDED]),
        # a policy that has just been set is not judged by what the one before did
        ({"under": 99, "hit_rate": 0.9}, [AdviceKind.TOO_LITTLE]),
        ({"under": 0, "outcomes": {}, "hit_rate": None, "policy": RANDOM}, [AdviceKind.TOO_LITTLE]),
        ({"under": 99, "outcomes": {"NoKey": 99}, "policy": prefix(2048)},
         [AdviceKind.SYSTEM_PROMPT, AdviceKind.TOO_LITTLE]),
        ({"under": 200, "outcomes": {"NoKey": 100, "Primary": 100}}, [AdviceKind.NO_KEY]),
        # engines
        ({"caching_off": ["chat-a"]}, [AdviceKind.CACHE_OFF]),
        ({"told": 0, "hit_rate": None}, [AdviceKind.NOT_TOLD]),
        ({"told": 99}, [AdviceKind.NOT_TOLD]),
        ({"told": 100}, []),
        # the threshold
        ({"outcomes": {"Primary": 700, "Spill": 300}}, [AdviceKind.THRESHOLD]),
        ({"outcomes": {"Primary": 850, "Spill": 100, "Sibling": 50}}, []),
        ({"outcomes": {"Primary": 400, "Saturated": 600}}, [AdviceKind.THRESHOLD]),
        ({"policy": LEAST, "overlap": 0.0, "outcomes": {"LeastBusy": 1000}}, []),
        # several at once, what costs now first
        ({"policy": prefix(2048), "told": 0, "hit_rate": None, "outcomes": {"Primary": 700, "Spill": 300}},
         [AdviceKind.SYSTEM_PROMPT, AdviceKind.THRESHOLD, AdviceKind.NOT_TOLD]),
    ],
)  # fmt: skip
def test_what_follows(fields: dict[str, Any], expected: list[AdviceKind]) -> None:
    assert kinds(**fields) == [kind.value for kind in expected]


def test_the_trap_is_said_with_its_figures_and_a_way_out() -> None:
    [one] = advise(seen(policy=prefix(2048)))
    assert one.severity == "bad"
    assert "covers only the system prompt that every request shares" in one.sentence
    assert "97 % of 500 recorded requests are alike to 4,096 characters" in one.sentence
    assert one.figures["PrefixLength"] == 2048 and one.figures["alike_to"] == 4096
    assert one.replay == {
        "strategy": "PREFIX_AWARE", "prefix_length": 6144, "concurrency_threshold": 16, "adaptive_depth": "on",
    }, "the first depth at which no beginning is hot any more"  # fmt: skip
    assert "6,144" in one.next_step
    [fixed] = advise(seen(policy=prefix(2048, adaptive_depth=False)))
    assert "to one instance" in fixed.sentence


def test_a_length_is_never_suggested_that_cannot_be_set() -> None:
    deep = [(depth, 1.0) for depth in range(1024, 65537, 1024)]
    [one] = advise(seen(policy=prefix(64512), shares=deep))
    assert one.replay["prefix_length"] == 65536
    [one] = advise(seen(policy=prefix(65536), shares=deep))
    assert one.kind is AdviceKind.SYSTEM_PROMPT and one.replay == {} and "name a key" in one.next_step
    [one] = advise(seen(policy=prefix(65536), shares=(), outcomes={"AllHot": 1000}))
    assert one.kind is AdviceKind.ALL_HOT and one.replay == {} and "name a key" in one.next_step
    [one] = advise(seen(policy=prefix(threshold=600), outcomes={"Primary": 500, "Spill": 500}))
    assert one.replay["concurrency_threshold"] == 1024
    [one] = advise(seen(policy=prefix(threshold=1024), outcomes={"Primary": 500, "Spill": 500}))
    assert one.replay == {"instances": 5} and "no threshold is greater" in one.next_step


def test_where_all_are_full_more_instances_are_tried_and_no_other_threshold() -> None:
    [one] = advise(seen(outcomes={"Primary": 400, "Saturated": 600}))
    assert one.replay == {"instances": 5} and "Add instances" in one.next_step


def test_every_advice_has_figures_a_sentence_and_a_next_step() -> None:
    said = [
        *advise(seen(requests=1)),
        *advise(seen(policy=prefix(2048), told=0, caching_off=list("abcdefg"), outcomes={"NoKey": 500, "Spill": 500})),
        *advise(seen(policy=RANDOM, hit_rate=0.0)),
        *advise(seen(policy=RANDOM, overlap=None)),
        *advise(seen(shares=(), outcomes={"AllHot": 900})),
        *advise(seen(instances=1)),
        *advise(seen(instances=0, waited=1)),
        *advise(seen(lost=500)),
    ]
    assert {one.kind for one in said} == set(AdviceKind)
    for one in said:
        assert one.figures and one.sentence.endswith(".") and one.next_step.endswith("."), one.kind
        assert one.severity in ("bad", "warn", "info")
    assert "a, b, c, d, e and others" in next(one for one in said if one.kind is AdviceKind.CACHE_OFF).sentence
    assert said[0].sentence.startswith("1 request in")


def test_requests_that_nobody_takes_are_said_first_of_any_traffic() -> None:
    [first, second] = advise(seen(requests=5, instances=0, waited=3, refused=2, lost=2))
    assert (first.kind, first.severity, second.kind) == (AdviceKind.NO_INSTANCE, "bad", AdviceKind.TOO_LITTLE)
    assert "No instance is ready." in first.sentence and "3 requests had to wait" in first.sentence
    assert "2 were refused" in first.sentence and first.figures == {"waited": 3, "refused": 2, "instances": 0}
    assert kinds(instances=0, requests=0) == [AdviceKind.TOO_LITTLE], "nobody asked, so nobody is missed"
    assert kinds(lost=10) == [AdviceKind.LOST] and kinds(lost=4) == [] and kinds(waited=3) == []
