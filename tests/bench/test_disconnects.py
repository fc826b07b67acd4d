"""Ten thousand clients that leave at random points: nothing stays in flight, and the router grows by nothing.

``make bench ARGS=tests/bench/test_disconnects.py``; HEARTH_BENCH_CLIENTS changes how many. Clients, router and engines
share one process, so the memory is that of all three.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.dataplane.leaving import leave_at_random, mixed
from tests.dataplane.world import world

pytestmark = pytest.mark.bench
CLIENTS = int(os.environ.get("HEARTH_BENCH_CLIENTS", "10000"))
ROUNDS = 5


def test_clients_that_leave(capsys: pytest.CaptureFixture[str]) -> None:
    lines = asyncio.run(_rounds())
    with capsys.disabled():
        print("\n" + "\n".join(lines))


async def _rounds() -> list[str]:
    lines = ["clients  answered  left mid-answer  in flight at rest  seconds  MiB"]
    async with world(mixed, mixed, mixed) as here:
        for number in range(1, ROUNDS + 1):
            began = time.monotonic()
            answered = await leave_at_random(here, CLIENTS // ROUNDS)
            for engine in here.engines:
                engine.calls.clear()  # the test's own memory, not the router's
            left, resting = here.shared.counters.disconnected, sum(here.in_flight().values())
            assert resting == 0
            lines.append(
                f"{number * CLIENTS // ROUNDS:7}  {answered:8}  {left:15}  {resting:17}"
                f"  {time.monotonic() - began:7.1f}  {_resident():4.0f}"
            )
    return lines


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
