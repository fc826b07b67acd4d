"""What strategies make of real requests, in virtual time: hit rate, balance, time to the first token.

``HEARTH_TRACE=/path/to/trace.jsonl make bench ARGS=tests/bench/test_affinity.py``; without a path a small made-up trace
shows that the bench runs, and nothing else. The engines are a model (routing.domain.engine_model), the decisions are
the routers' own functions. Peers are models of the rules that they document (tests.bench.peer_rules).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from statistics import fmean

import pytest

from routing.domain.engine_model import EngineShape
from routing.domain.placement import Member, Ranking, moved
from routing.domain.policies import RoutingPolicy, read_policy
from routing.domain.replaying import Recorded, Replay, Replayed
from tests.bench.peer_rules import ByRule, Rule, bounded_loads, cache_aware, prefix_hash, whole_body
from tests.bench.traces import from_file, recorded

pytestmark = pytest.mark.bench
SMALL = EngineShape(cache_blocks=240)  # holds a seventh of what the workloads send, and some
LONG = 32_768  # characters; covers what the workloads share and some of what they do not
CLIENTS = (32, 64, 128)
PEERS: dict[str, Callable[[Ranking], Rule]] = {
    "sglang-router, cache_aware": cache_aware,
    "vllm-router, consistent_hash": whole_body,
    "smg, prefix_hash": prefix_hash,
    "HAProxy, 2 KiB, 125 %": bounded_loads,
    "HAProxy, 2 KiB, 150 %": partial(bounded_loads, factor=1.5),
    "HAProxy, 4 KiB, 125 %": partial(bounded_loads, kilobytes=4),
    "HAProxy, 4 KiB, 150 %": partial(bounded_loads, kilobytes=4, factor=1.5),
}
SEVEN = [Member(f"pod-{number}") for number in range(7)]


def prefix(length: int, threshold: int, **extensions: object) -> RoutingPolicy:
    config = {"PrefixLength": length, "ConcurrencyThreshold": threshold}
    return read_policy({
        "RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": config, "RoutingExtensions": extensions
    })  # fmt: skip


RANDOM, PLAIN = read_policy({}), {"avoid_waits": False}
STRATEGIES = {
    "RANDOM": RANDOM,
    "LEAST_OUTSTANDING_REQUESTS": read_policy({"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}),
    "PREFIX_AWARE, T 32": prefix(8192, 32),
    "PREFIX_AWARE, T 16": prefix(8192, 16),
    "T 32, waits": prefix(8192, 32, **PLAIN),
    "T 16, waits": prefix(8192, 16, **PLAIN),
    "T 64, waits, U 2": prefix(8192, 64, unanswered_threshold=2, **PLAIN),
    "8192 exactly, T 32, waits": prefix(8192, 32, adaptive_depth=False, **PLAIN),
    "4096 exactly, T 32, waits": prefix(4096, 32, adaptive_depth=False, **PLAIN),
    "2048 exactly, T 32, waits": prefix(2048, 32, adaptive_depth=False, **PLAIN),
}


def trace() -> tuple[str, list[Recorded]]:
    if path := os.environ.get("HEARTH_TRACE"):
        return Path(path).name, from_file(Path(path), speed=1.5)
    return "made up (HEARTH_TRACE names a real one)", made(lambda draws, number: [0, draws.randrange(1, 400), -number])


def made(ids: Callable[[random.Random, int], list[int]], count: int = 3000, rate: float = 12.0) -> list[Recorded]:
    """Requests whose blocks ``ids`` names; each block four times as long as an id says."""
    return list(recorded(made_lines(ids, count, rate), prefix_length=LONG))


def made_lines(ids: Callable[[random.Random, int], list[int]], count: int = 3000, rate: float = 12.0) -> list[str]:
    """The same as lines of a trace."""
    draws, now, lines = random.Random(17), 0.0, []
    for number in range(1, count + 1):
        now += draws.expovariate(rate)
        chosen = [one * 10 + part for one in ids(draws, number) for part in range(4)]
        lines.append(json.dumps({
            "timestamp": now * 1000, "input_length": 512 * len(chosen), "output_length": draws.randrange(20, 400),
            "hash_ids": chosen,
        }))  # fmt: skip
    return lines


WORKLOADS: dict[str, Callable[[random.Random, int], list[int]]] = {
    "universal prefix": lambda draws, number: [0, 1, 2, draws.randrange(10, 400), number + 1000],
    "one hot prefix, 40 %": lambda draws, number: [0, 7 if draws.random() < 0.4 else number + 1000, number + 10**6],
    "all unique": lambda draws, number: [number + 1000],
    "multi-turn": lambda draws, number: [0, *([draws.randrange(10, 300)] * draws.randrange(1, 4))],
    "templates": lambda draws, number: [draws.randrange(1, 6), number + 1000],
    "retrieval": lambda draws, number: [0, int(draws.paretovariate(1.1)) + 10, number + 10**6],
}

# What sixteen setups are made of: kinds of traffic, of which each request has a part that is its own.
KINDS: dict[str, Callable[[random.Random, int], list[int]]] = {
    "retrieval": lambda draws, number: [0, min(int(draws.paretovariate(0.8)), 300) + 10, number + 10**6],
    "multi-turn": lambda draws, number: [0, *([draws.randrange(10, 150)] * draws.randrange(1, 6)), number + 10**6],
    "template": lambda draws, number: [0, (one := draws.randrange(1, 25)), one + 100, number + 10**6],
    "code": lambda draws, number: [0, (one := draws.randrange(1, 15)), one * 100 + draws.randrange(9), number + 10**6],
}
LENGTHS, LOADS = (16_384, LONG), (5.0, 10.0)  # characters; requests a second, of seven engines that bear eleven


def row(name: str, routers: int, one: Replayed) -> str:
    low, high = min(one.shares.values()), max(one.shares.values())
    return (
        f"{name:34} {routers:7} {one.hit_rate:7.1%} {low:6.1%}-{high:5.1%} {fmean(one.ttft):8.2f} "
        f"{one.ttft_at(0.5):7.2f} {one.ttft_at(0.99):7.2f} {one.most_in_flight:5}"
    )


HEAD = f"{'strategy':34} routers     hit        share     mean     p50     p99  most"


def test_strategies_on_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """PREFIX_AWARE as it comes, then without avoiding waits: with another threshold, a bound, an exact length."""
    name, requests = trace()
    lines = [f"trace: {name}, {len(requests)} requests, 7 modelled engines; seconds to the first token", HEAD]
    for strategy, policy in STRATEGIES.items():
        lines += [row(strategy, routers, Replay(policy, SEVEN, routers=routers).run(requests)) for routers in (1, 4, 8)]
    for peer, rule in PEERS.items():
        lines += [row(peer, routers, ByRule(rule, SEVEN, routers).run(requests)) for routers in (1, 4, 8)]
    keys = [one.boundaries[-1].digest for one in requests]
    lines.append(f"keys moved 7 to 8: {moved(SEVEN, [*SEVEN, Member('pod-7')], keys):.1%}")
    said(capsys, lines)


def test_as_much_as_seven_engines_bear(capsys: pytest.CaptureFixture[str]) -> None:
    """The same requests by so many clients of which each asks again as soon as it was answered."""
    _, requests = trace()
    lines = [f"{'strategy':34} clients  requests/s   mean TTFT, s     p99     hit"]
    for clients in CLIENTS:
        for strategy in list(STRATEGIES)[:3]:
            one, seconds = by_clients(Replay(STRATEGIES[strategy], SEVEN), requests, clients)
            figures = (
                f"{one.requests / seconds:11.2f} {fmean(one.ttft):14.2f} {one.ttft_at(0.99):7.2f} {one.hit_rate:7.1%}"
            )
            lines.append(f"{strategy:34} {clients:7} {figures}")
    said(capsys, lines)


def test_workloads_that_hurt(capsys: pytest.CaptureFixture[str]) -> None:
    """Each beside RANDOM on the same requests."""
    policies = {"RANDOM": RANDOM, "PREFIX_AWARE, 32768, T 32": prefix(LONG, 32)}
    policies["32768, T 32, waits"] = prefix(LONG, 32, **PLAIN)
    lines = ["workloads made to hurt; the first line of each is RANDOM", HEAD]
    for name, ids in WORKLOADS.items():
        requests = made(ids)
        lines.append(name)
        lines += [row(of, 1, run(policy, requests)) for of, policy in policies.items()]
        lines += [row(of, many, run(policies[of], requests, many)) for of in list(policies)[1:] for many in (4, 8)]
    said(capsys, lines)


def test_sixteen_setups(capsys: pytest.CaptureFixture[str]) -> None:
    """Kinds of traffic by prefix lengths by loads, each against RANDOM on the same requests."""
    lines = [
        "PREFIX_AWARE, T 32, against RANDOM on the same requests; as it comes with one, four and eight routers",
        f"{'traffic':11} length  load       hit rate      p50     p90     p99    mean  prefilled        share",
    ]
    for kind, ids in KINDS.items():
        for load in LOADS:
            requests = made(ids, rate=load)
            base = run(RANDOM, requests)
            for length in LENGTHS:
                for routers in (1, 4, 8):
                    one = run(prefix(length, 32), requests, routers)
                    lines.append(f"{kind:11} {length:6} {load:5g} {against(base, one)}")
    said(capsys, lines)


def against(base: Replayed, one: Replayed) -> str:
    """Hit rate from and to; times and tokens that were computed, by how much they are others."""
    times = [one.ttft_at(part) / base.ttft_at(part) - 1 for part in (0.5, 0.9, 0.99)]
    times += [fmean(one.ttft) / fmean(base.ttft) - 1, (1 - one.hit_rate) / (1 - base.hit_rate) - 1]
    low, high = min(one.shares.values()), max(one.shares.values())
    changes = " ".join(f"{change:+7.1%}" for change in times)
    return f"{base.hit_rate:6.1%} -> {one.hit_rate:5.1%}  {changes}  {low:6.1%}-{high:5.1%}"


def by_clients(replay: Replay, requests: Sequence[Recorded], clients: int) -> tuple[Replayed, float]:
    """And the seconds until the last of them was answered."""
    free = [0.0] * clients  # when each has its answer; a heap

    def asked() -> Iterator[Recorded]:
        for one in requests:
            yield replace(one, at=heappop(free))
            heappush(free, replay.ends_at)

    return replay.run(asked()), max(free)


def run(policy: RoutingPolicy, requests: Sequence[Recorded], routers: int = 1) -> Replayed:
    return Replay(policy, SEVEN, shape=SMALL, routers=routers).run(requests)


def said(capsys: pytest.CaptureFixture[str], lines: list[str]) -> None:
    with capsys.disabled():
        print("\n" + "\n".join(lines))
