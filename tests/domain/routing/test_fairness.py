"""What is said of few requests, and which share of them is fair."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from routing.domain.figures import LEAST_DUE, fair_band, is_fair, told


@pytest.mark.parametrize(("instances", "low", "high"), [(7, 0.133, 0.154), (1, 0.931, 1.0), (0, 0, 0)])
def test_the_band_of_very_many_requests_is_the_managed_features(instances: int, low: float, high: float) -> None:
    even = 1 / instances if instances else 0.0
    assert list(fair_band(even, 10**9)) == pytest.approx([low, high], abs=5e-4)


def test_the_fewer_requests_the_wider_it_is() -> None:
    widths = [high - low for low, high in (fair_band(1 / 7, count) for count in (10**6, 10**4, 10**3, 350))]
    assert widths == sorted(widths) and widths[0] == pytest.approx(0.149 / 7, abs=0.003)
    assert fair_band(0.5, 1) == (0.0, 1.0) and fair_band(0.3, 0) == pytest.approx((0.2793, 0.3234))


@pytest.mark.parametrize("instances", [2, 7, 20])
@pytest.mark.parametrize("each", [LEAST_DUE, 500])
def test_chance_alone_is_hardly_ever_called_unfair(instances: int, each: int) -> None:
    """Drawn by chance, as RANDOM draws: about one share of 370 lies outside, and the band has room beside that."""
    draws, outside, runs = random.Random(11), 0, 40
    for _ in range(runs):
        counts = Counter(draws.choices(range(instances), k=instances * each))
        whole = counts.total()
        outside += sum(is_fair(counts[one] / whole, 1 / instances, whole) is False for one in range(instances))
    assert outside <= runs * instances / 100


@pytest.mark.parametrize(("instances", "keys"), [(2, 10), (2, 40), (7, 70), (7, 700)])
def test_where_keys_are_placed_chance_alone_is_hardly_ever_called_unfair(instances: int, keys: int) -> None:
    """Ten thousand requests of a few prefixes, the most frequent of them twice as heavy as the others."""
    draws, outside, runs, count = random.Random(7), 0, 100, 10_000
    weights = [2 / (keys + 1), *[1 / (keys + 1)] * (keys - 1)]
    for _ in range(runs):
        shares = Counter[int]()
        for weight in weights:
            shares[draws.randrange(instances)] += round(weight * count)
        fair = [is_fair(shares[one] / shares.total(), 1 / instances, count, max(weights)) for one in range(instances)]
        outside += fair.count(False)
        assert (None in fair) is (1 / instances < 5 * max(weights))
    assert outside <= runs * instances / 100
    assert is_fair(0.662, 0.5, 3700) is False and is_fair(0.662, 0.5, 3700, 0.1) is True
    assert is_fair(0.5, 1 / 7, 10**6, 0.001) is False, "with many keys half of seven's share is no chance"


@pytest.mark.parametrize(
    ("share", "due", "requests", "fair"),
    [
        (0.20, 1 / 7, 3500, False),  # a hot one
        (0.10, 1 / 7, 3500, False),  # an idle one
        (0.16, 1 / 7, 350, True),  # the same could be chance
        (0.16, 1 / 7, 35000, False),
        (0.0, 0.5, 98, None),  # nobody knows of so few
        (0.0, 0.5, 100, False),
        (0.04, 0.02, 2000, None),  # it was hardly there
        (0.5, 0.0, 10**6, None),
    ],
)
def test_a_share_is_fair_or_not_or_nobody_can_tell(share: float, due: float, requests: int, fair: bool | None) -> None:
    assert is_fair(share, due, requests) is fair


@pytest.mark.parametrize(
    ("name", "count", "known"),
    [
        ("p50", 0, False),
        ("p50", 1, True),
        ("p95", 19, False),
        ("p95", 20, True),
        ("p99", 99, False),
        ("p99", 100, True),
    ],
)
def test_a_percentile_of_too_few_is_none(name: str, count: int, known: bool) -> None:
    assert (told(name, count, 0.5) is not None) == known
