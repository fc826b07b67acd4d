"""What is odd about how a variant's requests are routed, with the figures that say so and what to do next. Pure.

Nothing is said of too little traffic, and nothing that the figures do not carry: an advice that is wrong once is never
read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from routing.domain.deciding import KEYED, Outcome
from routing.domain.keys import CHUNK
from routing.domain.policies import PREFIX_LENGTHS, THRESHOLDS, RoutingPolicy, RoutingStrategy

FEWEST = 100  # requests in the period
EVERYBODY = 0.9  # the part of the requests that makes a beginning everybody's
MUCH_OVERLAP, LOST_OVERLAP = 0.2, 0.15
MANY_SPILLED, MANY_KEYLESS, MANY_LOST = 0.2, 0.3, 0.005
LONGEST = "It is the longest that there is; let clients name a key (prompt_cache_key)."
Number = float | int | str | None


class AdviceKind(StrEnum):
    NO_INSTANCE = "NoInstanceIsReady"
    LOST = "RequestsAreLost"
    TOO_LITTLE = "TooLittleTraffic"
    SYSTEM_PROMPT = "PrefixLengthInsideSystemPrompt"
    ALL_HOT = "EveryBeginningIsEverybodys"
    OVERLAP = "OverlapIsLost"
    NOT_RECORDED = "OverlapIsUnknown"
    CACHE_OFF = "PrefixCacheIsOff"
    NOT_TOLD = "HitsAreNotTold"
    THRESHOLD = "ThresholdIsLow"
    NO_KEY = "NothingToKeyBy"
    ONE_INSTANCE = "OneInstance"


@dataclass(frozen=True, slots=True)
class Advice:
    """``figures`` are what it rests on. ``replay``: parameters of a replay to look at before anything is changed, empty
    where none helps. ``severity``: ``bad`` costs now, ``warn`` may, ``info`` says what is not known."""

    kind: AdviceKind
    severity: str
    sentence: str
    next_step: str
    figures: Mapping[str, Number] = field(default_factory=dict)
    replay: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a period of ``minutes``. ``under`` of its ``requests`` came while the policy that is in force was, and
    ``outcomes`` (by name) and ``hit_rate`` are theirs: what another strategy did says nothing of this one.
    ``caching_off``: names of engines that say that their prefix cache is off. Of the recorded requests, None without
    any: ``overlap``, the part of the text that had been sent before, and ``shares``, by depth the share of the most
    frequent beginning. ``waited`` had to wait for an instance, ``refused`` got none, ``lost`` are all that got no whole
    answer for no reason of their own."""

    policy: RoutingPolicy
    minutes: int
    instances: int
    requests: int
    under: int
    outcomes: Mapping[str, int]
    told: int
    hit_rate: float | None
    caching_off: Sequence[str] = ()
    recorded: int = 0
    overlap: float | None = None
    shares: Sequence[tuple[int, float]] = ()
    waited: int = 0
    refused: int = 0
    lost: int = 0


def advise(seen: Seen) -> tuple[Advice, ...]:
    """The worst first; nothing when nothing is odd."""
    gone = list(_lost(seen))
    if seen.requests < FEWEST:
        return (*gone, _too_little(seen))
    found = [*gone, *_engines(seen), *_new(seen), *_keys(seen), *_overlap(seen), *_threshold(seen)]
    return tuple(sorted(found, key=lambda one: ("bad", "warn", "info").index(one.severity)))


def _too_little(seen: Seen) -> Advice:
    return Advice(
        AdviceKind.TOO_LITTLE,
        "info",
        f"{_count(seen.requests, 'request')} in {seen.minutes} minutes: too little traffic to say anything.",
        f"Look at a longer time, or come back after {FEWEST} requests.",
        {"requests": seen.requests, "fewest": FEWEST},
    )


def _new(seen: Seen) -> Iterator[Advice]:
    if seen.under < FEWEST:
        yield Advice(
            AdviceKind.TOO_LITTLE,
            "info",
            f"{_count(seen.under, 'request')} came while this version of the policy was in force all the time: too "
            "little traffic to say what it does.",
            f"Come back after {FEWEST} requests.",
            {"requests": seen.under, "fewest": FEWEST},
        )


def _lost(seen: Seen) -> Iterator[Advice]:
    """Requests that nobody answers; said of any traffic, for each of them is one too many."""
    if seen.instances == 0 and (seen.waited or seen.refused):
        were = "was" if seen.refused == 1 else "were"
        yield Advice(
            AdviceKind.NO_INSTANCE,
            "bad",
            f"No instance is ready. In {seen.minutes} minutes {_count(seen.waited, 'request')} had to wait for one, "
            f"and {seen.refused:,} {were} refused because there was none.",
            "Look at the endpoint: what its instances wait for, and how many there should be.",
            {"waited": seen.waited, "refused": seen.refused, "instances": 0},
        )
    elif seen.lost and seen.lost >= MANY_LOST * (seen.requests + seen.refused):
        were = "was" if seen.lost == 1 else "were"
        yield Advice(
            AdviceKind.LOST,
            "bad",
            f"{_count(seen.lost, 'request')} of {seen.requests + seen.refused:,} {were} refused, failed or cut for no "
            "reason of their own.",
            "Look at what became of them under Refused and failed, and at the instances that failed.",
            {"lost": seen.lost, "refused": seen.refused, "requests": seen.requests},
        )


def _engines(seen: Seen) -> Iterator[Advice]:
    if seen.caching_off:
        names = ", ".join(seen.caching_off[:5]) + (" and others" if len(seen.caching_off) > 5 else "")
        yield Advice(
            AdviceKind.CACHE_OFF,
            "bad" if seen.policy.strategy is RoutingStrategy.PREFIX_AWARE else "warn",
            f"The prefix cache of {names} is off: whatever beginning a request shares is computed again.",
            "Start the engine with prefix caching (vLLM: --enable-prefix-caching).",
            {"engines": len(seen.caching_off), "instances": seen.instances},
        )
    if seen.told * 10 < seen.requests:
        yield Advice(
            AdviceKind.NOT_TOLD,
            "info",
            f"{_percent(seen.told / seen.requests)} of the answers say what came from a cache, so the hit rate is "
            + ("unknown." if not seen.told else "that of a few."),
            "Let the engine say it (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report).",
            {"told": seen.told, "requests": seen.requests},
        )
    if seen.instances == 1 and seen.policy.strategy is RoutingStrategy.PREFIX_AWARE:
        yield Advice(
            AdviceKind.ONE_INSTANCE,
            "info",
            "There is one instance, so every strategy gives it every request.",
            "PREFIX_AWARE helps from two instances on.",
            {"instances": 1},
        )


def _keys(seen: Seen) -> Iterator[Advice]:
    """The length of the prefix, and whether there is anything to make a key of. What is recorded was sent under any
    policy."""
    config = seen.policy.prefix_aware
    if config is None or seen.instances < 2:
        return
    universal = max((depth for depth, share in seen.shares if share >= EVERYBODY), default=0)
    hot = _part(seen, Outcome.ALL_HOT)
    figures = {"PrefixLength": config.prefix_length, "all_hot": round(hot, 4)}
    if universal and config.prefix_length <= universal:
        share = next(share for depth, share in seen.shares if depth == universal)
        length = _wanted_length(seen, universal)
        adaptive = seen.policy.extensions.adaptive_depth
        effect = "says where nothing belongs" if adaptive else "sends them all to one instance until it is full"
        yield Advice(
            AdviceKind.SYSTEM_PROMPT,
            "bad",
            f"Your PrefixLength of {config.prefix_length:,} covers only the system prompt that every request shares: "
            f"{_percent(share)} of {seen.recorded:,} recorded requests are alike to {universal:,} characters at least, "
            f"so the key {effect}.",
            f"Try a PrefixLength of {length:,}." if length > config.prefix_length else LONGEST,
            {**figures, "alike_to": universal, "share": round(share, 4), "recorded": seen.recorded},
            {"strategy": "PREFIX_AWARE", "prefix_length": length, "concurrency_threshold": config.concurrency_threshold,
             "adaptive_depth": "on"}
            if length > config.prefix_length
            else {},
        )  # fmt: skip
    elif hot >= MANY_KEYLESS:
        length = min(2 * config.prefix_length, PREFIX_LENGTHS[1])
        yield Advice(
            AdviceKind.ALL_HOT,
            "warn",
            f"Of {_percent(hot)} of the requests every beginning up to your PrefixLength of {config.prefix_length:,} "
            "is one that everybody sends: they go to the least busy instance, wherever their prefix is.",
            f"Try a PrefixLength of {length:,}." if length > config.prefix_length else LONGEST,
            figures,
            {"strategy": "PREFIX_AWARE", "prefix_length": length, "concurrency_threshold": config.concurrency_threshold}
            if length > config.prefix_length
            else {},
        )
    keyless = _part(seen, Outcome.NO_KEY)
    if keyless >= MANY_KEYLESS:
        yield Advice(
            AdviceKind.NO_KEY,
            "warn",
            f"{_percent(keyless)} of the requests have nothing to make a key of: no text, or no header that the policy "
            "names.",
            "Explain one of them to see how it is read.",
            {"no_key": round(keyless, 4), "requests": seen.under},
        )


def _part(seen: Seen, outcome: Outcome) -> float:
    """0 where too few requests say it."""
    return seen.outcomes.get(outcome, 0) / seen.under if seen.under >= FEWEST else 0.0


def _wanted_length(seen: Seen, universal: int) -> int:
    """The first depth at which no beginning is hot any more, and one CHUNK behind what all share at the least."""
    limit = seen.policy.extensions.hot_fraction / max(seen.instances, 1)
    found = next((depth for depth, share in seen.shares if depth > universal and share <= limit), 0)
    return min(max(found, universal + CHUNK), PREFIX_LENGTHS[1])


def _overlap(seen: Seen) -> Iterator[Advice]:
    """What a cache could have given and did not, under a strategy that does not look at prefixes."""
    if seen.policy.strategy is RoutingStrategy.PREFIX_AWARE or seen.instances < 2:
        return
    if seen.overlap is None:
        yield Advice(
            AdviceKind.NOT_RECORDED,
            "info",
            f"Under {seen.policy.strategy} requests are not looked into, so nobody knows how much of what is sent was "
            "sent before.",
            "Turn on the recording of keys: digests, no text, are kept for an hour, and strategies tried on them.",
            {"requests": seen.requests},
        )
        return
    lost = seen.overlap - (seen.hit_rate or 0.0)
    if seen.under < FEWEST or seen.overlap < MUCH_OVERLAP or lost < LOST_OVERLAP:
        return
    universal = max((depth for depth, share in seen.shares if share >= EVERYBODY), default=0)
    length = max(_wanted_length(seen, universal), 4 * CHUNK)
    had = "nobody knows what" if seen.hit_rate is None else _percent(seen.hit_rate)
    yield Advice(
        AdviceKind.OVERLAP,
        "warn",
        f"{_percent(seen.overlap)} of the text of {seen.recorded:,} recorded requests had been sent before, and "
        f"{had} came from a cache: under {seen.policy.strategy} requests with one beginning go everywhere.",
        f"Try PREFIX_AWARE with a PrefixLength of {length:,}.",
        {"overlap": round(seen.overlap, 4), "hit_rate": _rounded(seen.hit_rate), "recorded": seen.recorded},
        {"strategy": "PREFIX_AWARE", "prefix_length": length, "concurrency_threshold": 32, "adaptive_depth": "on"},
    )


def _threshold(seen: Seen) -> Iterator[Advice]:
    config = seen.policy.prefix_aware
    if config is None or seen.instances < 2:
        return
    of = {one: seen.outcomes.get(one, 0) for one in Outcome}
    spilled = of[Outcome.SIBLING] + of[Outcome.SPILL] + of[Outcome.SATURATED]
    keyed = sum(of[one] for one in KEYED)
    if keyed < FEWEST or spilled < MANY_SPILLED * keyed:
        return
    threshold = min(2 * config.concurrency_threshold, THRESHOLDS[1])
    full = of[Outcome.SATURATED] / keyed
    more = full > MANY_SPILLED or threshold == config.concurrency_threshold
    yield Advice(
        AdviceKind.THRESHOLD,
        "warn",
        f"{_percent(spilled / keyed)} of the requests with a key found their instance at your ConcurrencyThreshold of "
        f"{config.concurrency_threshold}, {_percent(full)} found all of them there: their prefix is computed again "
        "elsewhere.",
        ("Add instances: all of them are full." if full > MANY_SPILLED else "Add instances: no threshold is greater.")
        if more
        else f"Try a ConcurrencyThreshold of {threshold}, if engines compute that many side by side.",
        {"spilled": round(spilled / keyed, 4), "saturated": round(full, 4),
         "ConcurrencyThreshold": config.concurrency_threshold},
        {"instances": seen.instances + 1}
        if more
        else {"strategy": "PREFIX_AWARE", "prefix_length": config.prefix_length, "concurrency_threshold": threshold},
    )  # fmt: skip


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, 4)
