"""``python -m tests.bench.routing``: what the router adds to a request, beside its peers, in interleaved rounds.

On one machine: wrk, two backends that answer at once, and one router between them at a time that works, each one
process (or what a peer starts). Every round measures every router in every cell, so that what else the machine does
falls on all of them. "Added" is against the same load sent to a backend directly, in the same round. Nothing here is a
network: figures compare routers, and are no promise. Seven minutes; as root, all of it may run before others (--nice).
``--prefixes 1000000`` sends as many beginnings that never come again through our router and looks at its memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.embedded.ports import free_ports
from tests.bench.loads import Figures, measured, script, unique_script
from tests.bench.peers import CACHE, ROOT, Missing, Router, debian_binary, debian_env, nginx_command, routers

ANSWER = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","status":"ok","choices":[{"index":0,'
    '"message":{"role":"assistant","content":"A short answer."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,'
    '"completion_tokens":4,"total_tokens":13},"model_path":"bench","is_generation":true,"data":[{"id":"bench"}]}'
)
DIRECT, OURS = "direct", "hearth"
LLM_ROUTERS = {"sglang-router", "vllm-router", "smg"}
_TICKS = os.sysconf("SC_CLK_TCK")

Cell = tuple[float, int]  # kilobytes of a body, connections


@dataclass(slots=True)
class Running:
    """One started router."""

    router: Router
    port: int
    process: subprocess.Popen[bytes]

    def tree(self) -> list[int]:
        """Its process and all below it."""
        children = defaultdict(list)
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children[int(fields[1])].append(int(path.parent.name))
        found = [self.process.pid]
        for pid in found:
            found += children[pid]
        return found

    def cpu_seconds(self) -> float:
        total = 0.0
        for pid in self.tree():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += (int(fields[11]) + int(fields[12])) / _TICKS
        return total

    def resident_mib(self) -> float:
        pages = 0
        for pid in self.tree():
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(slots=True)
class Results:
    """By router and cell, one entry for each round."""

    figures: dict[tuple[str, Cell], list[Figures]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[tuple[str, Cell], list[float]] = field(default_factory=lambda: defaultdict(list))
    resident: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # of the machine, at the start of each round

    def added(self, name: str, cell: Cell, of: str) -> float:
        """The median over rounds of what it took more than the direct way in the same round, in microseconds."""
        pairs = zip(self.figures[name, cell], self.figures[DIRECT, cell], strict=False)
        return float(statistics.median(getattr(one, of) - getattr(base, of) for one, base in pairs))

    def rate(self, name: str, cell: Cell) -> float:
        return statistics.median(one.rate for one in self.figures[name, cell])

    def cpu_microseconds(self, name: str, cell: Cell) -> float:
        return statistics.median(self.cpu[name, cell]) if self.cpu[name, cell] else 0.0


def started(stack: ExitStack, command: Sequence[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        list(command), cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    stack.callback(ended, process)
    preferred(process.pid, os.nice(0))
    return process


def preferred(pid: int, nice: int) -> None:
    """Where the system shares its cores among sessions first, a session needs to be told what its processes were."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def ended(process: subprocess.Popen[bytes]) -> None:
    """Its whole session: some peers start others."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
        if number is signal.SIGKILL:
            return


def answers(port: int, process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a chat goes through it within this time."""
    body = b'{"model":"bench","messages":[{"role":"user","content":"hello"}]}'
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                if b"A short answer." in answer.read():
                    return True
        except (OSError, ValueError):
            time.sleep(0.2)
    return False


def backends(stack: ExitStack, folder: Path) -> list[int]:
    """Two ports of one nginx that answers everything at once."""
    ports = free_ports(2)
    place = f"location / {{ default_type application/json; return 200 '{ANSWER}'; }}"
    servers = "\n".join(f"server {{ listen 127.0.0.1:{port}; {place} }}" for port in ports)
    command = nginx_command(debian_binary("nginx"), folder, servers)
    process = started(stack, command, debian_env(), folder / "log")
    for port in ports:
        if not answers(port, process, 20):
            raise RuntimeError(f"the backend does not answer: {(folder / 'log').read_text()[-300:]}")
    return ports


def run(options: argparse.Namespace) -> Results:
    results = Results()
    found, missing = routers()
    results.notes += [f"not measured: {one}" for one in missing]
    chosen = [one for one in found if not options.only or one.name in options.only]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-bench-")))
        ports = backends(stack, _made(root / "backends"))
        scripts = {size: script(root / f"{size}.lua", size) for size in options.bodies}
        running = []
        for router in chosen:
            folder = _made(root / router.name)
            port = free_ports(1)[0]
            process = started(stack, router.command(port, ports, folder), dict(router.env), folder / "log")
            if answers(port, process, options.patience):
                running.append(Running(router, port, process))
            else:
                said = (folder / "log").read_text(errors="replace")[-200:].strip().replace("\n", " | ")
                results.notes.append(f"not measured: {router.name} does not answer: {said}")
                ended(process)
        for one in running:
            measured(one.port, scripts[options.bodies[0]], options.connections[-1], 1)  # none is measured cold
        cells = [(size, connections) for size in options.bodies for connections in options.connections]
        for number in range(options.rounds):
            results.loads.append(os.getloadavg()[0])
            for cell in cells:
                _cell(results, cell, running, ports, scripts[cell[0]], options.seconds)
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr, flush=True)
        for one in running:
            results.resident[one.router.name] = one.resident_mib()
        ours = next((one for one in running if one.router.name == OURS), None)
        if ours is not None and options.prefixes:
            _remembers(results, ours, root, options.prefixes)
    return results


def _remembers(results: Results, ours: Running, folder: Path, prefixes: int) -> None:
    """What the router's memory is after so many beginnings that no other request has."""
    lua, sent, resident = unique_script(folder / "unique.lua"), 0, [(0, ours.resident_mib())]
    while sent < prefixes:
        sent += measured(ours.port, lua, 64, 5, f"{sent + 1}").requests
        resident.append((sent, ours.resident_mib()))
    shown = ", ".join(f"{mib:.1f} MiB after {count:,}" for count, mib in (resident[0], resident[1], resident[-1]))
    results.notes.append(f"memory by distinct prefixes: {shown}")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _cell(
    results: Results, cell: Cell, running: Sequence[Running], ports: Sequence[int], lua: Path, seconds: float
) -> None:
    results.figures[DIRECT, cell].append(measured(ports[0], lua, cell[1], seconds))
    for one in running:
        name = one.router.name
        before = one.cpu_seconds()
        figures = measured(one.port, lua, cell[1], seconds)
        results.figures[name, cell].append(figures)
        results.cpu[name, cell].append((one.cpu_seconds() - before) / max(1, figures.requests) * 1e6)
        if figures.failed:
            results.notes.append(f"{name}: {figures.failed} failed of {figures.requests} at {cell[1]} connections")


def table(results: Results, options: argparse.Namespace) -> list[str]:
    machine = f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        f"# {machine}; load {', '.join(f'{one:.1f}' for one in results.loads)}; nice {os.nice(0)}",
        f"# {' '.join(sys.argv)}; medians of {options.rounds} rounds of {options.seconds:g} s; times in µs",
        f"{'router':14} {'body':>6} {'conns':>5} {'p50':>8} {'added p50':>9} {'added p99':>9} {'req/s':>8}"
        f" {'CPU/req':>7} {'MiB':>5}",
    ]
    for cell in [(size, connections) for size in options.bodies for connections in options.connections]:
        lines += [_row(results, name, cell) for name in (DIRECT, *results.resident)]
    return [*lines, *_goals(results, options), *(f"# {note}" for note in dict.fromkeys(results.notes))]


def _row(results: Results, name: str, cell: Cell) -> str:
    p50 = statistics.median(one.p50 for one in results.figures[name, cell])
    row = f"{name:14} {cell[0]:4g}KB {cell[1]:5} {p50:8.0f}"
    if name == DIRECT:
        return f"{row} {'-':>9} {'-':>9} {results.rate(name, cell):8.0f} {'-':>7} {'-':>5}"
    return (
        f"{row} {results.added(name, cell, 'p50'):9.0f} {results.added(name, cell, 'p99'):9.0f}"
        f" {results.rate(name, cell):8.0f} {results.cpu_microseconds(name, cell):7.0f} {results.resident[name]:5.0f}"
    )


def _goals(results: Results, options: argparse.Namespace) -> list[str]:
    """The goal figures, where the cells that they are about were measured."""
    ours, peer = OURS, "sglang-router"
    if ours not in results.resident or peer not in results.resident or 8 not in options.bodies:
        return []
    lines = []
    if 1 in options.connections:
        part = results.added(ours, (8.0, 1), "p50") / max(1e-9, results.added(peer, (8.0, 1), "p50"))
        lines.append(f"goal: added p50, 8 KB, 1 connection: {part:.2f} of {peer}'s (at most 0.40)")
    if 16 in options.connections:
        part = results.rate(ours, (8.0, 16)) / results.rate(peer, (8.0, 16))
        lines.append(f"goal: req/s, 8 KB, 16 connections: {part:.2f} of {peer}'s (at least 1.30)")
    for connections in options.connections:
        added = {
            name: results.added(name, (8.0, connections), "p99")
            for name in (ours, *LLM_ROUTERS & results.resident.keys())
        }
        best = min((name for name in added if name != ours), key=lambda name: added[name])
        lines.append(
            f"goal: added p99, 8 KB, {connections} connections: {added[ours]:.0f} µs, {best}'s {added[best]:.0f}"
            " (no more than the best LLM router's)"
        )
    return lines


def markdown(results: Results, options: argparse.Namespace) -> list[str]:
    """The table as docs/benchmarks.md has it, one for each size of a body."""
    lines = list[str]()
    for size in options.bodies:
        heads = [f"added p50, {n}" for n in options.connections] + [f"req/s, {n}" for n in options.connections]
        lines += [
            "",
            f"| {size:g} KB | {' | '.join(heads)} | CPU µs/request | MiB |",
            "| --- |" + " ---: |" * (len(heads) + 2),
        ]
        for name, resident in results.resident.items():
            cells = [(size, connections) for connections in options.connections]
            added = [f"{results.added(name, cell, 'p50'):,.0f}" for cell in cells]
            rates = [f"{results.rate(name, cell):,.0f}" for cell in cells]
            cpu = " / ".join(f"{results.cpu_microseconds(name, cell):.0f}" for cell in cells)
            lines.append(f"| {name} | {' | '.join([*added, *rates, cpu])} | {resident:.0f} |")
    return lines


def document(results: Results, options: argparse.Namespace) -> dict[str, object]:
    """Everything that was measured, every round by itself."""
    return {
        "machine": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version(),
        "command": sys.argv, "rounds": options.rounds, "seconds": options.seconds, "loads": results.loads,
        "cells": [
            {
                "router": name, "kilobytes": cell[0], "connections": cell[1],
                "rounds": [dataclasses.asdict(one) for one in rounds], "cpu_microseconds": results.cpu[name, cell],
            }
            for (name, cell), rounds in results.figures.items()
        ],
        "resident_mib": results.resident, "goals": _goals(results, options), "notes": results.notes,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.routing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each cell in each round, whole ones")
    parser.add_argument("--bodies", type=float, nargs="+", default=[0.6, 8.0, 32.0], help="kilobytes")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--only", nargs="+", default=[], help="names of routers")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds until a router must answer")
    parser.add_argument("--nice", type=int, default=0, help="of everything that runs here; below 0 needs root")
    parser.add_argument("--prefixes", type=int, default=0, help="distinct ones, to look at our memory after them")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/benchmarks.md too")
    parser.add_argument("--json", type=Path, default=CACHE / "routing.json", help="where all figures go")
    options = parser.parse_args()
    preferred(os.getpid(), os.nice(options.nice))
    try:
        results = run(options)
        print("\n".join([*table(results, options), *(markdown(results, options) if options.markdown else [])]))
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document(results, options), indent=1))
        print(f"# every round: {options.json}")
    except Missing as why:
        print(f"Nothing was measured: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
