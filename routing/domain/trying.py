"""Another strategy or membership on recorded requests, beside what happened: two runs of one model of engines.

What happened is run through the same engine model, each request where it really went, so that the difference of the
two columns is the strategy's, whatever the model gets wrong. The model's measures are taken from the recording where it
says enough.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from routing.domain.deciding import KEYED, SPILLED, Outcome
from routing.domain.engine_model import EngineModel, EngineShape
from routing.domain.figures import QUANTILES, fair_band, is_fair, told
from routing.domain.keys import CHUNK
from routing.domain.placement import Member
from routing.domain.policies import RoutingPolicy, RoutingStrategy
from routing.domain.recordings import DEEPEST, Kept, Recording
from routing.domain.replaying import Recorded, Replay, Replayed
from routing.domain.together import SAY_SECONDS

FEWEST = 20  # requests from which a measure of the model is taken
# Blocks that are tried for the cache of an engine: llama.cpp keeps one prompt in each of its few slots.
CACHES = (1, 2, 4, 8, 32, 128, 512, 2048, 8192)
TRIED_ON = 3000  # requests
EQUALLY = 0.01  # of the hit rate: sizes of the cache whose hits are no further from the nearest's fit as well as it
FARTHEST = 0.05  # of the hit rate, computed of what happened, from the measured one: the model says nothing beyond it
CHARACTERS_OF_A_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Column:
    """Of one run. ``hit_rate`` None where it is not told (see Trial). ``ttft`` in seconds: p50, p95, p99, None of too
    few requests. ``shares`` by instance, ``fair`` whether each is, None where too few requests were due to it; ``band``
    between which an even one is. ``spill`` and ``saturated``: of the requests with a key; None where the strategy has
    none."""

    hit_rate: float | None
    ttft: tuple[float | None, float | None, float | None]
    shares: dict[str, float]
    fair: dict[str, bool | None]
    band: tuple[float, float]
    spill: float | None
    saturated: float | None

    @property
    def outside(self) -> int | None:
        """Instances whose share is not fair; None where too few requests say nothing of any."""
        known = [one for one in self.fair.values() if one is not None]
        return sum(not one for one in known) if known else None


@dataclass(frozen=True, slots=True)
class Trial:
    """``measured_hit_rate`` is what answers said; ``happened`` and ``tried`` are the model's. ``sizes``: of the caches
    that fit what was measured equally well, in blocks; none where nothing was. ``widest``: happened and tried with the
    largest of them, where several fit. ``describes``: whether what is computed of what happened is as it was measured,
    None where nobody knows; where it is not, hit rates and times of what was tried are None.
    """

    requests: int
    passed: int
    seconds: float
    measured_hit_rate: float | None
    happened: Column
    tried: Column
    shape: EngineShape
    sizes: tuple[int, ...]
    widest: tuple[Column, Column] | None
    describes: bool | None
    assumptions: tuple[str, ...]


def members_of(current: Sequence[Member], count: int) -> tuple[Member, ...]:
    """``count`` instances: those that are there, in their order, and new ones beside them. Those that are away go."""
    kept = tuple(current[:count])
    return kept + tuple(Member(f"new-{number}") for number in range(1, count - len(kept) + 1))


def try_out(recording: Recording, policy: RoutingPolicy, members: Sequence[Member], routers: int) -> Trial:
    """``members`` is not empty. Both runs begin with empty caches."""
    requests = recording.requests
    shape, measured, sizes = measured_shape(requests)
    ready = ready_for(requests, shape)
    run, happened, tried = _both(recording, ready, policy, members, routers, shape)
    widest = None
    if len(sizes) > 1:
        _, *others = _both(recording, ready, policy, members, routers, replace(shape, cache_blocks=sizes[-1]))
        widest = others[0], others[1]
    said = measured_hit_rate(requests)
    describes = _describes(happened, said if sizes else None)
    if describes is False:
        tried, widest = _untold(tried), None
    return Trial(
        len(requests),
        recording.passed,
        recording.seconds,
        said,
        happened,
        tried,
        shape,
        sizes,
        widest,
        describes,
        (*_assumptions(recording, policy, shape, measured, sizes, routers), *_relieved(policy, run.outcomes)),
    )


def _both(
    recording: Recording,
    ready: Sequence[Recorded],
    policy: RoutingPolicy,
    members: Sequence[Member],
    routers: int,
    shape: EngineShape,
) -> tuple[Replayed, Column, Column]:
    """The run, what happened, and what was tried, with engines of ``shape``."""
    count = len(ready)
    run = Replay(policy, members, routers=routers, shape=shape).run(ready)
    spill, saturated = _parts(run.outcomes)
    whole = sum(one.weight for one in members) or 1.0
    due = {one.id: one.weight / whole for one in members}
    tried = Column(run.hit_rate, _ttft(run.ttft_at, count), run.shares, _fair(run.shares, due, count),
                   fair_band(1 / len(members), count), spill, saturated)  # fmt: skip
    return run, as_it_happened(recording.requests, ready, shape), tried


def _describes(happened: Column, measured: float | None) -> bool | None:
    if measured is None or happened.hit_rate is None:
        return None
    return abs(happened.hit_rate - measured) <= FARTHEST


def _untold(tried: Column) -> Column:
    """Where requests would go does not come from the model of the caches; what it would cost does."""
    return replace(tried, hit_rate=None, ttft=(None, None, None))


def measured_hit_rate(requests: Sequence[Kept]) -> float | None:
    """Of those whose answers said so; None when none did."""
    told = [one for one in requests if one.prompt_tokens and one.cached_tokens is not None]
    whole = sum(one.prompt_tokens or 0 for one in told)
    hits = sum(min(one.cached_tokens or 0, one.prompt_tokens or 0) for one in told)  # nobody has more than all of it
    return hits / whole if whole else None


def measured_shape(requests: Sequence[Kept]) -> tuple[EngineShape, bool, tuple[int, ...]]:
    """What the engines seem to be, with the smallest cache that fits; whether the requests said enough to tell how fast
    they are, otherwise the usual shape; and the sizes of caches that fit equally well."""
    sized = [one for one in requests if one.prompt_tokens and 0 < one.depth < DEEPEST]
    ratio = 1 / CHARACTERS_OF_A_TOKEN
    if len(sized) >= FEWEST:
        ratio = sum(one.prompt_tokens or 0 for one in sized) / sum(one.depth for one in sized)
    block_tokens = max(1, round(CHUNK * ratio))
    shape = EngineShape(block_tokens=block_tokens, tail=_tail(requests, block_tokens))
    prefill = [
        ((one.prompt_tokens - (one.cached_tokens or 0)) / one.ttft, one.prompt_tokens - (one.cached_tokens or 0))
        for one in requests
        if one.prompt_tokens and one.ttft and one.prompt_tokens > (one.cached_tokens or 0)
    ]
    decode = [
        (one.output_tokens - 1) / (one.seconds - one.ttft)
        for one in requests
        if one.output_tokens and one.output_tokens > 1 and one.ttft and one.seconds and one.seconds > one.ttft
    ]
    if len(prefill) < FEWEST or len(decode) < FEWEST:
        fitted, sizes = _fitted(requests, shape)
        return fitted, False, sizes
    rates = max(_weighted_median(prefill), 1.0), max(statistics.median(decode), 0.01)
    fitted, sizes = _fitted(requests, replace(shape, prefill_rate=rates[0], decode_rate=rates[1]))
    return fitted, True, sizes


def _tail(requests: Sequence[Kept], block_tokens: int) -> float:
    """How much of what follows its last whole block an engine held, too, in the median of the answers of those that
    held every whole block: beginnings that are shared seldom end at a block."""
    parts = []
    for one in requests:
        whole = sum(each.depth % CHUNK == 0 for each in one.boundaries) * block_tokens
        tokens = one.prompt_tokens or 0
        if one.cached_tokens is not None and 0 < whole <= one.cached_tokens and whole < tokens:
            parts.append(min((one.cached_tokens - whole) / (tokens - whole), 1.0))
    return statistics.median(parts) if len(parts) >= FEWEST else 0.0


def _weighted_median(found: Sequence[tuple[float, float]]) -> float:
    """Of values with their weights. How fast prompts are read is told by those of which much was read: where nearly all
    came from the cache, what else an answer takes is the most of its time."""
    half, passed = sum(weight for _, weight in found) / 2, 0.0
    for value, weight in sorted(found):
        passed += weight
        if passed >= half:
            return value
    return 0.0


def _fitted(requests: Sequence[Kept], shape: EngineShape) -> tuple[EngineShape, tuple[int, ...]]:
    """With the cache whose hits come nearest to the measured ones, the smallest of those that do so equally well; and
    all of their sizes, smallest first."""
    some = requests[:TRIED_ON]
    measured = measured_hit_rate(some)
    if measured is None or len(some) < FEWEST:
        return shape, ()
    ready = ready_for(some, shape)
    far = {}
    for blocks in CACHES:
        found = as_it_happened(some, ready, replace(shape, cache_blocks=blocks)).hit_rate or 0.0
        far[blocks] = abs(found - measured)
    sizes = tuple(blocks for blocks in CACHES if far[blocks] <= min(far.values()) + EQUALLY)
    return replace(shape, cache_blocks=sizes[0]), sizes


def ready_for(requests: Sequence[Kept], shape: EngineShape) -> list[Recorded]:
    """As the model takes them."""
    begun = requests[0].at if requests else 0.0
    per_unit = shape.block_tokens / CHUNK
    return [
        Recorded(
            at=one.at - begun,
            boundaries=one.boundaries,
            blocks=tuple(each.digest for each in one.boundaries if each.depth % CHUNK == 0),
            tokens=one.prompt_tokens or max(1, round(one.depth * per_unit)),
            output_tokens=one.output_tokens or 0,
            own=one.own,
        )
        for one in requests
    ]


def as_it_happened(requests: Sequence[Kept], ready: Sequence[Recorded], shape: EngineShape) -> Column:
    """Every request where it went."""
    engines: dict[str, EngineModel] = {}
    served = []
    for one, request in zip(requests, ready, strict=True):
        engine = engines.get(one.instance) or engines.setdefault(one.instance, EngineModel(shape))
        served.append(engine.serve(request.at, request.blocks, request.tokens, request.output_tokens))
    placed = Counter(one.instance for one in requests)
    spill, saturated = _parts(Counter(one.outcome for one in requests))
    times = sorted(one.ttft_seconds for one in served)
    tokens = sum(one.tokens for one in served)
    shares = {uid: count / len(requests) for uid, count in sorted(placed.items())}
    even = 1 / len(placed) if placed else 0.0
    return Column(
        sum(one.hit_tokens for one in served) / tokens if tokens else 0.0,
        _ttft(lambda part: _at(times, part), len(times)),
        shares,
        _fair(shares, dict.fromkeys(shares, even), len(requests)),
        fair_band(even, len(requests)),
        spill,
        saturated,
    )


def _ttft(at: Callable[[float], float], count: int) -> tuple[float | None, float | None, float | None]:
    p50, p95, p99 = (told(name, count, at(part)) for name, part in QUANTILES.items())
    return p50, p95, p99


def _fair(shares: Mapping[str, float], due: Mapping[str, float], requests: int) -> dict[str, bool | None]:
    return {uid: is_fair(share, due[uid], requests) for uid, share in shares.items()}


def _at(times: Sequence[float], part: float) -> float:
    return times[min(len(times) - 1, int(part * len(times)))] if times else 0.0


def _parts(outcomes: Mapping[Any, int]) -> tuple[float | None, float | None]:
    keyed = sum(outcomes.get(one, 0) for one in KEYED)
    if not keyed:
        return None, None
    return sum(outcomes.get(one, 0) for one in SPILLED) / keyed, outcomes.get(Outcome.SATURATED, 0) / keyed


def _relieved(policy: RoutingPolicy, outcomes: Mapping[Outcome, int]) -> Iterator[str]:
    keyed = sum(outcomes.get(one, 0) for one in KEYED)
    if keyed and policy.extensions.avoid_waits:
        yield (
            "An instance is passed over while clearly more waits there for the beginning of its answer than elsewhere "
            f"(avoid_waits): so were {outcomes.get(Outcome.RELIEF, 0) / keyed:.1%} of the requests with a key, and "
            f"{outcomes.get(Outcome.MOVED, 0) / keyed:.1%} went to where one of theirs had gone for that before."
        )


def _size_of_cache(shape: EngineShape, sizes: Sequence[int]) -> str:
    if not sizes:
        return (
            f"An engine's cache holds {shape.cache_blocks:,} beginnings of {CHUNK:,} characters: nobody said how many."
        )
    if len(sizes) == 1:
        return (
            f"An engine's cache holds {sizes[0]:,} beginnings of {CHUNK:,} characters: of the sizes that were tried, "
            "the one that comes nearest to the hits that were measured, by clearly more than any other."
        )
    return (
        f"How much an engine's cache holds is not determined by this traffic: from {sizes[0]:,} to {sizes[-1]:,} "
        f"beginnings of {CHUNK:,} characters fit the hits that were measured equally well. Where that makes a "
        "difference, figures are given from the one to the other."
    )


def _assumptions(
    recording: Recording,
    policy: RoutingPolicy,
    shape: EngineShape,
    measured: bool,
    sizes: Sequence[int],
    routers: int,
) -> Iterator[str]:
    whose = "as they were measured" if measured else "which are not measured: too few answers say how long they took"
    yield (
        "Both columns are computed by a model of an engine that begins empty and reads one prompt after the other: "
        f"{shape.prefill_rate:,.0f} prompt tokens and, for each request, {shape.decode_rate:,.0f} tokens a second, "
        f"{whose}. Times compare the two; they are no promise."
    )
    yield _size_of_cache(shape, sizes)
    yield (
        "An instance that came in that time begins empty, too. One that lost its cache and kept its name is not known, "
        "and counts as if it had kept both."
    )
    if shape.tail:
        yield (
            f"Where an engine holds every whole beginning of a prompt, it holds {shape.tail:.0%} of what follows, too: "
            "so much answers said in the median."
        )
    if recording.passed:
        whole = recording.passed + len(recording.requests)
        yield (
            f"{len(recording.requests):,} of {whole:,} requests were recorded. In a part of the traffic fewer "
            "beginnings meet again than in all of it, and engines are less busy."
        )
    config = policy.prefix_aware
    if config is not None and config.prefix_length % CHUNK:
        yield f"Digests were kept every {CHUNK:,} characters, so PrefixLength counts as the multiple below it."
    if policy.strategy is RoutingStrategy.PREFIX_AWARE and policy.extensions.key_header:
        yield "A key in a header counts where the policy of that time named the same header."
    if routers > 1:
        yield (
            f"{routers} router processes share the requests by chance, and tell each other what they have on their way "
            f"every {SAY_SECONDS:g} s."
        )
