"""Load for benches of routers: bodies that share beginnings, and wrk that sends them and says what it took."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import debian_binary, debian_env

GROUPS, OF_A_GROUP, SHARED = 16, 4, 0.75  # of each body this part is its group's
_DONE = """
function done(summary, latency, requests)
    local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
    io.write(string.format("FIGURES %d %f %f %f %d\\n", summary.requests, summary.duration / 1e6,
        latency:percentile(50), latency:percentile(99), failed + summary.errors.status))
end
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one cell; times in microseconds."""

    rate: float
    p50: float
    p99: float
    requests: int
    failed: int


def bodies(kilobytes: float) -> list[bytes]:
    """Chats of about that size in groups with the same beginning, in an order that is no group's."""
    draws = random.Random(int(kilobytes * 10))
    size = int(kilobytes * 1024)
    made = []
    for _ in range(GROUPS):
        shared = _text(draws, int(size * SHARED))
        for _ in range(OF_A_GROUP):
            messages = [
                {"role": "system", "content": shared},
                {"role": "user", "content": _text(draws, max(16, size - len(shared) - 120))},
            ]
            made.append(json.dumps({"model": "bench", "messages": messages}).encode())
    draws.shuffle(made)
    return made


def _text(draws: random.Random, size: int) -> str:
    words = ("river", "stone", "lamp", "green", "seven", "north", "paper", "glass")
    text = ""
    while len(text) < size:
        text += draws.choice(words) + " "
    return text[:size]


def script(path: Path, kilobytes: float) -> Path:
    """What wrk runs: it sends one body after the other."""
    head = "POST /v1/chat/completions HTTP/1.1\\r\\nHost: bench\\r\\nContent-Type: application/json\\r\\n"
    lines = ["local requests = {}"]
    for body in bodies(kilobytes):
        framed = f'"{head}Content-Length: {len(body)}\\r\\n\\r\\n" .. [==[{body.decode()}]==]'
        lines.append(f"requests[#requests + 1] = {framed}")
    lines += ["local at = 0", "function request() at = at % #requests + 1; return requests[at] end", _DONE]
    path.write_text("\n".join(lines))
    return path


def unique_script(path: Path) -> Path:
    """What wrk runs: bodies of which no two begin alike. Its argument is the number of the first."""
    head = "POST /v1/chat/completions HTTP/1.1\\r\\nHost: bench\\r\\nContent-Type: application/json\\r\\n"
    path.write_text(f"""
local number, filling = 0, string.rep("x", 1100)
function init(args) number = tonumber(args[1]) end
function request()
    number = number + 1
    local body = string.format(
        '{{"model": "bench", "messages": [{{"role": "user", "content": "%012d%s"}}]}}', number, filling)
    return "{head}Content-Length: " .. #body .. "\\r\\n\\r\\n" .. body
end
{_DONE}""")
    return path


def measured(port: int, lua: Path, connections: int, seconds: float, *arguments: str) -> Figures:
    """One cell of wrk with one thread. Raises Missing where wrk cannot be had, RuntimeError when it fails."""
    command = [str(debian_binary("wrk")), "--threads", "1", "--connections", str(connections), "--timeout", "10s"]
    command += ["--duration", f"{max(1, round(seconds))}s", "--script", str(lua), f"http://127.0.0.1:{port}/"]
    command += ["--", *arguments] if arguments else []
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds * 3 + 60, env={**os.environ, **debian_env()}
    )
    line = next((line for line in ran.stdout.splitlines() if line.startswith("FIGURES ")), "")
    if not line:
        raise RuntimeError(f"wrk ended with {ran.returncode}: {(ran.stderr or ran.stdout)[-300:]}")
    requests, took, p50, p99, failed = (float(number) for number in line.split()[1:])
    return Figures(requests / took, p50, p99, int(requests), int(failed))
